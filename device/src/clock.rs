//! Time as plans and sensors see it: the machine's monotonic clock, or the virtual clock of the simulated machine.
//!
//! Invariant: every duration that steers a decision (sensors, regime switches, predictions against measurements) is
//! read from a [`Clock`]; whoever builds the run chooses which. Time-outs that only guard against hangs use real time.
//! Next: `trace.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Nanoseconds since the clock's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The span since `earlier`; zero if that lies in the future.
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// As microseconds.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// From microseconds; negative and not-a-number become 0.
    pub fn from_micros_f64(micros: f64) -> Self {
        Self((micros * 1e3).round() as u64)
    }
}

impl std::ops::Add for Nanos {
    type Output = Self;
    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

/// CPU time that the calling thread has had: unlike the wall's it stands still while others have the core.
pub fn thread_cpu_time() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Nanos((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}

/// CPU time that all threads of this process have had.
pub fn process_cpu_time() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Nanos((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}

/// A clock; cheap to clone, all clones agree.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The machine's monotonic clock, from a common start.
    Wall(Instant),
    /// The host's time on a simulated machine.
    Virtual(Arc<VirtualClock>),
}

impl Clock {
    /// Wall time starting now.
    pub fn wall() -> Self {
        Self::Wall(Instant::now())
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        match self {
            Self::Wall(start) => Nanos(start.elapsed().as_nanos() as u64),
            Self::Virtual(clock) => clock.now(),
        }
    }
}

/// Time that only moves when somebody says how long something took. It never goes back.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// The time.
    pub fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Acquire))
    }

    /// Moves to `time` unless it is past.
    pub fn move_to(&self, time: Nanos) {
        self.0.fetch_max(time.0, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_moves_only_forward() {
        let clock = Arc::new(VirtualClock::default());
        let reader = Clock::Virtual(Arc::clone(&clock));
        for (to, expected) in [(5, 5), (3, 5), (9, 9)] {
            clock.move_to(Nanos(to));
            assert_eq!(reader.now(), Nanos(expected));
        }
        assert_eq!(reader.now().since(Nanos(20)), Nanos(0));
    }

    #[test]
    fn wall_time_of_clones_has_one_start() {
        let (clock, first) = (Clock::wall(), Nanos(0));
        let second = clock.clone().now();
        assert!(first <= second && second <= clock.now());
    }

    #[test]
    fn cpu_time_of_a_thread_grows_with_its_work_only() {
        let start = thread_cpu_time();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let slept = thread_cpu_time().since(start);
        assert!(slept < Nanos(15_000_000), "{slept:?}");
        let mut sum = 0_u64;
        (0..2_000_000_u64).for_each(|i| sum = std::hint::black_box(sum.wrapping_add(i)));
        assert!(thread_cpu_time().since(start) > slept);
    }

    #[test]
    fn odd_microseconds_become_zero() {
        for (micros, nanos) in [(1.5, 1500), (-1.0, 0), (f64::NAN, 0), (0.0004, 0), (f64::INFINITY, u64::MAX)] {
            assert_eq!(Nanos::from_micros_f64(micros), Nanos(nanos));
        }
    }
}
