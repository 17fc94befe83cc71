//! The sixteen lanes of the operators as two AVX2 registers. Next: `cpu/ops/simd.rs`, which says what each method
//! means.

use crate::cpu::ops::simd::{Kernel, LANES, Simd};
use half::f16;
use std::arch::x86_64::*;

/// Lanes 0–7 and 8–15.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

/// Runs `kernel` with AVX2.
///
/// # Safety
/// - the machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// Applies an intrinsic to both halves. Methods of `Avx2` run only below [`run`], where its features exist.
macro_rules! halves {
    ($intrinsic:ident($($operand:expr),*)) => {
        // SAFETY: only reached below `run`, whose caller vouches for the features.
        unsafe { Avx2($intrinsic($($operand.0),*), $intrinsic($($operand.1),*)) }
    };
}

impl Simd for Avx2 {
    const GEMM_ROWS: usize = 6;
    const GEMM_VECTORS: usize = 1;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: as in `halves!`.
        let all = unsafe { _mm256_set1_ps(value) };
        Self(all, all)
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        let first = from.as_ptr();
        // SAFETY: both halves lie in the array; features as in `halves!`.
        unsafe { Self(_mm256_loadu_ps(first), _mm256_loadu_ps(first.add(8))) }
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        let first = to.as_mut_ptr();
        // SAFETY: both halves lie in the array; features as in `halves!`.
        unsafe {
            _mm256_storeu_ps(first, self.0);
            _mm256_storeu_ps(first.add(8), self.1);
        }
    }

    #[inline(always)]
    fn load_f16(from: &[f16; LANES]) -> Self {
        let first = from.as_ptr().cast::<__m128i>();
        // SAFETY: the array is two times 16 bytes; features as in `halves!`.
        unsafe { Self(_mm256_cvtph_ps(_mm_loadu_si128(first)), _mm256_cvtph_ps(_mm_loadu_si128(first.add(1)))) }
    }

    #[inline(always)]
    fn store_f16(self, to: &mut [f16; LANES]) {
        let first = to.as_mut_ptr().cast::<__m128i>();
        // SAFETY: the array is two times 16 bytes; features as in `halves!`.
        unsafe {
            _mm_storeu_si128(first, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
            _mm_storeu_si128(first.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1));
        }
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        halves!(_mm256_add_ps(self, b))
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        halves!(_mm256_sub_ps(self, b))
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        halves!(_mm256_mul_ps(self, b))
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        halves!(_mm256_div_ps(self, b))
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        halves!(_mm256_fmadd_ps(self, b, c))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        halves!(_mm256_max_ps(self, b))
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        halves!(_mm256_min_ps(self, b))
    }

    #[inline(always)]
    fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: as in `halves!`.
        unsafe { Self(_mm256_round_ps::<NEAREST>(self.0), _mm256_round_ps::<NEAREST>(self.1)) }
    }

    #[inline(always)]
    fn exp2_integer(self) -> Self {
        #[inline(always)]
        unsafe fn half(n: __m256) -> __m256 {
            // SAFETY: as in `halves!`.
            unsafe {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            }
        }
        halves!(half(self))
    }

    #[inline(always)]
    fn select_less(self, b: Self, x: Self, y: Self) -> Self {
        #[inline(always)]
        unsafe fn half(a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
            // SAFETY: as in `halves!`.
            unsafe { _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
        }
        halves!(half(self, b, x, y))
    }

    #[inline(always)]
    fn reduce_add(self) -> f32 {
        // SAFETY: as in `halves!`.
        unsafe {
            let eight = _mm256_add_ps(self.0, self.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        // SAFETY: as in `halves!`.
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: a prefetch of any address is harmless; every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut out = rows;
        // SAFETY: as in `halves!`.
        unsafe {
            for (from, to) in [(0, 0), (8, 0), (0, 8), (8, 8)] {
                let mut quarter = [rows[0].0; 8];
                for i in 0..8 {
                    quarter[i] = if to == 0 { rows[from + i].0 } else { rows[from + i].1 };
                }
                let quarter = transpose_8x8(quarter);
                for i in 0..8 {
                    *(if from == 0 { &mut out[to + i].0 } else { &mut out[to + i].1 }) = quarter[i];
                }
            }
        }
        out
    }
}

/// Exchanges rows and columns: pairs of rows, then of pairs, then the 128-bit halves. Loops with constant indices, not
/// `array::from_fn`: closures would not be part of the caller and lack its instructions.
///
/// # Safety
/// - the machine has AVX2.
#[inline(always)]
unsafe fn transpose_8x8(r: [__m256; 8]) -> [__m256; 8] {
    let (mut pair, mut quad, mut out) = (r, r, r);
    // SAFETY: the caller vouches for AVX2.
    unsafe {
        for i in (0..8).step_by(2) {
            pair[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
            pair[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        }
        for i in (0..8).step_by(4) {
            quad[i] = _mm256_shuffle_ps::<0x44>(pair[i], pair[i + 2]);
            quad[i + 1] = _mm256_shuffle_ps::<0xEE>(pair[i], pair[i + 2]);
            quad[i + 2] = _mm256_shuffle_ps::<0x44>(pair[i + 1], pair[i + 3]);
            quad[i + 3] = _mm256_shuffle_ps::<0xEE>(pair[i + 1], pair[i + 3]);
        }
        for i in 0..4 {
            out[i] = _mm256_permute2f128_ps::<0x20>(quad[i], quad[i + 4]);
            out[i + 4] = _mm256_permute2f128_ps::<0x31>(quad[i], quad[i + 4]);
        }
    }
    out
}
