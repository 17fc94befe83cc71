//! The operands of a product, checked once when made. Next: `act.rs`.

use std::marker::PhantomData;

use super::act_row_bytes;
use crate::KernelError;
use crate::quant::{WeightType, packed_bytes, panels};

/// Plain numbers are summed in segments of so many columns ...
pub(crate) const PLAIN_SEGMENT_COLS: usize = 256;

/// ... in so many interleaved chains each: chain i of a segment sums its columns c with c % 4 = i in order, then the
/// segment is `(chain0 + chain1) + (chain2 + chain3)`, and segments are added in order.
pub(crate) const PLAIN_CHAINS: usize = 4;

/// The order of a matrix's bytes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As in the file: row by row. SIMD code packs it piece by piece on the way; for weights that cannot be repacked.
    Gguf,
    /// Panels of 16 interleaved rows, see [`crate::quant::pack_panels`].
    Panel16,
}

/// A matrix of weights of `rows` outputs by `cols` inputs. One expert of an expert tensor is a matrix of its own.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    ty: WeightType,
    layout: Layout,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// A matrix over its bytes; 64-byte alignment is not needed but faster.
    ///
    /// # Errors
    /// A column count that is no whole number of blocks, or too few bytes.
    pub fn new(
        ty: WeightType,
        layout: Layout,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Matrix<'a>, KernelError> {
        let need = match layout {
            Layout::Gguf => ty.row_bytes(cols)?.checked_mul(rows).ok_or(KernelError::Overflow)?,
            Layout::Panel16 => packed_bytes(ty, rows, cols)?,
        };
        KernelError::check_size("the matrix", "bytes", bytes.len(), need)?;
        Ok(Matrix { ty, layout, rows, cols, bytes: &bytes[..need] })
    }

    /// Type of the weights.
    pub fn ty(&self) -> WeightType {
        self.ty
    }

    /// Order of the bytes.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Outputs per token.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs per token.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Panels of 16 rows, the unit in which work is divided.
    pub fn panels(&self) -> usize {
        panels(self.rows)
    }

    /// Just the bytes of the matrix.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Where results go: F32, token t's row r at `t * stride + r` from the start of a buffer.
///
/// A copyable handle, so that threads can write disjoint rows of one buffer: see [`matmul`](super::matmul).
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    start: *mut f32,
    len: usize,
    stride: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: an `Output` is a pointer into a buffer that it borrows exclusively; it is written only by `matmul`, whose
// contract forbids two threads the same rows.
unsafe impl Send for Output<'_> {}
// SAFETY: as above; a shared `Output` cannot be read through.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// A view of `buffer`, which begins at the first row's result for the first token.
    pub fn new(buffer: &'a mut [f32], stride: usize) -> Output<'a> {
        Output { start: buffer.as_mut_ptr(), len: buffer.len(), stride, buffer: PhantomData }
    }

    /// A view of `len` values from `start`, which are one token's results after the other.
    ///
    /// # Safety
    /// - The values are valid for writes for `'a`.
    /// - Nothing else touches the rows that a product writes while it does.
    pub unsafe fn from_raw(start: *mut f32, len: usize, stride: usize) -> Output<'a> {
        Output { start, len, stride, buffer: PhantomData }
    }

    /// First element.
    pub(crate) fn start(&self) -> *mut f32 {
        self.start
    }

    /// Elements from one token to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// `Ok` if the buffer reaches to the last row of the last token.
    pub(crate) fn holds(&self, n_tokens: usize, rows: usize) -> Result<(), KernelError> {
        KernelError::check_size("the output's stride", "rows", if n_tokens > 1 { self.stride } else { rows }, rows)?;
        let last = n_tokens.saturating_sub(1).checked_mul(self.stride).ok_or(KernelError::Overflow)?;
        let need = if n_tokens == 0 { 0 } else { last.checked_add(rows).ok_or(KernelError::Overflow)? };
        KernelError::check_size("the output", "values", self.len, need)
    }
}

/// One product with all its operands.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    pub(crate) weights: Matrix<'a>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) acts: &'a [u8],
    pub(crate) act_stride_bytes: usize,
    pub(crate) n_tokens: usize,
    pub(crate) out: Output<'a>,
}

impl<'a> Product<'a> {
    /// A product of `weights` with `n_tokens` rows of activations, prepared for the weights' type one after the other.
    ///
    /// # Errors
    /// Too few activations, or an output that is too small.
    pub fn new(
        weights: Matrix<'a>,
        acts: &'a [u8],
        n_tokens: usize,
        out: Output<'a>,
    ) -> Result<Product<'a>, KernelError> {
        let act_stride_bytes = act_row_bytes(weights.ty, weights.cols)?;
        let need = act_stride_bytes.checked_mul(n_tokens).ok_or(KernelError::Overflow)?;
        KernelError::check_size("the activations", "bytes", acts.len(), need)?;
        out.holds(n_tokens, weights.rows)?;
        Ok(Product { weights, bias: None, acts, act_stride_bytes, n_tokens, out })
    }

    /// The same with a bias added to each token's row.
    ///
    /// # Errors
    /// Fewer values than rows.
    pub fn with_bias(self, bias: &'a [f32]) -> Result<Product<'a>, KernelError> {
        KernelError::check_size("the bias", "values", bias.len(), self.weights.rows)?;
        Ok(Product { bias: Some(bias), ..self })
    }

    /// The matrix.
    pub fn weights(&self) -> &Matrix<'a> {
        &self.weights
    }
}
