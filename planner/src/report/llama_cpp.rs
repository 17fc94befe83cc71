//! A plan as llama.cpp's flags, for people who stay there: the closest placement that they can say, and in words what
//! is lost. Flags are those of its command-line tools (`llama-server`, `llama-cli`) in build b11434. Pure.
//!
//! There, `-ngl N` puts the head and the last N - 1 layers on the GPU, caches with their layers, and `-ot` moves single
//! tensors either way.

use super::palette::phase_name;
use super::regimes::{ms, streamed_mib};
use super::svg::number;
use super::view::View;
use crate::place::held;
use plan_format::artifact::{KvType, Plan};
use plan_format::program::{Item, ItemKind};
use plan_format::schedule::{Home, Phase, Schedule};
use plan_format::text::bytes_text;
use plan_format::workload;
use std::collections::{BTreeMap, BTreeSet};

/// Flags and what they cannot say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Flags in order, each with its value if it has one.
    pub flags: Vec<(&'static str, Option<String>)>,
    /// What the plan has and they have not.
    pub lost: Vec<String>,
}

impl Export {
    /// The flags as a shell takes them.
    pub fn shell(&self) -> String {
        let word = |(flag, value): &(&str, Option<String>)| match value {
            Some(value) if value.chars().all(|c| c.is_ascii_alphanumeric() || c == '.') => format!("{flag} {value}"),
            Some(value) => format!("{flag} '{value}'"),
            None => (*flag).to_owned(),
        };
        self.flags.iter().map(word).collect::<Vec<_>>().join(" ")
    }
}

/// Smallest logical batch; a larger one changes nothing but how prompts are cut.
const BATCH_TOKENS: u32 = 2048;

/// The closest flags.
pub fn export(plan: &Plan) -> Export {
    let options = &plan.origin.options;
    let mut export = Export { flags: Vec::new(), lost: Vec::new() };
    placement(plan, &mut export);
    let ubatch = options.limits.ubatch_tokens;
    export.set("-c", options.context_tokens);
    export.set("-b", ubatch.max(BATCH_TOKENS));
    export.set("-ub", ubatch);
    if let Some(decode) = idle(plan, Phase::Decode) {
        export.set("-t", decode.cpu_threads);
    }
    if let Some(prefill) = prefill(plan).and_then(|phase| idle(plan, phase)) {
        export.set("-tb", prefill.cpu_threads);
    }
    export.set("-fa", "on");
    let cache = match options.kv_type {
        KvType::F16 => "f16",
        KvType::F32 => "f32",
    };
    export.set("-ctk", cache);
    export.set("-ctv", cache);
    // Weights read into memory stream faster than the file's mapped pages.
    export.set("-lm", "none");
    losses(plan, &mut export);
    export
}

impl Export {
    fn set(&mut self, flag: &'static str, value: impl ToString) {
        self.flags.push((flag, Some(value.to_string())));
    }
}

/// The largest prefill phase.
fn prefill(plan: &Plan) -> Option<Phase> {
    plan.regimes.phases.iter().filter(|phase| matches!(phase, Phase::Prefill { .. })).max().copied()
}

/// The schedule of the workload's rounds of a phase without load; of a plan without expected times its only one.
pub(super) fn idle(plan: &Plan, phase: Phase) -> Option<&Schedule> {
    match workload::chosen(plan, phase) {
        Some(chosen) => plan.schedules.get(chosen.schedule.index()),
        None => plan.schedules.iter().find(|schedule| schedule.phase == phase),
    }
}

fn holds_cache(item: &Item) -> bool {
    matches!(item.kind, ItemKind::Attention | ItemKind::Recurrent)
}

fn is_expert(item: &Item) -> bool {
    matches!(item.kind, ItemKind::ExpertsInput | ItemKind::ExpertsOutput)
}

/// `-ngl`, `-ncmoe`, `-ot`, `--no-op-offload`.
fn placement(plan: &Plan, export: &mut Export) {
    let items = || plan.program.items.iter().zip(plan.placement.homes.iter().map(|home| *home == Home::Resident));
    let layers = items().filter_map(|(item, _)| item.layer).max().map_or(0, |last| last + 1);
    if !items().any(|(_, on_gpu)| on_gpu) {
        export.set("-ngl", 0);
        export.flags.push(("--no-op-offload", None));
        return;
    }
    // Caches go with their layers, and layers come to the GPU from the last on.
    let host_caches: Vec<u32> =
        items().filter(|(item, on_gpu)| holds_cache(item) && !on_gpu).filter_map(|(item, _)| item.layer).collect();
    let host_layers = (0..layers).take_while(|layer| host_caches.contains(layer)).count() as u32;
    export.set("-ngl", if host_layers == 0 { "99".to_owned() } else { (layers + 1 - host_layers).to_string() });
    let stray: Vec<u32> = host_caches.iter().copied().filter(|&layer| layer >= host_layers).collect();
    if !stray.is_empty() {
        let bytes: u64 = plan
            .program
            .items
            .iter()
            .filter(|item| holds_cache(item))
            .map(|item| {
                let stray = item.layer.is_some_and(|layer| stray.contains(&layer));
                if stray {
                    View { plan, load: plan_format::costs::Load::IDLE, context_tokens: 1 }.item_bytes(item)
                } else {
                    0
                }
            })
            .sum();
        export.lost.push(format!(
            "caches of {} layers lie on the CPU in the plan; there they go to the GPU with their layers and take {}",
            stray.len(),
            bytes_text(bytes)
        ));
    }
    let first_experts = first_experts(plan, layers).filter(|_| host_layers == 0);
    if let Some(count) = first_experts {
        export.set("-ncmoe", count);
    }
    let patterns = overrides(plan, host_layers, first_experts.is_some());
    if !patterns.is_empty() {
        // One list: the peer warns of a flag that comes twice.
        export.set("-ot", patterns.join(","));
    }
    let divided = items().filter(|(item, on_gpu)| *on_gpu && is_divided(plan, item)).filter_map(|(item, _)| item.layer);
    let divided: BTreeSet<u32> = divided.collect();
    if !divided.is_empty() {
        export.lost.push(format!(
            "experts of {} layers lie in two places in the plan; there all of a layer's experts are on the CPU",
            divided.len()
        ));
    }
    let streams = prefill(plan).and_then(|phase| idle(plan, phase)).is_some_and(|s| !s.promotions.is_empty());
    if !streams && items().any(|(item, on_gpu)| !on_gpu && item.layer.is_some()) {
        export.flags.push(("--no-op-offload", None));
    }
}

/// N if exactly the first N ≥ 1 layers' experts are on the host.
fn first_experts(plan: &Plan, layers: u32) -> Option<u32> {
    let items = || plan.program.items.iter().zip(&plan.placement.homes).filter(|(item, _)| is_expert(item));
    let all_on = |layer: u32, on_gpu: bool| {
        items().filter(|(item, _)| item.layer == Some(layer)).all(|(_, home)| (*home == Home::Resident) == on_gpu)
    };
    let count = (0..layers).take_while(|&layer| all_on(layer, false)).count() as u32;
    let rest_on_gpu = (count..layers).all(|layer| all_on(layer, true));
    (count > 0 && rest_on_gpu && items().next().is_some()).then_some(count)
}

/// Patterns for tensors that are not where their layer is: to the CPU, and to the GPU from layers that are on the CPU.
fn overrides(plan: &Plan, host_layers: u32, experts_are_said: bool) -> Vec<String> {
    // Layers by what follows `blk.N.`, then suffixes by equal layers: few patterns say it all.
    let mut layers_of: BTreeMap<(&'static str, &str), BTreeSet<u32>> = BTreeMap::new();
    let mut patterns = Vec::new();
    for (item, home) in plan.program.items.iter().zip(&plan.placement.homes) {
        let on_gpu = *home == Home::Resident;
        let is_hot_part = on_gpu && is_divided(plan, item);
        if item.kind == ItemKind::Embedding || (experts_are_said && is_expert(item)) || is_hot_part {
            continue;
        }
        let with_layer = item.layer.is_none_or(|layer| layer >= host_layers);
        if on_gpu == with_layer {
            continue;
        }
        let target = if on_gpu { "CUDA0" } else { "CPU" };
        for weight in &item.weights {
            let name = &plan.program.tensors[plan.program.weights[weight.index()].tensor.index()].name;
            match (item.layer, name.split_once('.').and_then(|(_, rest)| rest.split_once('.'))) {
                (Some(layer), Some((_, suffix))) => {
                    layers_of.entry((target, suffix)).or_default().insert(layer);
                }
                _ => patterns.push(format!("^{}$={target}", name.replace('.', "\\."))),
            }
        }
    }
    let mut suffixes_of: BTreeMap<(&'static str, BTreeSet<u32>), Vec<&str>> = BTreeMap::new();
    for ((target, suffix), layers) in layers_of {
        suffixes_of.entry((target, layers)).or_default().push(suffix);
    }
    let pattern = |((target, layers), suffixes): ((&str, BTreeSet<u32>), Vec<&str>)| {
        let layers: Vec<String> = layers.iter().map(u32::to_string).collect();
        let suffixes: Vec<String> = suffixes.iter().map(|suffix| suffix.replace('.', "\\.")).collect();
        format!("^blk\\.{}\\.{}$={target}", one_of(&layers), one_of(&suffixes))
    };
    patterns.extend(suffixes_of.into_iter().map(pattern));
    patterns
}

/// Whether an item holds some of its layer's experts.
fn is_divided(plan: &Plan, item: &Item) -> bool {
    item.weights.iter().any(|weight| plan.program.weights[weight.index()].experts().is_some())
}

fn one_of(choices: &[String]) -> String {
    match choices {
        [one] => one.clone(),
        many => format!("({})", many.join("|")),
    }
}

/// What flags cannot say, in words.
fn losses(plan: &Plan, export: &mut Export) {
    let items = || plan.program.items.iter().zip(&plan.placement.homes);
    let split = items().any(|(item, home)| *home != Home::Resident && item.kind != ItemKind::Embedding);
    let Ok(view) = View::new(plan) else {
        export.lost.push("nothing was planned beyond memory: the plan has no expected times".to_owned());
        return;
    };
    for phase in view.phases() {
        let Some(schedule) = idle(plan, phase).filter(|schedule| !schedule.promotions.is_empty()) else { continue };
        let what = format!(
            "{}: the plan streams {} host items ({} MiB a round) to the GPU while both processors work",
            phase_name(phase),
            schedule.promotions.len(),
            number(streamed_mib(&view, schedule))
        );
        let there = match phase {
            Phase::Prefill { .. } => {
                "there every host weight is copied just before its operator, and the GPU waits for it"
            }
            _ => "there they run on the CPU",
        };
        let without = without_transfers(&view, phase).map_or(String::new(), |(with_us, without_us)| {
            format!("; expected {} with transfers, {} without", ms(with_us), ms(without_us))
        });
        export.lost.push(format!("{what}; {there}{without}"));
    }
    let held = held::text(&plan.placement.held);
    export.lost.extend(held.map(|held| format!("decode {held}; there they run on the CPU in every round")));
    if split && plan.origin.options.vram_bytes > 0 {
        export.lost.push(
            "CPU and GPU never work at the same time there, and each switch between them waits for the other to finish"
                .to_owned(),
        );
    }
    if plan.schedules.len() > plan.regimes.phases.len() {
        export.lost.push(format!(
            "the plan holds {} schedules for {} loads and changes between them; flags stay as they are, and so does \
             the number of threads when others take cores",
            plan.schedules.len(),
            plan.regimes.cells.len()
        ));
    }
}

/// Expected round with the phase's schedules, and when nothing is streamed.
fn without_transfers(view: &View<'_>, phase: Phase) -> Option<(f64, f64)> {
    let with_us = view.outcome(phase).ok()?.round_us;
    let schedule = Schedule { promotions: Vec::new(), ..idle(view.plan, phase)?.clone() };
    let plan = Plan { schedules: vec![schedule], ..view.plan.clone() };
    let without_us = View { plan: &plan, ..*view }.outcome(phase).ok()?.round_us;
    Some((with_us, without_us))
}
