//! Activations in the form that a product reads. Next: `scalar.rs`.
//!
//! For block types a row is a sequence of 48-byte blocks of 32 columns: 32 signed bytes, then (little-endian) the
//! scale, scale times the sum of the bytes (for weights with a min), and the bits of [`BASE`] less 128 times the sum
//! over all 32 and over the first 16 bytes (start values that undo a bias of +128 on the weights). `x = scale * byte`.
//! One form for all block types, so activations are quantised once even when several matrices of different types read
//! them.
//! For plain numbers a row is the F32 values themselves.

use crate::KernelError;
use crate::cpu::Isa;
use crate::quant::{SUB_COLS, WeightType};

/// Bytes of a block of 32 quantised activations.
pub(crate) const ACT_BLOCK_BYTES: usize = 48;

/// A number whose last bit counts 1: integers added to its bits are added to it, so that an integer sum which starts
/// from these bits is read as F32 without a conversion. Sums stay below 2^22 in magnitude: 32 products of 8 bits do.
pub(crate) const BASE: f32 = 12_582_912.0;

/// The bits of [`BASE`].
pub(crate) const BASE_BITS: i32 = BASE.to_bits() as i32;

/// Largest magnitude that is taken for zero, so that 127 / it is finite.
pub(crate) const NEGLIGIBLE: f32 = 1e-35;

/// One decoded block of activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ActBlock {
    /// Quantised values, -127..=127.
    pub quants: [i8; SUB_COLS],
    /// Value of one step; NaN if any of the 32 values was not finite.
    pub scale: f32,
}

impl ActBlock {
    /// Quantises 32 values: the largest magnitude becomes 127, ties go to even.
    pub(crate) fn quantise(x: &[f32; SUB_COLS]) -> ActBlock {
        if x.iter().any(|v| !v.is_finite()) {
            return ActBlock { quants: [0; SUB_COLS], scale: f32::NAN };
        }
        let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        if largest < NEGLIGIBLE {
            return ActBlock { quants: [0; SUB_COLS], scale: 0.0 };
        }
        let steps = 127.0 / largest;
        ActBlock { quants: x.map(|v| (v * steps).round_ties_even() as i8), scale: largest / 127.0 }
    }

    /// The sum of a half.
    fn half_sum(&self, half: usize) -> i32 {
        self.quants[half * 16..half * 16 + 16].iter().map(|&q| i32::from(q)).sum()
    }

    /// Scale times the sum of the quantised values: what a weight's min is multiplied with.
    pub(crate) fn scaled_sum(&self) -> f32 {
        self.scale * (self.half_sum(0) + self.half_sum(1)) as f32
    }

    /// Sum of each half.
    pub(crate) fn half_sums(&self) -> [i32; 2] {
        [self.half_sum(0), self.half_sum(1)]
    }

    /// Writes the block.
    pub(crate) fn write(&self, out: &mut [u8; ACT_BLOCK_BYTES]) {
        let [low, high] = self.half_sums();
        out[..32].copy_from_slice(&self.quants.map(|q| q as u8));
        out[32..36].copy_from_slice(&self.scale.to_le_bytes());
        out[36..40].copy_from_slice(&self.scaled_sum().to_le_bytes());
        out[40..44].copy_from_slice(&(BASE_BITS - 128 * (low + high)).to_le_bytes());
        out[44..48].copy_from_slice(&(BASE_BITS - 128 * low).to_le_bytes());
    }

    /// Reads quants and scale back.
    pub(crate) fn read(bytes: &[u8; ACT_BLOCK_BYTES]) -> ActBlock {
        ActBlock {
            quants: std::array::from_fn(|i| bytes[i] as i8),
            scale: f32::from_le_bytes([bytes[32], bytes[33], bytes[34], bytes[35]]),
        }
    }
}

/// Bytes of a token's `cols` activations for weights of a type.
///
/// # Errors
/// As [`WeightType::row_bytes`].
pub fn act_row_bytes(ty: WeightType, cols: usize) -> Result<usize, KernelError> {
    ty.row_bytes(cols)?;
    let bytes = if ty.is_plain() { cols.checked_mul(4) } else { (cols / SUB_COLS).checked_mul(ACT_BLOCK_BYTES) };
    bytes.ok_or(KernelError::Overflow)
}

/// Brings one token's activations into the form for weights of a type. All block types share one form.
///
/// A block with a value that is not finite makes every result that reads it NaN.
///
/// # Errors
/// A length that is no whole number of blocks, or `out` too small.
pub fn prepare_act(isa: Isa, ty: WeightType, x: &[f32], out: &mut [u8]) -> Result<(), KernelError> {
    let need = act_row_bytes(ty, x.len())?;
    KernelError::check_size("the prepared activations", "bytes", out.len(), need)?;
    let out = &mut out[..need];
    if ty.is_plain() {
        for (bytes, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(x) {
            *bytes = value.to_le_bytes();
        }
        return Ok(());
    }
    quantise_row(isa, x.as_chunks().0, out.as_chunks_mut().0);
    Ok(())
}

/// Brings one token's activations into two rows for block types whose sum is nearer to them: the 8-bit form, then the
/// same of what that leaves. The product with a token is then the sum of the products with both rows.
///
/// # Errors
/// As [`prepare_act`].
pub fn prepare_act_pair(isa: Isa, ty: WeightType, x: &[f32], out: &mut [u8]) -> Result<(), KernelError> {
    let row_bytes = act_row_bytes(ty, x.len())?;
    let need = row_bytes.checked_mul(2).ok_or(KernelError::Overflow)?;
    KernelError::check_size("the prepared activations", "bytes", out.len(), need)?;
    let (main, rest) = out[..need].split_at_mut(row_bytes);
    prepare_act(isa, ty, x, main)?;
    let (main, rest) = (main.as_chunks::<ACT_BLOCK_BYTES>().0, rest.as_chunks_mut::<ACT_BLOCK_BYTES>().0);
    for ((x, main), rest) in x.as_chunks::<SUB_COLS>().0.iter().zip(main).zip(rest) {
        let ActBlock { quants, scale } = ActBlock::read(main);
        let left: [f32; SUB_COLS] = std::array::from_fn(|i| x[i] - scale * f32::from(quants[i]));
        quantise_row(isa, &[left], std::slice::from_mut(rest));
    }
    Ok(())
}

fn quantise_row(isa: Isa, x: &[[f32; SUB_COLS]], out: &mut [[u8; ACT_BLOCK_BYTES]]) {
    match isa.min(Isa::detect()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` found AVX2.
        Isa::Avx2 | Isa::Avx512 => unsafe { crate::arch::x86_64::avx2::act::quantise_row(x, out) },
        _ => x.iter().zip(out).for_each(|(x, out)| ActBlock::quantise(x).write(out)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quantised(isa: Isa, x: &[f32; 32]) -> [u8; ACT_BLOCK_BYTES] {
        let mut out = [0; ACT_BLOCK_BYTES];
        prepare_act(isa, WeightType::Q4_0, x, &mut out).unwrap();
        out
    }

    #[test]
    fn a_pair_of_rows_comes_back_within_half_a_step_of_its_second() {
        let x: [f32; 64] = std::array::from_fn(|i| (i as f32 - 11.3).powi(3) * 0.01);
        let mut out = [0; 4 * ACT_BLOCK_BYTES];
        prepare_act_pair(Isa::Scalar, WeightType::Q4_K, &[0.0; 256], &mut [0; 8 * ACT_BLOCK_BYTES]).unwrap_err();
        prepare_act_pair(Isa::Scalar, WeightType::Q4_0, &x, &mut out).unwrap();
        let mut detected = [0; 4 * ACT_BLOCK_BYTES];
        prepare_act_pair(Isa::detect(), WeightType::Q4_0, &x, &mut detected).unwrap();
        assert_eq!(out, detected, "other bits with SIMD");
        let blocks: Vec<ActBlock> = out.as_chunks().0.iter().map(ActBlock::read).collect();
        for (at, x) in x.iter().enumerate() {
            let [main, rest] = [0, 2].map(|row| blocks[row + at / 32]);
            let value = main.scale * f32::from(main.quants[at % 32]) + rest.scale * f32::from(rest.quants[at % 32]);
            assert!((x - value).abs() <= rest.scale * 0.51, "{x} became {value}");
            assert!(rest.scale <= main.scale / 250.0, "{} after {}", rest.scale, main.scale);
        }
    }

    #[test]
    fn values_come_back_within_half_a_step() {
        let x: [f32; 32] = std::array::from_fn(|i| (i as f32 - 11.3) * 0.37);
        let block = ActBlock::read(&quantised(Isa::Scalar, &x));
        for (x, q) in x.iter().zip(block.quants) {
            assert!((x - block.scale * f32::from(q)).abs() <= block.scale * 0.5001);
        }
    }

    #[test]
    fn values_that_are_not_finite_poison_their_block() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for isa in Isa::available() {
                let x: [f32; 32] = std::array::from_fn(|i| if i == 17 { bad } else { 1.0 });
                let block = ActBlock::read(&quantised(isa, &x));
                assert!(block.scale.is_nan() && block.quants == [0; 32], "{isa:?} {bad}");
            }
        }
    }

    #[test]
    fn a_sum_from_the_bits_of_the_base_is_a_number_without_conversion() {
        for sum in [0, 1, -1, 255 * 127 * 32, -128 * 127 * 32, (1 << 22) - 1, -(1 << 22) + 1] {
            let based = f32::from_bits((BASE_BITS + sum) as u32);
            assert_eq!(based - BASE, sum as f32);
        }
    }

    proptest! {
        #[test]
        fn every_isa_quantises_to_the_same_bits(x in proptest::array::uniform32(-1e3f32..1e3), e in -40i32..35) {
            let x = x.map(|v| v * 10f32.powi(e));
            for isa in Isa::available() {
                prop_assert_eq!(quantised(isa, &x), quantised(Isa::Scalar, &x), "{:?}", isa);
            }
        }

        #[test]
        fn a_sum_scaled_with_the_base_has_the_bits_of_a_product(
            dot in -(1 << 20)..1 << 20, d in 0u16..0x7c00, steps in -128i16..128, exponent in -149i32..104,
        ) {
            // Scales are an f16 times up to 8 bits, a sixteenth of that, or a power of two.
            let scale = half::f16::from_bits(d).to_f32() * f32::from(steps);
            for scale in [scale, scale / 16.0, 2f64.powi(exponent) as f32] {
                let scaled = (BASE + dot as f32).mul_add(scale, -BASE * scale);
                // The sign of a 0 is lost when it is added to a sum that began at 0.
                prop_assert_eq!((scaled + 0.0).to_bits(), (dot as f32 * scale + 0.0).to_bits());
            }
        }
    }
}
