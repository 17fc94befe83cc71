//! Chooses the code for a product. Next: `arch/x86_64`.

use std::ops::Range;

use super::scalar::matmul_scalar;
use super::{Matrix, Output, Product};
use crate::KernelError;
use crate::cpu::Isa;
use crate::quant::PANEL_ROWS;

/// Computes the rows of panels `panels` (16 rows each) of a product, for all its tokens.
///
/// An `isa` that this machine lacks is replaced by the best that it has; the result has the same bits.
///
/// # Errors
/// Panels outside the matrix.
///
/// # Safety
/// While this runs, nothing else may read or write the rows of these panels in the product's output. (Calls for
/// disjoint ranges of panels may run at once.)
pub unsafe fn matmul(isa: Isa, product: &Product, panels: Range<usize>) -> Result<(), KernelError> {
    KernelError::check_size("the matrix", "panels", product.weights.panels(), panels.end)?;
    let rows = panels.start * PANEL_ROWS..product.weights.rows().min(panels.end * PANEL_ROWS);
    match isa.min(Isa::detect()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `detect` found AVX-512; panels are checked; the caller owns their rows.
        Isa::Avx512 => unsafe { crate::arch::x86_64::avx512::matmul::matmul(product, panels) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            use crate::arch::x86_64::avx2::matmul::{DotProducts, matmul};
            // SAFETY: `detect` found AVX2; panels are checked; the caller owns their rows.
            unsafe { matmul(DotProducts::detect(), product, panels) }
        }
        _ => matmul_scalar(product, rows, |token, row, value| {
            // SAFETY: `Product::new` checked that the buffer holds every token's rows; the caller owns these.
            unsafe { product.out.start().add(token * product.out.stride() + row).write(value) }
        }),
    }
    Ok(())
}

/// The same for a caller that has an output of its own: whoever measures, or computes on one thread. `out` is
/// \[tokens, rows\]; only the rows of `panels` are written.
///
/// # Errors
/// Panels outside the matrix, too few activations, an output that is too small.
pub fn matmul_alone(
    isa: Isa,
    weights: Matrix<'_>,
    acts: &[u8],
    n_tokens: usize,
    panels: Range<usize>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let rows = weights.rows();
    let product = Product::new(weights, acts, n_tokens, Output::new(out, rows))?;
    // SAFETY: `out` is borrowed exclusively for as long as the product lives.
    unsafe { matmul(isa, &product, panels) }
}
