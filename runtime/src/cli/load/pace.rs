//! How a load process keeps to its share: work is owed as time passes, and done as long as some is owed. Pure.

use std::time::Duration;

/// What a starved process may catch up with: more would make it a heavier load than was asked for.
const OWED_MOST: Duration = Duration::from_millis(20);

/// Work owed and done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    seen: Duration,
    owed_s: f64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// A piece of work.
    Work,
    /// Nothing for this long.
    Rest(Duration),
}

impl Pace {
    /// At `now` (since any start) with a share of time to spend on work.
    pub fn next(&mut self, now: Duration, share: f64) -> Next {
        let passed = now.saturating_sub(self.seen);
        self.seen = now;
        self.owed_s = (self.owed_s + passed.as_secs_f64() * share).min(OWED_MOST.as_secs_f64());
        if self.owed_s > 0.0 {
            return Next::Work;
        }
        Next::Rest(Duration::try_from_secs_f64(-self.owed_s / share.max(1e-3)).unwrap_or(OWED_MOST))
    }

    /// A piece was done that takes this long where nobody else works.
    pub fn done(&mut self, took: Duration) {
        self.owed_s -= took.as_secs_f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time spent at work of ten seconds, where a piece of `piece_us` takes `stretch` times as long.
    #[track_caller]
    fn check(share: f64, piece_us: u64, stretch: u32, work_share: f64) {
        let (mut pace, mut now, mut pieces) = (Pace::default(), Duration::ZERO, 0_u64);
        while now < Duration::from_secs(10) {
            match pace.next(now, share) {
                Next::Work => {
                    let piece = Duration::from_micros(piece_us);
                    pace.done(piece);
                    pieces += 1;
                    now += piece * stretch;
                }
                Next::Rest(rest) => now += rest.max(Duration::from_micros(1)),
            }
        }
        let got = (pieces * piece_us) as f64 / 1e7;
        assert!((got - work_share).abs() < 0.01, "{share} {piece_us} {stretch}: {got}");
    }

    #[test]
    fn the_share_is_kept_whatever_a_piece_takes() {
        check(0.6, 500, 1, 0.6);
        check(0.05, 3000, 1, 0.05);
        check(0.95, 100, 1, 0.95);
        // Slowed down by others it works all the time, and no more than that.
        check(0.6, 500, 2, 0.5);
        check(0.3, 500, 2, 0.3);
    }

    #[test]
    fn what_was_not_owed_is_not_caught_up_with() {
        let mut pace = Pace::default();
        assert!(matches!(pace.next(Duration::from_secs(100), 0.5), Next::Work));
        pace.done(OWED_MOST);
        assert!(matches!(pace.next(Duration::from_secs(100), 0.5), Next::Rest(_)));
    }
}
