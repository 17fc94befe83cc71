//! Measures the host: plain read bandwidth by thread count, barrier, wake-up; and the harness that kernels are timed
//! with.
//!
//! The operators' rates are measured by whoever owns operators, through [`time_rounds`]; nothing here knows one.
//! Figures are medians, over buffers that rotate through at least [`ROTATION_BYTES`] so that no cache answers (a
//! machine with a 300 MiB cache once reported twice its memory's speed), after warm-up rounds that wake the cores'
//! clocks. Next: `probe/read.rs`.

mod read;

use std::time::{Duration, Instant};

pub use read::{ReadPoint, Rotation, read_curve, read_sum};

use crate::DeviceError;
use crate::team::{Team, Worker};

/// Bytes that rotating buffers cover when memory allows.
pub const ROTATION_BYTES: usize = 1 << 30;

/// How long to measure one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Rounds before the first timed one.
    pub warm_up_rounds: usize,
    /// Timed rounds at least, and at most.
    pub rounds: (usize, usize),
    /// After the least number of rounds, stop when this much time has passed.
    pub time: Duration,
}

impl Effort {
    /// For a profile: a figure in about a fifth of a second.
    pub fn profile() -> Self {
        Self { warm_up_rounds: 2, rounds: (5, 1000), time: Duration::from_millis(200) }
    }
}

/// Times of one figure, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Half of the rounds took less.
    pub median_us: f64,
    /// A tenth of the rounds took less: the machine at its best, without rare luck.
    pub low_us: f64,
    /// Nine tenths took less.
    pub high_us: f64,
    /// Rounds timed.
    pub rounds: usize,
}

impl Timing {
    /// From samples; `None` without any.
    pub fn of(mut samples_us: Vec<f64>) -> Option<Self> {
        samples_us.sort_by(f64::total_cmp);
        let at =
            |share: f64| samples_us.get(((samples_us.len().checked_sub(1)?) as f64 * share).round() as usize).copied();
        Some(Self { median_us: at(0.5)?, low_us: at(0.1)?, high_us: at(0.9)?, rounds: samples_us.len() })
    }

    /// Rate of `bytes` per round at the median, in 10⁹ bytes per second.
    pub fn gb_per_s(&self, bytes: f64) -> f64 {
        bytes / self.median_us.max(1e-9) / 1e3
    }
}

/// Times rounds of `work` on the team. `work` gets the round's number, counted from 0 over warm-up and timed rounds, to
/// choose the buffer of a rotation; each round is timed from its call to its return, wake-up included.
/// Errors: a worker panicked.
pub fn time_rounds(
    team: &mut Team,
    effort: Effort,
    work: impl Fn(&Worker<'_>, usize) + Sync,
) -> Result<Timing, DeviceError> {
    let mut samples_us = Vec::with_capacity(effort.rounds.1.max(1));
    for round in 0..effort.warm_up_rounds {
        team.run(|worker| work(worker, round))?;
    }
    let begin = Instant::now();
    while samples_us.len() < effort.rounds.1.max(1) {
        let round = effort.warm_up_rounds + samples_us.len();
        let start = Instant::now();
        team.run(|worker| work(worker, round))?;
        samples_us.push(start.elapsed().as_secs_f64() * 1e6);
        if samples_us.len() >= effort.rounds.0 && begin.elapsed() >= effort.time {
            break;
        }
    }
    let rounds = samples_us.len();
    let nothing = Timing { median_us: 0.0, low_us: 0.0, high_us: 0.0, rounds };
    Ok(Timing::of(samples_us).unwrap_or(nothing))
}

/// Barriers in one round of [`barrier`].
const BARRIERS_PER_ROUND: usize = 200;

/// Time of one barrier of the active workers.
pub fn barrier(team: &mut Team, effort: Effort) -> Result<Timing, DeviceError> {
    let timing = time_rounds(team, effort, |worker, _| (0..BARRIERS_PER_ROUND).for_each(|_| worker.barrier()))?;
    let each = |us: f64| us / BARRIERS_PER_ROUND as f64;
    let (median_us, low_us, high_us) = (each(timing.median_us), each(timing.low_us), each(timing.high_us));
    Ok(Timing { median_us, low_us, high_us, ..timing })
}

/// Time of an empty round whose workers sleep: wake-up of all and back. The workers are given `idle` to fall asleep.
pub fn wake_up(team: &mut Team, rounds: usize, idle: Duration) -> Result<Timing, DeviceError> {
    let mut samples_us = Vec::with_capacity(rounds.max(1));
    for _ in 0..rounds.max(1) {
        std::thread::sleep(idle);
        let start = Instant::now();
        team.run(|_| {})?;
        samples_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let nothing = Timing { median_us: 0.0, low_us: 0.0, high_us: 0.0, rounds: 0 };
    Ok(Timing::of(samples_us).unwrap_or(nothing))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::team::{CallerPinning, Pinning, TeamConfig};
    use std::sync::Mutex;

    fn team(threads: usize) -> Team {
        Team::new(TeamConfig { threads, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 0 }).unwrap()
    }

    #[test]
    fn medians_and_spread_of_samples() {
        assert_eq!(Timing::of(vec![]), None);
        let timing = Timing::of((0..=10).rev().map(f64::from).collect()).unwrap();
        assert_eq!((timing.low_us, timing.median_us, timing.high_us, timing.rounds), (1.0, 5.0, 9.0, 11));
        assert_eq!(timing.gb_per_s(5_000.0), 1.0);
    }

    #[test]
    fn rounds_are_numbered_through_warm_up_and_end_at_the_limit() {
        let effort = Effort { warm_up_rounds: 2, rounds: (3, 4), time: Duration::MAX };
        let seen = Mutex::new(Vec::new());
        let timing = time_rounds(&mut team(2), effort, |worker, round| {
            if worker.index() == 0 {
                seen.lock().unwrap().push(round);
            }
        });
        assert_eq!((timing.unwrap().rounds, seen.into_inner().unwrap()), (4, vec![0, 1, 2, 3, 4, 5]));
        let hasty = Effort { time: Duration::ZERO, ..effort };
        assert_eq!(time_rounds(&mut team(1), hasty, |_, _| {}).unwrap().rounds, 3);
    }

    #[test]
    fn latencies_are_measured_and_a_panic_is_an_error() {
        let effort = Effort { warm_up_rounds: 0, rounds: (1, 2), time: Duration::ZERO };
        assert!(barrier(&mut team(2), effort).unwrap().median_us > 0.0);
        assert!(wake_up(&mut team(2), 2, Duration::ZERO).unwrap().median_us > 0.0);
        let outcome = time_rounds(&mut team(2), effort, |_, _| std::panic::resume_unwind(Box::new("no")));
        assert!(matches!(outcome, Err(DeviceError::WorkerPanicked { .. })));
    }
}
