//! Micro-kernels that bound what this machine can do: a plain read, integer dot products and fused multiply-adds in
//! registers. Whoever has a clock times them beside the real kernels, on the spot, and reports the fraction reached.

use crate::cpu::Isa;

/// Reads every byte once with the widest loads, and returns a sum of them that only serves to keep the loads.
pub fn plain_read(isa: Isa, bytes: &[u8]) -> u64 {
    match isa.min(Isa::detect()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` found AVX-512.
        Isa::Avx512 => unsafe { crate::arch::x86_64::avx512::bounds::plain_read(bytes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` found AVX2.
        Isa::Avx2 => unsafe { crate::arch::x86_64::avx2::bounds::plain_read(bytes) },
        _ => bytes.as_chunks::<8>().0.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word))),
    }
}

/// Work that a micro-kernel did, and a value that depends on all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Multiplications and additions, counted apart (a multiply-add is 2).
    pub operations: u64,
    /// Depends on every operation, so that none can be left out.
    pub witness: f64,
}

/// Multiplies and adds 8-bit integers in registers, as fast as the ISA's dot-product instructions go.
pub fn int8_dot_peak(isa: Isa, rounds: u32) -> Work {
    match isa.min(Isa::detect()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` found AVX-512 with VNNI.
        Isa::Avx512 => unsafe { crate::arch::x86_64::avx512::bounds::int8_dot_peak(rounds) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            use crate::arch::x86_64::avx2::{bounds, matmul::DotProducts};
            // SAFETY: `detect` found AVX2, and `DotProducts::detect` what it names.
            unsafe {
                match DotProducts::detect() {
                    DotProducts::Words => bounds::int8_dot_peak(rounds),
                    DotProducts::Vnni => bounds::int8_dot_peak_vnni(rounds),
                }
            }
        }
        _ => {
            let dot = |round: u32| (0..32).map(|i| i32::from(i as i8) * i32::from(round as i8)).sum::<i32>();
            let witness = (0..rounds).fold(0i32, |sum, round| sum.wrapping_add(std::hint::black_box(dot(round))));
            Work { operations: u64::from(rounds) * 64, witness: f64::from(witness) }
        }
    }
}

/// Multiplies and adds F32 numbers in registers, as fast as the ISA's fused multiply-adds go.
pub fn f32_fma_peak(isa: Isa, rounds: u32) -> Work {
    match isa.min(Isa::detect()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` found AVX-512.
        Isa::Avx512 => unsafe { crate::arch::x86_64::avx512::bounds::f32_fma_peak(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` found AVX2 and FMA.
        Isa::Avx2 => unsafe { crate::arch::x86_64::avx2::bounds::f32_fma_peak(rounds) },
        _ => {
            let mut lanes = [1.0f32; 16];
            for _ in 0..rounds {
                lanes = std::hint::black_box(lanes.map(|x| x * 0.999 + 0.5));
            }
            Work { operations: u64::from(rounds) * 32, witness: f64::from(lanes.iter().sum::<f32>()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_isa_reads_every_byte() {
        let mut bytes = vec![0u8; 64 * 37 + 8];
        for isa in Isa::available() {
            let before = plain_read(isa, &bytes);
            for i in (0..bytes.len()).step_by(8) {
                bytes[i] += 1;
                assert_ne!(plain_read(isa, &bytes), before, "{isa:?} byte {i}");
                bytes[i] -= 1;
            }
        }
    }

    #[test]
    fn peaks_count_their_work() {
        for isa in Isa::available() {
            for peak in [int8_dot_peak, f32_fma_peak] {
                let (one, two) = (peak(isa, 100), peak(isa, 200));
                assert_eq!(one.operations * 2, two.operations);
                assert_ne!(one.witness, 0.0);
            }
        }
    }
}
