//! Putting it together at load: a plan, its weights on the host, and a GPU become a [`Hybrid`].
//! Next: `memory.rs`, `bound.rs`.

use super::adapt::Contention;
use super::bound::{Binder, Made, chosen, is_few, phase_tokens};
use super::choose::context_of;
use super::crossings::{ItemAccess, ops};
use super::driver::{Driver, HandOver, Parts, Turn};
use super::fills::Fills;
use super::held::Held;
use super::inputs::{InputLayout, Inputs, mapped_memory};
use super::marks::Timing;
use super::memory::{GpuMap, GpuMemory, Tenants, matrix_bytes};
use super::ops::{OpMaker, RoundArgs, Sizes, WeightShape};
use super::select::Selector;
use super::shrink::with_slots;
use super::staging::{HostCopies, StagingArea};
use crate::Error;
use crate::exec::choices::{ChoiceMemory, Choices, Routers};
use crate::exec::failure::lock;
use crate::exec::prepare::{Limits, Prepared};
use crate::exec::shared::Shared;
use crate::exec::solo::Solo;
use crate::exec::states::{Piece, States};
use crate::exec::step::Step;
use crate::exec::trace::Trace;
use crate::exec::{Round, WeightStore};
use device::DeviceError;
use device::clock::Clock;
use device::gpu::Gpu;
use device::team::Pressure;
use device::timeline::Timeline;
use kernels::quant::packed_bytes;
use plan_format::artifact::Plan;
use plan_format::program::WeightRole;
use plan_format::schedule::{Home, Promotion, Schedule, Slots};
use shared_cli::output::say;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a GPU may be silent before it is given up.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Rounds that are timed when one was unlike those before.
const TIMED_WHEN_CURIOUS: u32 = 6;

/// The GPU that takes part.
pub struct GpuSide {
    /// The GPU.
    pub gpu: Arc<dyn Gpu>,
    /// Who makes its operators.
    pub maker: Box<dyn OpMaker>,
    /// Part of expected switch times that the GPU itself adds.
    pub hand_over: HandOver,
    /// Schedule that is always taken in its phase.
    pub pinned_schedule: Option<usize>,
}

/// What a round with a GPU needs besides the CPU's side.
pub struct Hybrid {
    /// Worker 0's side.
    pub driver: Mutex<Driver>,
    /// Where everything lies on the GPU.
    pub map: GpuMap,
    /// The GPU.
    pub gpu: Arc<dyn Gpu>,
    /// Which schedule each round takes.
    pub selector: Selector,
    /// Steps of each part, by schedule.
    parts: Vec<Vec<StepsOfPart>>,
    /// What a person should know: memory that could not be pinned, slots that others left no room for.
    pub notes: Vec<String>,
    watched: Mutex<FreeMemory>,
}

/// GPU memory that nobody has is looked at once in so many rounds.
const LOOKED_ONE_IN: u32 = 16;
/// With less than this the driver may fail to allocate what a recorded graph needs.
const AT_RISK_BYTES: u64 = 64 << 20;

/// What is known of free GPU memory.
#[derive(Clone, Copy, Debug, Default)]
struct FreeMemory {
    rounds: u32,
    is_scarce: bool,
}

/// Steps of a CPU part, by the number of tokens.
#[derive(Clone, Debug)]
pub struct StepsOfPart {
    /// Among those of rounds of one token.
    pub of_one_token: PartSteps,
    /// Among those of all others.
    pub of_many: PartSteps,
}

/// Steps of a CPU part.
#[derive(Clone, Debug)]
pub struct PartSteps {
    /// Those of all rounds (angles), before the first part's own.
    pub first: Range<usize>,
    /// The part's own.
    pub own: Range<usize>,
}

/// The CPU's memory when a GPU takes part.
pub struct HostSide {
    /// Values: mapped memory.
    pub values: Shared,
    /// States of host items.
    pub states: States,
    /// Where choices of experts are recorded, if they are.
    pub choices: Option<ChoiceMemory>,
}

impl Hybrid {
    /// Takes memory on both sides, uploads, makes operators.
    /// Errors: too little GPU memory, an operator without kernel, schedules that do not fit.
    pub fn new(
        plan: &Plan,
        weights: &WeightStore,
        limits: Limits,
        (prepared, solo): (&Prepared, &Solo),
        side: GpuSide,
    ) -> Result<(Hybrid, HostSide), Error> {
        let GpuSide { gpu, maker, hand_over, pinned_schedule } = side;
        check(plan, pinned_schedule)?;
        let Plan { program, arena, slots, .. } = plan;
        let (few_arena, held) = (plan.few_arena.as_ref(), &plan.placement.held);
        let (resident, on_gpu) = sides(plan);
        let state_limits = limits.of_states(arena.limits.ubatch_tokens as usize);
        let (layouts, resident, on_gpu) = (&plan.layouts, &resident[..], &on_gpu[..]);
        let tenants =
            Tenants { program, arena, few_arena, held, weights, layouts, resident, on_gpu, slots, state_limits };
        let here = tenants.resident_states();
        let input_layout = InputLayout::new(arena.limits, limits.sequences, here.iter().flatten());
        let sizes = sizes(plan, limits);
        let trig_bytes: Vec<u64> = prepared.sizes.trig.iter().map(|&bytes| bytes as u64).collect();
        let mut notes: Vec<String> = pin(&*gpu, weights)?.into_iter().collect();
        let host_copies = if notes.is_empty() { HostCopies::Direct } else { HostCopies::Bounced };
        let memory = tenants.move_in(&*gpu, &*maker, &input_layout, &trig_bytes, &sizes)?;
        notes.extend(fewer_slots(&memory, slots));
        let plan = &*with_slots(plan, memory.slot_count);
        let Plan { slots, placement, .. } = plan;
        let host_arena = gpu.take_mapped(arena.size_bytes.max(1), "the host's activations")?;
        let inputs = Inputs::new(&gpu, input_layout)?;
        let choices = choice_memory(plan, limits, &gpu)?;
        let routed = (0..program.items.len()).map(|item| chosen_experts(plan, weights, &*maker, item));
        let (table_bytes, offsets) = table_places(routed);
        let tables = (table_bytes > 0).then(|| gpu.take_mapped(table_bytes, "tables of experts")).transpose()?;
        let tables = (tables, &offsets[..]);
        let staging = staging_area(plan, weights, &memory)?;
        let binder = Binder {
            program,
            arena,
            placement,
            slots,
            sizes,
            weights,
            memory: &memory,
            few_arena: plan.few_arena.as_ref(),
            staging,
            host_copies,
            host_arena,
            tables,
            choices: choices.as_ref(),
            maker: &*maker,
        };
        let mut driver = drive(plan, &binder, &gpu, (inputs, hand_over))?;
        let part_steps = |schedule| steps_of_parts(plan, (prepared, solo), &driver, schedule);
        let parts = (0..plan.schedules.len()).map(part_steps).collect();
        let mut take = |state: plan_format::StateId, bytes| here[state.index()].is_none().then(|| Shared::new(bytes));
        let states = States::new(program, state_limits, &mut take);
        let host = HostSide { values: mapped_memory(&gpu, host_arena), states, choices };
        let contention = if matches!(gpu.clock(), Clock::Virtual(_)) { Contention::Absent } else { Contention::Felt };
        let selector = Selector::new(plan, pinned_schedule, contention);
        if selector.is_adaptive() {
            driver.time(Timing::Sampled);
        }
        let map = memory.map;
        let watched = Mutex::new(FreeMemory::default());
        Ok((Hybrid { driver: Mutex::new(driver), map, gpu, selector, parts, notes, watched }, host))
    }

    /// What a round is for the driver.
    pub fn turn<'a>(&'a self, round: &Round, trace: &'a Trace) -> Turn<'a> {
        let schedule = self.selector.choose(round, trace.now());
        let (case, cpu_us) = self.selector.expected(schedule, round);
        self.gpu.host_team(self.selector.threads(schedule) as u32, self.selector.threads_most() as u32);
        let (tokens, outputs) = (round.tokens.len() as u32, round.outputs.len() as u32);
        let args = RoundArgs { tokens, outputs, context_tokens: context_of(round) };
        Turn { schedule, args, case, cpu_us, trace }
    }

    /// Takes in what a round took, and what others took of the team's cores.
    pub fn observe(&self, pressure: Pressure) {
        let mut driver = lock(&self.driver);
        let (sample, pressure) = (driver.take_sample(), self.gpu.host_pressure().unwrap_or(pressure));
        if self.selector.observe(sample, pressure) {
            driver.time_next(TIMED_WHEN_CURIOUS);
        }
        self.watch_memory(&mut driver);
    }

    /// When others have taken nearly all GPU memory nothing more is recorded: that would allocate, and fail.
    fn watch_memory(&self, driver: &mut Driver) {
        let mut watched = lock(&self.watched);
        watched.rounds = watched.rounds.wrapping_add(1);
        if watched.is_scarce || watched.rounds % LOOKED_ONE_IN != 1 {
            return;
        }
        // A GPU that is lost is reported by the next round.
        let Ok(memory) = self.gpu.memory() else { return };
        if memory.unclaimed_bytes < AT_RISK_BYTES && memory.total_bytes > memory.ours_bytes + AT_RISK_BYTES {
            watched.is_scarce = true;
            driver.record_no_more();
            say(format_args!(
                "warning: other programs have taken the GPU's memory, {} MiB are left: nothing more is recorded there, \
                 which costs some speed; the run goes on with what it has",
                memory.unclaimed_bytes >> 20
            ));
        }
    }

    /// Reads a state's bytes from the GPU. Errors: the GPU is lost.
    pub fn read_state(&self, piece: &Piece, into: &mut [u8]) -> Result<(), Error> {
        super::states::read(&*self.gpu, &self.map, piece, into)
    }

    /// Writes a state's bytes to the GPU. Errors: the GPU is lost.
    pub fn write_state(&self, piece: &Piece, from: &[u8]) -> Result<(), Error> {
        super::states::write(&*self.gpu, &self.map, piece, from)
    }

    /// Steps of a schedule's CPU parts.
    pub fn parts(&self, schedule: usize) -> &[StepsOfPart] {
        &self.parts[schedule]
    }
}

/// Where choices are recorded, if they are asked for and there are any.
fn choice_memory(plan: &Plan, limits: Limits, gpu: &Arc<dyn Gpu>) -> Result<Option<ChoiceMemory>, Error> {
    let routers = Arc::new(Routers::of(&plan.program, plan.arena.limits.ubatch_tokens as usize));
    if limits.choices == Choices::Unseen || routers.size_bytes() == 0 {
        return Ok(None);
    }
    let mapped = gpu.take_mapped(routers.size_bytes() as u64, "choices of experts")?;
    let (region, device) = (mapped_memory(gpu, mapped), Some(mapped.device));
    Ok(Some(ChoiceMemory { region, device, routers }))
}

/// Experts of an item of which some schedule streams only the chosen ones: a round of few tokens, or a slot that does
/// not hold the stacks.
fn chosen_experts(plan: &Plan, weights: &WeightStore, maker: &dyn OpMaker, item: usize) -> Option<usize> {
    let chosen = chosen(&plan.program, item);
    let shapes = plan.program.items[item].weights.iter().map(|&weight| weights.shape(weight));
    let experts = shapes.clone().map(|shape| shape.stack).max().unwrap_or(0);
    let bytes = |shape: WeightShape| {
        let matrix = matrix_bytes(&shape, maker.slot_layout(&shape)).unwrap_or(u64::MAX >> 16);
        (matrix * shape.stack as u64).next_multiple_of(256)
    };
    let whole: u64 = shapes.map(bytes).sum();
    let slot_bytes = |promotion: &Promotion| plan.slots.slots[promotion.slot.index()].size_bytes.next_multiple_of(256);
    let streams_chosen = |schedule: &Schedule| {
        let is_few = is_few(chosen * phase_tokens(schedule.phase), experts);
        let mut here = schedule.promotions.iter().filter(|promotion| promotion.item.index() == item);
        here.any(|promotion| is_few || slot_bytes(promotion) < whole)
    };
    (chosen > 0 && plan.schedules.iter().any(streams_chosen)).then_some(experts)
}

/// Size of all tables of experts, and each one's offset.
fn table_places(routed: impl Iterator<Item = Option<usize>>) -> (u64, Vec<Option<u64>>) {
    let mut end = 0;
    let place = |experts: Option<usize>| {
        let start = end;
        end += (experts? * 4).next_multiple_of(256) as u64;
        Some(start)
    };
    let places = routed.map(place).collect();
    (end, places)
}

/// What to say when others left too little room for all slots.
fn fewer_slots(memory: &GpuMemory, planned: &Slots) -> Option<String> {
    let (left, wanted) = (memory.slot_count, planned.slots.len());
    let note = || {
        format!(
            "other programs hold GPU memory: {left} of {wanted} slots for streamed weights fit, so fewer are streamed \
             and decoding is slower; end those programs, or plan with a smaller --vram"
        )
    };
    (left < wanted).then(note)
}

/// Where pieces of streamed weights arrive.
fn staging_area(plan: &Plan, weights: &WeightStore, memory: &GpuMemory) -> Result<StagingArea, Error> {
    let promoted = plan.schedules.iter().flat_map(|schedule| &schedule.promotions).map(|promotion| promotion.item);
    let arriving = promoted.chain(plan.placement.held.items.iter().map(|held| held.item));
    let streamed = arriving.flat_map(|item| &plan.program.items[item.index()].weights);
    let large = streamed.filter(|weight| plan.program.weights[weight.index()].role != WeightRole::Small);
    let mut panel_bytes = 0;
    for &weight in large {
        let shape = weights.shape(weight);
        panel_bytes = panel_bytes.max(packed_bytes(shape.ty, 1, shape.cols)? as u64);
    }
    let (offset, bytes) = plan.slots.staging().map_or((0, 0), |slot| (slot.offset_bytes, slot.size_bytes));
    Ok(StagingArea::new(memory.slots.start.offset(offset), bytes, panel_bytes))
}

/// Pins host weights that may be streamed. What refuses it is worth a note: it costs speed only.
/// Errors: the GPU is lost.
fn pin(gpu: &dyn Gpu, weights: &WeightStore) -> Result<Option<String>, Error> {
    match weights.pinned().map(|region| gpu.pin(region)) {
        Some(Err(refused @ DeviceError::PinRefused { .. })) => Ok(Some(refused.to_string())),
        Some(outcome) => Ok(outcome.map(|()| None)?),
        None => Ok(None),
    }
}

/// Which items are resident, and which any schedule runs on the GPU.
fn sides(plan: &Plan) -> (Vec<bool>, Vec<bool>) {
    let resident: Vec<bool> = plan.placement.homes.iter().map(|home| *home == Home::Resident).collect();
    let mut on_gpu = resident.clone();
    plan.placement.held.items.iter().for_each(|held| on_gpu[held.item.index()] = true);
    for promotion in plan.schedules.iter().flat_map(|schedule| &schedule.promotions) {
        on_gpu[promotion.item.index()] = true;
    }
    (resident, on_gpu)
}

fn sizes(plan: &Plan, limits: Limits) -> Sizes {
    Sizes {
        limits: plan.arena.limits,
        context_tokens: limits.context_tokens as u32,
        sequences: limits.sequences as u32,
        kv_bytes: limits.kv_type.size_bytes() as u32,
    }
}

/// Binds all schedules and makes the driver of them.
fn drive(
    plan: &Plan,
    binder: &Binder,
    gpu: &Arc<dyn Gpu>,
    (inputs, hand_over): (Inputs, HandOver),
) -> Result<Driver, Error> {
    let (access, mut made) = (ItemAccess::new(&plan.program), Made::default());
    binder.hold(&mut made)?;
    let bound = plan.schedules.iter().map(|schedule| binder.bind(&access, schedule, &mut made));
    let bound = bound.collect::<Result<Vec<_>, Error>>()?;
    let (from, bytes) = inputs.device();
    let copier = binder.maker.copier(from, binder.memory.inputs.start, bytes)?;
    let slots = plan.slots.slots.len();
    let mut timeline = Timeline::new(Arc::clone(gpu), slots + made.held.len(), SILENCE_MAX)?;
    let held = Held::new(made.held, slots);
    if binder.host_copies == HostCopies::Bounced {
        timeline.allow_pageable()?;
    }
    let (host_arena, values) = (binder.host_arena.device, mapped_memory(gpu, binder.host_arena));
    let fills = Fills::new(made.distinct);
    let parts = Parts { timeline, bound, fills, copier, held, inputs, host_arena, values, hand_over };
    Ok(Driver::new(parts, &plan.program, &plan.arena.offsets_bytes))
}

fn steps_of_parts(
    plan: &Plan,
    (prepared, solo): (&Prepared, &Solo),
    driver: &Driver,
    schedule: usize,
) -> Vec<StepsOfPart> {
    let angles = plan.program.ropes.len();
    let part = |(index, part): (usize, &super::script::CpuPart)| {
        let range = ops(&plan.program, part.items.start).start..ops(&plan.program, part.items.end - 1).end;
        let among = |steps: &[Step]| {
            let at = |op: usize| angles + steps[angles..].partition_point(|step| step.op.index() < op);
            let first = if index == 0 { 0..angles } else { 0..0 };
            PartSteps { first, own: at(range.start)..at(range.end) }
        };
        StepsOfPart { of_one_token: among(&solo.steps), of_many: among(&prepared.steps) }
    };
    driver.parts(schedule).iter().enumerate().map(part).collect()
}

/// Whether slots of a schedule share bytes: only those of another one, whose rounds come before or after, may.
fn have_overlaps(schedule: &Schedule, slots: &Slots) -> bool {
    let mut own: Vec<usize> = schedule.promotions.iter().map(|promotion| promotion.slot.index()).collect();
    own.sort_unstable();
    own.dedup();
    let mut own: Vec<_> = own.into_iter().map(|slot| slots.slots[slot]).collect();
    own.sort_by_key(|slot| slot.offset_bytes);
    own.windows(2).any(|pair| pair[0].offset_bytes + pair[0].size_bytes > pair[1].offset_bytes)
}

/// What the plan's verifier does not know of this executor.
fn check(plan: &Plan, pinned: Option<usize>) -> Result<(), Error> {
    if let Some(number) = pinned.filter(|&number| number >= plan.schedules.len()) {
        return Err(Error::NoSchedule { number, schedules: plan.schedules.len() });
    }
    if plan.schedules.iter().any(|schedule| have_overlaps(schedule, &plan.slots)) {
        return Err(Error::Program { what: "slots of one schedule that lie over each other" });
    }
    let promoted = plan.schedules.iter().flat_map(|schedule| &schedule.promotions);
    let kept =
        promoted.map(|promotion| &plan.program.items[promotion.item.index()]).find(|item| !item.states.is_empty());
    match kept {
        Some(item) => Err(Error::PromotedState { item: item.name.clone() }),
        None => Ok(()),
    }
}
