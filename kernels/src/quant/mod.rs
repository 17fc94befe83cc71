//! What the bytes of a weight tensor mean: block formats of each type, exact dequantisation, the packed layout.
//!
//! Read `types.rs` (which types), `block.rs` (one block's values), `panel.rs` (16 rows interleaved for SIMD).
//! Not here: products with weights (`cpu/matmul`), the file that holds the bytes (crate `gguf`).

pub(crate) mod block;
mod codebook;
mod dequantise;
mod panel;
mod types;

pub(crate) use block::{BlockFormat, SUB_COLS, SubBlock, with_block_format};
pub(crate) use codebook::{IQ4_VALUES, MXFP4_VALUES};
pub use dequantise::dequantise_row;
pub use panel::{
    CHUNK_COLS, PANEL_ROWS, dequantise_row_from_panel, pack_panels, packed_bytes, panel_bytes, panels, unpack_row,
};
pub(crate) use panel::{head_bytes, pack_chunk, packed_fields};
pub use types::WeightType;
