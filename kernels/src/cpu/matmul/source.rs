//! Hands a product's weights to vector code chunk by chunk, packed, whatever the layout in memory.

use std::mem::MaybeUninit;

use super::{Layout, Matrix};
use crate::quant::{CHUNK_COLS, PANEL_ROWS, WeightType, pack_chunk};

/// Room for one packed chunk of any type (F32 needs most), aligned for the widest loads. It holds nothing at first:
/// most matrices never use it.
#[repr(C, align(64))]
pub(crate) struct ChunkBuffer(MaybeUninit<[u8; CHUNK_COLS * 4 * PANEL_ROWS]>);

impl ChunkBuffer {
    #[inline(always)]
    pub(crate) fn new() -> ChunkBuffer {
        ChunkBuffer(MaybeUninit::uninit())
    }
}

/// The chunks of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    ty: WeightType,
    layout: Layout,
    rows: usize,
    bytes: &'a [u8],
    row_bytes: usize,
    chunk_row_bytes: usize,
    cols: usize,
}

impl<'a> Source<'a> {
    pub(crate) fn new(weights: &Matrix<'a>) -> Source<'a> {
        let (ty, cols) = (weights.ty(), weights.cols());
        let (block_cols, block_bytes) = ty.block();
        Source {
            ty,
            layout: weights.layout(),
            rows: weights.rows(),
            bytes: weights.bytes(),
            row_bytes: cols / block_cols * block_bytes,
            chunk_row_bytes: CHUNK_COLS / block_cols * block_bytes,
            cols,
        }
    }

    /// Chunks of a row.
    #[inline(always)]
    pub(crate) fn chunks(&self) -> usize {
        self.cols.div_ceil(CHUNK_COLS)
    }

    /// Columns of chunk `chunk`.
    #[inline(always)]
    pub(crate) fn chunk_cols(&self, chunk: usize) -> usize {
        (self.cols - chunk * CHUNK_COLS).min(CHUNK_COLS)
    }

    /// The packed bytes of a chunk of a panel; `buffer` is filled if they have to be packed first.
    #[inline(always)]
    pub(crate) fn chunk<'b>(&'b self, panel: usize, chunk: usize, buffer: &'b mut ChunkBuffer) -> &'b [u8] {
        let begin = chunk * self.chunk_row_bytes;
        let bytes = self.chunk_row_bytes.min(self.row_bytes - begin);
        if self.layout == Layout::Gguf {
            return self.pack(panel, begin, bytes, buffer);
        }
        &self.bytes[panel * self.row_bytes * PANEL_ROWS + begin * PANEL_ROWS..][..bytes * PANEL_ROWS]
    }

    /// Whether panels lie in memory as they are.
    #[inline(always)]
    pub(crate) fn is_packed(&self) -> bool {
        self.layout == Layout::Panel16
    }

    /// Where a chunk of a panel of a packed matrix begins.
    #[inline(always)]
    pub(crate) fn packed_chunk(&self, panel: usize, chunk: usize) -> *const u8 {
        self.bytes.as_ptr().wrapping_add((panel * self.row_bytes + chunk * self.chunk_row_bytes) * PANEL_ROWS)
    }

    /// Bytes of a panel.
    #[inline(always)]
    pub(crate) fn panel_bytes(&self) -> usize {
        self.row_bytes * PANEL_ROWS
    }

    /// Where a panel of a packed matrix ends.
    #[inline(always)]
    pub(crate) fn panel_end(&self, panel: usize) -> *const u8 {
        self.bytes.as_ptr().wrapping_add((panel + 1) * self.panel_bytes())
    }

    #[inline(never)]
    fn pack<'b>(&self, panel: usize, begin: usize, bytes: usize, buffer: &'b mut ChunkBuffer) -> &'b [u8] {
        let pieces = std::array::from_fn(|lane| {
            let row = panel * PANEL_ROWS + lane;
            (row < self.rows).then(|| &self.bytes[row * self.row_bytes + begin..][..bytes])
        });
        let out = &mut buffer.0.write([0; CHUNK_COLS * 4 * PANEL_ROWS])[..bytes * PANEL_ROWS];
        pack_chunk(self.ty, &pieces, out);
        out
    }
}
