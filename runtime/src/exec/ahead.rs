//! What workers do while worker 0 waits for the GPU: each claims its first blocks of the product that comes next and
//! brings their weights into its caches, so that memory is not idle while the GPU computes. The blocks are computed
//! first when the wait is over. Only where tokens are few: then the product's time is that of reading its weights.
//! Not here: the product (`product.rs`). Next: `run.rs`.

use super::product::{Grain, panels_of, shares};
use super::run::Context;
use super::step::{Part, Step, Task};
use super::weights::Precision;
use device::team::Worker;
use kernels::cpu::prefetch;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rounds of more tokens compute longer than they read.
const TOKENS_MOST: usize = 8;
/// Bytes that a worker brings at most. On 16 cores with 2 MiB of second-level cache each, Qwen3-14B half on the GPU
/// took 36.1 ms a token without, 34.8 with 0.5 MiB, 34.5 with 1, 34.2 with 1.5 and 34.8 with 3 (medians, alternated).
const BYTES_MOST: usize = 3 << 19;
/// Blocks that a worker claims at most.
const BLOCKS_MOST: usize = 16;
/// Bytes between two looks at whether the wait is over: about half a microsecond.
const BYTES_PER_LOOK: usize = 4096;

/// Blocks of a step that a worker has claimed before the step began.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    step: u32,
    blocks: [(u32, u32); BLOCKS_MOST],
    len: usize,
}

impl Ahead {
    /// The blocks of this step; they are forgotten here.
    pub fn take(&mut self, step: device::team::Step) -> impl Iterator<Item = Range<usize>> + use<> {
        let len = if self.step == step.0 { std::mem::take(&mut self.len) } else { 0 };
        self.blocks.into_iter().take(len).map(|(start, end)| start as usize..end as usize)
    }

    /// A round begins, whose steps are numbered anew.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    fn add(&mut self, block: &Range<usize>) {
        self.blocks[self.len] = (block.start as u32, block.end as u32);
        self.len += 1;
    }
}

/// How far worker 0 has come: parts whose wait is over.
#[derive(Debug, Default)]
pub struct Begun(AtomicUsize);

impl Begun {
    /// The wait before part `index` is over.
    pub fn begin(&self, index: usize) {
        self.0.store(index + 1, Ordering::Release);
    }

    fn has(&self, index: usize) -> bool {
        self.0.load(Ordering::Acquire) > index
    }
}

impl Context<'_> {
    /// Until part `index` begins, or enough is claimed: blocks of its first product. `steps` are the part's.
    pub fn claim_ahead(&self, worker: &Worker, ahead: &mut Ahead, steps: &[Step], (begun, index): (&Begun, usize)) {
        let first = steps.iter().map(|step| &step.task).find(|task| !matches!(task, Task::Light { .. }));
        let Some(Task::Product { rows, parts }) = first else { return };
        let tokens = self.total(*rows);
        if !(1..=TOKENS_MOST).contains(&tokens) || self.precision == Precision::Exact {
            return;
        }
        let step = worker.next_step();
        (ahead.step, ahead.len) = (step.0, 0);
        let total = parts.iter().map(|part| panels_of(self, part)).sum::<usize>();
        let Some(Ok(matrix)) = parts.first().map(|part| self.weights.matrix(part.weight, 0)) else { return };
        let grain = Grain::new(&matrix, tokens, total, worker.count());
        let mut bytes = 0;
        while bytes < BYTES_MOST && ahead.len < BLOCKS_MOST && !begun.has(index) {
            let Some(block) = grain.claim(worker, step, total) else { return };
            ahead.add(&block);
            bytes += self.bring(parts, block, (begun, index));
        }
    }

    /// Brings a block's weights into this core's caches until the part begins. Returns how many bytes.
    fn bring(&self, parts: &[Part], block: Range<usize>, (begun, index): (&Begun, usize)) -> usize {
        let mut brought = 0;
        for (part, panels) in shares(self, parts, block) {
            let Ok(matrix) = self.weights.matrix(part.weight, 0) else { continue };
            let panel_bytes = matrix.bytes().len() / matrix.panels().max(1);
            for piece in matrix.bytes()[panels.start * panel_bytes..panels.end * panel_bytes].chunks(BYTES_PER_LOOK) {
                if begun.has(index) {
                    return brought;
                }
                prefetch(piece);
                brought += piece.len();
            }
        }
        brought
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::team::{CallerPinning, Pinning, Team, TeamConfig};
    use std::sync::atomic::AtomicU32;

    /// Every row of `total` is worked on once, though workers claim `blocks` of `grain` before the step begins.
    #[track_caller]
    fn check(threads: usize, total: u32, grain: u32, blocks: usize) {
        let config = TeamConfig { threads, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 0 };
        let mut team = Team::new(config).unwrap();
        let worked: Vec<AtomicU32> = (0..total).map(|_| AtomicU32::new(0)).collect();
        let work = |rows: Range<usize>| rows.for_each(|row| _ = worked[row].fetch_add(1, Ordering::Relaxed));
        let round = |worker: &Worker| {
            let mut ahead = Ahead::default();
            for _ in 0..3 {
                let step = worker.next_step();
                (ahead.step, ahead.len) = (step.0, 0);
                for _ in 0..if worker.index() == 0 { 0 } else { blocks } {
                    worker.claim(step, total, grain).iter().for_each(|block| ahead.add(block));
                }
                worker.barrier();
                let step = worker.begin_step();
                ahead.take(step).for_each(work);
                while let Some(block) = worker.claim(step, total, grain) {
                    work(block);
                }
            }
            assert_eq!(ahead.take(device::team::Step(3)).count(), 0, "blocks are taken once");
        };
        team.run(round).unwrap();
        assert!(worked.iter().all(|count| count.load(Ordering::Relaxed) == 3), "{threads} {total} {grain} {blocks}");
    }

    #[test]
    fn blocks_claimed_ahead_are_computed_once() {
        check(1, 10, 3, 2);
        check(2, 100, 7, 3);
        check(3, 100, 1, BLOCKS_MOST);
        check(4, 5, 2, 4);
        check(4, 0, 2, 1);
    }

    #[test]
    fn blocks_of_another_step_are_not_taken() {
        let mut ahead = Ahead { step: 4, ..Ahead::default() };
        ahead.add(&(3..5));
        assert_eq!(ahead.take(device::team::Step(5)).count(), 0);
        let taken: Vec<_> = ahead.take(device::team::Step(4)).map(|block| (block.start, block.end)).collect();
        assert_eq!(taken, [(3, 5)]);
    }
}
