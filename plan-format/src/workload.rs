//! The rounds that a plan's workload is made of: at which context they run, how many count, and which of the plan's
//! schedules serves them. One way of choosing for every text, drawing, export and comparison. Not here: the choice
//! under a measured load, which is the runtime's, and the price of a round, which is the planner's.

use crate::ScheduleId;
use crate::artifact::{Options, Plan};
use crate::costs::{CaseCosts, Load};
use crate::evaluate::{Horizon, Prepared, Scratch, evaluate};
use crate::schedule::{Phase, Schedule};
use std::borrow::Cow;

/// Most prompt rounds that are played; later ones are like the last of these.
const MOST_COLD_ROUNDS: u32 = 4;

/// How many rounds of a phase count: decoding is endless, a prompt is a few rounds from empty slots.
pub fn horizon(phase: Phase, prompt_tokens: u32) -> Horizon {
    match phase {
        Phase::Prefill { ubatch_tokens } => {
            Horizon::Cold { rounds: prompt_tokens.div_ceil(ubatch_tokens.max(1)).clamp(1, MOST_COLD_ROUNDS) }
        }
        _ => Horizon::Steady,
    }
}

/// Mean context at the ends of a prompt's rounds.
pub fn prompt_context(prompt_tokens: u32, ubatch_tokens: u32) -> u32 {
    let rounds = u64::from(prompt_tokens.div_ceil(ubatch_tokens.max(1)).max(1));
    // All rounds but the last are full.
    let full = u64::from(ubatch_tokens) * rounds * (rounds - 1) / 2;
    let mean = (full + u64::from(prompt_tokens)).div_ceil(rounds);
    u32::try_from(mean).unwrap_or(u32::MAX).max(ubatch_tokens)
}

/// Context of the workload's rounds of a phase: decode and verification in the middle of the generation, prefill at the
/// mean context of the prompt's rounds.
pub fn context(options: &Options, phase: Phase) -> u32 {
    let tokens = match phase {
        Phase::Prefill { ubatch_tokens } => prompt_context(options.prompt_tokens, ubatch_tokens),
        _ => options.prompt_tokens.saturating_add(options.generate_tokens / 2),
    };
    tokens.clamp(1, options.context_tokens.max(1))
}

/// A round that was chosen for.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen<'a> {
    /// The schedule.
    pub schedule: ScheduleId,
    /// Latency of a round under it.
    pub round_us: f64,
    /// Times of the round.
    pub case: Cow<'a, CaseCosts>,
}

/// The fastest kept schedule for the workload's rounds of a phase, without load. `None` for a plan without expected
/// times or without such rounds.
pub fn chosen(plan: &Plan, phase: Phase) -> Option<Chosen<'_>> {
    let case = plan.costs.case_at(phase, context(&plan.origin.options, phase))?;
    let (schedule, round_us) = fastest(plan, &case, &Load::IDLE)?;
    Some(Chosen { schedule, round_us, case })
}

/// The fastest kept schedule for a round under a load, and its latency. The first of equals.
pub fn fastest(plan: &Plan, case: &CaseCosts, load: &Load) -> Option<(ScheduleId, f64)> {
    let of_phase = |(_, schedule): &(u32, &Schedule)| schedule.phase == case.phase;
    let mut best: Option<(ScheduleId, f64)> = None;
    for (id, schedule) in (0..).zip(&plan.schedules).filter(of_phase) {
        let Some(round_us) = round_us(plan, case, schedule, load) else { continue };
        if best.is_none_or(|(_, known_us)| round_us < known_us) {
            best = Some((ScheduleId(id), round_us));
        }
    }
    best
}

/// Latency of a round under a schedule and a load.
pub fn round_us(plan: &Plan, case: &CaseCosts, schedule: &Schedule, load: &Load) -> Option<f64> {
    let prepared = Prepared::new(&plan.costs, case, &plan.placement, &plan.slots, schedule).ok()?;
    let horizon = horizon(case.phase, plan.origin.options.prompt_tokens);
    Some(evaluate(&plan.costs, case, &prepared, load, horizon, &mut Scratch::default()))
}
