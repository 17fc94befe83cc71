//! From a lowered program to a plan. Pure: the same inputs give the same bytes. [`plan_model`] is the one seam between
//! the command line and everything that decides.
//!
//! A machine without a GPU leaves nothing to decide but the memory order of the weights: all items are on the host,
//! each phase has one schedule. Next: `plan_format::artifact` for what a plan holds.

use plan_format::arena::Arena;
use plan_format::artifact::{KvType, MemoryUse, Options, Origin, Plan, Region, Report};
use plan_format::costs::CostModel;
use plan_format::fingerprint::{DeviceFingerprint, ModelFingerprint};
use plan_format::program::{Item, ItemKind, Program, WeightRole};
use plan_format::schedule::{Home, HostMemory, Layout, Phase, Placement, RegimeMap, Schedule, Slots};
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
    /// Options, defaults resolved.
    pub options: Options,
    /// Threads of the CPU team.
    pub cpu_threads: u16,
    /// How the CPU reads matrices.
    pub host_weights: HostWeights,
}

/// How the CPU reads matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWeights {
    /// Packed in panels at load, for speed.
    Packed,
    /// From the model file's own pages, for the exact kernels.
    AsInFile,
}

/// Why no plan could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// The plan breaks an invariant.
    #[error("planning made a wrong plan, please report this: {0}")]
    Plan(#[from] plan_format::Error),
}

/// The plan for a model on a machine.
///
/// # Errors
/// Options that contradict the model or the machine.
pub fn plan_model(inputs: PlanInputs) -> Result<Plan, PlanError> {
    let PlanInputs { program, model, device, options, cpu_threads, host_weights } = inputs;
    let most = program.context_tokens;
    if options.context_tokens > most {
        return Err(PlanError::Context { asked: options.context_tokens, most });
    }
    if options.vram_bytes > 0 && device.gpu.is_none() {
        return Err(PlanError::NoGpu { device: device.cpu_model });
    }
    let arena = Arena::new(&program, options.limits);
    let placement = Placement { homes: program.items.iter().map(|item| host_home(item, host_weights)).collect() };
    let layouts = program.weights.iter().map(|w| vec![layout(w.role, host_weights); w.parts.len()]).collect();
    let (schedules, regimes) = one_schedule_per_phase(&options, cpu_threads);
    let memory = host_memory(&program, &placement, &options, &arena);
    let plan = Plan {
        origin: Origin { tool_version: env!("CARGO_PKG_VERSION").to_owned(), options, model, device },
        program,
        arena,
        placement,
        layouts,
        slots: Slots::default(),
        schedules,
        regimes,
        costs: CostModel::default(),
        report: Report { memory, predictions: Vec::new(), optimality: None },
        code: Vec::new(),
    };
    plan_format::verify::verify_plan(&plan)?;
    Ok(plan)
}

/// An embedding table that nothing multiplies with is read row by row from the file, and so is everything that must
/// stay as it is there; the rest is packed. Items without weights have states.
fn host_home(item: &Item, host_weights: HostWeights) -> Home {
    let in_file =
        item.kind == ItemKind::Embedding || (host_weights == HostWeights::AsInFile && !item.weights.is_empty());
    Home::Host(if in_file { HostMemory::Mapped } else { HostMemory::Pageable })
}

fn layout(role: WeightRole, host_weights: HostWeights) -> Layout {
    match role {
        WeightRole::Small | WeightRole::EmbeddingRows => Layout::Gguf,
        WeightRole::TiedHead | WeightRole::Matrix | WeightRole::Experts | WeightRole::Heads => match host_weights {
            HostWeights::Packed => Layout::CpuPanel16,
            HostWeights::AsInFile => Layout::Gguf,
        },
    }
}

/// Decode and prefill, whatever the load: with one processor there is nothing to switch to.
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

fn host_memory(program: &Program, placement: &Placement, options: &Options, arena: &Arena) -> Vec<MemoryUse> {
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
        (Region::HostArena, arena.size_bytes),
    ]
    .map(|(region, bytes)| MemoryUse { region, bytes })
    .into()
}

fn all_state_bytes(program: &Program, context_tokens: u32, ubatch_tokens: u32, kv_type: KvType) -> u64 {
    let span = CacheSpan { context_tokens, ubatch_tokens };
    (0..program.states.len() as u32).map(|id| program.state_bytes(StateId(id), span, kv_type)).sum()
}
