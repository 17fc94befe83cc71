//! Everything that one plan file holds. The structs are what version 1 of each section stores: changing a field's type,
//! order or number breaks old files, so a change is a new struct with a new section version (`sections.rs`).
//!
//! It holds decisions and expectations, not weights: those stay in the model file. Next: `sections.rs` (bytes),
//! `container.rs`, `verify/plan.rs`.

use crate::arena::{Arena, RoundLimits};
use crate::costs::CostModel;
use crate::fingerprint::{DeviceFingerprint, ModelFingerprint};
use crate::program::Program;
use crate::schedule::{Layout, Phase, Placement, RegimeMap, Schedule, Slots};
use serde::{Deserialize, Serialize};

/// A compiled plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What made it, for what, and with which options.
    pub origin: Origin,
    /// The op program.
    pub program: Program,
    /// Where activations lie.
    pub arena: Arena,
    /// Where those of decode and verification rounds lie on the GPU, if items are held; else as in all rounds.
    pub few_arena: Option<Arena>,
    /// Where items live.
    pub placement: Placement,
    /// Memory order of each part of each weight: `layouts[weight][part]`.
    pub layouts: Vec<Vec<Layout>>,
    /// Temporary GPU memory.
    pub slots: Slots,
    /// The kept schedules.
    pub schedules: Vec<Schedule>,
    /// Which of them to use when.
    pub regimes: RegimeMap,
    /// Expected times, with which the runtime scores schedules. Empty if there is one schedule per phase.
    pub costs: CostModel,
    /// What was promised: memory, latencies, optimality.
    pub report: Report,
    /// Machine code that the GPU's driver made of this program's PTX; may be empty.
    pub code: Vec<MachineCode>,
    /// [`crate::fingerprint::full_hash`] of the model, where that was asked for.
    pub full_hash: Option<[u8; 32]>,
}

/// What made a plan, for what, and with which options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Version of the program that wrote it.
    pub tool_version: String,
    /// The options, defaults resolved.
    pub options: Options,
    /// The model that it is for.
    pub model: ModelFingerprint,
    /// The machine that it is for.
    pub device: DeviceFingerprint,
}

/// Options of `compile` with defaults resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Ceiling of everything on the GPU; 0 = no GPU is used.
    pub vram_bytes: u64,
    /// Ceiling of pinned and pageable CPU memory for weights; `None` = not limited.
    pub ram_bytes: Option<u64>,
    /// Longest context.
    pub context_tokens: u32,
    /// Largest round.
    pub limits: RoundLimits,
    /// Prompt of the workload that placement weighs.
    pub prompt_tokens: u32,
    /// Generated tokens of that workload.
    pub generate_tokens: u32,
    /// Elements of the caches of keys and values.
    pub kv_type: KvType,
}

/// Element type of a cache of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KvType {
    /// 16-bit float.
    F16,
    /// 32-bit float.
    F32,
}

impl KvType {
    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
        }
    }
}

/// What a plan promises.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Report {
    /// Memory by region.
    pub memory: Vec<MemoryUse>,
    /// Expected latencies without load.
    pub predictions: Vec<Prediction>,
    /// How good the placement is; `None` if there was nothing to choose.
    pub optimality: Option<Optimality>,
}

/// Bytes of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// The region.
    pub region: Region,
    /// Its size.
    pub bytes: u64,
}

/// Regions of memory that a run takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Region {
    /// The driver's context.
    GpuContext,
    /// Loaded kernels.
    GpuKernels,
    /// Resident weights.
    GpuWeights,
    /// Caches and states of resident items.
    GpuStates,
    /// Activations.
    GpuArena,
    /// Temporary slots.
    GpuSlots,
    /// Pinned host weights.
    HostPinned,
    /// Pageable host weights.
    HostPageable,
    /// Host weights used in the model file's own pages.
    HostMapped,
    /// Caches and states of host items.
    HostStates,
    /// Activations.
    HostArena,
}

/// Expected latency of a round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Kind of round.
    pub phase: Phase,
    /// Cached tokens.
    pub context_tokens: u32,
    /// Expected latency.
    pub round_us: f64,
    /// No schedule of this placement can be faster: the busiest of DRAM, GPU memory and link.
    pub floor_us: f64,
    /// Host, GPU and switches one after the other, nothing overlapped.
    pub serial_floor_us: f64,
}

/// How good the static placement is. Deterministic figures only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optimality {
    /// Weighted time of the chosen placement.
    pub chosen_us: f64,
    /// Value of the dynamic program's placement.
    pub dp_us: f64,
    /// Lower bound from the relaxed linear program.
    pub lp_bound_us: f64,
    /// The best hand-made split that it was compared with.
    pub best_seed: String,
    /// That one's weighted time.
    pub best_seed_us: f64,
}

/// Machine code of one PTX module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineCode {
    /// Name of the module.
    pub module: String,
    /// BLAKE3 of the PTX that it was made of; other PTX makes it worthless.
    pub ptx_hash: [u8; 32],
    /// What the driver gave.
    pub bytes: Vec<u8>,
}

impl Report {
    /// Bytes of a region.
    pub fn bytes(&self, region: Region) -> u64 {
        self.memory.iter().filter(|used| used.region == region).map(|used| used.bytes).sum()
    }
}
