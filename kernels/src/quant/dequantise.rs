//! Exact values of a row of weights. Defines what every kernel's weights are. Next: `panel.rs`.

use half::{bf16, f16};

use super::{BlockFormat, SUB_COLS, SubBlock, WeightType, with_block_format};
use crate::KernelError;

/// Writes the `out.len()` values of a row in the file's layout, bit for bit as ggml's own dequantiser does.
///
/// # Errors
/// A length that is no whole number of blocks, or `row` shorter than it needs.
pub fn dequantise_row(ty: WeightType, row: &[u8], out: &mut [f32]) -> Result<(), KernelError> {
    let need = ty.row_bytes(out.len())?;
    KernelError::check_size("a row of weights", "bytes", row.len(), need)?;
    with_block_format!(ty, B => dequantise_blocks::<B>(row, out), plain => dequantise_plain(ty, row, out));
    Ok(())
}

fn dequantise_plain(ty: WeightType, row: &[u8], out: &mut [f32]) {
    match ty {
        WeightType::F16 => decode_each(row, out, |b: [u8; 2]| f16::from_le_bytes(b).to_f32()),
        WeightType::BF16 => decode_each(row, out, |b: [u8; 2]| bf16::from_le_bytes(b).to_f32()),
        _ => decode_each(row, out, f32::from_le_bytes),
    }
}

fn decode_each<const N: usize>(row: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (value, bytes) in out.iter_mut().zip(row.as_chunks::<N>().0) {
        *value = decode(*bytes);
    }
}

fn dequantise_blocks<B: BlockFormat>(row: &[u8], out: &mut [f32]) {
    let blocks = row.chunks_exact(B::BYTES).zip(out.chunks_exact_mut(B::SUBS * SUB_COLS));
    for (block, values) in blocks {
        for (sub, values) in values.chunks_exact_mut(SUB_COLS).enumerate() {
            write_values::<B>(&B::decode(block, sub), values);
        }
    }
}

/// Formats without a min add nothing: adding 0 would turn -0 into 0.
fn write_values<B: BlockFormat>(sub: &SubBlock, values: &mut [f32]) {
    for (i, value) in values.iter_mut().enumerate() {
        let product = sub.scale[i / 16] * f32::from(sub.quants[i]);
        *value = if B::MINS { product + sub.min[i / 16] } else { product };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    #[test]
    fn values_are_bit_for_bit_those_of_the_reference_blocks() {
        for ty in WeightType::ALL {
            let Some((blocks, want)) = reference::blocks(ty) else {
                assert!(matches!(ty, WeightType::F32 | WeightType::F16), "{ty} has reference blocks");
                continue;
            };
            let mut got = vec![0.0; want.len()];
            dequantise_row(ty, &blocks, &mut got).unwrap();
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert_eq!(got.to_bits(), want.to_bits(), "{ty} value {i}: {got} for {want}");
            }
        }
    }

    #[test]
    fn ragged_and_short_rows_are_refused() {
        let mut out = [0.0; 33];
        let error = dequantise_row(WeightType::Q4_0, &[0; 64], &mut out).unwrap_err();
        assert_eq!(error, KernelError::RaggedRow { ty: WeightType::Q4_0, cols: 33, block_cols: 32 });
        assert!(matches!(dequantise_row(WeightType::Q4_K, &[0; 143], &mut [0.0; 256]), Err(KernelError::Size { .. })));
    }
}
