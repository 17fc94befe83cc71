//! Products with AVX-512 VNNI. One lane is one row: a vector holds 4 columns of 16 rows, activations are broadcast,
//! and sums run along the lane in the order that `cpu/matmul/scalar.rs` defines.
//!
//! Few tokens: weights are unpacked in registers and used at once (`direct`). Many: a piece of a panel is unpacked to
//! a buffer that stays in the first cache, then used for all tokens (`blocked`).
//! Read `weights.rs` (unpacking), `tile.rs` (block types), `plain.rs` (F32, F16, BF16).
//!
//! Helpers are `#[inline(always)]` without features of their own, since a function cannot have both; every path to
//! them goes through the `#[target_feature]` functions here and below.

mod plain;
mod tile;
mod weights;

use std::ops::Range;

use crate::cpu::matmul::Product;
use crate::quant::WeightType;

/// See [`crate::cpu::matmul::matmul`].
///
/// # Safety
/// The machine has the features of [`Isa::Avx512`](crate::cpu::Isa), `panels` are panels of the matrix, and nothing
/// else accesses their rows in the output meanwhile.
pub(crate) unsafe fn matmul(product: &Product, panels: Range<usize>) {
    // SAFETY: as this function's own contract.
    unsafe {
        match product.weights.ty() {
            WeightType::F32 => plain::run::<plain::F32>(product, panels),
            WeightType::F16 => plain::run::<plain::F16>(product, panels),
            WeightType::BF16 => plain::run::<plain::Bf16>(product, panels),
            WeightType::Q4_0 => tile::run::<weights::Q4_0>(product, panels),
            WeightType::Q4_1 => tile::run::<weights::Q4_1>(product, panels),
            WeightType::Q5_0 => tile::run::<weights::Q5_0>(product, panels),
            WeightType::Q5_1 => tile::run::<weights::Q5_1>(product, panels),
            WeightType::Q8_0 => tile::run::<weights::Q8_0>(product, panels),
            WeightType::Q2_K => tile::run::<weights::Q2K>(product, panels),
            WeightType::Q3_K => tile::run::<weights::Q3K>(product, panels),
            WeightType::Q4_K => tile::run::<weights::Q4K>(product, panels),
            WeightType::Q5_K => tile::run::<weights::Q5K>(product, panels),
            WeightType::Q6_K => tile::run::<weights::Q6K>(product, panels),
            WeightType::IQ4_NL => tile::run::<weights::Iq4Nl>(product, panels),
            WeightType::IQ4_XS => tile::run::<weights::Iq4Xs>(product, panels),
            WeightType::MXFP4 => tile::run::<weights::Mxfp4>(product, panels),
        }
    }
}
