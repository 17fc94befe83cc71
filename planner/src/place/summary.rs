//! A decision in words: what lies where, what is predicted, how near to the bounds, against which hand-made split, and
//! why nothing is streamed when nothing is. Text only; every figure comes from the decision and the artifact's parts.

use super::held;
use super::memory::priced_for;
use super::search::{Decision, Query, Scored};
use super::weigh::Workload;
use crate::regime::Parts;
use crate::transfer::{Answer, Method, Task};
use plan_format::artifact::Region;
use plan_format::evaluate::Scratch;
use plan_format::program::ItemKind;
use plan_format::schedule::{Home, Phase};
use plan_format::text::bytes_text;
use std::fmt::Write;

/// The summary of a plan.
pub fn summary(query: &Query<'_>, decision: &Decision, parts: &Parts) -> String {
    let mut text = String::new();
    memory_lines(query, parts, &mut text);
    let uses_gpu = query.budget.vram_bytes > 0;
    if uses_gpu {
        placement_lines(query, &decision.best, &mut text);
    } else {
        text.push_str("no GPU memory may be used: everything executes on the CPU\n");
    }
    let best = &decision.best;
    let repriced = priced_for(query.problem, query.profile, &best.homes);
    let problem = repriced.as_ref().unwrap_or(query.problem);
    let ubatch_tokens = parts.limits.ubatch_tokens;
    if let Some(workload) = Workload::new(problem, ubatch_tokens) {
        for (case, answer) in [(workload.decode.0, &best.decode), (workload.prefill.0, &best.prefill)] {
            let task = best.task(problem, case);
            speed_line(&task, answer, parts, &mut text);
            if !task.costs().phase.is_prefill() {
                held::text(&parts.placement.held).iter().for_each(|held| text.push_str(&format!("  {held}\n")));
            }
            if uses_gpu {
                transfer_line(&task, answer, &mut text);
            }
        }
    }
    optimality_lines(decision, &mut text);
    text
}

fn memory_lines(query: &Query<'_>, parts: &Parts, text: &mut String) {
    let names = [
        (Region::GpuWeights, "weights"),
        (Region::GpuStates, "caches"),
        (Region::GpuSlots, "slots"),
        (Region::GpuArena, "activations"),
        (Region::GpuContext, "context"),
        (Region::GpuKernels, "kernels"),
    ];
    let total: u64 = names.iter().map(|&(region, _)| parts.report.bytes(region)).sum();
    if total > 0 {
        let used = names.iter().filter(|(region, _)| parts.report.bytes(*region) > 0);
        let list: Vec<String> =
            used.map(|(region, name)| format!("{name} {}", bytes_text(parts.report.bytes(*region)))).collect();
        let _ =
            writeln!(text, "GPU {} of {}: {}", bytes_text(total), bytes_text(query.budget.vram_bytes), list.join(", "));
    }
    let host = [
        (Region::HostPinned, "pinned"),
        (Region::HostPageable, "pageable"),
        (Region::HostMapped, "in the model file"),
        (Region::HostStates, "caches"),
    ];
    let used = host.iter().filter(|(region, _)| parts.report.bytes(*region) > 0);
    let list: Vec<String> =
        used.map(|(region, name)| format!("{} {name}", bytes_text(parts.report.bytes(*region)))).collect();
    let _ = writeln!(text, "host {}", list.join(", "));
}

/// What people call the kinds, in the order of a layer.
const KINDS: &[(ItemKind, &str)] = &[
    (ItemKind::MixerInput, "attention inputs"),
    (ItemKind::Attention, "attention with its cache"),
    (ItemKind::Recurrent, "recurrences with their state"),
    (ItemKind::MixerOutput, "attention outputs"),
    (ItemKind::FfnInput, "feed-forward gate and up"),
    (ItemKind::FfnOutput, "feed-forward down"),
    (ItemKind::Router, "routers"),
    (ItemKind::ExpertsInput, "experts gate and up"),
    (ItemKind::ExpertsOutput, "experts down"),
    (ItemKind::ExpertsJoin, "sums of divided experts"),
    (ItemKind::SharedExperts, "shared experts"),
    (ItemKind::Head, "head"),
];

fn placement_lines(query: &Query<'_>, best: &Scored, text: &mut String) {
    let mut list = Vec::new();
    for &(kind, name) in KINDS {
        let of_kind = || (0..best.homes.len()).filter(|&item| query.problem.items[item].kind == kind);
        let resident = of_kind().filter(|&item| best.homes[item] == Home::Resident).count();
        if of_kind().count() > 0 {
            list.push(format!("{name} {resident}/{}", of_kind().count()));
        }
    }
    let _ = writeln!(text, "resident: {}", list.join(", "));
}

fn speed_line(task: &Task<'_>, answer: &Answer, parts: &Parts, text: &mut String) {
    let costs = task.costs();
    let (name, tokens) = match costs.phase {
        Phase::Prefill { ubatch_tokens } => ("prefill", ubatch_tokens),
        _ => ("decode", 1),
    };
    let speed = f64::from(tokens) * 1e6 / answer.round_us;
    let threads = task.problem.costs.teams[answer.team].threads;
    let _ = write!(
        text,
        "{name} {speed:.1} tokens/s at {} cached: {tokens} in {:.1} ms with {threads} CPU threads",
        costs.context_tokens,
        answer.round_us / 1000.0
    );
    let here =
        |p: &&plan_format::artifact::Prediction| (p.phase, p.context_tokens) == (costs.phase, costs.context_tokens);
    if let Some(prediction) = parts.report.predictions.iter().find(here) {
        let times = |us: f64| format!("{:.1} ms ({:.2}x)", us / 1000.0, answer.round_us / us);
        let _ = write!(text, "; memory floor {}", times(prediction.floor_us));
        // Where most of the work is streamed, doing it serially was no option.
        if prediction.serial_floor_us > prediction.floor_us {
            let _ = write!(text, ", one processor at a time {}", times(prediction.serial_floor_us));
        }
    }
    text.push('\n');
}

fn transfer_line(task: &Task<'_>, answer: &Answer, text: &mut String) {
    let static_us = task.round_us(answer.team, &[], &mut Scratch::default());
    let bytes: u64 = answer.promoted.iter().map(|&i| task.problem.read_bytes[task.case][i as usize]).sum();
    let method = match answer.method {
        Method::Static => {
            let _ = writeln!(text, "  streams nothing: {}", why_static(task, answer));
            return;
        }
        Method::PaperDp => "Algorithm 2",
        Method::Pipelined => "pipelined search",
    };
    let gain = 100.0 * (1.0 - answer.round_us / static_us);
    let _ = writeln!(
        text,
        "  streams {} items, {} a round, through {} slots of {} ({method}): {gain:.1} % less time than none",
        answer.promoted.len(),
        bytes_text(bytes),
        task.slots.count,
        bytes_text(task.slots.size_bytes)
    );
}

/// Why no promotion pays: there is nothing to promote, or the cheapest one costs more than it saves.
fn why_static(task: &Task<'_>, answer: &Answer) -> String {
    let host = task.homes.iter().any(|home| matches!(home, Home::Host(_)));
    if !host {
        return "everything is resident".to_string();
    }
    let promotable = task.promotable();
    let saved_us = |item: usize| task.cpu_us(answer.team, item) - task.gpu_us(item);
    let ratio = |item: &u32| task.stream_us(*item as usize) / saved_us(*item as usize).max(1e-9);
    let Some(cheapest) = promotable.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b))) else {
        return if task.slots.count == 0 {
            "GPU memory serves better as residence than as slots".to_string()
        } else {
            "no host item fits a slot".to_string()
        };
    };
    let item = *cheapest as usize;
    format!(
        "even {} would be copied in {:.0} us to save {:.0} us of CPU time, and both read the same memory",
        task.problem.items[item].name,
        task.stream_us(item),
        saved_us(item)
    )
}

fn optimality_lines(decision: &Decision, text: &mut String) {
    let best = &decision.best;
    let _ = write!(text, "placement by {}", best.candidate.origin);
    if let Some(seed) = decision.best_seed.as_ref().filter(|seed| seed.candidate != best.candidate) {
        let gain = 100.0 * (seed.total_us / best.total_us - 1.0);
        let _ = write!(text, "; the best hand-made split ({}) takes {gain:.1} % longer", seed.candidate.origin);
    }
    let _ = writeln!(text, "; {} candidates", decision.candidates);
    if let (Some(dp_us), Some(bound_us)) = (decision.dp_us, decision.lp_bound_us) {
        let gap = 100.0 * (dp_us / bound_us - 1.0);
        let _ = writeln!(
            text,
            "static time of the workload: dynamic program {:.3} s, lower bound {:.3} s: within {gap:.2} % of optimal",
            dp_us / 1e6,
            bound_us / 1e6
        );
    }
}
