//! Work stealing by atomic row blocks: each step of a round has a counter, whoever is free takes the next block; or it
//! has a counter for each worker's share, and whoever has done its own takes blocks of others'. The claims of one step
//! are all of one kind.
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
    /// The same of each worker's share.
    shares: Vec<CachePadded<[AtomicU64; RING as usize]>>,
}

impl WorkQueue {
    /// A queue for so many workers, at the start of a round.
    pub fn new(workers: usize) -> Self {
        let share = || CachePadded(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            counters: (0..RING).map(|_| CachePadded(AtomicU64::new(0))).collect(),
            shares: (0..workers).map(|_| share()).collect(),
        }
    }

    /// Back to the start of a round. Only while no worker is in one.
    pub fn reset(&self) {
        for counter in
            self.counters.iter().map(|counter| &**counter).chain(self.shares.iter().flat_map(|share| &**share))
        {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Takes the next up to `grain` of `total` rows of `step`; `None` when all are taken.
    ///
    /// No ordering is implied between claims: a barrier or the round's end publishes what the blocks wrote.
    pub fn claim(&self, step: Step, total: u32, grain: u32) -> Option<Range<usize>> {
        take(&self.counters[(step.0 % RING) as usize], step, total, |_| grain)
    }

    /// Takes the next rows of the share of `total` that worker `worker` of `count` has, of the next worker's if none is
    /// left, and so on; as many as `size` says for so many that are left in the share. Shares are whole `tile`s, but
    /// for the last rows; all claims of a step state the same `total`, `tile` and `count`.
    pub fn claim_near(
        &self,
        step: Step,
        (total, tile): (u32, u32),
        (worker, count): (usize, usize),
        size: impl Fn(u32) -> u32,
    ) -> Option<Range<usize>> {
        let tiles = u64::from(total.div_ceil(tile));
        let bound = |of: usize| (tiles * of as u64 / count as u64 * u64::from(tile)).min(u64::from(total)) as usize;
        (0..count).map(|i| (worker + i) % count).find_map(|of| {
            let share = bound(of)..bound(of + 1);
            let rows = take(&self.shares[of][(step.0 % RING) as usize], step, share.len() as u32, &size)?;
            Some(share.start + rows.start..share.start + rows.end)
        })
    }
}

/// Takes the next rows of `total` of `step` from a counter, as many as `size` says for so many that are left.
fn take(counter: &AtomicU64, step: Step, total: u32, size: impl Fn(u32) -> u32) -> Option<Range<usize>> {
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
        let end = start.saturating_add(size(total - start).max(1)).min(total);
        let new = u64::from(step.0) << 32 | u64::from(end);
        match counter.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(start as usize..end as usize),
            Err(seen) => old = seen,
        }
    }
}
