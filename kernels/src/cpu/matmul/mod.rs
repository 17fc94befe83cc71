//! Products of a weight matrix with the activations of one or more tokens: `out[t][r] = sum_c w[r][c] * x[t][c]`.
//!
//! Weights are read as they are stored ([`Layout`]); activations are first brought into the form that the weights'
//! type wants ([`prepare_act`]): 8-bit integers with a scale per 32 columns for block types, F32 for plain numbers.
//! A caller divides the work by panels of 16 rows; each thread calls [`matmul`] for its own ranges.
//!
//! **Invariant**: the bits of a result depend on nothing but its row of weights and its token's activations: not on
//! the batch, the other rows, the layout, the threads, nor on the [`Isa`](super::Isa). Integer dot products over 32
//! columns are exact; they are scaled and summed over the columns in one order that `scalar.rs` defines, with fused
//! multiply-adds. So `scalar.rs` is the oracle to the bit, and `exact.rs` (F32 activations) is the oracle of how good
//! 8-bit activations are.
//!
//! Read `matrix.rs` (operands), `act.rs` (activations), `scalar.rs` (the order of sums), then
//! `arch/x86_64/avx512/matmul`.

mod act;
mod dispatch;
mod exact;
mod matrix;
mod scalar;
mod source;
#[cfg(test)]
mod tests;

pub(crate) use act::{ACT_BLOCK_BYTES, ActBlock, BASE, BASE_BITS, NEGLIGIBLE};
pub use act::{act_row_bytes, prepare_act, prepare_act_pair};
pub use dispatch::{matmul, matmul_alone};
pub use exact::matmul_exact;
pub use matrix::{Layout, Matrix, Output, Product};
pub(crate) use matrix::{PLAIN_CHAINS, PLAIN_SEGMENT_COLS};
pub(crate) use source::{ChunkBuffer, Source};
