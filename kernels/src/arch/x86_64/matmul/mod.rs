//! Products on x86-64, written once over a small set of vector operations. One lane is one row: a vector holds 4
//! columns of 8 or 16 rows, activations are broadcast, and sums run along the lane in the order that
//! `cpu/matmul/scalar.rs` defines.
//!
//! Few tokens: weights are unpacked in registers and used at once (`direct`). Many: a piece of a panel is unpacked to
//! a buffer that stays in the first cache, then used for all tokens (`blocked`).
//! Read `simd.rs` (the operations), `packed.rs` and `formats.rs` (unpacking), `part.rs` (what a pass computes),
//! `tile.rs` (block types), `plain.rs` (F32, F16, BF16), `engine.rs` (instantiation). `avx2/matmul.rs` and
//! `avx512/matmul.rs` supply the operations.
//!
//! Everything here is `#[inline(always)]` without features of its own, since a function cannot have both; the
//! `#[target_feature]` functions that it is inlined into are made by `engine.rs`.

pub(crate) mod engine;
pub(crate) mod formats;
pub(crate) mod packed;
pub(crate) mod part;
pub(crate) mod plain;
pub(crate) mod simd;
pub(crate) mod tile;
