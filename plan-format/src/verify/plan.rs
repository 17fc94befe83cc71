//! Invariants of a whole plan, beside those of its program and arena:
//!
//! 1. Options: a context and round sizes of 1 or more; the arena is made for exactly these rounds; a context that the
//!    model was made for.
//! 2. Placement: one home per item; nothing resident or promoted if no GPU memory may be used or no GPU is named.
//! 3. Layouts: one per part of each weight; small weights and those used in the file's own pages as in the file; tiled
//!    for the GPU only where a GPU executes.
//! 4. Slots: 256-byte aligned, their end fits 63 bits.
//! 5. Schedules: at least one; 1 to [`MAX_THREADS`] threads; finite prediction; promotions in item order, of host items
//!    with weights, into slots that exist and are large enough, after an earlier item.
//! 6. Regimes: axes not empty, ascending, slowdowns from 1; one cell per combination, each a schedule of the cell's
//!    phase; decode and some prefill covered; the last context bucket holds the planned context.
//! 7. Costs: tables of the right lengths, teams and producers in order, figures finite and not negative; every schedule
//!    has a team and a case, unless the table is empty and no phase has a choice.
//! 8. Report: finite figures.
//!
//! Held items have a file of their own. Next: `held.rs`.

use super::held::verify_held;
use super::{Problem, ensure, invalid, verify_program};
use crate::artifact::{Options, Plan};
use crate::costs::{CaseCosts, CostModel};
use crate::error::Result;
use crate::program::{OpKind, Program, WeightRole};
use crate::schedule::{Home, HostMemory, Layout, Phase, Promotion, RegimeMap, Schedule, Slot};

/// Most CPU threads of a schedule.
pub const MAX_THREADS: u16 = 1024;
/// Slots start at multiples of this: what GPU copies and tiled loads like.
pub const SLOT_ALIGNMENT_BYTES: u64 = 256;

/// Checks every invariant of a plan.
///
/// # Errors
/// The first one that does not hold, with section and field.
pub fn verify_plan(plan: &Plan) -> Result<()> {
    verify_program(&plan.program)?;
    plan.arena.verify(&plan.program)?;
    options(plan).map_err(|problem| invalid("origin", "options".to_owned(), problem))?;
    placement(plan)?;
    layouts(plan)?;
    table("places", "slots", &plan.slots.slots, |_, slot| slot_shape(slot))?;
    ensure_at("schedule", "schedules", !plan.schedules.is_empty(), || "there is none".to_owned())?;
    table("schedule", "schedules", &plan.schedules, |_, schedule| schedule_shape(plan, schedule))?;
    regimes(plan).map_err(|(field, problem)| invalid("regimes", field.to_owned(), problem))?;
    costs(plan)?;
    verify_held(plan)?;
    report(plan)
}

fn ensure_at(section: &'static str, field: &str, holds: bool, problem: impl Fn() -> Problem) -> Result<()> {
    if holds { Ok(()) } else { Err(invalid(section, field.to_owned(), problem())) }
}

fn table<T>(
    section: &'static str,
    name: &str,
    entries: &[T],
    check: impl Fn(usize, &T) -> Result<(), Problem>,
) -> Result<()> {
    let at = |i: usize| move |problem| invalid(section, format!("{name}[{i}]"), problem);
    entries.iter().enumerate().try_for_each(|(i, entry)| check(i, entry).map_err(at(i)))
}

fn options(plan: &Plan) -> Result<(), Problem> {
    let Options { context_tokens, limits, .. } = plan.origin.options;
    ensure!(context_tokens > 0, "context_tokens is 0");
    let most = plan.program.context_tokens;
    ensure!(context_tokens <= most, "context_tokens is {context_tokens}; the model was made for {most}");
    ensure!(limits == plan.arena.limits, "limits are {limits:?}, the arena's are {:?}", plan.arena.limits);
    Ok(())
}

/// Whether the plan may put anything on a GPU.
fn has_gpu(plan: &Plan) -> bool {
    plan.origin.options.vram_bytes > 0 && plan.origin.device.gpu.is_some()
}

fn placement(plan: &Plan) -> Result<()> {
    let (homes, items) = (&plan.placement.homes, plan.program.items.len());
    ensure_at("places", "placement.homes", homes.len() == items, || format!("{} for {items} items", homes.len()))?;
    let gpu = has_gpu(plan);
    table("places", "placement.homes", homes, |_, home| {
        ensure!(gpu || *home != Home::Resident, "is resident, but the plan uses no GPU");
        Ok(())
    })
}

/// Home of each weight's item.
fn homes_of_weights(plan: &Plan) -> Vec<Option<Home>> {
    let mut homes = vec![None; plan.program.weights.len()];
    for (item, home) in plan.program.items.iter().zip(&plan.placement.homes) {
        item.weights.iter().for_each(|w| homes[w.index()] = Some(*home));
    }
    homes
}

fn layouts(plan: &Plan) -> Result<()> {
    let (layouts, weights) = (&plan.layouts, &plan.program.weights);
    let count = || format!("{} for {} weights", layouts.len(), weights.len());
    ensure_at("places", "layouts", layouts.len() == weights.len(), count)?;
    let homes = homes_of_weights(plan);
    let gpu = has_gpu(plan);
    table("places", "layouts", layouts, |i, parts| {
        let weight = &weights[i];
        ensure!(parts.len() == weight.parts.len(), "{} for {} parts", parts.len(), weight.parts.len());
        let as_in_file = weight.role == WeightRole::Small || homes[i] == Some(Home::Host(HostMemory::Mapped));
        for &layout in parts {
            ensure!(
                !as_in_file || layout == Layout::Gguf,
                "is {layout:?}, but the weight is used as it is in the file"
            );
            ensure!(gpu || layout != Layout::GpuTiled, "is GpuTiled, but the plan uses no GPU");
            let packed = homes[i] == Some(Home::Resident) && layout == Layout::CpuPanel16;
            ensure!(!packed, "is CpuPanel16, but the weight is resident on the GPU");
        }
        Ok(())
    })
}

fn slot_shape(slot: &Slot) -> Result<(), Problem> {
    let aligned = slot.offset_bytes.is_multiple_of(SLOT_ALIGNMENT_BYTES);
    ensure!(aligned, "starts at {}, no multiple of {SLOT_ALIGNMENT_BYTES}", slot.offset_bytes);
    ensure!(slot.size_bytes > 0, "has no bytes");
    let end = slot.offset_bytes.checked_add(slot.size_bytes);
    ensure!(end.is_some_and(|end| end <= i64::MAX as u64), "ends beyond 2^63");
    Ok(())
}

fn schedule_shape(plan: &Plan, schedule: &Schedule) -> Result<(), Problem> {
    let Schedule { phase, cpu_threads, promotions, predicted_us } = schedule;
    ensure!((1..=MAX_THREADS).contains(cpu_threads), "has {cpu_threads} threads; 1 to {MAX_THREADS} are accepted");
    ensure!(predicted_us.is_finite() && *predicted_us >= 0.0, "predicts {predicted_us} us");
    phase_fits(plan, *phase)?;
    ensure!(promotions.is_empty() || has_gpu(plan), "promotes items, but the plan uses no GPU");
    for (i, pair) in promotions.windows(2).enumerate() {
        ensure!(pair[0].item < pair[1].item, "promotion {} is not in item order", i + 1);
    }
    promotions.iter().enumerate().try_for_each(|(i, promotion)| {
        promotion_shape(plan, promotion).map_err(|problem| format!("promotion {i}: {problem}"))
    })
}

fn phase_fits(plan: &Plan, phase: Phase) -> Result<(), Problem> {
    let limits = plan.arena.limits;
    let tokens = phase.tokens();
    let outputs = if phase.is_prefill() { 1 } else { tokens };
    let fits = tokens >= 1 && tokens <= limits.ubatch_tokens && outputs <= limits.output_tokens;
    ensure!(fits, "is for {phase:?}, which does not fit the arena's {limits:?}");
    Ok(())
}

fn promotion_shape(plan: &Plan, promotion: &Promotion) -> Result<(), Problem> {
    let Promotion { item: id, slot, after } = *promotion;
    let item = plan.program.items.get(id.index()).ok_or_else(|| format!("item {} does not exist", id.0))?;
    // `placement` found one home per item.
    ensure!(plan.placement.homes[id.index()] != Home::Resident, "{} is resident", item.name);
    let slot = plan.slots.slots.get(slot.index()).ok_or_else(|| format!("slot {} does not exist", slot.0))?;
    let least = streamed_bytes_least(&plan.program, id.index());
    ensure!(least > 0, "{} has no weights to stream", item.name);
    ensure!(slot.size_bytes >= least, "{} needs {least} bytes, its slot has {}", item.name, slot.size_bytes);
    ensure!(after.is_none_or(|after| after < id), "{} waits for an item that is not before it", item.name);
    Ok(())
}

/// What streaming an item brings at least: all of its matrices, and of expert stacks what one token chooses.
fn streamed_bytes_least(program: &Program, item: usize) -> u64 {
    let item = &program.items[item];
    let chosen = program.ops_of(item).iter().find_map(|op| match op.kind {
        OpKind::ExpertMatMul { chosen, .. } => Some(u64::from(chosen)),
        _ => None,
    });
    let bytes = item.weights.iter().map(|w| {
        let weight = &program.weights[w.index()];
        let tensor = program.held_by(weight);
        match (weight.role, chosen) {
            (WeightRole::Experts, Some(chosen)) => tensor.size_bytes / tensor.dims[2] * chosen.min(tensor.dims[2]),
            _ => tensor.size_bytes,
        }
    });
    bytes.fold(0, u64::saturating_add)
}

type FieldProblem = (&'static str, Problem);

fn regimes(plan: &Plan) -> Result<(), FieldProblem> {
    let RegimeMap { phases, context_tokens, cpu_slowdown, gpu_slowdown, link_slowdown, cells } = &plan.regimes;
    ascending(context_tokens).map_err(|problem| ("context_tokens", problem))?;
    for (field, axis) in
        [("cpu_slowdown", cpu_slowdown), ("gpu_slowdown", gpu_slowdown), ("link_slowdown", link_slowdown)]
    {
        ascending(axis).map_err(|problem| (field, problem))?;
        let sane = axis.iter().all(|factor| factor.is_finite() && *factor >= 1.0);
        sane.then_some(()).ok_or_else(|| (field, format!("is {axis:?}; numbers from 1 are accepted")))?;
    }
    covers(plan).map_err(|problem| ("phases", problem))?;
    let planned = plan.origin.options.context_tokens;
    let last = context_tokens.last().copied().unwrap_or_default();
    let holds = last >= planned;
    holds
        .then_some(())
        .ok_or_else(|| ("context_tokens", format!("ends at {last}, the planned context is {planned}")))?;
    let axes = [context_tokens.len(), cpu_slowdown.len(), gpu_slowdown.len(), link_slowdown.len()];
    let per_phase = axes.iter().try_fold(1_usize, |product, &len| product.checked_mul(len));
    let expected = per_phase.and_then(|n| n.checked_mul(phases.len()));
    let Some(per_phase) = per_phase.filter(|_| expected == Some(cells.len())) else {
        return Err(("cells", format!("has {} cells, the axes make {expected:?}", cells.len())));
    };
    for (i, id) in cells.iter().enumerate() {
        let phase = phases[i / per_phase];
        match plan.schedules.get(id.index()) {
            Some(schedule) if schedule.phase == phase => {}
            Some(other) => {
                return Err(("cells", format!("cell {i} is of {phase:?} and names one of {:?}", other.phase)));
            }
            None => return Err(("cells", format!("cell {i} names schedule {}, which does not exist", id.0))),
        }
    }
    Ok(())
}

fn ascending<T: PartialOrd + std::fmt::Debug>(axis: &[T]) -> Result<(), Problem> {
    ensure!(!axis.is_empty(), "is empty");
    ensure!(axis.windows(2).all(|pair| pair[0] < pair[1]), "is {axis:?}; ascending values are accepted");
    Ok(())
}

fn covers(plan: &Plan) -> Result<(), Problem> {
    let phases = &plan.regimes.phases;
    ensure!(phases.windows(2).all(|pair| pair[0] < pair[1]), "are {phases:?}; ascending ones are accepted");
    ensure!(phases.contains(&Phase::Decode), "have no decode");
    ensure!(phases.iter().any(|phase| matches!(phase, Phase::Prefill { .. })), "have no prefill");
    Ok(())
}

fn costs(plan: &Plan) -> Result<()> {
    let model = &plan.costs;
    if *model == CostModel::default() {
        let once =
            plan.schedules.iter().enumerate().all(|(i, s)| plan.schedules[..i].iter().all(|t| t.phase != s.phase));
        return ensure_at("costs", "cases", once, || "are empty, but a phase has several schedules".to_owned());
    }
    cost_heading(plan).map_err(|(field, problem)| invalid("costs", field.to_owned(), problem))?;
    table("costs", "cases", &model.cases, |_, case| case_shape(model, case))?;
    table("schedule", "schedules", &plan.schedules, |_, schedule| {
        ensure!(
            model.team_index(schedule.cpu_threads).is_some(),
            "has {} threads, without costs",
            schedule.cpu_threads
        );
        ensure!(model.case_index(schedule.phase, 1).is_some(), "is for {:?}, without costs", schedule.phase);
        Ok(())
    })
}

fn cost_heading(plan: &Plan) -> Result<(), FieldProblem> {
    let model = &plan.costs;
    let items = plan.program.items.len();
    let starts = &model.input_start;
    let sane = starts.len() == items + 1
        && starts.first() == Some(&0)
        && starts.windows(2).all(|pair| pair[0] <= pair[1])
        && starts.last().is_some_and(|&end| end as usize == model.inputs.len());
    if !sane {
        return Err(("input_start", format!("does not divide {} producers among {items} items", model.inputs.len())));
    }
    for item in 0..items {
        if let Some(late) = model.inputs_of(item).iter().find(|producer| producer.index() >= item) {
            return Err(("inputs", format!("item {item} reads from item {}, which is not before it", late.0)));
        }
    }
    if model.teams.is_empty() || !model.teams.windows(2).all(|pair| pair[0].threads < pair[1].threads) {
        return Err(("teams", "are none or not in ascending order".to_owned()));
    }
    let slow = |factor: f32| factor.is_finite() && factor >= 1.0;
    match model.teams.iter().find(|t| !slow(t.cpu_slowdown_while_link) || !slow(t.link_slowdown_while_cpu)) {
        Some(team) => Err(("teams", format!("the team of {} has a slowdown under 1", team.threads))),
        None => Ok(()),
    }
}

fn case_shape(model: &CostModel, case: &CaseCosts) -> Result<(), Problem> {
    let items = model.item_count();
    ensure!(case.items.len() == items, "has {} items, expected {items}", case.items.len());
    ensure!(case.cpu_us.len() == items * model.teams.len(), "has {} CPU times", case.cpu_us.len());
    let sane = |us: &f32| us.is_finite() && *us >= 0.0;
    ensure!(sane(&case.gap_us) && case.cpu_us.iter().all(sane), "has a CPU time that is negative or not finite");
    for (i, item) in case.items.iter().enumerate() {
        let times = [item.gpu_us, item.stream_us, item.to_gpu_us, item.to_cpu_us, item.dram_share];
        ensure!(times.iter().all(sane) && item.dram_share <= 1.0, "item {i} has the figures {times:?}");
        let before = item.stream_after.is_none_or(|after| after.index() < i);
        ensure!(before, "item {i} is streamed after one that is not before it");
    }
    Ok(())
}

fn report(plan: &Plan) -> Result<()> {
    let sane = |us: f64| us.is_finite() && us >= 0.0;
    table("report", "predictions", &plan.report.predictions, |_, p| {
        ensure!([p.round_us, p.floor_us, p.serial_floor_us].into_iter().all(sane), "has a figure that is not finite");
        Ok(())
    })?;
    let Some(optimality) = &plan.report.optimality else { return Ok(()) };
    let figures = [optimality.chosen_us, optimality.dp_us, optimality.lp_bound_us, optimality.best_seed_us];
    let finite = figures.iter().all(|us| us.is_finite());
    ensure_at("report", "optimality", finite, || format!("has the figures {figures:?}"))
}
