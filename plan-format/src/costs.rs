//! Expected times of every item on both processors and on the link: what the planner optimised and what the runtime
//! scores schedules with.
//!
//! Tables only; `evaluate.rs` turns them into the latency of a round. Nothing here says where the times came from
//! (the planner's `cost` module does).

use crate::ids::ItemId;
use crate::schedule::Phase;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// All tables of one plan: items are those of the program, in its order.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct CostModel {
    /// Sizes of CPU team that were measured, ascending in threads.
    pub teams: Vec<Team>,
    /// `inputs[input_start[i] .. input_start[i + 1]]` are the producers that item `i` reads; length items + 1.
    pub input_start: Vec<u32>,
    /// Producers of all items, each earlier in program order than its reader.
    pub inputs: Vec<ItemId>,
    /// One table per phase and context bucket, phases outermost.
    pub cases: Vec<CaseCosts>,
}

impl CostModel {
    /// Number of items.
    pub fn item_count(&self) -> usize {
        self.input_start.len().saturating_sub(1)
    }

    /// Producers that item `item` reads.
    pub fn inputs_of(&self, item: usize) -> &[ItemId] {
        let range = self.input_start[item] as usize..self.input_start[item + 1] as usize;
        &self.inputs[range]
    }

    /// Index in `teams` of the team with this many threads.
    pub fn team_index(&self, threads: u16) -> Option<usize> {
        self.teams.iter().position(|team| team.threads == threads)
    }

    /// The table for a phase at a context: the smallest bucket that holds it, else the largest.
    pub fn case_index(&self, phase: Phase, context_tokens: u32) -> Option<usize> {
        let of_phase = || (0..self.cases.len()).filter(|&i| self.cases[i].phase == phase);
        let holds = of_phase().filter(|&i| self.cases[i].context_tokens >= context_tokens);
        holds
            .min_by_key(|&i| self.cases[i].context_tokens)
            .or_else(|| of_phase().max_by_key(|&i| self.cases[i].context_tokens))
    }

    /// Costs of a phase at a context: as priced, or on the line through the nearest two that were, since what depends
    /// on the context grows with it; beyond the longest as there. `None` without cases of the phase.
    pub fn case_at(&self, phase: Phase, context_tokens: u32) -> Option<Cow<'_, CaseCosts>> {
        let mut cases: Vec<&CaseCosts> = self.cases.iter().filter(|case| case.phase == phase).collect();
        cases.sort_by_key(|case| case.context_tokens);
        let above = cases.iter().position(|case| case.context_tokens >= context_tokens);
        let Some(above) = above else { return cases.last().map(|&last| Cow::Borrowed(last)) };
        if cases[above].context_tokens == context_tokens || cases.len() == 1 {
            return Some(Cow::Borrowed(cases[above]));
        }
        let left = above.max(1) - 1;
        Some(Cow::Owned(CaseCosts::between(cases[left], cases[left + 1], context_tokens)))
    }
}

/// A size of the CPU team, and how a DRAM-bound CPU operator and the link slow each other down.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Team {
    /// Threads.
    pub threads: u16,
    /// Time of a DRAM-bound CPU operator while the link streams, over its time alone; ≥ 1.
    pub cpu_slowdown_while_link: f32,
    /// Time of a transfer while a DRAM-bound CPU operator runs, over its time alone; ≥ 1.
    pub link_slowdown_while_cpu: f32,
}

/// Times of one kind of round at one context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseCosts {
    /// The phase.
    pub phase: Phase,
    /// Cached tokens that attention reads.
    pub context_tokens: u32,
    /// Between the end of a round and the start of the next (sampling, bookkeeping).
    pub gap_us: f32,
    /// CPU time of each item by team: `cpu_us[team · items + item]`.
    pub cpu_us: Vec<f32>,
    /// Other times, one entry per item.
    pub items: Vec<ItemCost>,
}

impl CaseCosts {
    /// Costs on the line through two cases of a phase. None is negative.
    fn between(shorter: &CaseCosts, longer: &CaseCosts, context_tokens: u32) -> CaseCosts {
        let begin = f64::from(shorter.context_tokens);
        let share = (f64::from(context_tokens) - begin) / (f64::from(longer.context_tokens) - begin);
        let at = |a: f32, b: f32| (f64::from(a) + share * (f64::from(b) - f64::from(a))).max(0.0) as f32;
        let item = |(a, b): (&ItemCost, &ItemCost)| ItemCost {
            gpu_us: at(a.gpu_us, b.gpu_us),
            stream_us: at(a.stream_us, b.stream_us),
            to_gpu_us: at(a.to_gpu_us, b.to_gpu_us),
            to_cpu_us: at(a.to_cpu_us, b.to_cpu_us),
            dram_share: at(a.dram_share, b.dram_share).min(1.0),
            stream_after: a.stream_after,
        };
        CaseCosts {
            phase: shorter.phase,
            context_tokens,
            gap_us: at(shorter.gap_us, longer.gap_us),
            cpu_us: shorter.cpu_us.iter().zip(&longer.cpu_us).map(|(&a, &b)| at(a, b)).collect(),
            items: shorter.items.iter().zip(&longer.items).map(item).collect(),
        }
    }
}

/// Times of one item in one kind of round, except on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct ItemCost {
    /// On the GPU, weights resident or arrived.
    pub gpu_us: f32,
    /// Transfer of its weights to a slot with nothing else on the link or in DRAM; 0 = it has none to stream.
    pub stream_us: f32,
    /// Until its output, made on the CPU, can be read on the GPU.
    pub to_gpu_us: f32,
    /// Until its output, made on the GPU, can be read on the CPU.
    pub to_cpu_us: f32,
    /// How far CPU execution is bound by DRAM, 0 to 1: the share of contention that it suffers and causes.
    pub dram_share: f32,
    /// The transfer cannot start before this item of the same round is done (the router that names the experts).
    pub stream_after: Option<ItemId>,
}

/// Measured over expected, per resource; 1 = as profiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Every CPU thread runs this many times slower (throttling, shared memory).
    pub cpu: f64,
    /// GPU time ratio.
    pub gpu: f64,
    /// Link time ratio, transfers and activation movement alike.
    pub link: f64,
    /// Cores that others leave to us; a larger team waits for the threads that get no core ([`crowding`]).
    pub free_threads: f64,
}

impl Load {
    /// The machine as it was profiled.
    pub const IDLE: Load = Load { cpu: 1.0, gpu: 1.0, link: 1.0, free_threads: f64::INFINITY };

    /// Cell of the regime grid: others take cores so that a full team would run `cpu` times slower.
    pub fn cell(cpu: f64, gpu: f64, link: f64, full_team: u16) -> Load {
        Load { cpu: 1.0, gpu, link, free_threads: f64::from(full_team) / cpu }
    }

    /// What multiplies the CPU times of a team of `threads`.
    pub fn cpu_factor(&self, threads: u16) -> f64 {
        self.cpu * crowding(f64::from(threads), self.free_threads)
    }
}

/// Part of a core that others may take from a team's without any thread of it being late.
const SPREAD_MOST: f64 = 0.5;

/// How many times slower a team runs that has more threads than cores are free. Each step waits for its slowest thread,
/// and one that shares its core with a thread that always wants it runs half of the time: so the first core too few
/// costs a factor of 2, and the next ones nothing until there are half as many cores as threads. A small part of a core
/// is what a system's own threads take, spread over all cores, and nobody waits for those.
pub fn crowding(threads: f64, free_cores: f64) -> f64 {
    let spread = (threads / 16.0).min(SPREAD_MOST);
    let too_few = ((threads - free_cores - spread) / (1.0 - spread)).clamp(0.0, 1.0);
    (threads / free_cores).max(1.0 / (1.0 - too_few / 2.0))
}

#[cfg(test)]
mod tests {
    use super::crowding;

    #[test]
    fn one_core_too_few_halves_a_team() {
        let cases = [
            ((8.0, f64::INFINITY), 1.0),
            ((8.0, 16.0), 1.0),
            ((6.0, 6.4), 1.0),
            ((8.0, 8.0), 1.0),
            ((8.0, 7.5), 8.0 / 7.5),
            ((8.0, 7.25), 4.0 / 3.0),
            ((16.0, 15.5), 16.0 / 15.5),
            ((16.0, 15.0), 2.0),
            ((8.0, 7.0), 2.0),
            ((8.0, 6.4), 2.0),
            ((16.0, 6.4), 2.5),
            ((2.0, 0.5), 4.0),
        ];
        for ((threads, free), expected) in cases {
            let found = crowding(threads, free);
            assert!((found - expected).abs() < 1e-12, "{threads} threads on {free} cores: {found}");
        }
    }
}
