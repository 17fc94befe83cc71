//! What a job sees of its team: who it is, the barrier, the next rows to work on.
//!
//! All workers of a round must make the same sequence of `barrier`, `begin_step` and `for_blocks` calls. Too few of
//! them in one worker is detected (`DeviceError::BarrierMismatch`), a different order is not. Next: `crew.rs`.

use std::cell::Cell;
use std::ops::Range;

use super::crew::Crew;
use super::queue::{RING, Step};

/// Blocks into which the rows that are left of a share are cut.
const BLOCKS_LEFT: u32 = 2;

/// One worker during one round.
pub struct Worker<'a> {
    crew: &'a Crew,
    index: usize,
    count: u32,
    step: Cell<u32>,
    steps_since_barrier: Cell<u32>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(crew: &'a Crew, index: usize, count: u32) -> Self {
        Self { crew, index, count, step: Cell::new(0), steps_since_barrier: Cell::new(0) }
    }

    /// This worker's number, below [`count`](Self::count). 0 is the thread that called `Team::run`.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Workers of this round.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Waits for all workers of the round; what any wrote before is visible to all after. If another worker panicked or
    /// has left the round, this unwinds out of the job and `Team::run` reports why.
    pub fn barrier(&self) {
        self.steps_since_barrier.set(0);
        if self.count > 1 {
            self.crew.pass_barrier(self.count);
        }
    }

    /// Numbers the next step, the same on every worker. Passes a barrier when more steps than the counters' ring holds
    /// would be under way.
    pub fn begin_step(&self) -> Step {
        if self.steps_since_barrier.get() == RING {
            self.barrier();
        }
        self.steps_since_barrier.set(self.steps_since_barrier.get() + 1);
        self.step.set(self.step.get() + 1);
        Step(self.step.get())
    }

    /// The step that [`begin_step`](Self::begin_step) will number next: its rows may be claimed before.
    pub fn next_step(&self) -> Step {
        Step(self.step.get() + 1)
    }

    /// Takes the next up to `grain` of `total` rows of `step`; `None` when all are taken.
    pub fn claim(&self, step: Step, total: u32, grain: u32) -> Option<Range<usize>> {
        self.crew.queue.claim(step, total, grain)
    }

    /// Takes the next rows of `total` of `step`, first those of this worker's share, one after another, then others'.
    /// `most` as long as many are left, then fewer, down to `tile`, so that workers end together; multiples of `tile`,
    /// but for the last rows.
    pub fn claim_near(&self, step: Step, total: u32, most: u32, tile: u32) -> Option<Range<usize>> {
        let tile = tile.max(1);
        let size = |left: u32| (left / BLOCKS_LEFT).next_multiple_of(tile).min(most).max(tile);
        self.crew.queue.claim_near(step, (total, tile), (self.index, self.count as usize), size)
    }

    /// Begins a step and runs `block` on row blocks of `total` until none is left. No barrier after it.
    pub fn for_blocks(&self, total: u32, grain: u32, mut block: impl FnMut(Range<usize>)) {
        let step = self.begin_step();
        while let Some(rows) = self.claim(step, total, grain) {
            block(rows);
        }
    }
}
