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

    /// GPU memory of all slots.
    pub fn end_bytes(&self) -> u64 {
        u64::from(self.count) * self.size_bytes
    }

    /// GPU memory of all slots and of the staging behind them.
    pub fn total_bytes(&self) -> u64 {
        self.end_bytes() + self.size_bytes.min(STAGING_BYTES)
    }

    /// The slots as the artifact has them.
    pub fn slots(&self) -> Slots {
        Slots { slots: self.placed(0).collect() }
    }

    fn placed(self, first_bytes: u64) -> impl Iterator<Item = Slot> {
        let Self { count, size_bytes } = self;
        (0..count).map(move |i| Slot { offset_bytes: first_bytes + u64::from(i) * size_bytes, size_bytes })
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

/// The slots of prefill rounds, and those of rounds of few tokens, which lie at the end of the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Temporary {
    /// Of prefill rounds.
    pub prefill: SlotShape,
    /// Of decode and verification; not larger.
    pub few: SlotShape,
}

impl Temporary {
    /// All rounds have these.
    pub fn same(slots: SlotShape) -> Temporary {
        Temporary { prefill: slots, few: slots }
    }

    /// The slots of a phase.
    pub fn of(&self, phase: Phase) -> SlotShape {
        if phase.is_prefill() { self.prefill } else { self.few }
    }

    /// Where the slots of rounds of few tokens begin.
    pub fn few_at_bytes(&self) -> u64 {
        self.prefill.end_bytes().saturating_sub(self.few.end_bytes())
    }

    /// All slots as the artifact has them.
    pub fn slots(&self) -> Slots {
        let mut all = self.prefill.slots();
        if self.few != self.prefill {
            all.slots.extend(self.few.placed(self.few_at_bytes()));
        }
        all
    }

    /// The schedule of the artifact, as [`SlotShape::schedule`] makes it of the phase's slots.
    pub fn schedule(
        &self,
        (phase, cpu_threads): (Phase, u16),
        promoted: &[u32],
        router_of: impl Fn(u32) -> Option<ItemId>,
        predicted_us: f64,
    ) -> Schedule {
        let mut schedule = self.of(phase).schedule(phase, cpu_threads, promoted, router_of, predicted_us);
        if self.few != self.prefill && !phase.is_prefill() {
            schedule.promotions.iter_mut().for_each(|promotion| promotion.slot.0 += self.prefill.count);
        }
        schedule
    }
}

/// Whether items of a kind can be streamed at all: those that are nothing but weights.
pub fn is_streamable(kind: ItemKind) -> bool {
    !matches!(kind, ItemKind::Embedding | ItemKind::Attention | ItemKind::Recurrent)
}
