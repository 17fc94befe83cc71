//! AVX-512 versions of `cpu/bounds.rs`.

use std::arch::x86_64::*;

use crate::cpu::bounds::Work;

const CHAINS: usize = 16;

/// See [`crate::cpu::bounds::plain_read`].
#[target_feature(enable = "avx512f")]
pub(crate) fn plain_read(bytes: &[u8]) -> u64 {
    let mut sums = [_mm512_setzero_si512(); 8];
    let (groups, rest) = bytes.as_chunks::<512>();
    for group in groups {
        for (sum, line) in sums.iter_mut().zip(group.as_chunks::<64>().0) {
            // SAFETY: `line` is 64 readable bytes.
            let value = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
            *sum = _mm512_add_epi64(*sum, value);
        }
    }
    let tail = rest.as_chunks::<8>().0.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    let sum = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi64(a, b));
    tail.wrapping_add(_mm512_reduce_add_epi64(sum) as u64)
}

/// See [`crate::cpu::bounds::int8_dot_peak`].
#[target_feature(enable = "avx512f,avx512vnni")]
pub(crate) fn int8_dot_peak(rounds: u32) -> Work {
    let (a, b) = (_mm512_set1_epi8(3), _mm512_set1_epi8(5));
    let mut chains: [__m512i; CHAINS] = std::array::from_fn(|i| _mm512_set1_epi32(i as i32));
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = _mm512_dpbusd_epi32(*chain, a, b);
        }
    }
    let sum = chains.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi32(a, b));
    let operations = u64::from(rounds) * (CHAINS * 16 * 4 * 2) as u64;
    Work { operations, witness: f64::from(_mm512_reduce_add_epi32(sum)) }
}

/// See [`crate::cpu::bounds::f32_fma_peak`].
#[target_feature(enable = "avx512f")]
pub(crate) fn f32_fma_peak(rounds: u32) -> Work {
    let (a, b) = (_mm512_set1_ps(0.999), _mm512_set1_ps(0.5));
    let mut chains: [__m512; CHAINS] = std::array::from_fn(|i| _mm512_set1_ps(i as f32));
    for _ in 0..rounds {
        for chain in &mut chains {
            *chain = _mm512_fmadd_ps(*chain, a, b);
        }
    }
    let sum = chains.into_iter().fold(_mm512_setzero_ps(), |a, b| _mm512_add_ps(a, b));
    let operations = u64::from(rounds) * (CHAINS * 16 * 2) as u64;
    Work { operations, witness: f64::from(_mm512_reduce_add_ps(sum)) }
}
