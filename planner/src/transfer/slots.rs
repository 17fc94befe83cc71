//! Temporary slots: equal ranges of GPU memory that promotions take in turn, so that live ranges never overlap.
//!
//! Promotion p of a round uses slot p mod count. Transfers and readers both follow item order, hence the reader that
//! frees a slot is always `count` promotions back, in this round or at the end of the one before.

use plan_format::evaluate::{FreedIn, Stream};
use plan_format::program::ItemKind;
use plan_format::schedule::{Phase, Promotion, STAGING_BYTES, Schedule, Slot, Slots};
use plan_format::{ItemId, SlotId};

/// Number and size of the slots of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotShape {
    /// How many.
    pub count: u32,
    /// Size of each, 256-byte aligned.
    pub size_bytes: u64,
}

/// Alignment of a slot.
const SLOT_ALIGN_BYTES: u64 = 256;

impl SlotShape {
    /// No temporary memory.
    pub const NONE: SlotShape = SlotShape { count: 0, size_bytes: 0 };

    /// `count` slots for items of up to `item_bytes`.
    pub fn new(count: u32, item_bytes: u64) -> SlotShape {
        if count == 0 || item_bytes == 0 {
            return SlotShape::NONE;
        }
        SlotShape { count, size_bytes: item_bytes.next_multiple_of(SLOT_ALIGN_BYTES) }
    }

    /// GPU memory of all slots and of the staging behind them.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.count) * self.size_bytes + self.size_bytes.min(STAGING_BYTES)
    }

    /// The slots as the artifact has them.
    pub fn slots(&self) -> Slots {
        let slot = |i| Slot { offset_bytes: u64::from(i) * self.size_bytes, size_bytes: self.size_bytes };
        Slots { slots: (0..self.count).map(slot).collect() }
    }

    /// What frees each promotion's slot, for promoted items in order.
    pub fn streams(&self, promoted: &[u32]) -> Vec<Stream> {
        let (total, count) = (promoted.len(), self.count.max(1) as usize);
        let stream = |(p, &item): (usize, &u32)| {
            let (freed_by, freed_in) = match p.checked_sub(count) {
                Some(earlier) => (earlier, FreedIn::SameRound),
                None => (p + (total - 1 - p) / count * count, FreedIn::PreviousRound),
            };
            Stream { item, freed_by: freed_by as u32, freed_in }
        };
        promoted.iter().enumerate().map(stream).collect()
    }

    /// The schedule of the artifact. `router_of[item]` is the item that a transfer must wait for in its round.
    pub fn schedule(
        &self,
        phase: Phase,
        cpu_threads: u16,
        promoted: &[u32],
        router_of: impl Fn(u32) -> Option<ItemId>,
        predicted_us: f64,
    ) -> Schedule {
        let count = self.count.max(1) as usize;
        let promotion = |(p, &item): (usize, &u32)| {
            // The slot's earlier reader in this round has begun, and ended, when the item after it begins.
            let freed = p.checked_sub(count).map(|earlier| ItemId(promoted[earlier] + 1)).filter(|id| id.0 < item);
            let routed = router_of(item).map(|router| ItemId(router.0 + 1)).filter(|id| id.0 < item);
            Promotion { item: ItemId(item), slot: SlotId((p % count) as u32), after: freed.max(routed) }
        };
        let promotions = promoted.iter().enumerate().map(promotion).collect();
        Schedule { phase, cpu_threads, promotions, predicted_us }
    }
}

/// Whether items of a kind can be streamed at all: those that are nothing but weights.
pub fn is_streamable(kind: ItemKind) -> bool {
    !matches!(kind, ItemKind::Embedding | ItemKind::Attention | ItemKind::Recurrent)
}
