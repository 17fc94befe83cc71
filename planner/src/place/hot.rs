//! Hot-expert residency: a layer's experts that are chosen most often resident, the rest on the host, both computed at
//! once and added. A candidate beside the undivided placements: it wins only where it is predicted to be faster.
//!
//! Which experts are hot comes from a calculation over the counts: the memory that the decided placement gives to
//! experts holds whole layers, those with the flattest choices, and the hottest experts of the others. What that is
//! worth is then not calculated but planned: the program is divided (`divide.rs`), priced and placed like any other,
//! with a few sizes of the hot part, and layers whose parts end in one place become whole again. Not here: counting
//! (`plan_format::routing`). Next: `divide.rs`, `summary.rs`.

use super::divide::{Division, divide};
use super::memory::Budget;
use super::search::{Decision, Query, decide};
use super::weigh::Workload;
use crate::cost::{Demand, Problem, is_expert, price};
use crate::profile::Profile;
use plan_format::program::{ItemKind, Program};
use plan_format::routing::{LayerHits, RoutingCounts};
use plan_format::schedule::Home;
use plan_format::sizes::experts_in;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Operators of a layer's experts whose fixed cost both parts pay.
const OPERATORS: f64 = 4.0;
/// Parts of the experts' memory that divided layers are tried with: dividing takes some for itself.
const SHARES: [f64; 4] = [1.0, 0.95, 0.85, 0.7];
/// Share of the workload's time from which on dividing pays for being more to run.
const GAIN_LEAST: f64 = 0.01;

/// What dividing layers brings, as planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotExperts {
    /// Layers whose experts lie in two places.
    pub divided_layers: usize,
    /// Resident experts of these layers.
    pub resident: usize,
    /// Share of all choices of experts that resident ones serve, with divided layers and without.
    pub hit_rate: [f64; 2],
    /// A decode round, with divided layers and without.
    pub decode_us: [f64; 2],
    /// The workload, with divided layers and without.
    pub total_us: [f64; 2],
}

impl HotExperts {
    /// Whether divided layers are the better plan.
    pub fn pays(&self) -> bool {
        self.divided_layers > 0 && self.total_us[0] < self.total_us[1] * (1.0 - GAIN_LEAST)
    }
}

/// The best divided plan under the counts, and what the counts are worth: the same with experts that are chosen alike.
/// `None` where no division was worth planning.
#[derive(Clone, Debug, PartialEq)]
pub struct HotReport {
    /// Under the counts.
    pub counted: Option<HotExperts>,
    /// If all experts were chosen alike.
    pub alike: Option<HotExperts>,
}

/// What is planned: everything but the program.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The program, not divided.
    pub program: &'a Program,
    /// The machine, with counts.
    pub profile: &'a Profile,
    /// The workload.
    pub demand: &'a Demand,
    /// The ceilings.
    pub budget: Budget,
}

/// A program with divided layers, priced and placed.
#[derive(Clone, Debug)]
pub struct Divided {
    /// The program.
    pub program: Program,
    /// Priced.
    pub problem: Problem,
    /// Placed.
    pub decision: Decision,
    divisions: Vec<Division>,
}

/// A layer's experts in the decode case.
struct Layer<'a> {
    hits: &'a LayerHits,
    expert_bytes: f64,
    is_resident: bool,
    /// What the layer's experts take on the CPU, on the GPU, and to cross to the CPU and back.
    cpu_us: f64,
    gpu_us: f64,
    crossing_us: f64,
}

/// The best plan with divided layers, whether or not it beats `base`, the decision for the undivided program. `None`
/// where nothing can be divided: no experts, none counted, no room for any, or the machine cannot run it.
pub fn search(ask: &Ask<'_>, base: (&Problem, &Decision)) -> Option<(Divided, HotExperts)> {
    let counts = ask.profile.routing.as_ref()?;
    let query = Query { problem: base.0, profile: ask.profile, budget: ask.budget };
    let mut tried: Vec<Vec<Division>> = Vec::new();
    for divisions in SHARES.iter().filter_map(|&share| divisions(&query, base.1, counts, share)) {
        if !divisions.is_empty() && !tried.contains(&divisions) {
            tried.push(divisions);
        }
    }
    let found: Vec<Divided> = tried.into_par_iter().filter_map(|divisions| ask.planned(divisions)).collect();
    let better = |best: Divided, next: Divided| if next.total_us() < best.total_us() { next } else { best };
    let best = ask.settled(found.into_iter().reduce(better)?);
    if best.divisions.is_empty() {
        return None;
    }
    let (program, decision) = (&best.program, &best.decision);
    let resident = best.divisions.iter().map(|division| division.hot.len()).sum();
    let found = HotExperts {
        divided_layers: best.divisions.len(),
        resident,
        hit_rate: [hit_rate(program, &decision.best.homes, counts), hit_rate(ask.program, &base.1.best.homes, counts)],
        decode_us: [decision.best.decode.round_us, base.1.best.decode.round_us],
        total_us: [best.total_us(), base.1.best.total_us],
    };
    Some((best, found))
}

/// What dividing would bring if all experts were chosen alike. `None` as [`search`].
pub fn alike(ask: &Ask<'_>) -> Option<HotExperts> {
    let counts = even(ask.profile.routing.as_ref()?);
    let profile = Profile { routing: Some(counts), ..ask.profile.clone() };
    let ask = Ask { profile: &profile, ..*ask };
    let problem = price(ask.program, &profile, ask.demand).ok()?;
    let decision = decide(&Query { problem: &problem, profile: &profile, budget: ask.budget }).ok()?;
    search(&ask, (&problem, &decision)).map(|(_, found)| found)
}

/// Counts of the same layers in which all experts are chosen alike.
pub fn even(counts: &RoutingCounts) -> RoutingCounts {
    let alike =
        |layer: &LayerHits| LayerHits { hits: vec![u64::from(layer.chosen); layer.hits.len()], ..layer.clone() };
    RoutingCounts { layers: counts.layers.iter().map(alike).collect() }
}

/// Share of the counted choices that resident experts serve.
pub fn hit_rate(program: &Program, homes: &[Home], counts: &RoutingCounts) -> f64 {
    let (mut served, mut all) = (0.0, 0.0);
    for (item, home) in program.items.iter().zip(homes).filter(|(item, _)| item.kind == ItemKind::ExpertsInput) {
        let Some(hits) = item.layer.and_then(|layer| counts.layer(layer)) else { continue };
        let Some(&weight) = item.weights.first() else { continue };
        let experts = hits.hits.len() as u32;
        let choices = match program.weights[weight.index()].experts() {
            Some(held) => hits.of(experts_in(held), 1).1,
            None => hits.of(0..experts, 1).1,
        };
        all += choices;
        served += if *home == Home::Resident { choices } else { 0.0 };
    }
    if all > 0.0 { served / all } else { 0.0 }
}

/// What was found in words: the hit rate and what it buys, with the counted skew and without any.
pub fn line(report: &HotReport) -> String {
    let HotReport { counted, alike } = report;
    let percent = |share: f64| 100.0 * share;
    let bought = |of: &HotExperts| {
        let [with, without] = of.decode_us.map(|us| us / 1000.0);
        let less = percent(1.0 - of.total_us[0] / of.total_us[1]);
        let change = if less >= 0.0 { format!("{less:.1} % less") } else { format!("{:.1} % more", -less) };
        format!("decode {with:.2} ms instead of {without:.2}, {change} time for the workload")
    };
    let Some(counted) = counted else {
        return "hot experts: the counts give no reason to divide a layer\n".to_owned();
    };
    let done = if counted.pays() { "hot experts:" } else { "hot experts do not pay and no layer is divided:" };
    let alike = alike.as_ref().map_or_else(
        || "; without skew there is no reason to divide a layer".to_owned(),
        |alike| format!("; without skew they serve {:.0} %, {}", percent(alike.hit_rate[0]), bought(alike)),
    );
    format!(
        "{done} {} resident in {} divided layers; resident experts serve {:.0} % of the choices instead of {:.0} %, \
         {}{alike}\n",
        counted.resident,
        counted.divided_layers,
        percent(counted.hit_rate[0]),
        percent(counted.hit_rate[1]),
        bought(counted),
    )
}

impl Divided {
    fn total_us(&self) -> f64 {
        self.decision.best.total_us
    }

    /// The divisions whose parts are in two places: the hot experts resident, the others not.
    fn in_two_places(&self) -> Vec<Division> {
        let homes = &self.decision.best.homes;
        let is_hot = |hot: &[u32], item: &plan_format::program::Item| {
            let held = item.weights.first().and_then(|weight| self.program.weights[weight.index()].experts());
            held.is_some_and(|held| experts_in(held).eq(hot.iter().copied()))
        };
        let useful = |division: &&Division| {
            let items = self.program.items.iter().zip(homes);
            let items = items.filter(|(item, _)| item.layer == Some(division.layer) && is_expert(item.kind));
            let (hot, cold): (Vec<_>, Vec<_>) = items.partition(|(item, _)| is_hot(&division.hot, item));
            let resident = |(_, home): &(_, &Home)| **home == Home::Resident;
            hot.iter().all(resident) && !cold.iter().all(resident)
        };
        self.divisions.iter().filter(useful).cloned().collect()
    }
}

impl Ask<'_> {
    fn planned(&self, divisions: Vec<Division>) -> Option<Divided> {
        let program = divide(self.program, &divisions).ok()?;
        let problem = price(&program, self.profile, self.demand).ok()?;
        let decision = decide(&Query { problem: &problem, profile: self.profile, budget: self.budget }).ok()?;
        Some(Divided { program, problem, decision, divisions })
    }

    /// Without the divisions that the placement has no use for, as long as that is not slower.
    fn settled(&self, mut best: Divided) -> Divided {
        loop {
            let useful = best.in_two_places();
            if useful.len() == best.divisions.len() {
                return best;
            }
            match self.planned(useful) {
                Some(next) if next.total_us() <= best.total_us() => best = next,
                _ => return best,
            }
        }
    }
}

/// The layers to divide, and their hot experts, if a share of the memory that the decision gives to experts is theirs.
fn divisions(query: &Query<'_>, decision: &Decision, counts: &RoutingCounts, share: f64) -> Option<Vec<Division>> {
    let layers = layers(query, decision, counts)?;
    let resident = query.problem.items.iter().zip(&decision.best.candidate.resident);
    let experts = resident.filter(|(item, resident)| **resident && is_expert(item.kind));
    let budget_bytes = share * experts.map(|(item, _)| item.weight_bytes as f64).sum::<f64>();
    if budget_bytes == 0.0 {
        return None;
    }
    let fixed_us = (OPERATORS * query.profile.latency.cpu_op_us, OPERATORS * query.profile.latency.gpu_op_us);
    // The flattest layers keep all their experts: their hottest ones bring least.
    let mut order: Vec<usize> = (0..layers.len()).collect();
    let steepness = |index: &usize| layers[*index].hits.share_of_hottest(layers[*index].hits.hits.len() / 4);
    order.sort_by(|a, b| steepness(a).total_cmp(&steepness(b)).then(a.cmp(b)));
    let whole_max = layers.iter().filter(|layer| layer.is_resident).count();
    let divided = |whole: usize| {
        let (kept, rest) = order.split_at(whole);
        let left_bytes = budget_bytes - kept.iter().map(|&index| layers[index].bytes()).sum::<f64>();
        let hottest = hottest(&layers, rest, left_bytes.max(0.0));
        let kept_us: f64 = kept.iter().map(|&index| layers[index].gpu_us).sum();
        let time = |&index: &usize| layers[index].divided_us(&hottest[&index], fixed_us);
        (kept_us + rest.iter().map(time).sum::<f64>(), hottest)
    };
    let (_, hottest) = (0..=whole_max).map(divided).min_by(|a, b| a.0.total_cmp(&b.0))?;
    let division = |(index, hot): (usize, Vec<u32>)| Division { layer: layers[index].hits.layer, hot };
    let is_part = |division: &Division| !division.hot.is_empty() && division.hot.len() < layers[0].hits.hits.len();
    Some(hottest.into_iter().map(division).filter(is_part).collect())
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
        let (expert_bytes, is_resident, cpu, gpu_us, crossing_us) = (0.0, true, 0.0, 0.0, 0.0);
        let new = Layer { hits, expert_bytes, is_resident, cpu_us: cpu, gpu_us, crossing_us };
        let layer = found.entry(hits.layer).or_insert(new);
        let cost = &costs.items[index];
        match item.kind {
            ItemKind::Router => layer.crossing_us += f64::from(cost.to_cpu_us),
            ItemKind::ExpertsOutput => layer.crossing_us += f64::from(cost.to_gpu_us),
            _ => {}
        }
        if is_expert(item.kind) {
            layer.is_resident &= best.candidate.resident[index];
            layer.expert_bytes += item.weight_bytes as f64 / hits.hits.len().max(1) as f64;
            layer.cpu_us += f64::from(cpu_us[index]);
            layer.gpu_us += f64::from(cost.gpu_us);
        }
    }
    let layers: Vec<Layer<'a>> = found.into_values().filter(|layer| layer.expert_bytes > 0.0).collect();
    (!layers.is_empty()).then_some(layers)
}

/// The resident experts of each of these layers: the most often chosen per byte first, until the memory is full.
fn hottest(layers: &[Layer<'_>], of: &[usize], budget_bytes: f64) -> BTreeMap<usize, Vec<u32>> {
    let mut candidates: Vec<(f64, usize, u32)> = Vec::new();
    for &index in of {
        let layer = &layers[index];
        let worth = |hits: u64| hits as f64 / layer.hits.tokens() / layer.expert_bytes;
        let all = layer.hits.hits.iter().zip(0..);
        candidates.extend(all.map(|(&hits, expert)| (worth(hits), index, expert)));
    }
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut kept: BTreeMap<usize, Vec<u32>> = of.iter().map(|&index| (index, Vec::new())).collect();
    let mut left_bytes = budget_bytes;
    for (_, index, expert) in candidates {
        if left_bytes >= layers[index].expert_bytes
            && let Some(hot) = kept.get_mut(&index)
        {
            left_bytes -= layers[index].expert_bytes;
            hot.push(expert);
        }
    }
    kept.values_mut().for_each(|hot| hot.sort_unstable());
    kept
}

impl Layer<'_> {
    fn bytes(&self) -> f64 {
        self.expert_bytes * self.hits.hits.len() as f64
    }

    /// Both parts at once, each with its share of the choices and all of its fixed cost; a layer that was resident
    /// crosses to the CPU and back besides.
    fn divided_us(&self, hot: &[u32], (cpu_fixed_us, gpu_fixed_us): (f64, f64)) -> f64 {
        let share = self.hits.of(hot.iter().copied(), 1).1 / f64::from(self.hits.chosen.max(1));
        let part = |all_us: f64, fixed_us: f64, share: f64| {
            let fixed_us = fixed_us.min(all_us);
            if share < 1e-9 { 0.0 } else { fixed_us + (all_us - fixed_us) * share }
        };
        let (cpu_us, gpu_us) = (part(self.cpu_us, cpu_fixed_us, 1.0 - share), part(self.gpu_us, gpu_fixed_us, share));
        let crossing_us = if self.is_resident && cpu_us > 0.0 { self.crossing_us } else { 0.0 };
        cpu_us.max(gpu_us) + crossing_us
    }
}
