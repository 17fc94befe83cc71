//! Quantises activations with AVX2, to the bits of `cpu/matmul/act.rs`. AVX-512 machines use it too: it is far from
//! being a bottleneck.

use std::arch::x86_64::*;

use crate::cpu::matmul::{ACT_BLOCK_BYTES, ActBlock, BASE_BITS, NEGLIGIBLE};
use crate::quant::SUB_COLS;

/// See [`crate::cpu::matmul::prepare_act`].
#[target_feature(enable = "avx2")]
pub(crate) fn quantise_row(x: &[[f32; SUB_COLS]], out: &mut [[u8; ACT_BLOCK_BYTES]]) {
    for (x, out) in x.iter().zip(out) {
        let largest = largest_magnitude(x);
        if largest.is_finite() && largest >= NEGLIGIBLE {
            quantise(x, largest, out);
        } else {
            ActBlock::quantise(x).write(out);
        }
    }
}

#[target_feature(enable = "avx2")]
fn load(x: &[f32; SUB_COLS]) -> [__m256; 4] {
    let at = x.as_ptr();
    // SAFETY: the block is 32 readable numbers.
    unsafe {
        [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8)), _mm256_loadu_ps(at.add(16)), _mm256_loadu_ps(at.add(24))]
    }
}

/// Not finite if any value is not: magnitudes are compared as integers, which orders NaN above all.
#[target_feature(enable = "avx2")]
fn largest_magnitude(x: &[f32; SUB_COLS]) -> f32 {
    let magnitude_bits = _mm256_set1_epi32(i32::MAX);
    let mut largest = _mm256_setzero_si256();
    for v in load(x) {
        largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v), magnitude_bits));
    }
    let half = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
    let pair = _mm_max_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
    let one = _mm_max_epi32(pair, _mm_shuffle_epi32::<0b10_11_00_01>(pair));
    f32::from_bits(_mm_cvtsi128_si32(one) as u32)
}

/// A block of finite values of which one is large enough.
#[target_feature(enable = "avx2")]
fn quantise(x: &[f32; SUB_COLS], largest: f32, out: &mut [u8; ACT_BLOCK_BYTES]) {
    let steps = _mm256_set1_ps(127.0 / largest);
    let [a, b, c, d] = load(x);
    let [a, b] = [_mm256_cvtps_epi32(_mm256_mul_ps(a, steps)), _mm256_cvtps_epi32(_mm256_mul_ps(b, steps))];
    let [c, d] = [_mm256_cvtps_epi32(_mm256_mul_ps(c, steps)), _mm256_cvtps_epi32(_mm256_mul_ps(d, steps))];
    let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let words = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    let sums = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    let low = sum4(_mm256_castsi256_si128(sums));
    let whole = low + sum4(_mm256_extracti128_si256::<1>(sums));
    let scale = largest / 127.0;
    // SAFETY: a block has 48 bytes.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) };
    out[32..36].copy_from_slice(&scale.to_le_bytes());
    out[36..40].copy_from_slice(&(scale * whole as f32).to_le_bytes());
    out[40..44].copy_from_slice(&(BASE_BITS - 128 * whole).to_le_bytes());
    out[44..48].copy_from_slice(&(BASE_BITS - 128 * low).to_le_bytes());
}

#[target_feature(enable = "avx2")]
fn sum4(v: __m128i) -> i32 {
    let pair = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32::<0b10_11_00_01>(pair)))
}
