//! What differs between two plans, in words. Next: `cli/diff.rs`.

use super::llama_cpp::idle;
use super::palette::{KINDS, home, phase_name};
use super::svg::number;
use plan_format::artifact::{Options, Plan};
use plan_format::schedule::{Home, Schedule};
use plan_format::text::bytes_text;
use std::collections::BTreeSet;
use std::fmt::Debug;

/// Everything that differs, a sentence each, from what was asked to what came of it. Empty: the plans are the same.
pub fn differences(a: &Plan, b: &Plan) -> Vec<String> {
    if a == b {
        return Vec::new();
    }
    let mut list = Vec::new();
    origin(a, b, &mut list);
    memory(a, b, &mut list);
    if a.program.items.len() == b.program.items.len() && item_names(a) == item_names(b) {
        homes(a, b, &mut list);
    } else {
        let (was, is) = (a.program.items.len(), b.program.items.len());
        list.push(format!("program: other items ({was} and {is}); homes are not compared"));
    }
    schedules(a, b, &mut list);
    predictions(a, b, &mut list);
    tables(a, b, &mut list);
    list
}

fn field<T: PartialEq + Debug>(name: &str, was: T, is: T, list: &mut Vec<String>) {
    if was != is {
        list.push(format!("{name}: {was:?} -> {is:?}"));
    }
}

fn words(name: &str, was: String, is: String, list: &mut Vec<String>) {
    if was != is {
        list.push(format!("{name}: {was} -> {is}"));
    }
}

fn origin(a: &Plan, b: &Plan, list: &mut Vec<String>) {
    let (was, is) = (&a.origin, &b.origin);
    words("made by", was.tool_version.clone(), is.tool_version.clone(), list);
    words("model", was.model.id(), is.model.id(), list);
    for difference in was.device.differences(&is.device) {
        words(&format!("device {}", difference.field), difference.planned, difference.found, list);
    }
    options(&was.options, &is.options, list);
}

fn options(a: &Options, b: &Options, list: &mut Vec<String>) {
    let ram = |options: &Options| options.ram_bytes.map_or("what is free".to_owned(), bytes_text);
    words("GPU ceiling", bytes_text(a.vram_bytes), bytes_text(b.vram_bytes), list);
    words("CPU memory ceiling", ram(a), ram(b), list);
    field("context tokens", a.context_tokens, b.context_tokens, list);
    field("ubatch tokens", a.limits.ubatch_tokens, b.limits.ubatch_tokens, list);
    field("tokens with logits", a.limits.output_tokens, b.limits.output_tokens, list);
    field("prompt tokens", a.prompt_tokens, b.prompt_tokens, list);
    field("generated tokens", a.generate_tokens, b.generate_tokens, list);
    field("cache type", a.kv_type, b.kv_type, list);
}

fn memory(a: &Plan, b: &Plan, list: &mut Vec<String>) {
    let regions = a.report.memory.iter().chain(&b.report.memory).map(|used| used.region);
    let mut seen = Vec::new();
    for region in regions {
        if seen.contains(&region) {
            continue;
        }
        seen.push(region);
        let (was, is) = (a.report.bytes(region), b.report.bytes(region));
        words(&format!("memory {region:?}"), bytes_text(was), bytes_text(is), list);
        if was != is && bytes_text(was) == bytes_text(is) {
            list.push(format!("memory {region:?}: {was} -> {is} bytes"));
        }
    }
}

fn item_names(plan: &Plan) -> Vec<&str> {
    plan.program.items.iter().map(|item| item.name.as_str()).collect()
}

/// From where to where.
type Move = (Home, Home);

/// Items that moved, together by kind and by from where to where.
fn homes(a: &Plan, b: &Plan, list: &mut Vec<String>) {
    for &(kind, name) in KINDS {
        let mut moves: Vec<(Move, Vec<Option<u32>>)> = Vec::new();
        for (index, item) in a.program.items.iter().enumerate().filter(|(_, item)| item.kind == kind) {
            let pair = (a.placement.homes[index], b.placement.homes[index]);
            if pair.0 == pair.1 {
                continue;
            }
            match moves.iter_mut().find(|(known, _)| *known == pair) {
                Some((_, layers)) => layers.push(item.layer),
                None => moves.push((pair, vec![item.layer])),
            }
        }
        for ((from, to), layers) in moves {
            list.push(format!("{name}{}: {} -> {}", layers_text(&layers), home(from).0, home(to).0));
        }
    }
}

/// ` of layers 0-3, 7`.
fn layers_text(layers: &[Option<u32>]) -> String {
    let layers: BTreeSet<u32> = layers.iter().flatten().copied().collect();
    if layers.is_empty() {
        return String::new();
    }
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for layer in layers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == layer => *last = layer,
            _ => runs.push((layer, layer)),
        }
    }
    let run = |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    format!(" of layers {}", runs.iter().map(run).collect::<Vec<_>>().join(", "))
}

fn schedules(a: &Plan, b: &Plan, list: &mut Vec<String>) {
    let slots = |plan: &Plan| match plan.slots.slots.len() {
        0 => "none".to_owned(),
        count => format!("{count} with {} in all", bytes_text(plan.slots.end_bytes())),
    };
    words("slots", slots(a), slots(b), list);
    let held = |plan: &Plan| match plan.placement.held.items.len() {
        0 => "none".to_owned(),
        count => format!("{count} items, {}", bytes_text(plan.placement.held.total_bytes())),
    };
    words("held between prompts", held(a), held(b), list);
    for &phase in &a.regimes.phases {
        let of = |plan: &Plan| plan.schedules.iter().filter(|s| s.phase == phase).count();
        let unloaded = |plan: &Plan| idle(plan, phase).map(schedule_text);
        let name = phase_name(phase);
        if !b.regimes.phases.contains(&phase) {
            list.push(format!("{name}: no longer planned"));
            continue;
        }
        field(&format!("{name}: kept schedules"), of(a), of(b), list);
        let text = |plan: &Plan| unloaded(plan).unwrap_or_else(|| "none".to_owned());
        words(&format!("{name} without load"), text(a), text(b), list);
    }
    for phase in b.regimes.phases.iter().filter(|phase| !a.regimes.phases.contains(phase)) {
        list.push(format!("{}: planned anew", phase_name(*phase)));
    }
}

fn schedule_text(schedule: &Schedule) -> String {
    format!("{} threads, {} items streamed", schedule.cpu_threads, schedule.promotions.len())
}

fn predictions(a: &Plan, b: &Plan, list: &mut Vec<String>) {
    for was in &a.report.predictions {
        let same =
            |p: &&plan_format::artifact::Prediction| (p.phase, p.context_tokens) == (was.phase, was.context_tokens);
        let Some(is) = b.report.predictions.iter().find(same) else { continue };
        if was.round_us != is.round_us {
            let percent = 100.0 * (is.round_us / was.round_us - 1.0);
            list.push(format!(
                "{} at {} cached: {} ms -> {} ms ({percent:+.2} %)",
                phase_name(was.phase),
                was.context_tokens,
                number(was.round_us / 1000.0),
                number(is.round_us / 1000.0)
            ));
        }
    }
    if let (Some(was), Some(is)) = (&a.report.optimality, &b.report.optimality)
        && was.chosen_us != is.chosen_us
    {
        let percent = 100.0 * (is.chosen_us / was.chosen_us - 1.0);
        let s = |us: f64| number(us / 1e6);
        list.push(format!("workload: {} s -> {} s ({percent:+.2} %)", s(was.chosen_us), s(is.chosen_us)));
    }
}

/// What has no words of its own: named, so that no difference goes unsaid.
fn tables(a: &Plan, b: &Plan, list: &mut Vec<String>) {
    field("contexts of the regime map", &a.regimes.context_tokens, &b.regimes.context_tokens, list);
    field("CPU slowdowns of the regime map", &a.regimes.cpu_slowdown, &b.regimes.cpu_slowdown, list);
    field("GPU slowdowns of the regime map", &a.regimes.gpu_slowdown, &b.regimes.gpu_slowdown, list);
    field("link slowdowns of the regime map", &a.regimes.link_slowdown, &b.regimes.link_slowdown, list);
    let others = [
        ("operators of the program", a.program != b.program),
        ("activation memory", a.arena != b.arena),
        ("layouts of weights", a.layouts != b.layouts),
        ("which items some schedules stream, and when", a.schedules != b.schedules),
        ("which schedule serves which load", a.regimes.cells != b.regimes.cells),
        ("expected times of items", a.costs != b.costs),
        ("floors or bounds", a.report != b.report),
        ("the machine", a.origin.device != b.origin.device),
        ("machine code", a.code != b.code),
    ];
    let named: Vec<&str> = others.iter().filter(|(_, differ)| *differ).map(|&(name, _)| name).collect();
    if !named.is_empty() {
        list.push(format!("tables that differ: {}", named.join("; ")));
    }
}

#[cfg(test)]
mod tests {
    use super::layers_text;

    #[test]
    fn layers_are_told_as_ranges() {
        for (layers, expected) in [
            (vec![], ""),
            (vec![None], ""),
            (vec![Some(4)], " of layers 4"),
            (vec![Some(3), Some(0), Some(1), Some(7), Some(2), Some(1)], " of layers 0-3, 7"),
        ] {
            assert_eq!(layers_text(&layers), expected);
        }
    }
}
