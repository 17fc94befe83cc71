//! Work stealing by atomic row blocks: each step of a round has a counter, whoever is free takes the next block.
//!
//! Invariants: (1) within one step every row is claimed exactly once; (2) counters live in a ring of [`RING`] words, so
//! `RING` steps may be under way at once and a worker must pass a barrier before it runs further ahead (`Worker`
//! inserts one); (3) a claim for a step that the ring has already left returns nothing, it never takes rows of another
//! step. Says nothing about which worker runs which block: results must not depend on it. Next: `crew.rs`.

use std::ops::Range;

use crate::sync::{AtomicU64, CachePadded, Ordering};

/// Steps that may be under way at once.
pub const RING: u32 = 8;

/// The number of a step within its round; the first is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step(pub u32);

/// The counters; see the module text.
#[derive(Debug)]
pub struct WorkQueue {
    /// Step in the high half, rows handed out so far in the low half.
    counters: Vec<CachePadded<AtomicU64>>,
}

impl Default for WorkQueue {
    /// A queue at the start of a round.
    fn default() -> Self {
        Self { counters: (0..RING).map(|_| CachePadded(AtomicU64::new(0))).collect() }
    }
}

impl WorkQueue {
    /// Back to the start of a round. Only while no worker is in one.
    pub fn reset(&self) {
        for counter in &self.counters {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Takes the next up to `grain` of `total` rows of `step`; `None` when all are taken.
    ///
    /// No ordering is implied between claims: a barrier or the round's end publishes what the blocks wrote.
    pub fn claim(&self, step: Step, total: u32, grain: u32) -> Option<Range<usize>> {
        self.claim_sized(step, total, |_| grain)
    }

    /// Takes the next rows of `total` of `step`, as many as `grain` says for so many that are left.
    pub fn claim_sized(&self, step: Step, total: u32, grain: impl Fn(u32) -> u32) -> Option<Range<usize>> {
        let counter = &self.counters[(step.0 % RING) as usize];
        let mut old = counter.load(Ordering::Relaxed);
        loop {
            let (counter_step, taken) = ((old >> 32) as u32, old as u32);
            let start = match counter_step.cmp(&step.0) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => taken,
                std::cmp::Ordering::Greater => return None,
            };
            if start >= total {
                return None;
            }
            let end = start.saturating_add(grain(total - start).max(1)).min(total);
            let new = u64::from(step.0) << 32 | u64::from(end);
            match counter.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start as usize..end as usize),
                Err(seen) => old = seen,
            }
        }
    }
}
