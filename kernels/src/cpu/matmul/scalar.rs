//! The product in plain Rust: what every vector kernel must equal to the bit. Next: `exact.rs`.
//!
//! Block types, for each sub-block of 32 columns in order, from `acc = 0`: the integer dot product is exact, then
//! `dot * scale`, where two halves with scales of their own give `fma(dot_high, scale_high, dot_low * scale_low)`.
//! (AVX-512 has NaN instead where a scale is not finite or 2^104 and more, see `arch/x86_64/matmul/simd.rs`.)
//! Halves with mins of their own (Q2_K) add `fma(min, half_sum, _)`, low half first. Then
//! `acc = fma(_, act_scale, acc)`; other types with a min go on with `acc = fma(min, act_scaled_sum, acc)`.
//! Plain numbers: see [`PLAIN_CHAINS`]. At the end the bias is added.

use std::borrow::Cow;
use std::ops::Range;

use super::{ACT_BLOCK_BYTES, ActBlock, Layout, Matrix, PLAIN_CHAINS, PLAIN_SEGMENT_COLS, Product};
use crate::quant::{BlockFormat, SubBlock, WeightType, dequantise_row, unpack_row, with_block_format};

/// Computes rows `rows` of a product and passes each result to `store(token, row, value)`.
pub(super) fn matmul_scalar(product: &Product, rows: Range<usize>, mut store: impl FnMut(usize, usize, f32)) {
    for row in rows {
        let weights = file_row(&product.weights, row);
        for token in 0..product.n_tokens {
            let act = &product.acts[token * product.act_stride_bytes..][..product.act_stride_bytes];
            let sum = row_product(product.weights.ty(), &weights, act);
            store(token, row, product.bias.map_or(sum, |bias| sum + bias[row]));
        }
    }
}

/// The bytes of a row in the file's layout.
pub(super) fn file_row<'a>(weights: &Matrix<'a>, row: usize) -> Cow<'a, [u8]> {
    let (ty, rows, cols) = (weights.ty(), weights.rows(), weights.cols());
    let row_bytes = ty.row_bytes(cols).expect("a matrix has whole blocks");
    match weights.layout() {
        Layout::Gguf => Cow::Borrowed(&weights.bytes()[row * row_bytes..][..row_bytes]),
        Layout::Panel16 => {
            let mut bytes = vec![0; row_bytes];
            unpack_row(ty, weights.bytes(), rows, cols, row, &mut bytes).expect("a matrix has all its rows");
            Cow::Owned(bytes)
        }
    }
}

fn row_product(ty: WeightType, weights: &[u8], act: &[u8]) -> f32 {
    with_block_format!(
        ty,
        B => block_row_product::<B>(weights, act.as_chunks().0),
        plain => plain_row_product(ty, weights, act.as_chunks().0)
    )
}

fn block_row_product<B: BlockFormat>(weights: &[u8], act: &[[u8; ACT_BLOCK_BYTES]]) -> f32 {
    let blocks = weights.chunks_exact(B::BYTES).zip(act.chunks_exact(B::SUBS));
    let subs = blocks.flat_map(|(block, act)| act.iter().enumerate().map(move |(s, act)| (B::decode(block, s), act)));
    subs.fold(0.0, |acc, (sub, act)| add_sub_block::<B>(acc, &sub, &ActBlock::read(act)))
}

fn add_sub_block<B: BlockFormat>(acc: f32, weights: &SubBlock, act: &ActBlock) -> f32 {
    let [low, high] = half_dots(weights, act).map(|dot| dot as f32);
    if !B::HALVES {
        let acc = ((half_dots(weights, act).iter().sum::<i32>()) as f32 * weights.scale[0]).mul_add(act.scale, acc);
        return if B::MINS { weights.min[0].mul_add(act.scaled_sum(), acc) } else { acc };
    }
    let mut dot = high.mul_add(weights.scale[1], low * weights.scale[0]);
    if B::MINS {
        let [low, high] = act.half_sums().map(|sum| sum as f32);
        dot = weights.min[0].mul_add(low, dot);
        dot = weights.min[1].mul_add(high, dot);
    }
    dot.mul_add(act.scale, acc)
}

fn half_dots(weights: &SubBlock, act: &ActBlock) -> [i32; 2] {
    let product = |i: usize| i32::from(weights.quants[i]) * i32::from(act.quants[i]);
    [(0..16).map(product).sum(), (16..32).map(product).sum()]
}

fn plain_row_product(ty: WeightType, weights: &[u8], act: &[[u8; 4]]) -> f32 {
    let bytes = ty.block().1;
    let segments = weights.chunks(PLAIN_SEGMENT_COLS * bytes).zip(act.chunks(PLAIN_SEGMENT_COLS));
    segments.fold(0.0, |acc, (weights, act)| {
        let mut values = [0.0; PLAIN_SEGMENT_COLS];
        let values = &mut values[..act.len()];
        dequantise_row(ty, weights, values).expect("plain rows of any length have values");
        let mut chains = [0.0f32; PLAIN_CHAINS];
        for (col, (w, x)) in values.iter().zip(act).enumerate() {
            let chain = &mut chains[col % PLAIN_CHAINS];
            *chain = w.mul_add(f32::from_le_bytes(*x), *chain);
        }
        acc + ((chains[0] + chains[1]) + (chains[2] + chains[3]))
    })
}
