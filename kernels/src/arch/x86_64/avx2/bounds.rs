//! AVX2 versions of `cpu/bounds.rs`.

use std::arch::x86_64::*;

use crate::cpu::bounds::Work;

const CHAINS: usize = 10;

/// See [`crate::cpu::bounds::plain_read`].
#[target_feature(enable = "avx2")]
pub(crate) fn plain_read(bytes: &[u8]) -> u64 {
    let mut sums = [_mm256_setzero_si256(); 8];
    let (groups, rest) = bytes.as_chunks::<256>();
    for group in groups {
        for (sum, line) in sums.iter_mut().zip(group.as_chunks::<32>().0) {
            // SAFETY: `line` is 32 readable bytes.
            let value = unsafe { _mm256_loadu_si256(line.as_ptr().cast()) };
            *sum = _mm256_add_epi64(*sum, value);
        }
    }
    let tail = rest.as_chunks::<8>().0.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    let sum = sums.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_add_epi64(a, b));
    let lanes = [
        _mm256_extract_epi64::<0>(sum),
        _mm256_extract_epi64::<1>(sum),
        _mm256_extract_epi64::<2>(sum),
        _mm256_extract_epi64::<3>(sum),
    ];
    lanes.into_iter().fold(tail, |sum, lane| sum.wrapping_add(lane as u64))
}

/// See [`crate::cpu::bounds::int8_dot_peak`]: by `vpmaddubsw`, `vpmaddwd` and an addition, as a kernel must.
#[target_feature(enable = "avx2")]
pub(crate) fn int8_dot_peak(rounds: u32) -> Work {
    let (a, ones) = (_mm256_set1_epi8(3), _mm256_set1_epi16(1));
    let mut chains: [__m256i; CHAINS] = std::array::from_fn(|i| _mm256_set1_epi32(i as i32));
    for _ in 0..rounds {
        // The second factor is the sum so far: else the products would be computed once, before the loop.
        for chain in &mut chains {
            *chain = _mm256_add_epi32(*chain, _mm256_madd_epi16(_mm256_maddubs_epi16(a, *chain), ones));
        }
    }
    let sum = chains.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_add_epi32(a, b));
    let operations = u64::from(rounds) * (CHAINS * 8 * 4 * 2) as u64;
    Work { operations, witness: f64::from(_mm256_extract_epi32::<0>(sum)) }
}

/// See [`crate::cpu::bounds::int8_dot_peak`]: by `vpdpbusd`, where the processor has it for 256 bits.
#[target_feature(enable = "avx2,avxvnni")]
pub(crate) fn int8_dot_peak_vnni(rounds: u32) -> Work {
    let a = _mm256_set1_epi8(3);
    let mut chains: [__m256i; CHAINS] = std::array::from_fn(|i| _mm256_set1_epi32(i as i32));
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = _mm256_dpbusd_avx_epi32(*chain, a, *chain);
        }
    }
    let sum = chains.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_add_epi32(a, b));
    let operations = u64::from(rounds) * (CHAINS * 8 * 4 * 2) as u64;
    Work { operations, witness: f64::from(_mm256_extract_epi32::<0>(sum)) }
}

/// See [`crate::cpu::bounds::f32_fma_peak`].
#[target_feature(enable = "avx2,fma")]
pub(crate) fn f32_fma_peak(rounds: u32) -> Work {
    let (a, b) = (_mm256_set1_ps(0.999), _mm256_set1_ps(0.5));
    let mut chains: [__m256; CHAINS] = std::array::from_fn(|i| _mm256_set1_ps(i as f32));
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = _mm256_fmadd_ps(*chain, a, b);
        }
    }
    let sum = chains.into_iter().fold(_mm256_setzero_ps(), |a, b| _mm256_add_ps(a, b));
    let operations = u64::from(rounds) * (CHAINS * 8 * 2) as u64;
    Work { operations, witness: f64::from(_mm_cvtss_f32(_mm256_castps256_ps128(sum))) }
}
