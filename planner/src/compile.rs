//! From a lowered program to a plan. Pure: the same inputs give the same bytes. [`plan_model`] is the one seam between
//! the command line and everything that decides.
//!
//! With a device profile `regime::solve_plan` decides placement, slots, schedules and the regime map; where choices of
//! experts were counted, `place::hot` may divide layers' experts first. Without a profile, or
//! for the exact kernels (whose times no profile has), all items are on the host and each phase has one schedule.
//! `compile/layouts.rs` says in which order of bytes weights lie. Next: `regime/assemble.rs`, or
//! `plan_format::artifact` for what a plan holds.

mod layouts;

use crate::cost::{Demand, few_limits};
use crate::place::hot::{self, HotReport};
use crate::place::memory::Budget;
use crate::place::search::Query;
use crate::profile::{Profile, ProfileKind};
use crate::regime::{Grid, Parts, SolveError, Solved, assemble, solve_plan};
use layouts::layouts;
use plan_format::arena::Arena;
use plan_format::artifact::{KvType, MemoryUse, Options, Origin, Plan, Region, Report};
use plan_format::costs::CostModel;
use plan_format::fingerprint::{DeviceFingerprint, ModelFingerprint};
use plan_format::program::{Item, ItemKind, Program};
use plan_format::schedule::{Home, HostMemory, Phase, Placement, RegimeMap, Schedule, Slots};
use plan_format::sizes::CacheSpan;
use plan_format::{ScheduleId, StateId};

/// Everything that decides what a plan is.
#[derive(Clone, Debug)]
pub struct PlanInputs {
    /// The verified program.
    pub program: Program,
    /// The model's fingerprint.
    pub model: ModelFingerprint,
    /// The machine's.
    pub device: DeviceFingerprint,
    /// Options, defaults resolved. Where the planner chooses the largest round, it replaces `limits`.
    pub options: Options,
    /// Who decides.
    pub deciding: Deciding,
}

/// Who decides, from what.
#[derive(Clone, Debug)]
pub enum Deciding {
    /// The planner, from a device profile.
    Profile {
        /// The machine.
        profile: Box<Profile>,
        /// Ubatches to choose from, ascending; those above the context are left out.
        ubatch_tokens: Vec<u32>,
        /// Loads to be ready for.
        grid: Grid,
    },
    /// Nobody: everything on the CPU, one schedule per phase, rounds as `limits` has them.
    Nothing {
        /// Threads of the CPU team.
        cpu_threads: u16,
        /// How the CPU reads matrices.
        host_weights: HostWeights,
    },
}

/// How the CPU reads matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWeights {
    /// Packed in panels at load, for speed.
    Packed,
    /// From the model file's own pages, for the exact kernels.
    AsInFile,
}

/// A plan, and what led to it.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// `None` where nothing was decided.
    pub reasons: Option<Reasons>,
}

/// What led to a plan: for summaries, explanations and simulations.
#[derive(Clone, Debug)]
pub struct Reasons {
    /// The machine, as it was planned for.
    pub profile: Profile,
    /// The ceilings.
    pub budget: Budget,
    /// The priced program, the decision and its table.
    pub solved: Solved,
    /// What dividing layers' experts brings, where their choices were counted.
    pub hot: Option<HotReport>,
}

impl Reasons {
    /// The question that was decided.
    pub fn query(&self) -> Query<'_> {
        Query { problem: &self.solved.problem, profile: &self.profile, budget: self.budget }
    }
}

/// Why no plan could be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Longer than the model was made for.
    #[error("a context of {asked} tokens was asked for, the model was made for {most}")]
    Context {
        /// Asked for.
        asked: u32,
        /// The model's.
        most: u32,
    },
    /// GPU memory for a machine of which no GPU is known.
    #[error("GPU memory was offered, but no GPU is known of the machine `{device}`")]
    NoGpu {
        /// The machine.
        device: String,
    },
    /// The profile lacks a time, or the ceiling is too small.
    #[error(transparent)]
    Solve(#[from] SolveError),
    /// The plan breaks an invariant.
    #[error("planning made a wrong plan, please report this: {0}")]
    Plan(#[from] plan_format::Error),
}

/// The plan for a model on a machine.
///
/// # Errors
/// Options that contradict the model or the machine, a ceiling that is too small, times that the profile lacks.
pub fn plan_model(inputs: PlanInputs) -> Result<Planned, PlanError> {
    let PlanInputs { mut program, model, mut device, mut options, deciding } = inputs;
    let most = program.context_tokens;
    if options.context_tokens > most {
        return Err(PlanError::Context { asked: options.context_tokens, most });
    }
    if options.vram_bytes > 0 && device.gpu.is_none() {
        return Err(PlanError::NoGpu { device: device.cpu_model });
    }
    if options.vram_bytes == 0 {
        // A plan that uses no GPU runs beside any.
        device.gpu = None;
    }
    let (parts, reasons) = match deciding {
        Deciding::Profile { profile, ubatch_tokens, grid } => {
            let (reasons, divided) = solve(&program, *profile, &options, ubatch_tokens, &grid)?;
            program = divided.unwrap_or(program);
            (reasons.solved.parts.clone(), Some(reasons))
        }
        Deciding::Nothing { cpu_threads, host_weights } => {
            (undecided(&program, &options, cpu_threads, host_weights), None)
        }
    };
    options.limits = parts.limits;
    let plan = Plan {
        origin: Origin { tool_version: env!("CARGO_PKG_VERSION").to_owned(), options, model, device },
        arena: Arena::new(&program, parts.limits),
        few_arena: (!parts.placement.held.items.is_empty()).then(|| Arena::new(&program, few_limits(parts.limits))),
        layouts: layouts(&program, &parts.placement),
        program,
        placement: parts.placement,
        slots: parts.slots,
        schedules: parts.schedules,
        regimes: parts.regimes,
        costs: parts.costs,
        report: parts.report,
        code: Vec::new(),
        full_hash: None,
    };
    plan_format::verify::verify_plan(&plan)?;
    Ok(Planned { plan, reasons })
}

/// The decision, and the program if it was divided for it.
fn solve(
    program: &Program,
    profile: Profile,
    options: &Options,
    ubatch_tokens: Vec<u32>,
    grid: &Grid,
) -> Result<(Reasons, Option<Program>), PlanError> {
    let profile = with_driver_memory(profile, program);
    let demand = Demand {
        context_tokens: options.context_tokens,
        kv_type: options.kv_type,
        prompt_tokens: options.prompt_tokens,
        generate_tokens: options.generate_tokens,
        ubatch_tokens,
        output_tokens: options.limits.output_tokens,
    };
    let budget = budget(&profile, options);
    let cpu_grid = Grid::cpu_only();
    let grid = if options.vram_bytes > 0 { grid } else { &cpu_grid };
    let solved = solve_plan(program, &profile, &demand, budget, grid)?;
    let ask = hot::Ask { program, profile: &profile, demand: &demand, budget };
    let found = hot::search(&ask, (&solved.problem, &solved.decision));
    let is_asked = profile.routing.is_some() && budget.vram_bytes > 0 && solved.problem.is_moe();
    let counted = found.as_ref().map(|(_, counted)| *counted);
    let hot = is_asked.then(|| HotReport { counted, alike: hot::alike(&ask) });
    let Some((divided, _)) = found.filter(|(_, counted)| counted.pays()) else {
        return Ok((Reasons { profile, budget, solved, hot }, None));
    };
    let hot::Divided { program, problem, decision, .. } = divided;
    let parts = assemble(&Query { problem: &problem, profile: &profile, budget }, &decision, grid);
    let solved = Solved { problem, decision, parts };
    Ok((Reasons { profile, budget, solved, hot }, Some(program)))
}

/// Ceilings of options on a machine.
pub fn budget(profile: &Profile, options: &Options) -> Budget {
    let ram_bytes = options.ram_bytes.unwrap_or(profile.memory.available_mib << 20);
    let pinned_bytes = (profile.memory.pinned_limit_mib << 20).min(ram_bytes);
    Budget { vram_bytes: options.vram_bytes, ram_bytes, pinned_bytes }
}

/// What the driver takes on the GPU for a program. A profile that nobody measured is a simulated machine, whose GPU has
/// no driver. Its context and kernels count as stated, so that its plans are those of the machine that it stands for;
/// but a model that is smaller than they are is there to try the simulation with, under ceilings of its own size, and
/// for it they take nothing. A measured profile knows the context and the kernels; what recorded graphs and pinned
/// pages take grows with the program and is added.
fn with_driver_memory(mut profile: Profile, program: &Program) -> Profile {
    let model_bytes: u64 = program.tensors.iter().map(|tensor| tensor.size_bytes).fold(0, u64::saturating_add);
    let is_measured = profile.provenance.kind == ProfileKind::Measured;
    let Some(gpu) = profile.gpu.as_mut() else { return profile };
    if is_measured {
        gpu.kernels_mib += driver_mib(model_bytes, program.items.len() as u64);
    } else if model_bytes <= (gpu.context_mib + gpu.kernels_mib) << 20 {
        (gpu.context_mib, gpu.kernels_mib) = (0, 0);
    }
    profile
}

/// GPU memory of streams, recorded graphs and page tables of pinned memory. Seen with driver 580: 67 MiB for 202 items
/// of which 3.4 GiB were pinned (the bound says 96), 2 MiB for the same model without any.
fn driver_mib(model_bytes: u64, items: u64) -> u64 {
    const STREAMS_BYTES: u64 = 24 << 20;
    const GRAPHS_BYTES_PER_ITEM: u64 = 192 << 10;
    const PAGE_TABLES_SHARE: u64 = 256;
    (STREAMS_BYTES + items * GRAPHS_BYTES_PER_ITEM + model_bytes / PAGE_TABLES_SHARE).div_ceil(1 << 20)
}

/// Everything on the CPU, without expectations.
fn undecided(program: &Program, options: &Options, cpu_threads: u16, host_weights: HostWeights) -> Parts {
    let placement = Placement::new(program.items.iter().map(|item| host_home(item, host_weights)).collect());
    let (schedules, regimes) = one_schedule_per_phase(options, cpu_threads);
    let memory = host_memory(program, &placement, options);
    Parts {
        limits: options.limits,
        placement,
        slots: Slots::default(),
        schedules,
        regimes,
        costs: CostModel::default(),
        report: Report { memory, predictions: Vec::new(), optimality: None },
    }
}

/// An embedding table that nothing multiplies with is read row by row from the file, and so is everything that must
/// stay as it is there; the rest is packed. Items without weights have states.
fn host_home(item: &Item, host_weights: HostWeights) -> Home {
    let in_file =
        item.kind == ItemKind::Embedding || (host_weights == HostWeights::AsInFile && !item.weights.is_empty());
    Home::Host(if in_file { HostMemory::Mapped } else { HostMemory::Pageable })
}

/// Decode and prefill, whatever the load: without expectations there is nothing to choose by.
fn one_schedule_per_phase(options: &Options, cpu_threads: u16) -> (Vec<Schedule>, RegimeMap) {
    let phases = vec![Phase::Decode, Phase::Prefill { ubatch_tokens: options.limits.ubatch_tokens }];
    let schedule = |&phase| Schedule { phase, cpu_threads, promotions: Vec::new(), predicted_us: 0.0 };
    let schedules: Vec<Schedule> = phases.iter().map(schedule).collect();
    let cells = (0..schedules.len() as u32).map(ScheduleId).collect();
    let regimes = RegimeMap {
        phases,
        context_tokens: vec![options.context_tokens],
        cpu_slowdown: vec![1.0],
        gpu_slowdown: vec![1.0],
        link_slowdown: vec![1.0],
        cells,
    };
    (schedules, regimes)
}

fn host_memory(program: &Program, placement: &Placement, options: &Options) -> Vec<MemoryUse> {
    let weights = |memory| {
        let items = program.items.iter().zip(&placement.homes).filter(|(_, home)| **home == Home::Host(memory));
        items.map(|(item, _)| program.item_weight_bytes(item)).sum::<u64>()
    };
    let small = program.small_weight_bytes();
    let states = all_state_bytes(program, options.context_tokens, options.limits.ubatch_tokens, options.kv_type);
    [
        (Region::HostPageable, weights(HostMemory::Pageable) + small),
        (Region::HostMapped, weights(HostMemory::Mapped)),
        (Region::HostStates, states),
        (Region::HostArena, Arena::new(program, options.limits).size_bytes),
    ]
    .map(|(region, bytes)| MemoryUse { region, bytes })
    .into()
}

fn all_state_bytes(program: &Program, context_tokens: u32, ubatch_tokens: u32, kv_type: KvType) -> u64 {
    let span = CacheSpan { context_tokens, ubatch_tokens };
    (0..program.states.len() as u32).map(|id| program.state_bytes(StateId(id), span, kv_type)).sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_driver_takes_no_more_than_the_bound_says() {
        let seen_mib = 67;
        let bound_mib = super::driver_mib(9_000_000_000, 202);
        assert!((seen_mib..=3 * seen_mib / 2).contains(&bound_mib), "{bound_mib}");
    }
}
