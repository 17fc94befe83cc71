//! Every interleaving (up to a bound on preemptions) of the thread team's protocol: rounds, barrier, sleep and wake-up,
//! row claims, failures, end. loom reports data races on the cells, lost wake-ups as deadlocks, and stale reads.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test -p device --test loom --release`.
//! Spinning is not modelled, see `sync.rs`: a poll is the look before the sleep.
#![cfg(loom)]

use std::sync::Arc;

use device::DeviceError;
use device::sync::SharedCell;
use device::team::{CallerPinning, Pinning, Step, Team, TeamConfig, WorkQueue};
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};

fn team(threads: usize) -> Team {
    Team::new(TeamConfig { threads, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 1 }).unwrap()
}

/// Explores `body` with at most `preemptions` involuntary switches: bugs of such protocols show within 2 or 3.
fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// Plain memory shared by the workers of a round, one cell each; loom checks every access.
struct Board(Vec<SharedCell<u32>>);

// SAFETY: the tests order all accesses by barriers; loom fails the test when they do not.
unsafe impl Sync for Board {}

impl Board {
    fn new(cells: usize) -> Self {
        Self((0..cells).map(|_| SharedCell::new(0)).collect())
    }
    fn set(&self, cell: usize, value: u32) {
        // SAFETY: see above.
        self.0[cell].with_mut(|place| unsafe { *place = value });
    }
    fn get(&self, cell: usize) -> u32 {
        // SAFETY: see above.
        self.0[cell].with(|place| unsafe { *place })
    }
}

#[test]
fn two_workers_see_each_other_across_two_barriers_and_two_rounds() {
    explore(2, || {
        let mut team = team(2);
        let board = Board::new(2);
        for round in 1..3 {
            team.run(|worker| {
                board.set(worker.index(), round * 10);
                worker.barrier();
                assert_eq!(board.get(1 - worker.index()), round * 10);
                worker.barrier();
                board.set(worker.index(), round * 10 + 1);
            })
            .unwrap();
            assert_eq!((board.get(0), board.get(1)), (round * 10 + 1, round * 10 + 1));
        }
    });
}

#[test]
fn a_roused_worker_misses_no_round_and_runs_none_twice() {
    explore(2, || {
        let mut team = team(2);
        let board = Board::new(2);
        for round in 1..3 {
            team.rouse();
            team.run(|worker| board.set(worker.index(), board.get(worker.index()) + 1)).unwrap();
            assert_eq!((board.get(0), board.get(1)), (round, round));
        }
        team.rouse();
    });
}

#[test]
fn three_workers_meet_at_two_barriers() {
    explore(1, || {
        let mut team = team(3);
        let board = Board::new(3);
        team.run(|worker| {
            let (mine, next) = (worker.index(), (worker.index() + 1) % 3);
            board.set(mine, 1);
            worker.barrier();
            assert_eq!(board.get(next), 1);
            worker.barrier();
            board.set(mine, 2);
        })
        .unwrap();
        assert!((0..3).all(|cell| board.get(cell) == 2));
    });
}

#[test]
fn workers_leave_and_rejoin_between_rounds() {
    explore(1, || {
        let mut team = team(3);
        for active in [3, 1, 2] {
            team.set_active(active);
            let ran = Arc::new(AtomicU32::new(0));
            team.run(|_| {
                ran.fetch_add(1, Relaxed);
            })
            .unwrap();
            assert_eq!(ran.load(Relaxed) as usize, active);
        }
    });
}

#[test]
fn a_panic_before_after_or_at_a_barrier_never_deadlocks() {
    for guilty in 0..2 {
        explore(2, move || {
            let mut team = team(2);
            let outcome = team.run(|worker| {
                if worker.index() == guilty {
                    std::panic::resume_unwind(Box::new("guilty"));
                }
                worker.barrier();
            });
            assert!(matches!(outcome, Err(DeviceError::WorkerPanicked { worker, .. }) if worker == guilty));
            team.run(|worker| worker.barrier()).unwrap();
        });
    }
}

#[test]
fn a_skipped_barrier_never_deadlocks() {
    for absent in 0..2 {
        explore(2, move || {
            let outcome = team(2).run(|worker| {
                if worker.index() != absent {
                    worker.barrier();
                }
            });
            assert!(matches!(outcome, Err(DeviceError::BarrierMismatch { .. })));
        });
    }
}

#[test]
fn rows_of_a_step_are_claimed_once_while_the_next_step_begins() {
    explore(3, || {
        let queue = Arc::new(WorkQueue::new(2));
        let claims = |queue: &WorkQueue| {
            let mut rows = [0_u32; 2];
            for step in [1, 2] {
                while let Some(range) = queue.claim(Step(step), 3, 2) {
                    rows[step as usize - 1] += range.len() as u32;
                }
            }
            rows
        };
        let other = Arc::clone(&queue);
        let thread = loom::thread::spawn(move || claims(&other));
        let mine = claims(&queue);
        let theirs = thread.join().unwrap();
        assert_eq!([mine[0] + theirs[0], mine[1] + theirs[1]], [3, 3]);
    });
}

#[test]
fn rows_of_shares_are_claimed_once() {
    explore(3, || {
        let queue = Arc::new(WorkQueue::new(2));
        let claims = |queue: &WorkQueue, worker| {
            let mut rows = 0_u32;
            while let Some(range) = queue.claim_near(Step(1), (3, 1), (worker, 2), |_| 1) {
                range.for_each(|row| rows |= 1 << row);
            }
            rows
        };
        let other = Arc::clone(&queue);
        let thread = loom::thread::spawn(move || claims(&other, 1));
        let mine = claims(&queue, 0);
        let theirs = thread.join().unwrap();
        assert_eq!((mine | theirs, mine & theirs), (0b111, 0));
    });
}

#[test]
fn a_late_claim_takes_nothing_of_a_later_step() {
    explore(3, || {
        let queue = Arc::new(WorkQueue::new(2));
        let other = Arc::clone(&queue);
        // Steps 1 and 9 share a counter. Whoever comes late for step 1 gets nothing, and step 9 loses nothing.
        let thread = loom::thread::spawn(move || other.claim(Step(1), 2, 2));
        let ninth = queue.claim(Step(9), 2, 2);
        assert_eq!(ninth, Some(0..2));
        thread.join().unwrap();
        assert_eq!(queue.claim(Step(9), 2, 2), None);
    });
}
