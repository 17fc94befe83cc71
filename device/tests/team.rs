//! The thread team as its users see it: every worker once, all rows once, failures reported, no deadlock.
//! Nothing here depends on how fast or how busy the machine is. Interleavings are explored in `loom.rs`.
#![cfg(not(loom))]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use device::DeviceError;
use device::team::{CallerPinning, Pinning, Team, TeamConfig};
use device::topology::Topology;

fn team_with_spin(threads: usize, spin_us: u32) -> Team {
    Team::new(TeamConfig { threads, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us }).unwrap()
}

/// Sleeping at once is the harder case on a machine with fewer cores than threads, spinning on others: both are run.
fn check_teams(check: impl Fn(&mut Team)) {
    for threads in [1, 2, 3, 4, 8] {
        for spin_us in [0, 5] {
            check(&mut team_with_spin(threads, spin_us));
        }
    }
}

#[test]
fn every_worker_runs_once_per_round_and_may_borrow() {
    check_teams(|team| {
        let seen = Mutex::new(Vec::new());
        for _ in 0..20 {
            team.run(|worker| seen.lock().unwrap().push(worker.index())).unwrap();
            let mut seen = std::mem::take(&mut *seen.lock().unwrap());
            seen.sort_unstable();
            assert_eq!(seen, (0..team.threads()).collect::<Vec<_>>());
        }
    });
}

#[test]
fn rousing_runs_nothing() {
    check_teams(|team| {
        let ran = AtomicU32::new(0);
        for round in 1..20 {
            (0..round % 3).for_each(|_| team.rouse());
            team.run(|_| _ = ran.fetch_add(1, Relaxed)).unwrap();
            assert_eq!(ran.load(Relaxed) as usize, round * team.threads());
        }
        team.rouse();
    });
}

#[test]
fn a_barrier_shows_every_worker_what_the_others_wrote() {
    check_teams(|team| {
        let sums: Vec<AtomicU64> = (0..team.threads()).map(|_| AtomicU64::new(0)).collect();
        team.run(|worker| {
            for step in 1..=100_u64 {
                let before: u64 = sums.iter().map(|sum| sum.load(Relaxed)).sum();
                assert_eq!(before, (step - 1) * worker.count() as u64);
                worker.barrier();
                sums[worker.index()].fetch_add(1, Relaxed);
                worker.barrier();
            }
        })
        .unwrap();
    });
}

#[test]
fn row_blocks_are_claimed_exactly_once_in_every_step() {
    check_teams(|team| {
        let cases = [(1, 1), (7, 3), (64, 8), (65, 8), (100, 1000), (0, 4), (5, 0)];
        for _ in 0..3 {
            let counts: Vec<Vec<AtomicU32>> =
                cases.iter().map(|&(total, _)| (0..total).map(|_| AtomicU32::new(0)).collect()).collect();
            // More steps than the ring holds, without a barrier of our own.
            team.run(|worker| {
                for lap in 0..5 {
                    for (case, &(total, grain)) in cases.iter().enumerate() {
                        worker.for_blocks(total, grain, |rows| {
                            for row in rows {
                                let before = counts[case][row].fetch_add(1, Relaxed);
                                assert!(before <= lap, "row {row} of case {case} twice in a lap");
                            }
                        });
                    }
                }
            })
            .unwrap();
            assert!(counts.iter().flatten().all(|count| count.load(Relaxed) == 5));
        }
    });
}

#[test]
fn blocks_that_get_smaller_cover_every_row_once_in_whole_tiles() {
    check_teams(|team| {
        for (total, most, tile) in [(1, 1, 1), (720, 11, 1), (65, 8, 2), (100, 1000, 4), (0, 4, 2), (9, 2, 2)] {
            let counts: Vec<AtomicU32> = (0..total).map(|_| AtomicU32::new(0)).collect();
            team.run(|worker| {
                let step = worker.begin_step();
                while let Some(rows) = worker.claim_near(step, total, most, tile) {
                    assert!(rows.start.is_multiple_of(tile as usize) && rows.len() <= most as usize);
                    assert!(rows.len().is_multiple_of(tile as usize) || rows.end == total as usize);
                    rows.for_each(|row| _ = counts[row].fetch_add(1, Relaxed));
                }
            })
            .unwrap();
            assert!(counts.iter().all(|count| count.load(Relaxed) == 1), "{total} {most} {tile}");
        }
    });
}

#[test]
fn the_number_of_active_workers_changes_between_rounds() {
    let mut team = team_with_spin(4, 0);
    for (ask, get) in [(4, 4), (1, 1), (3, 3), (0, 1), (9, 4), (2, 2)] {
        team.set_active(ask);
        assert_eq!(team.active(), get);
        let ran = AtomicU32::new(0);
        team.run(|worker| {
            assert_eq!(worker.count(), get);
            worker.barrier();
            ran.fetch_add(1, Relaxed);
            worker.barrier();
            assert_eq!(ran.load(Relaxed) as usize, get);
        })
        .unwrap();
    }
}

#[test]
fn a_panic_of_any_worker_ends_the_round_and_not_the_team() {
    for guilty in 0..4 {
        for spin_us in [0, 5] {
            let mut team = team_with_spin(4, spin_us);
            for round in 0..3 {
                let outcome = team.run(|worker| {
                    worker.barrier();
                    if worker.index() == guilty {
                        std::panic::resume_unwind(Box::new(format!("round {round}")));
                    }
                    worker.barrier();
                    worker.barrier();
                });
                match outcome {
                    Err(DeviceError::WorkerPanicked { worker, message }) => {
                        assert_eq!((worker, message), (guilty, format!("round {round}")));
                    }
                    other => panic!("expected the panic of worker {guilty}, got {other:?}"),
                }
                team.run(|worker| worker.barrier()).unwrap();
            }
        }
    }
}

#[test]
fn a_worker_that_skips_a_barrier_is_an_error_not_a_deadlock() {
    for absent in 0..3 {
        for spin_us in [0, 5] {
            let mut team = team_with_spin(3, spin_us);
            let outcome = team.run(|worker| {
                worker.barrier();
                if worker.index() != absent {
                    worker.barrier();
                }
            });
            assert!(matches!(outcome, Err(DeviceError::BarrierMismatch { .. })), "{outcome:?}");
            team.run(|worker| worker.barrier()).unwrap();
        }
    }
}

#[test]
fn impossible_team_sizes_are_refused() {
    for threads in [0, 1025, usize::MAX] {
        let config = TeamConfig { threads, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 0 };
        assert!(matches!(Team::new(config), Err(DeviceError::TeamSize { .. })));
    }
}

#[test]
fn a_pinned_caller_gets_its_cpus_back() {
    let before = Topology::of_this_process().unwrap();
    let cpus = before.team_cpus();
    std::thread::spawn(move || {
        let mut team = Team::new(TeamConfig::on_cores(&before, cpus.len())).unwrap();
        team.run(|worker| worker.barrier()).unwrap();
        drop(team);
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let process = std::fs::read_to_string("/proc/self/status").unwrap();
        let mask = |text: &str| text.lines().find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned);
        assert_eq!(mask(&status), mask(&process));
        assert_eq!(Topology::of_this_process().unwrap().team_cpus(), cpus);
    })
    .join()
    .unwrap();
}

#[test]
fn more_threads_than_cpus_still_works() {
    let topology = Topology::of_this_process().unwrap();
    let threads = topology.cores.len() + 2;
    std::thread::spawn(move || {
        let mut team = Team::new(TeamConfig::on_cores(&topology, threads)).unwrap();
        for _ in 0..10 {
            team.run(|worker| {
                worker.barrier();
                worker.barrier();
            })
            .unwrap();
        }
    })
    .join()
    .unwrap();
}
