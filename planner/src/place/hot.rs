//! Hot-expert residency, calculated: what it would bring to divide each layer's experts into those that are chosen most
//! often, resident, and the rest on the CPU, both computed at once and added.
//!
//! The memory is what the decided placement gives to experts. Some layers keep all their experts there; what the others
//! give up holds the hottest experts of all of them. Times are those of the decode round's items, expected over the
//! counted choices. No plan does this yet: an item is one place. Not here: counting (`plan_format::routing`), the
//! placement that is carried out (`search.rs`). Next: `summary.rs`.

use super::search::{Decision, Query};
use super::weigh::Workload;
use crate::cost::is_expert;
use plan_format::program::ItemKind;
use plan_format::routing::{LayerHits, RoutingCounts};
use std::collections::BTreeMap;

/// Operators of a layer's experts whose fixed cost both parts pay.
const OPERATORS: f64 = 4.0;

/// What dividing layers would bring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotExperts {
    /// Layers whose experts are divided, and those that keep all of theirs resident.
    pub divided_layers: usize,
    /// Layers whose experts all stay resident.
    pub whole_layers: usize,
    /// Resident experts of divided layers.
    pub resident: usize,
    /// Share of the divided layers' choices that they serve.
    pub hit_rate: f64,
    /// A decode round as decided.
    pub decided_us: f64,
    /// The same with divided layers.
    pub divided_us: f64,
}

/// A layer's experts in the decode case.
struct Layer<'a> {
    hits: &'a LayerHits,
    expert_bytes: f64,
    is_resident: bool,
    /// What the layer's experts take as decided, on the CPU, on the GPU, and to cross to the CPU and back.
    now_us: f64,
    cpu_us: f64,
    gpu_us: f64,
    crossing_us: f64,
}

/// The best division under these counts, and under even ones of the same model. `None` where nothing can be divided:
/// no experts, none counted, none resident.
pub fn hot_experts(query: &Query<'_>, decision: &Decision, counts: &RoutingCounts) -> Option<HotExperts> {
    let layers = layers(query, decision, counts)?;
    let budget_bytes: f64 =
        layers.iter().filter(|layer| layer.is_resident).map(|l| l.expert_bytes * l.hits.hits.len() as f64).sum();
    if budget_bytes == 0.0 {
        return None;
    }
    let fixed_us = (OPERATORS * query.profile.latency.cpu_op_us, OPERATORS * query.profile.latency.gpu_op_us);
    // The flattest layers keep all their experts: their hottest ones bring least.
    let mut order: Vec<usize> = (0..layers.len()).collect();
    let steepness = |index: &usize| layers[*index].hits.share_of_hottest(layers[*index].hits.hits.len() / 4);
    order.sort_by(|a, b| steepness(a).total_cmp(&steepness(b)).then(a.cmp(b)));
    let decided_us = decision.best.decode.round_us;
    let now_us: f64 = layers.iter().map(|layer| layer.now_us).sum();
    let whole_max = layers.iter().filter(|layer| layer.is_resident).count();
    let divided = |whole: usize| {
        let (kept, rest) = order.split_at(whole);
        let all = |&index: &usize| layers[index].expert_bytes * layers[index].hits.hits.len() as f64;
        let left_bytes = budget_bytes - kept.iter().map(all).sum::<f64>();
        let hottest = hottest(&layers, rest, left_bytes);
        let kept_us: f64 = kept.iter().map(|&index| layers[index].gpu_us).sum();
        let time = |&index: &usize| layers[index].divided_us(hottest[&index].1, fixed_us);
        let (divided_us, chosen): (f64, f64) = (rest.iter().map(time).sum(), rest.len() as f64);
        HotExperts {
            divided_layers: rest.len(),
            whole_layers: whole,
            resident: hottest.values().map(|(count, _)| count).sum(),
            hit_rate: hottest.values().map(|(_, share)| share).sum::<f64>() / chosen.max(1.0),
            decided_us,
            divided_us: decided_us - now_us + kept_us + divided_us,
        }
    };
    (0..=whole_max).map(divided).min_by(|a, b| a.divided_us.total_cmp(&b.divided_us))
}

/// Counts of the same layers in which all experts are chosen alike.
pub fn even(counts: &RoutingCounts) -> RoutingCounts {
    let alike =
        |layer: &LayerHits| LayerHits { hits: vec![u64::from(layer.chosen); layer.hits.len()], ..layer.clone() };
    RoutingCounts { layers: counts.layers.iter().map(alike).collect() }
}

/// The division in words, with what it would be if all experts were chosen alike.
pub fn line(query: &Query<'_>, decision: &Decision, counts: &RoutingCounts) -> Option<String> {
    let found = hot_experts(query, decision, counts)?;
    let alike = hot_experts(query, decision, &even(counts))?;
    let ms = |us: f64| us / 1000.0;
    let bought = |of: &HotExperts| 100.0 * (1.0 - of.divided_us / of.decided_us).max(0.0);
    Some(format!(
        "hot experts (calculated, no plan divides them yet): {} resident in {} layers would serve {:.0} % of their \
         choices; decode {:.1} ms instead of {:.1} ({:.0} % less; {:.0} % less if all were chosen alike)\n",
        found.resident,
        found.divided_layers,
        100.0 * found.hit_rate,
        ms(found.divided_us),
        ms(found.decided_us),
        bought(&found),
        bought(&alike),
    ))
}

fn layers<'a>(query: &Query<'_>, decision: &Decision, counts: &'a RoutingCounts) -> Option<Vec<Layer<'a>>> {
    let Query { problem, .. } = query;
    let best = &decision.best;
    let ubatch_tokens = problem.ubatches.get(best.candidate.ubatch)?.ubatch_tokens;
    let (case, _) = Workload::new(problem, ubatch_tokens)?.decode;
    let (costs, cpu_us) = (&problem.costs.cases[case], problem.cpu_us(case, best.decode.team));
    let mut found: BTreeMap<u32, Layer<'a>> = BTreeMap::new();
    for (index, item) in problem.items.iter().enumerate() {
        let Some(hits) = item.layer.and_then(|layer| counts.layer(layer)) else { continue };
        let layer = found.entry(hits.layer).or_insert(Layer {
            hits,
            expert_bytes: 0.0,
            is_resident: true,
            now_us: 0.0,
            cpu_us: 0.0,
            gpu_us: 0.0,
            crossing_us: 0.0,
        });
        let cost = &costs.items[index];
        match item.kind {
            ItemKind::Router => layer.crossing_us += f64::from(cost.to_cpu_us),
            ItemKind::ExpertsOutput => layer.crossing_us += f64::from(cost.to_gpu_us),
            _ => {}
        }
        if is_expert(item.kind) {
            let (cpu_us, gpu_us) = (f64::from(cpu_us[index]), f64::from(cost.gpu_us));
            let is_streamed = best.decode.promoted.contains(&(index as u32));
            let is_resident = best.candidate.resident[index];
            layer.is_resident &= is_resident;
            layer.expert_bytes += item.weight_bytes as f64 / hits.hits.len().max(1) as f64;
            layer.now_us += match (is_resident, is_streamed) {
                (true, _) => gpu_us,
                (false, true) => cpu_us.min(gpu_us + f64::from(cost.stream_us)),
                (false, false) => cpu_us,
            };
            (layer.cpu_us, layer.gpu_us) = (layer.cpu_us + cpu_us, layer.gpu_us + gpu_us);
        }
    }
    let layers: Vec<Layer<'a>> = found.into_values().filter(|layer| layer.expert_bytes > 0.0).collect();
    (!layers.is_empty()).then_some(layers)
}

/// How many experts of each of these layers are resident, and the share of the layer's choices that they serve: the
/// most often chosen per byte first, until the memory is full.
fn hottest(layers: &[Layer<'_>], of: &[usize], budget_bytes: f64) -> BTreeMap<usize, (usize, f64)> {
    let mut candidates: Vec<(f64, usize, u64)> = Vec::new();
    for &index in of {
        let layer = &layers[index];
        let worth = |&hits: &u64| (hits as f64 / layer.hits.tokens() / layer.expert_bytes, index, hits);
        candidates.extend(layer.hits.hits.iter().map(worth));
    }
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut kept: BTreeMap<usize, (usize, f64)> = of.iter().map(|&index| (index, (0, 0.0))).collect();
    let mut left_bytes = budget_bytes;
    for (_, index, hits) in candidates {
        let layer = &layers[index];
        if left_bytes >= layer.expert_bytes
            && let Some((count, share)) = kept.get_mut(&index)
        {
            left_bytes -= layer.expert_bytes;
            *count += 1;
            *share += hits as f64 / layer.hits.tokens() / f64::from(layer.hits.chosen);
        }
    }
    kept
}

impl Layer<'_> {
    /// Both parts at once, each with its share of the choices and all of its fixed cost; a layer that was resident
    /// crosses to the CPU and back besides.
    fn divided_us(&self, share: f64, (cpu_fixed_us, gpu_fixed_us): (f64, f64)) -> f64 {
        let part = |all_us: f64, fixed_us: f64, share: f64| {
            let fixed_us = fixed_us.min(all_us);
            if share < 1e-9 { 0.0 } else { fixed_us + (all_us - fixed_us) * share }
        };
        let (cpu_us, gpu_us) = (part(self.cpu_us, cpu_fixed_us, 1.0 - share), part(self.gpu_us, gpu_fixed_us, share));
        let crossing_us = if self.is_resident && cpu_us > 0.0 { self.crossing_us } else { 0.0 };
        cpu_us.max(gpu_us) + crossing_us
    }
}
