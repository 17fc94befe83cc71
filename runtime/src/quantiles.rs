//! Quantiles of measured times. Pure.

use std::fmt;

/// Times of tokens, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// How many there were.
    pub count: usize,
    /// Half took no longer.
    pub p50_us: f64,
    /// Nine of ten took no longer.
    pub p90_us: f64,
    /// All but one of a hundred.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// All together by their number.
    pub mean_us: f64,
}

impl Quantiles {
    /// Of these times; all zero without any.
    pub fn of(times_us: impl IntoIterator<Item = f64>) -> Self {
        let mut times_us: Vec<f64> = times_us.into_iter().collect();
        times_us.sort_by(f64::total_cmp);
        let Some(&max_us) = times_us.last() else { return Self::default() };
        let count = times_us.len();
        // The smallest time that at least this share did not exceed.
        let at = |share: f64| times_us[((share * count as f64).ceil() as usize).clamp(1, count) - 1];
        let mean_us = times_us.iter().sum::<f64>() / count as f64;
        Quantiles { count, p50_us: at(0.5), p90_us: at(0.9), p99_us: at(0.99), max_us, mean_us }
    }
}

impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: f64| us / 1e3;
        let (p50, p90, p99, max) = (ms(self.p50_us), ms(self.p90_us), ms(self.p99_us), ms(self.max_us));
        write!(f, "p50 {p50:.2} ms, p90 {p90:.2} ms, p99 {p99:.2} ms, at most {max:.2} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(times: &[f64], expected: [f64; 4]) {
        let got = Quantiles::of(times.iter().copied());
        assert_eq!([got.p50_us, got.p90_us, got.p99_us, got.max_us], expected, "{times:?}");
    }

    #[test]
    fn quantiles_are_times_that_were_measured() {
        check(&[], [0.0; 4]);
        check(&[5.0], [5.0; 4]);
        check(&[2.0, 1.0], [1.0, 2.0, 2.0, 2.0]);
        let many: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        check(&many, [100.0, 180.0, 198.0, 200.0]);
        assert_eq!(Quantiles::of(many).mean_us, 100.5);
    }

    #[test]
    fn they_read_as_milliseconds() {
        let text = Quantiles::of([1000.0, 2500.0]).to_string();
        assert_eq!(text, "p50 1.00 ms, p90 2.50 ms, p99 2.50 ms, at most 2.50 ms");
    }
}
