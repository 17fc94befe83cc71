//! What static placement, coordination and dynamic transfer each contribute (the paper's Figure 15, simulated).
//!
//! The base is what hand-tuned engines do: the last layers resident, one processor at a time, switches by stream
//! synchronisation, and in prefill every host weight copied before its operator and executed on the GPU when that is
//! faster than the CPU. Each further row adds one mechanism.

use super::search::{Decision, Query, Scored};
use super::weigh::Workload;
use crate::cost::floors;
use crate::transfer::{Answer, Task};
use plan_format::costs::Load;
use plan_format::evaluate::Scratch;
use plan_format::schedule::{Home, Phase};

/// One configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What is in it.
    pub name: &'static str,
    /// A decode round.
    pub decode_us: f64,
    /// A prefill round.
    pub prefill_us: f64,
    /// Tokens of that prefill round.
    pub ubatch_tokens: u32,
}

impl Row {
    /// Prefill speed, which compares rows of different ubatches.
    pub fn prefill_tokens_per_s(&self) -> f64 {
        f64::from(self.ubatch_tokens) * 1e6 / self.prefill_us
    }

    /// Decode speed.
    pub fn decode_tokens_per_s(&self) -> f64 {
        1e6 / self.decode_us
    }
}

/// The four rows, from a whole-layer split (`search::whole_layers`); `None` if the demand was not priced.
///
/// The middle rows use the best placement without temporary memory; copies in prefill are not charged for theirs there,
/// as they are not in the base.
pub fn ablation(query: &Query<'_>, decision: &Decision, whole_layers: &Scored) -> Option<[Row; 4]> {
    let (best, placed) = (&decision.best, decision.best_static.as_ref()?);
    let row = |name, scored: &Scored, round_us: &dyn Fn(usize) -> f64| {
        let ubatch_tokens = query.problem.ubatches[scored.candidate.ubatch].ubatch_tokens;
        let workload = Workload::new(query.problem, ubatch_tokens)?;
        let (decode_us, prefill_us) = (round_us(workload.decode.0), round_us(workload.prefill.0));
        Some(Row { name, decode_us, prefill_us, ubatch_tokens })
    };
    let is_decode = |case: usize| query.problem.costs.cases[case].phase == Phase::Decode;
    let serial = |scored: &Scored, case: usize| serial_us(query, case, &scored.homes);
    let slots = best.candidate.slots;
    Some([
        row("base", whole_layers, &|case| serial(whole_layers, case))?,
        row("base + placement", placed, &|case| serial(placed, case))?,
        row("base + placement + coordination", placed, &|case| {
            let team = if is_decode(case) { placed.decode.team } else { placed.prefill.team };
            let task = Task { problem: query.problem, case, homes: &placed.homes, slots, load: Load::IDLE };
            coordinated_us(&task, team)
        })?,
        row("base + placement + coordination + transfer", best, &|case| {
            if is_decode(case) { best.decode.round_us } else { best.prefill.round_us }
        })?,
    ])
}

/// A speed-up over the base, and the most that the winner's placement could ever reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reach {
    /// Base over plan.
    pub speedup: f64,
    /// Base over the larger of the memory floor and the busiest processor: no overlap can beat that.
    pub most: f64,
}

/// Reach in decode and in prefill per token: whether a claimed speed-up lies within the floors of this machine.
pub fn reach(query: &Query<'_>, decision: &Decision, rows: &[Row; 4]) -> Option<[Reach; 2]> {
    let best = &decision.best;
    let ubatch_tokens = query.problem.ubatches[best.candidate.ubatch].ubatch_tokens;
    let workload = Workload::new(query.problem, ubatch_tokens)?;
    let bound_us = |case: usize, answer: &Answer| {
        let task = best.task(query.problem, case);
        let prepared = task.prepare(answer.team, &answer.promoted);
        let busy = |gpu: bool, time: &dyn Fn(usize) -> f64| -> f64 {
            (0..best.homes.len()).filter(|&item| prepared.on_gpu[item] == gpu).map(time).sum()
        };
        let cpu_us = busy(false, &|item| task.cpu_us(answer.team, item));
        let gpu_us = busy(true, &|item| task.gpu_us(item));
        floors(query.problem, query.profile, case, &prepared).overlapped_us.max(cpu_us).max(gpu_us)
    };
    let [base, .., full] = rows;
    // Rows may differ in ubatch: prefill compares times per token.
    let per_token = |us: f64, row: &Row| us / f64::from(row.ubatch_tokens);
    let base_us = per_token(base.prefill_us, base);
    let prefill_bound_us = per_token(bound_us(workload.prefill.0, &best.prefill), full);
    let decode_bound_us = bound_us(workload.decode.0, &best.decode);
    Some([
        Reach { speedup: base.decode_us / full.decode_us, most: base.decode_us / decode_bound_us },
        Reach { speedup: base_us / per_token(full.prefill_us, full), most: base_us / prefill_bound_us },
    ])
}

/// One processor at a time, with blocking switches; prefill copies host weights where that beats the CPU.
fn serial_us(query: &Query<'_>, case: usize, homes: &[Home]) -> f64 {
    let problem = query.problem;
    let costs = &problem.costs.cases[case];
    let team = problem.costs.teams.len() - 1;
    let copies = matches!(costs.phase, Phase::Prefill { .. });
    let mut total_us = f64::from(costs.gap_us);
    let mut on_gpu = false;
    for (item, home) in homes.iter().enumerate() {
        let cost = &costs.items[item];
        let cpu_us = f64::from(problem.cpu_us(case, team)[item]);
        let gpu_us = f64::from(cost.gpu_us);
        let copied_us = f64::from(cost.stream_us) + gpu_us;
        let by_copy = copies && cost.stream_us > 0.0 && copied_us < cpu_us;
        let there = *home == Home::Resident || by_copy;
        total_us += if *home == Home::Resident {
            gpu_us
        } else if by_copy {
            copied_us + query.profile.latency.blocking_switch_us
        } else {
            cpu_us
        };
        if there != on_gpu {
            let moved_us = f64::from(cost.to_cpu_us) - query.profile.latency.to_cpu_us;
            total_us += query.profile.latency.blocking_switch_us + moved_us;
            on_gpu = there;
        }
    }
    total_us
}

/// Flags instead of synchronisation; prefill copies everything that it can ahead of time. No choice of transfers.
fn coordinated_us(task: &Task<'_>, team: usize) -> f64 {
    let mut scratch = Scratch::default();
    let static_us = task.round_us(team, &[], &mut scratch);
    match task.costs().phase {
        Phase::Prefill { .. } => static_us.min(task.round_us(team, &task.promotable(), &mut scratch)),
        _ => static_us,
    }
}
