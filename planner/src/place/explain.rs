//! Why an item lies where it lies: its times, densities and switch costs, and what would flip the decision.

use super::knapsack::Knapsack;
use super::memory;
use super::search::{Decision, Query};
use super::weigh::{CachePolicy, HostPrefill, Workload, chain};
use plan_format::schedule::Home;

/// Figures of an item in one kind of round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundFigures {
    /// On the CPU with the schedule's team.
    pub cpu_us: f64,
    /// On the GPU.
    pub gpu_us: f64,
    /// Transfer of its weights; 0 = not streamable.
    pub stream_us: f64,
    /// Until its output is on the GPU, when made on the CPU.
    pub to_gpu_us: f64,
    /// Until its output is on the CPU, when made on the GPU.
    pub to_cpu_us: f64,
    /// Empirical performance density on the CPU, µs per MiB of memory (paper 4.3.1).
    pub cpu_us_per_mib: f64,
    /// The same on the GPU.
    pub gpu_us_per_mib: f64,
    /// Whether the unloaded schedule promotes it.
    pub use_in_schedule: InSchedule,
}

/// What the unloaded schedule does with an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InSchedule {
    /// GPU, from resident memory.
    Resident,
    /// GPU, held between prompts.
    Held,
    /// GPU, streamed.
    Promoted,
    /// CPU.
    Host,
}

/// What would put the item on the other side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flip {
    /// The dynamic program makes it resident from this ceiling on.
    ResidentFrom {
        /// GPU ceiling.
        vram_bytes: u64,
    },
    /// The dynamic program leaves it on the host below this ceiling.
    HostBelow {
        /// GPU ceiling.
        vram_bytes: u64,
    },
    /// No ceiling: the GPU saves nothing on it.
    Never,
}

/// The explanation.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Item.
    pub name: String,
    /// Its home.
    pub home: Home,
    /// Weights and states.
    pub bytes: u64,
    /// Decode.
    pub decode: RoundFigures,
    /// Prefill.
    pub prefill: RoundFigures,
    /// Time that residency saves in the whole workload, switches left out.
    pub saved_us: f64,
    /// What would flip it.
    pub flip: Flip,
    /// How many times slower the GPU would have to be for residency to save nothing.
    pub gpu_slowdown_to_break_even: f64,
}

/// Steps of the search for the flipping ceiling, from nothing to everything.
const STEPS: u64 = 1024;

/// Explains the item of this index. `None` if there is no such item.
pub fn explain(query: &Query<'_>, decision: &Decision, item: usize) -> Option<Explanation> {
    let problem = query.problem;
    let best = &decision.best;
    let ubatch = &problem.ubatches[best.candidate.ubatch];
    let facts = problem.items.get(item)?;
    let workload = Workload::new(problem, ubatch.ubatch_tokens)?;
    let bytes = memory::item_bytes(problem, ubatch, item);
    let decode = figures(query, decision, workload.decode.0, item);
    let prefill = figures(query, decision, workload.prefill.0, item);
    let weighed = |decode_us: f64, prefill_us: f64| workload.decode.1 * decode_us + workload.prefill.1 * prefill_us;
    let (cpu_us, gpu_us) = (weighed(decode.cpu_us, prefill.cpu_us), weighed(decode.gpu_us, prefill.gpu_us));
    Some(Explanation {
        name: facts.name.clone(),
        home: best.homes[item],
        bytes,
        decode,
        prefill,
        saved_us: cpu_us - gpu_us,
        flip: flip(query, decision, item).unwrap_or(Flip::Never),
        gpu_slowdown_to_break_even: if gpu_us > 0.0 { cpu_us / gpu_us } else { 0.0 },
    })
}

fn figures(query: &Query<'_>, decision: &Decision, case: usize, item: usize) -> RoundFigures {
    let (problem, best) = (query.problem, &decision.best);
    let phase = problem.costs.cases[case].phase;
    let answer = if phase.is_prefill() { &best.prefill } else { &best.decode };
    let cost = &problem.costs.cases[case].items[item];
    let cpu_us = f64::from(problem.cpu_us(case, answer.team)[item]);
    let mib = memory::item_bytes(problem, &problem.ubatches[best.candidate.ubatch], item) as f64 / (1u64 << 20) as f64;
    let density = |us: f64| if mib > 0.0 { us / mib } else { 0.0 };
    RoundFigures {
        cpu_us,
        gpu_us: f64::from(cost.gpu_us),
        stream_us: f64::from(cost.stream_us),
        to_gpu_us: f64::from(cost.to_gpu_us),
        to_cpu_us: f64::from(cost.to_cpu_us),
        cpu_us_per_mib: density(cpu_us),
        gpu_us_per_mib: density(f64::from(cost.gpu_us)),
        use_in_schedule: match best.homes[item] {
            Home::Resident => InSchedule::Resident,
            Home::Host(_) if best.homes_in(phase)[item] == Home::Resident => InSchedule::Held,
            Home::Host(_) if answer.promoted.binary_search(&(item as u32)).is_ok() => InSchedule::Promoted,
            Home::Host(_) => InSchedule::Host,
        },
    }
}

/// The ceiling at which the dynamic program changes its mind about the item.
fn flip(query: &Query<'_>, decision: &Decision, item: usize) -> Option<Flip> {
    let (problem, best) = (query.problem, &decision.best);
    let gpu = query.profile.gpu.as_ref()?;
    let ubatch = &problem.ubatches[best.candidate.ubatch];
    let workload = Workload::new(problem, ubatch.ubatch_tokens)?;
    let chain = chain(problem, best.candidate.ubatch, &workload, HostPrefill::Executed, CachePolicy::Free);
    let all_bytes: u64 = chain.iter().map(|item| item.bytes).sum();
    let table = Knapsack::solve(&chain, all_bytes);
    let fixed_bytes = memory::fixed_bytes(problem, gpu, ubatch) + best.candidate.slots.total_bytes();
    let room_bytes = query.budget.vram_bytes.saturating_sub(fixed_bytes);
    let step_bytes = (all_bytes / STEPS).max(1);
    let resident_at = |bytes: u64| table.within(bytes).is_some_and(|found| found.resident[item]);
    if best.homes[item] == Home::Resident {
        let below = (0..=room_bytes / step_bytes).map(|steps| room_bytes - steps * step_bytes);
        let vram_bytes = below.into_iter().find(|&bytes| !resident_at(bytes))? + fixed_bytes;
        return Some(Flip::HostBelow { vram_bytes });
    }
    // Rounding to the table's units may ask for a little more than everything.
    let from = (0..=2 * STEPS).map(|steps| room_bytes + steps * step_bytes);
    let vram_bytes = from.into_iter().find(|&bytes| resident_at(bytes))? + fixed_bytes;
    Some(Flip::ResidentFrom { vram_bytes })
}
