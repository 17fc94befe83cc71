//! Sixteen f32 lanes, the one vector type that every operator is written over, and its plain-Rust form.
//!
//! Each operator is written once over [`Simd`]. `Portable` here, `Avx2` and `Avx512` under `arch/` implement it with
//! the same lane count, fused multiply-adds and reduction tree, so an operator gives the same bits on each of them.
//! Not here: arithmetic beyond single operations (`math.rs`), what is right (`oracle.rs`).

use crate::cpu::Isa;
use half::f16;

/// Lanes of a vector, on every instruction set.
pub(crate) const LANES: usize = 16;

/// Sixteen f32 values and the operations on them.
///
/// Methods may be called only inside [`Kernel::run`] as started by [`dispatch`]: the implementations use instructions
/// that only there are known to exist. All are `#[inline(always)]` without target features, so that they become part
/// of the caller that has the features. Hence no closure may take, give or capture a vector (`array::from_fn` and
/// iterator adaptors included): closures are functions of their own without the features, in which every operation
/// becomes a call. Loops are right.
pub(crate) trait Simd: Copy {
    /// Rows that the small matrix product keeps in registers together.
    const GEMM_ROWS: usize;
    /// Vectors side by side that the small matrix product keeps in registers.
    const GEMM_VECTORS: usize;

    /// All lanes `value`.
    fn splat(value: f32) -> Self;
    /// From memory.
    fn load(from: &[f32; LANES]) -> Self;
    /// To memory.
    fn store(self, to: &mut [f32; LANES]);
    /// From half precision, exact.
    fn load_f16(from: &[f16; LANES]) -> Self;
    /// To half precision, to nearest even; beyond ±65504 infinite.
    fn store_f16(self, to: &mut [f16; LANES]);
    /// self + b.
    fn add(self, b: Self) -> Self;
    /// self − b.
    fn sub(self, b: Self) -> Self;
    /// self · b.
    fn mul(self, b: Self) -> Self;
    /// self / b.
    fn div(self, b: Self) -> Self;
    /// self · b + c, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// self > b ? self : b; b when either is not a number.
    fn max(self, b: Self) -> Self;
    /// self < b ? self : b; b when either is not a number.
    fn min(self, b: Self) -> Self;
    /// The nearest integer, ties to even.
    fn round(self) -> Self;
    /// 2ⁿ for integral n = self in −126..=127.
    fn exp2_integer(self) -> Self;
    /// self < b ? x : y, lane by lane; y where either is not a number.
    fn select_less(self, b: Self, x: Self, y: Self) -> Self;
    /// Sum of the lanes: i with i + 8, then i + 4, i + 2, i + 1.
    fn reduce_add(self) -> f32;
    /// Largest lane; not defined when a lane is not a number.
    fn reduce_max(self) -> f32;
    /// Exchanges rows and columns of a 16 × 16 matrix.
    fn transpose(rows: [Self; LANES]) -> [Self; LANES];

    /// Asks for the cache line of `at`, which will be read soon; any address will do.
    fn prefetch(at: *const u8);

    /// All lanes 0.
    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    /// Up to sixteen values, the missing lanes 0.
    #[inline(always)]
    fn load_part(from: &[f32]) -> Self {
        let mut lanes = [0.0; LANES];
        lanes[..from.len()].copy_from_slice(from);
        Self::load(&lanes)
    }

    /// The first `to.len()` ≤ 16 lanes.
    #[inline(always)]
    fn store_part(self, to: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        to.copy_from_slice(&lanes[..to.len()]);
    }

    /// Up to sixteen half-precision values, the missing lanes 0.
    #[inline(always)]
    fn load_f16_part(from: &[f16]) -> Self {
        let mut lanes = [f16::ZERO; LANES];
        lanes[..from.len()].copy_from_slice(from);
        Self::load_f16(&lanes)
    }
}

/// Work that runs on any [`Simd`]. `run` must be `#[inline(always)]`, and so must all that it calls on vectors.
pub(crate) trait Kernel {
    /// What the work returns.
    type Output;
    /// Does the work.
    fn run<V: Simd>(self) -> Self::Output;
}

/// Runs `kernel` with the instructions of `isa`.
///
/// # Panics
/// When this machine does not have `isa`; [`Isa::choose`] tells beforehand.
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    assert!(isa <= Isa::detect(), "this machine cannot run {} code; use Isa::choose", isa.name());
    match isa {
        Isa::Scalar => kernel.run::<Portable>(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: just checked that the machine has it.
        Isa::Avx2 => unsafe { crate::arch::x86_64::avx2::ops::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: just checked that the machine has it.
        Isa::Avx512 => unsafe { crate::arch::x86_64::avx512::ops::run(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("Isa::detect gives nothing but scalar here"),
    }
}

/// Sixteen lanes in plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i])))
    }

    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }

    #[inline(always)]
    fn reduce(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] = f(lanes[i], lanes[i + half]);
            }
        }
        lanes[0]
    }
}

impl Simd for Portable {
    const GEMM_ROWS: usize = 2;
    const GEMM_VECTORS: usize = 1;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }

    #[inline(always)]
    fn load_f16(from: &[f16; LANES]) -> Self {
        Self(std::array::from_fn(|i| from[i].to_f32()))
    }

    #[inline(always)]
    fn store_f16(self, to: &mut [f16; LANES]) {
        *to = std::array::from_fn(|i| f16::from_f32(self.0[i]));
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self.zip(b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        self.zip(b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self.zip(b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        self.zip(b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        self.zip(b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        self.zip(b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn round(self) -> Self {
        self.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn exp2_integer(self) -> Self {
        self.map(|n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }

    #[inline(always)]
    fn select_less(self, b: Self, x: Self, y: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] < b.0[i] { x.0[i] } else { y.0[i] }))
    }

    #[inline(always)]
    fn reduce_add(self) -> f32 {
        self.reduce(|a, b| a + b)
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        self.reduce(|a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        std::array::from_fn(|i| Self(std::array::from_fn(|j| rows[j].0[i])))
    }

    #[inline(always)]
    fn prefetch(_: *const u8) {}
}
