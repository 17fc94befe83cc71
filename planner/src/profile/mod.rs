//! The device profile: the measured description of one machine, as JSON with units in field names.
//!
//! A profile holds machine curves and measured points; `lookup` answers from them (exact point, else interpolation,
//! else a refusal that names what to measure) and `check` rejects absurd figures by name. `synthetic` makes profiles
//! of machines that nobody here has, from datasheet figures and stated efficiencies; `machines` is their table.
//! Measuring is not here: the core is pure.

mod check;
mod json;
mod lookup;
pub mod machines;
pub mod synthetic;

pub use check::ProfileError;
pub(crate) use lookup::transfer_us;
pub use lookup::{Key, NotMeasured};

use plan_format::routing::RoutingCounts;
use serde::{Deserialize, Serialize};

/// Version of the schema that this program reads and writes.
pub const SCHEMA_VERSION: u32 = 1;

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Short name: `rtx3060-laptop`.
    pub name: String,
    /// Where the figures come from.
    pub provenance: Provenance,
    /// The CPU.
    pub cpu: Cpu,
    /// Main memory.
    pub memory: Memory,
    /// The GPU with its link; absent on a machine without one.
    pub gpu: Option<Gpu>,
    /// Fixed costs.
    pub latency: Latency,
    /// DRAM contention by team size; one entry per size of team that may be planned, ascending.
    pub contention: Vec<Contention>,
    /// Rates by operator, weight type and tokens.
    pub curves: Vec<Curve>,
    /// Measured times of exact shapes; they go before curves.
    pub points: Vec<Point>,
    /// How often the experts of the model that is planned were chosen, if that was counted; not the machine's, so not
    /// kept with it. Without it all experts are taken to be chosen alike.
    #[serde(skip)]
    pub routing: Option<RoutingCounts>,
}

/// Where the figures of a profile come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Measured on the machine, or calculated.
    pub kind: ProfileKind,
    /// Datasheets, publications, the command that measured.
    pub sources: Vec<String>,
    /// What was assumed in place of knowledge.
    pub assumptions: Vec<String>,
    /// Fractions of datasheet rates that kernels are taken to reach, with what they apply to.
    pub efficiencies: Vec<Efficiency>,
}

/// A named fraction of a datasheet rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Efficiency {
    /// What it applies to.
    pub of: String,
    /// Reached over datasheet, 0 to 1.
    pub fraction: f64,
}

/// How a profile was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfileKind {
    /// Timed on the machine itself.
    Measured,
    /// Calculated from datasheets and efficiencies.
    Synthetic,
}

/// The CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Name for people, and for the plan's device fingerprint.
    pub model: String,
    /// Classes of cores, fastest first.
    pub core_classes: Vec<CoreClass>,
}

/// Cores of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreClass {
    /// `performance`, `efficiency`, or `all`.
    pub name: String,
    /// Physical cores.
    pub cores: u16,
    /// Hardware threads of each.
    pub threads_per_core: u16,
}

/// Main memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Installed.
    pub total_mib: u64,
    /// Free for us when the profile was taken.
    pub available_mib: u64,
    /// Most that may be pinned (memlock limit, WSL2); no more than `total_mib`.
    pub pinned_limit_mib: u64,
    /// Multi-threaded read: the fastest that any team or product was measured to reach.
    pub read_gb_per_s: f64,
    /// Reading model pages that are not in the page cache.
    pub storage_gb_per_s: f64,
}

/// The GPU with its link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Name for people, and for the plan's device fingerprint.
    pub model: String,
    /// `8.6` is 86.
    pub compute_capability: u32,
    /// Its link at best, as fingerprints name it; absent where nobody measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Driver version; absent where nobody measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Installed.
    pub memory_mib: u64,
    /// Free when the profile was taken.
    pub free_mib: u64,
    /// What a context takes before anything is allocated.
    pub context_mib: u64,
    /// Loaded kernels and their work space.
    pub kernels_mib: u64,
    /// Device-to-device copy, read plus write counted once each way.
    pub memory_gb_per_s: f64,
    /// Copy engine from pinned memory, by size of a piece.
    pub host_to_device: Vec<SizeRate>,
    /// Copy engine to pinned memory.
    pub device_to_host: Vec<SizeRate>,
    /// From pageable memory, large pieces.
    pub pageable_gb_per_s: f64,
    /// Kernels that read mapped host memory.
    pub zero_copy_gb_per_s: f64,
}

/// A rate at a size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeRate {
    /// Size of a piece.
    pub size_kib: u64,
    /// Rate, latency included.
    pub gb_per_s: f64,
}

/// Fixed costs in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Starting a CPU operator on the team and meeting at its end.
    pub cpu_op_us: f64,
    /// A GPU operator inside a graph.
    pub gpu_op_us: f64,
    /// CPU done until the GPU goes on (pre-queued wait on a mapped flag).
    pub to_gpu_us: f64,
    /// GPU done until the CPU goes on (polling a mapped flag).
    pub to_cpu_us: f64,
    /// A switch by stream synchronisation and blocking copy, as engines without flags do it.
    pub blocking_switch_us: f64,
    /// Between rounds: sampling and bookkeeping.
    pub round_gap_us: f64,
}

/// DRAM shared by a CPU team and the copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contention {
    /// Team size.
    pub threads: u16,
    /// Read rate of the team, link idle.
    pub cpu_alone_gb_per_s: f64,
    /// Read rate of the team while the copy engine streams.
    pub cpu_while_link_gb_per_s: f64,
    /// Copy engine, CPU idle.
    pub link_alone_gb_per_s: f64,
    /// Copy engine while the team reads.
    pub link_while_cpu_gb_per_s: f64,
}

/// Who executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The CPU team.
    Cpu,
    /// The GPU.
    Gpu,
}

/// Kinds of operator that have their own rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operator {
    /// Dense matrix product; bytes are those of the weight.
    Matmul,
    /// Products with routed experts; bytes are those of the experts touched, tokens are per expert.
    ExpertMatmul,
    /// Attention; bytes are those of the keys and values read, tokens are query rows per key head.
    Attention,
    /// Gated delta net with its convolution; bytes are those of the states.
    DeltaNet,
    /// Norms, activations, sums, rotations; bytes are those read and written.
    Elementwise,
}

/// Rates of one operator and weight type over the number of tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Who.
    pub backend: Backend,
    /// What.
    pub operator: Operator,
    /// ggml type of the weights, or of the cache.
    pub weight_type: String,
    /// Team size; 0 for the GPU.
    pub threads: u16,
    /// Tokens, ascending.
    pub tokens: Vec<u32>,
    /// Bytes (see [`Operator`]) over time at each of `tokens`, in 10⁹ per second.
    pub gb_per_s: Vec<f64>,
}

/// A measured time of one matrix of an exact shape; for experts, of one expert with its share of the tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Who.
    pub backend: Backend,
    /// What.
    pub operator: Operator,
    /// ggml type of the weights.
    pub weight_type: String,
    /// Rows of the weight.
    pub rows: u64,
    /// Columns of the weight.
    pub columns: u64,
    /// Tokens.
    pub tokens: u32,
    /// Team size; 0 for the GPU.
    pub threads: u16,
    /// Median time.
    pub time_us: f64,
}

/// How far apart teams are that are both worth planning with.
const TEAMS_APART: f64 = 1.15;

impl Profile {
    /// Reads and checks a profile.
    ///
    /// # Errors
    /// Text that is not such JSON, another schema version, or absurd figures, each named.
    pub fn from_json(text: &str) -> Result<Profile, ProfileError> {
        check::parse(text)
    }

    /// The profile as JSON: one line per curve and per point, ending in a newline.
    pub fn to_json(&self) -> String {
        json::render(self)
    }

    /// Sizes of CPU team that may be planned, ascending.
    pub fn team_sizes(&self) -> Vec<u16> {
        self.teams().iter().map(|entry| entry.threads).collect()
    }

    /// What memory gives teams that may be planned: those that were measured, and odd eighths of the largest between
    /// them, so that a team can be about as large as the cores that others leave.
    pub fn teams(&self) -> Vec<Contention> {
        let most = self.contention.last().map_or(0, |entry| entry.threads);
        let eighths = [3_u32, 5].map(|eighths| ((eighths * u32::from(most) + 4) / 8) as u16);
        let apart = |a: u16, b: u16| f64::from(a.max(b)) / f64::from(a.min(b).max(1));
        let is_new = |threads: &u16| self.contention.iter().all(|entry| apart(entry.threads, *threads) > TEAMS_APART);
        let between = eighths.into_iter().filter(is_new).filter_map(|threads| self.memory_of(threads));
        let mut teams: Vec<Contention> = self.contention.iter().copied().chain(between).collect();
        teams.sort_by_key(|entry| entry.threads);
        teams
    }

    /// Physical cores.
    pub fn cores(&self) -> u16 {
        self.cpu.core_classes.iter().map(|class| class.cores).sum()
    }
}
