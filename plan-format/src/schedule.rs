//! Where items live and when host weights are streamed or held: placement, slots, schedules, the regime map.
//! It holds decisions, not how they were reached (the planner) nor how they are carried out (the runtime).
//! Next: `artifact.rs`.

use crate::ids::{ItemId, ScheduleId, SlotId};
use serde::{Deserialize, Serialize};

/// Static placement: one home per item of the program, and what is held between prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Indexed by [`ItemId`].
    pub homes: Vec<Home>,
    /// Host items that rounds of few tokens execute on the GPU.
    pub held: Held,
}

impl Placement {
    /// Nothing is held.
    pub fn new(homes: Vec<Home>) -> Placement {
        Placement { homes, held: Held::default() }
    }

    /// Items that rounds of a phase execute on the GPU whatever their schedule promotes: resident and held ones.
    pub fn on_gpu(&self, phase: Phase) -> Vec<bool> {
        let mut on_gpu: Vec<bool> = self.homes.iter().map(|home| *home == Home::Resident).collect();
        for held in self.held.items.iter().filter(|_| !phase.is_prefill()) {
            if let Some(item) = on_gpu.get_mut(held.item.index()) {
                *item = true;
            }
        }
        on_gpu
    }
}

/// Host items that lie in GPU memory which only prefill rounds need. Rounds of few tokens (decode, verification)
/// execute them on the GPU. They are brought there once, when the first such round after a prefill round begins, and
/// stay until a prefill round takes the memory back. All schedules of those phases share them.
///
/// The temporary region begins with what activations and kernels take in prefill rounds; the slots lie behind. Rounds
/// of few tokens take the first bytes for their own activations, then come held items.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Held {
    /// In item order.
    pub items: Vec<HeldItem>,
    /// Where slots begin in the temporary region.
    pub slots_at_bytes: u64,
    /// Time to bring all of them at no load, in microseconds.
    pub load_us: f64,
}

/// A held item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldItem {
    /// The host item.
    pub item: ItemId,
    /// Offset in the temporary region, 256-byte aligned.
    pub offset_bytes: u64,
    /// Room for its weights.
    pub size_bytes: u64,
}

impl Held {
    /// Bytes of all items.
    pub fn total_bytes(&self) -> u64 {
        self.items.iter().map(|held| held.size_bytes).fold(0, u64::saturating_add)
    }
}

/// Where an item's weights and states live between rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Home {
    /// GPU memory; the item always executes on the GPU.
    Resident,
    /// CPU memory; the item executes on the CPU unless a schedule promotes it.
    Host(HostMemory),
}

/// Class of CPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HostMemory {
    /// Anonymous memory registered with the driver: the copy engine reads it directly.
    Pinned,
    /// Anonymous memory, not registered.
    Pageable,
    /// The model file's own pages.
    Mapped,
}

/// Memory order of a weight part. Values are stable: they are written into artifacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// As in the file.
    Gguf,
    /// 16 rows interleaved for CPU SIMD (`kernels::cpu`).
    CpuPanel16,
    /// Tiled for the GPU's matrix kernels.
    GpuTiled,
}

/// Temporary GPU memory for promoted weights.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct Slots {
    /// Slots by id.
    pub slots: Vec<Slot>,
}

/// Largest piece in which streamed weights arrive.
pub const STAGING_BYTES: u64 = 8 << 20;

impl Slots {
    /// End of the last slot.
    pub fn end_bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.offset_bytes.saturating_add(slot.size_bytes)).max().unwrap_or(0)
    }

    /// Where streamed weights arrive in pieces, in the CPU's order of bytes, before they are unpacked into their slot:
    /// behind the slots, as large as the largest slot but at most [`STAGING_BYTES`]. `None` without slots.
    pub fn staging(&self) -> Option<Slot> {
        let largest = self.slots.iter().map(|slot| slot.size_bytes).max()?;
        Some(Slot { offset_bytes: self.end_bytes(), size_bytes: largest.min(STAGING_BYTES) })
    }

    /// All temporary GPU memory: slots and staging.
    pub fn total_bytes(&self) -> u64 {
        self.end_bytes().saturating_add(self.staging().map_or(0, |staging| staging.size_bytes))
    }
}

/// A range of the GPU's temporary region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Offset in the temporary region, 256-byte aligned.
    pub offset_bytes: u64,
    /// Size.
    pub size_bytes: u64,
}

/// What kind of round a schedule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// One token.
    Decode,
    /// A few tokens at once, all of whose logits are wanted (speculation): 2, 4 or 8.
    Verify {
        /// Tokens of the round.
        tokens: u32,
    },
    /// A ubatch of a prompt.
    Prefill {
        /// Most tokens of a round.
        ubatch_tokens: u32,
    },
}

impl Phase {
    /// Whether rounds are pieces of a prompt.
    pub fn is_prefill(self) -> bool {
        matches!(self, Phase::Prefill { .. })
    }

    /// Most tokens of a round.
    pub fn tokens(self) -> u32 {
        match self {
            Phase::Decode => 1,
            Phase::Verify { tokens } => tokens,
            Phase::Prefill { ubatch_tokens } => ubatch_tokens,
        }
    }
}

/// One way to run a round: which host items are streamed, through which slots, and with how many CPU threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The phase it serves.
    pub phase: Phase,
    /// CPU threads of the team.
    pub cpu_threads: u16,
    /// Promotions in order of their transfers.
    pub promotions: Vec<Promotion>,
    /// Predicted latency of a round at no load and the bucket's context, in microseconds.
    pub predicted_us: f64,
}

/// One streamed item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promotion {
    /// The host item, executed on the GPU this round.
    pub item: ItemId,
    /// Where its weights go.
    pub slot: SlotId,
    /// The transfer may start once this item of the same round has begun (its slot is free by then); `None` = it may
    /// start in the round before, after the slot's last reader there.
    pub after: Option<ItemId>,
}

/// Which schedule to use in which regime. Axes are sorted ascending; `cells` is row-major in the order
/// phase, context, cpu, gpu, link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegimeMap {
    /// Phases.
    pub phases: Vec<Phase>,
    /// Upper ends of the context buckets, in tokens.
    pub context_tokens: Vec<u32>,
    /// CPU slowdowns.
    pub cpu_slowdown: Vec<f32>,
    /// GPU slowdowns.
    pub gpu_slowdown: Vec<f32>,
    /// Link slowdowns.
    pub link_slowdown: Vec<f32>,
    /// Schedule of each cell.
    pub cells: Vec<ScheduleId>,
}
