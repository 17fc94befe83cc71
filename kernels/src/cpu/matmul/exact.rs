//! The product with F32 activations and exact weights: the oracle of accuracy, and what `--exact` runs.
//! Next: `dispatch.rs`.
//!
//! Slow on purpose: no approximation of any kind but F32 sums, kept apart in 16 lanes.

use std::ops::Range;

use super::scalar::file_row;
use super::{Matrix, Output};
use crate::KernelError;
use crate::quant::dequantise_row;

/// Computes rows `rows` of `weights` times `n_tokens` rows of `cols` F32 activations.
///
/// # Errors
/// Rows outside the matrix, too few activations, an output that is too small.
///
/// # Safety
/// As for [`matmul`](super::matmul): while this runs, nothing else reads or writes `rows` of `out`.
pub unsafe fn matmul_exact(
    weights: &Matrix,
    x: &[f32],
    n_tokens: usize,
    bias: Option<&[f32]>,
    rows: Range<usize>,
    out: Output,
) -> Result<(), KernelError> {
    let cols = weights.cols();
    KernelError::check_size("the matrix", "rows", weights.rows(), rows.end)?;
    KernelError::check_size("the activations", "values", x.len(), n_tokens.saturating_mul(cols))?;
    KernelError::check_size("the bias", "values", bias.map_or(rows.end, <[f32]>::len), rows.end)?;
    out.holds(n_tokens, weights.rows())?;
    let mut values = vec![0.0; cols];
    for row in rows {
        dequantise_row(weights.ty(), &file_row(weights, row), &mut values)?;
        for token in 0..n_tokens {
            let sum = dot(&values, &x[token * cols..][..cols]) + bias.map_or(0.0, |bias| bias[row]);
            // SAFETY: `holds` above checked that the buffer reaches to (token, row); the caller owns this row.
            unsafe { out.start().add(token * out.stride() + row).write(sum) };
        }
    }
    Ok(())
}

/// Dot product, summed in 16 interleaved lanes that are then added pairwise.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<16>();
    let (b, b_rest) = b.as_chunks::<16>();
    let mut lanes = [0.0f32; 16];
    for (a, b) in a.iter().zip(b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += a * b;
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}
