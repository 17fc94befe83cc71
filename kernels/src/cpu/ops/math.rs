//! Elementary functions on sixteen lanes: exp and what is made of it.
//!
//! The same polynomial and the same fused operations on every instruction set, hence the same bits. Errors are
//! measured against f64 in the tests at the end. Not here: loops over rows (`elementwise.rs`).

use super::simd::Simd;
use std::f32::consts::LOG2_E;

/// ln 2 in two parts; the product of the first with any |n| ≤ 2⁹ is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// e^r = 1 + r + r²·P(r) for |r| ≤ ln2/2, highest power first (the minimax polynomial of Cephes' `expf`).
const EXP_P: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// tanh x = x + x³·P(x²) for |x| < 0.625, highest power first (Cephes' `tanhf`).
const TANH_P: [f32; 5] = [-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];

#[inline(always)]
fn polynomial<V: Simd, const N: usize>(coefficients: [f32; N], x: V) -> V {
    let mut sum = V::splat(coefficients[0]);
    for c in &coefficients[1..] {
        sum = sum.mul_add(x, V::splat(*c));
    }
    sum
}

/// e^x within 1 ulp where the result is normal; 0 below −104, infinite above 88.73, not a number stays so.
#[inline(always)]
pub(crate) fn exp<V: Simd>(x: V) -> V {
    // The bound is the first operand: max and min give back the second when it is not a number.
    let x = V::splat(-104.0).max(V::splat(89.0).min(x));
    let n = x.mul(V::splat(LOG2_E)).round();
    let r = n.mul_add(V::splat(-LN2_LOW), n.mul_add(V::splat(-LN2_HIGH), x));
    let power = polynomial(EXP_P, r).mul_add(r.mul(r), r).add(V::splat(1.0));
    // 2ⁿ in two factors: n itself may be beyond the exponents of f32.
    let half = n.mul(V::splat(0.5)).round();
    power.mul(half.exp2_integer()).mul(n.sub(half).exp2_integer())
}

/// 1 / (1 + e^−x), within 2.5 ulp for x > −87.
#[inline(always)]
pub(crate) fn sigmoid<V: Simd>(x: V) -> V {
    V::splat(1.0).div(V::splat(1.0).add(exp(V::zero().sub(x))))
}

/// x · sigmoid(x), within 3 ulp for x > −87.
#[inline(always)]
pub(crate) fn silu<V: Simd>(x: V) -> V {
    x.div(V::splat(1.0).add(exp(V::zero().sub(x))))
}

/// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), computed as x · sigmoid(2·√(2/π)·(x + 0.044715·x³)), which is the
/// same function without the cancellation at negative x. Within 3e-7 · max(|x|, |result|).
#[inline(always)]
pub(crate) fn gelu_tanh<V: Simd>(x: V) -> V {
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
    let cubic = x.mul(x).mul_add(V::splat(0.044_715), V::splat(1.0));
    x.mul(sigmoid(x.mul(V::splat(TWICE_SQRT_2_OVER_PI)).mul(cubic)))
}

/// tanh x, within 2 ulp.
#[inline(always)]
pub(crate) fn tanh<V: Simd>(x: V) -> V {
    let magnitude = x.max(V::zero().sub(x));
    let square = x.mul(x);
    let small = polynomial(TANH_P, square).mul(square).mul_add(x, x);
    let one = V::splat(1.0);
    let large = one.sub(V::splat(2.0).div(exp(magnitude.add(magnitude)).add(one)));
    let large = x.select_less(V::zero(), V::zero().sub(large), large);
    magnitude.select_less(V::splat(0.625), small, large)
}

/// ln(1 + e^x) of one value, in f64: a layer needs it once per head and token, so speed does not matter.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 40.0 { x } else { f64::from(x).exp().ln_1p() as f32 }
}

/// 1 / (1 + e^−x) of one value, in f64.
pub(crate) fn sigmoid_one(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::cpu::ops::simd::{Kernel, LANES, dispatch};

    /// Functions by number, as kernels.
    struct Apply<'a>(usize, &'a [f32; LANES]);

    impl Kernel for Apply<'_> {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<V: Simd>(self) -> [f32; LANES] {
            let x = V::load(self.1);
            let mut out = [0.0; LANES];
            match self.0 {
                0 => exp(x),
                1 => sigmoid(x),
                2 => silu(x),
                3 => tanh(x),
                _ => gelu_tanh(x),
            }
            .store(&mut out);
            out
        }
    }

    /// (name, function in f64, domain, allowed error in ulp of the result)
    type Row = (&'static str, fn(f64) -> f64, (f32, f32), f64);

    const TABLE: [Row; 4] = [
        ("exp", f64::exp, (-87.0, 88.7), 1.0),
        ("sigmoid", |x| 1.0 / (1.0 + (-x).exp()), (-87.0, 100.0), 2.5),
        ("silu", |x| x / (1.0 + (-x).exp()), (-80.0, 100.0), 3.0),
        ("tanh", f64::tanh, (-20.0, 20.0), 2.0),
    ];

    /// Sixteen values at a time, evenly over the domain and closely around 0.
    fn samples((low, high): (f32, f32)) -> impl Iterator<Item = [f32; LANES]> {
        let steps = 1 << 15;
        (0..steps).map(move |i| {
            std::array::from_fn(|lane| {
                let part = (i * LANES + lane) as f32 / (steps * LANES) as f32;
                let x = low + (high - low) * part;
                if lane % 4 == 0 { x * 1e-3 } else { x }
            })
        })
    }

    fn ulp(want: f64) -> f64 {
        let near = (want as f32).abs().max(f32::MIN_POSITIVE);
        f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near)
    }

    #[test]
    fn errors_stay_within_the_stated_ulps() {
        for (number, (name, exact, domain, allowed)) in TABLE.into_iter().enumerate() {
            let mut worst = (0.0, 0.0);
            for x in samples(domain) {
                for (x, got) in x.into_iter().zip(dispatch(Isa::detect(), Apply(number, &x))) {
                    let want = exact(f64::from(x));
                    let error = (f64::from(got) - want).abs() / ulp(want);
                    worst = if error > worst.0 { (error, x) } else { worst };
                }
            }
            assert!(worst.0 <= allowed, "{name}: {} ulp at {}", worst.0, worst.1);
        }
    }

    #[test]
    fn gelu_is_precise_relative_to_its_operand() {
        for x in samples((-12.0, 12.0)) {
            for (x, got) in x.into_iter().zip(dispatch(Isa::detect(), Apply(4, &x))) {
                let x = f64::from(x);
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                let want = 0.5 * x * (1.0 + inner.tanh());
                assert!((f64::from(got) - want).abs() <= 3e-7 * x.abs(), "gelu({x}) = {got}, not {want}");
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for function in 0..5 {
            for x in samples((-110.0, 110.0)).step_by(7) {
                let want = dispatch(Isa::Scalar, Apply(function, &x)).map(f32::to_bits);
                for isa in Isa::available() {
                    assert_eq!(dispatch(isa, Apply(function, &x)).map(f32::to_bits), want, "{} {x:?}", isa.name());
                }
            }
        }
    }

    #[test]
    fn ends_of_the_line_are_right() {
        let mut x = [0.0; LANES];
        x[..6].copy_from_slice(&[f32::NEG_INFINITY, -104.0, -103.0, 0.0, 88.8, f32::INFINITY]);
        for isa in Isa::available() {
            let [a, b, c, d, e, f, ..] = dispatch(isa, Apply(0, &x));
            assert_eq!([a, b, d, e, f], [0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY]);
            assert!(c > 0.0 && c < f32::MIN_POSITIVE);
            let [a, _, _, d, _, f, ..] = dispatch(isa, Apply(3, &x));
            assert_eq!([a, d, f], [-1.0, 0.0, 1.0]);
        }
        assert_eq!(softplus(1000.0), 1000.0);
        assert_eq!(softplus(f32::NEG_INFINITY), 0.0);
        assert!((softplus(0.0) - std::f32::consts::LN_2).abs() < 1e-7);
    }
}
