//! From a decision and its table to the parts of the artifact that the planner owns. No choice is made here.

use super::{Grid, Table, TableQuery, table};
use crate::cost::{Demand, Floors, PriceError, Problem, floors, price};
use crate::place::memory::{Budget, priced_for, regions};
use crate::place::search::{Decision, Query, SearchError, decide};
use crate::profile::Profile;
use plan_format::arena::RoundLimits;
use plan_format::artifact::{Optimality, Prediction, Report};
use plan_format::costs::CostModel;
use plan_format::evaluate::Prepared;
use plan_format::program::Program;
use plan_format::schedule::{Phase, Placement, RegimeMap, Schedule, Slots};

/// Sections of the artifact.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// Largest round that the arena must hold.
    pub limits: RoundLimits,
    /// Where items live.
    pub placement: Placement,
    /// Temporary GPU memory.
    pub slots: Slots,
    /// Kept schedules.
    pub schedules: Vec<Schedule>,
    /// Which of them to use when.
    pub regimes: RegimeMap,
    /// Expected times of the phases that have schedules.
    pub costs: CostModel,
    /// Memory, predictions, optimality.
    pub report: Report,
}

/// Everything that planning a program on a device gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Solved {
    /// The priced program, for explanations and simulations.
    pub problem: Problem,
    /// What was decided, and against what.
    pub decision: Decision,
    /// The artifact's sections.
    pub parts: Parts,
}

/// Why a program cannot be planned on a device.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SolveError {
    /// The device profile lacks times, or no ubatch fits.
    #[error(transparent)]
    Price(#[from] PriceError),
    /// No placement exists.
    #[error(transparent)]
    Search(#[from] SearchError),
}

/// From a verified program, a device, a demand and ceilings to all sections: price, decide, table, assemble.
///
/// # Errors
/// A time that the profile does not have; a GPU ceiling that is too small or for a machine without GPU.
pub fn solve_plan(
    program: &Program,
    profile: &Profile,
    demand: &Demand,
    budget: Budget,
    grid: &Grid,
) -> Result<Solved, SolveError> {
    let problem = price(program, profile, demand)?;
    let query = Query { problem: &problem, profile, budget };
    let decision = decide(&query)?;
    let parts = assemble(&query, &decision, grid);
    Ok(Solved { problem, decision, parts })
}

/// Solves the regime table for a decision and puts everything together.
pub fn assemble(query: &Query<'_>, decision: &Decision, grid: &Grid) -> Parts {
    let best = &decision.best;
    let repriced = priced_for(query.problem, query.profile, &best.homes);
    let problem = repriced.as_ref().unwrap_or(query.problem);
    let ubatch = &problem.ubatches[best.candidate.ubatch];
    let ubatch_tokens = ubatch.ubatch_tokens;
    let temporary = best.choice.temporary;
    let (homes, few_homes) = (&best.homes[..], &best.few_homes[..]);
    let table = table(&TableQuery { problem, homes, few_homes, temporary, ubatch_tokens }, grid);
    let placement = Placement { homes: best.homes.clone(), held: best.choice.held.clone() };
    let slots = temporary.slots();
    let gpu = query.profile.gpu.as_ref().filter(|_| query.budget.vram_bytes > 0);
    let report = Report {
        memory: regions(problem, gpu, ubatch, &best.homes, best.candidate.slots),
        predictions: predictions(problem, query.profile, &placement, &slots, &table),
        optimality: optimality(decision),
    };
    Parts {
        limits: RoundLimits { ubatch_tokens, output_tokens: ubatch.output_tokens },
        costs: kept_costs(problem, ubatch_tokens),
        placement,
        slots,
        schedules: table.schedules,
        regimes: table.map,
        report,
    }
}

/// The cost model without the prefill phases above the chosen ubatch.
fn kept_costs(problem: &Problem, ubatch_tokens: u32) -> CostModel {
    let mut costs = problem.costs.clone();
    costs.cases.retain(|case| match case.phase {
        Phase::Prefill { ubatch_tokens: tokens } => tokens <= ubatch_tokens,
        _ => true,
    });
    costs
}

/// Unloaded latency of the workload's rounds, then of each phase and context, with floors.
fn predictions(
    problem: &Problem,
    profile: &Profile,
    placement: &Placement,
    slots: &Slots,
    table: &Table,
) -> Vec<Prediction> {
    let map = &table.map;
    let cells = map.cpu_slowdown.len() * map.gpu_slowdown.len() * map.link_slowdown.len();
    let mut rounds: Vec<(Phase, u32, usize, f64)> =
        table.workload.iter().map(|own| (own.phase, own.context_tokens, own.schedule, own.round_us)).collect();
    for (p, &phase) in map.phases.iter().enumerate() {
        for (c, &context_tokens) in map.context_tokens.iter().enumerate() {
            let idle = (p * map.context_tokens.len() + c) * cells;
            rounds.push((phase, context_tokens, map.cells[idle].index(), table.cell_us[idle]));
        }
    }
    let mut predictions: Vec<Prediction> = Vec::new();
    for (phase, context_tokens, schedule, round_us) in rounds {
        let is_known = predictions.iter().any(|p| (p.phase, p.context_tokens) == (phase, context_tokens));
        let Some((case, costs)) = problem.case(phase, context_tokens).filter(|_| !is_known) else { continue };
        let schedule = &table.schedules[schedule];
        let bounds = Prepared::new(&problem.costs, costs, placement, slots, schedule)
            .map_or(Floors::default(), |prepared| floors(problem, profile, case, &prepared));
        predictions.push(Prediction {
            phase,
            context_tokens,
            round_us,
            floor_us: bounds.overlapped_us,
            serial_floor_us: bounds.serial_us,
        });
    }
    predictions
}

/// Simulated time of the winner and of the best hand-made split; static time of the dynamic program and its bound.
fn optimality(decision: &Decision) -> Option<Optimality> {
    let (seed, dp_us, lp_bound_us) = (decision.best_seed.as_ref()?, decision.dp_us?, decision.lp_bound_us?);
    Some(Optimality {
        chosen_us: decision.best.total_us,
        dp_us,
        lp_bound_us,
        best_seed: seed.candidate.origin.clone(),
        best_seed_us: seed.total_us,
    })
}
