//! The sixteen lanes of the operators as one AVX-512 register. Next: `cpu/ops/simd.rs`, which says what each method
//! means.

use crate::cpu::ops::simd::{Kernel, LANES, Simd};
use half::f16;
use std::arch::x86_64::*;

/// Lanes 0–15.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// Runs `kernel` with AVX-512.
///
/// # Safety
/// - the machine has AVX-512 F, BW, VL and DQ, and all of AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

/// Calls intrinsics. Methods of `Avx512` run only below [`run`], where its features exist.
macro_rules! avx512 {
    ($($body:tt)*) => {
        // SAFETY: only reached below `run`, whose caller vouches for the features.
        unsafe { $($body)* }
    };
}

impl Simd for Avx512 {
    const GEMM_ROWS: usize = 6;
    const GEMM_VECTORS: usize = 4;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        avx512!(Self(_mm512_set1_ps(value)))
    }

    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        avx512!(Self(_mm512_loadu_ps(from.as_ptr())))
    }

    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        avx512!(_mm512_storeu_ps(to.as_mut_ptr(), self.0))
    }

    #[inline(always)]
    fn load_f16(from: &[f16; LANES]) -> Self {
        avx512!(Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast()))))
    }

    #[inline(always)]
    fn store_f16(self, to: &mut [f16; LANES]) {
        avx512!({
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), halves)
        })
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        avx512!(Self(_mm512_add_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        avx512!(Self(_mm512_sub_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        avx512!(Self(_mm512_mul_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        avx512!(Self(_mm512_div_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        avx512!(Self(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        avx512!(Self(_mm512_max_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        avx512!(Self(_mm512_min_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn round(self) -> Self {
        avx512!(Self(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)))
    }

    #[inline(always)]
    fn exp2_integer(self) -> Self {
        avx512!({
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
        })
    }

    #[inline(always)]
    fn select_less(self, b: Self, x: Self, y: Self) -> Self {
        avx512!(Self(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, b.0), y.0, x.0)))
    }

    #[inline(always)]
    fn reduce_add(self) -> f32 {
        avx512!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn reduce_max(self) -> f32 {
        avx512!({
            let eight = _mm256_max_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: a prefetch of any address is harmless; every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        avx512!(transpose_16x16(rows))
    }
}

/// Exchanges rows and columns: pairs of rows, quadruples, then 128-bit lanes twice. Loops with constant indices, not
/// `array::from_fn`: closures would not be part of the caller and lack its instructions.
///
/// # Safety
/// - the machine has AVX-512 F.
#[inline(always)]
unsafe fn transpose_16x16(r: [Avx512; LANES]) -> [Avx512; LANES] {
    let (mut pair, mut quad, mut half, mut out) = ([r[0].0; 16], [r[0].0; 16], [r[0].0; 16], r);
    // SAFETY: the caller vouches for AVX-512 F.
    unsafe {
        for i in (0..16).step_by(2) {
            pair[i] = _mm512_unpacklo_ps(r[i].0, r[i + 1].0);
            pair[i + 1] = _mm512_unpackhi_ps(r[i].0, r[i + 1].0);
        }
        // quad[4q + c] holds, in 128-bit lane l, column 4l + c of rows 4q..4q+4.
        for i in (0..16).step_by(4) {
            quad[i] = _mm512_shuffle_ps::<0x44>(pair[i], pair[i + 2]);
            quad[i + 1] = _mm512_shuffle_ps::<0xEE>(pair[i], pair[i + 2]);
            quad[i + 2] = _mm512_shuffle_ps::<0x44>(pair[i + 1], pair[i + 3]);
            quad[i + 3] = _mm512_shuffle_ps::<0xEE>(pair[i + 1], pair[i + 3]);
        }
        // half[8h + 4e + c]: rows 8h..8h+8; lanes 0, 1 of both quads for e = 0, lanes 2, 3 for e = 1.
        for h in [0, 8] {
            for c in 0..4 {
                half[h + c] = _mm512_shuffle_f32x4::<0x44>(quad[h + c], quad[h + 4 + c]);
                half[h + 4 + c] = _mm512_shuffle_f32x4::<0xEE>(quad[h + c], quad[h + 4 + c]);
            }
        }
        for e in 0..2 {
            for c in 0..4 {
                let (low, high) = (half[4 * e + c], half[8 + 4 * e + c]);
                out[8 * e + c] = Avx512(_mm512_shuffle_f32x4::<0x88>(low, high));
                out[8 * e + 4 + c] = Avx512(_mm512_shuffle_f32x4::<0xDD>(low, high));
            }
        }
    }
    out
}
