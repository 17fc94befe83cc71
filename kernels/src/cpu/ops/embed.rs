//! Looking up embedding rows by token id.
//!
//! May be split by rows. Values are exact, then scaled once. Not here: the tied head's product (`cpu/matmul`).

use super::elementwise::Scale;
use super::simd::dispatch;
use super::view::ViewMut;
use crate::KernelError;
use crate::cpu::Isa;
use crate::quant::{WeightType, dequantise_row, dequantise_row_from_panel};

/// An embedding table \[vocabulary, out.cols()\].
#[derive(Clone, Copy, Debug)]
pub struct EmbedTable<'a> {
    /// The type of its values.
    pub ty: WeightType,
    /// Its rows: the vocabulary.
    pub rows: usize,
    /// Its bytes.
    pub data: &'a [u8],
    /// How they are arranged.
    pub layout: EmbedLayout,
}

/// Arrangement of a table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedLayout {
    /// As in the model's file.
    File,
    /// Packed for the CPU's products: a tied table need not exist twice.
    Panels,
}

/// out\[r\] = scale · table\[tokens\[r\]\].
///
/// # Errors
/// A token beyond the table, or a table too short for its rows.
///
/// # Panics
/// When there is not one token per row.
pub fn embed(isa: Isa, table: EmbedTable, tokens: &[u32], scale: f32, mut out: ViewMut) -> Result<(), KernelError> {
    assert_eq!(tokens.len(), out.rows(), "one token per row");
    for (r, &token) in tokens.iter().enumerate() {
        table.read_row(token as usize, out.row_mut(r))?;
    }
    if scale != 1.0 {
        dispatch(isa, Scale { scale }.in_place(out));
    }
    Ok(())
}

impl EmbedTable<'_> {
    fn read_row(&self, row: usize, out: &mut [f32]) -> Result<(), KernelError> {
        KernelError::check_size("the embedding table", "rows", self.rows, row + 1)?;
        match self.layout {
            EmbedLayout::File => {
                let bytes = self.ty.row_bytes(out.len())?;
                let end = bytes.checked_mul(row + 1).ok_or(KernelError::Overflow)?;
                KernelError::check_size("the embedding table", "bytes", self.data.len(), end)?;
                dequantise_row(self.ty, &self.data[end - bytes..end], out)
            }
            EmbedLayout::Panels => dequantise_row_from_panel(self.ty, self.data, self.rows, out.len(), row, out),
        }
    }
}
