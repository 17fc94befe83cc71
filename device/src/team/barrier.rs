//! The barrier of a round: all workers of the round arrive, then all go on.
//!
//! Invariants: (1) no worker leaves an episode before the last one arrived, and all writes before the arrivals are
//! visible after it; (2) a worker that leaves the round (its closure returned) while others wait, or a worker that
//! arrives after another left, is a mismatch: it poisons the barrier instead of waiting for ever; (3) a poisoned
//! barrier lets nobody wait. Arrivals and departures share one word, so every pair of them is ordered. Not aware of
//! rounds or threads: `crew.rs` is.

use super::word::WaitWord;
use crate::sync::{AtomicU32, CachePadded, Ordering};

const LEFT_ONE: u32 = 1 << 16;
const ARRIVED_MASK: u32 = LEFT_ONE - 1;

/// Bits of the epoch word (bit 0 belongs to `WaitWord`).
const POISON: u32 = 2;
const EPOCH_ONE: u32 = 4;

/// Why a worker did not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarrierBroken {
    /// Another worker panicked or mismatched before.
    Poisoned,
    /// This worker waits for one that has already left the round.
    Mismatch,
}

/// An epoch barrier; see the module text.
#[derive(Debug)]
pub struct Barrier {
    /// Arrivals of this episode in the low half, workers that left the round in the high half.
    crowd: CachePadded<AtomicU32>,
    epoch: CachePadded<WaitWord>,
}

impl Barrier {
    /// A barrier with nobody at it.
    pub fn new() -> Self {
        Self { crowd: CachePadded(AtomicU32::new(0)), epoch: CachePadded(WaitWord::default()) }
    }

    /// Forgets poison and departures. Only while no worker is in a round.
    pub fn reset(&self) {
        self.crowd.store(0, Ordering::Relaxed);
        self.epoch.reset(0);
    }

    /// Arrives as one of `count` workers and waits for the others. Spins up to `spin_ns` before it sleeps.
    pub fn arrive(&self, count: u32, spin_ns: u32) -> Result<(), BarrierBroken> {
        let mine = self.epoch.load();
        if mine & POISON != 0 {
            return Err(BarrierBroken::Poisoned);
        }
        let before = self.crowd.fetch_add(1, Ordering::AcqRel);
        if before >= LEFT_ONE {
            self.poison();
            return Err(BarrierBroken::Mismatch);
        }
        if before + 1 == count {
            self.crowd.store(0, Ordering::Relaxed);
            self.epoch.publish(|epoch| epoch.wrapping_add(EPOCH_ONE));
            return Ok(());
        }
        let seen = self.epoch.wait_until(spin_ns, |epoch| epoch != mine);
        // Poison may follow a completed episode; then the next arrival reports it.
        if seen & !POISON == mine { Err(BarrierBroken::Poisoned) } else { Ok(()) }
    }

    /// Leaves the round for good, on a path that did not panic. Errors when somebody waits for this worker.
    pub fn leave(&self) -> Result<(), BarrierBroken> {
        let before = self.crowd.fetch_add(LEFT_ONE, Ordering::AcqRel);
        if before & ARRIVED_MASK == 0 {
            return Ok(());
        }
        self.poison();
        Err(BarrierBroken::Mismatch)
    }

    /// Releases everybody who waits, and everybody who will.
    pub fn poison(&self) {
        self.epoch.publish(|epoch| epoch | POISON);
    }
}
