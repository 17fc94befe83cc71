//! Attention of one sequence's queries over its cache: shapes, masks, and the two ways to divide the work.
//!
//! The arithmetic is fixed by absolute position. Positions are grouped in segments of [`SEGMENT`]; a query's segment
//! gives a maximum, a denominator and a weighted sum of values, computed in one order of operations; segments are then
//! joined in rising order. Both entry points do exactly this, so a query's bits are the same in any batch, ubatch,
//! split and thread count:
//! - [`attention`] (prefill) takes some tokens and kv heads and walks over all segments; memory does not grow with the
//!   context.
//! - [`attention_partial`] (decode) takes one segment and kv head, so that threads share one query's cache;
//!   [`attention_combine`] joins what they wrote.
//!
//! Read `tile.rs` next (one segment), then `product.rs` (the small matrix product in it). Not here: the cache's
//! ownership and rings (`kv.rs` says how they are addressed), several sequences (one call each).

mod product;
mod running;
mod tile;

use super::kv::{KV_BLOCK, KvView};
use super::simd::{Kernel, Simd, dispatch};
use super::view::{View, ViewMut};
use crate::cpu::Isa;
use running::Running;
use std::ops::Range;
use tile::Tile;

/// Positions whose partial result has an order of operations of its own; a multiple of [`KV_BLOCK`].
pub const SEGMENT: usize = 256;

/// Heads, scale and mask of an attention operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads, a multiple of the kv heads.
    pub q_heads: usize,
    /// Key/value heads; query head h reads kv head h / (q_heads / kv_heads).
    pub kv_heads: usize,
    /// Columns of a query or key head.
    pub k_head_cols: usize,
    /// Columns of a value head; without values in the cache, the first columns of the key head.
    pub v_head_cols: usize,
    /// Multiplies q·k.
    pub scale: f32,
    /// Scores become cap · tanh(score / cap).
    pub softcap: Option<f32>,
    /// Which positions a token sees.
    pub mask: Mask,
}

/// Which positions p0 a token at p1 sees, besides p0 ≤ p1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// All.
    Causal,
    /// p1 − p0 < tokens.
    Window {
        /// Positions seen, the own included; at least 1.
        tokens: u32,
    },
    /// p0 ≥ floor(p1 / tokens) · tokens.
    Chunk {
        /// Positions of a chunk, at least 1.
        tokens: u32,
    },
}

impl Mask {
    /// The positions that a token at `position` sees.
    pub fn visible(self, position: u32) -> Range<usize> {
        let position = position as usize;
        let first = match self {
            Mask::Causal => 0,
            Mask::Window { tokens } => (position + 1).saturating_sub(tokens as usize),
            Mask::Chunk { tokens } => position - position % tokens as usize,
        };
        first..position + 1
    }
}

/// Queries of one sequence and the cache that they read.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs<'a> {
    /// \[tokens, q_heads · k_head_cols\].
    pub q: View<'a>,
    /// {tokens}.
    pub positions: &'a [u32],
    /// Keys, \[slots, kv_heads · k_head_cols\].
    pub k: KvView<'a>,
    /// Values, \[slots, kv_heads · v_head_cols\]; `None`: the first v_head_cols columns of each key head (MLA).
    pub v: Option<KvView<'a>>,
    /// Physical block of each logical one of this sequence; only blocks with a visible position are looked up.
    pub block_table: &'a [u32],
    /// {q_heads}: one logit per head that joins the softmax and contributes no value.
    pub sinks: Option<&'a [f32]>,
}

/// Working memory of one thread, reusable for every call with value heads of the same size and key heads not larger.
#[derive(Debug)]
pub struct AttentionScratch {
    tile: Tile,
    running: Running,
}

impl AttentionScratch {
    /// Memory for operators of this shape.
    pub fn new(shape: &AttentionShape) -> Self {
        Self { tile: Tile::new(shape), running: Running::new(tile::rows_max(shape), shape.v_head_cols) }
    }
}

impl AttentionShape {
    /// Query heads per kv head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Tokens that share the work on keys and values best: a thread's part of a prompt should be a multiple of it.
    pub fn tile_tokens(&self) -> usize {
        (tile::rows_max(self) / self.group()).max(1)
    }

    /// Segments that tokens at these positions see anything of.
    pub fn segments(&self, positions: &[u32]) -> Range<usize> {
        let ranges = positions.iter().map(|&p| self.mask.visible(p));
        let all = ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0);
        all.start / SEGMENT..all.end.div_ceil(SEGMENT)
    }

    /// Columns of a row of partial results: maximum, denominator, weighted sum of values.
    pub fn partial_cols(&self) -> usize {
        2 + self.v_head_cols
    }

    #[track_caller]
    fn check(&self, inputs: &AttentionInputs) {
        assert!(self.kv_heads > 0 && self.q_heads.is_multiple_of(self.kv_heads), "query heads per kv head");
        assert_eq!(inputs.q.cols(), self.q_heads * self.k_head_cols, "columns of the queries");
        assert_eq!(inputs.q.rows(), inputs.positions.len(), "one position per query");
        assert_eq!(inputs.k.cols(), self.kv_heads * self.k_head_cols, "columns of the keys");
        match inputs.v {
            Some(v) => assert_eq!(v.cols(), self.kv_heads * self.v_head_cols, "columns of the values"),
            None => assert!(self.v_head_cols <= self.k_head_cols, "values are columns of the keys"),
        }
        assert!(inputs.sinks.is_none_or(|s| s.len() == self.q_heads), "one sink per query head");
    }
}

/// Attention of all of the tokens in `inputs` for the kv heads in `kv_heads`.
///
/// `out` is \[tokens, kv_heads.len() · group · v_head_cols\]: the columns of these heads only. May be split by tokens
/// (restrict `q`, `positions` and `out`) and by kv heads.
///
/// # Panics
/// When shapes differ, the scratch was made for other heads, or a block of the cache is missing.
pub fn attention(
    isa: Isa,
    shape: &AttentionShape,
    inputs: &AttentionInputs,
    kv_heads: Range<usize>,
    scratch: &mut AttentionScratch,
    out: ViewMut,
) {
    shape.check(inputs);
    assert!(kv_heads.start <= kv_heads.end && kv_heads.end <= shape.kv_heads, "kv heads {kv_heads:?}");
    let cols = kv_heads.len() * shape.group() * shape.v_head_cols;
    assert_eq!((out.rows(), out.cols()), (inputs.q.rows(), cols), "shape of the result");
    dispatch(isa, Whole { shape, inputs, kv_heads, scratch, out });
}

struct Whole<'a> {
    shape: &'a AttentionShape,
    inputs: &'a AttentionInputs<'a>,
    kv_heads: Range<usize>,
    scratch: &'a mut AttentionScratch,
    out: ViewMut<'a>,
}

impl Kernel for Whole<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        let (group, v_cols) = (self.shape.group(), self.shape.v_head_cols);
        let AttentionScratch { tile, running } = self.scratch;
        let rows_all = self.inputs.q.rows() * group;
        let first_head = self.kv_heads.start;
        for kv_head in self.kv_heads {
            for first in (0..rows_all).step_by(tile.rows_max()) {
                tile.start::<V>(self.shape, self.inputs, kv_head, first..rows_all.min(first + tile.rows_max()));
                running.clear(tile.rows());
                for segment in tile.segments() {
                    tile.segment::<V>(self.shape, self.inputs, segment);
                    for r in 0..tile.rows() {
                        running.join::<V>(r, tile.partial(r));
                    }
                }
                for r in 0..tile.rows() {
                    let (token, head) = ((first + r) / group, (first + r) % group);
                    let sink = self.inputs.sinks.map(|s| s[kv_head * group + head]);
                    let col = ((kv_head - first_head) * group + head) * v_cols;
                    running.finish::<V>(r, sink, &mut self.out.row_mut(token)[col..][..v_cols]);
                }
            }
        }
    }
}

/// What one segment contributes to the tokens in `inputs` in one kv head.
///
/// `partials` is \[tokens · group, partial_cols\]: row t · group + h for query head h of the group. Tokens that see
/// nothing of the segment get a denominator of 0. Meant for few tokens: decode and verification.
///
/// # Panics
/// As [`attention`].
pub fn attention_partial(
    isa: Isa,
    shape: &AttentionShape,
    inputs: &AttentionInputs,
    (kv_head, segment): (usize, usize),
    scratch: &mut AttentionScratch,
    partials: ViewMut,
) {
    shape.check(inputs);
    assert!(kv_head < shape.kv_heads, "kv head {kv_head}");
    let rows = inputs.q.rows() * shape.group();
    assert_eq!((partials.rows(), partials.cols()), (rows, shape.partial_cols()), "shape of the partial results");
    dispatch(isa, Part { shape, inputs, kv_head, segment, scratch, partials });
}

struct Part<'a> {
    shape: &'a AttentionShape,
    inputs: &'a AttentionInputs<'a>,
    kv_head: usize,
    segment: usize,
    scratch: &'a mut AttentionScratch,
    partials: ViewMut<'a>,
}

impl Kernel for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        let tile = &mut self.scratch.tile;
        let rows_all = self.partials.rows();
        for first in (0..rows_all).step_by(tile.rows_max()) {
            tile.start::<V>(self.shape, self.inputs, self.kv_head, first..rows_all.min(first + tile.rows_max()));
            tile.segment::<V>(self.shape, self.inputs, self.segment);
            for r in 0..tile.rows() {
                tile.partial(r).write(self.partials.row_mut(first + r));
            }
        }
    }
}

/// Joins the segments of one kv head in rising order and writes its heads' results.
///
/// `partials` is \[segments · tokens · group, partial_cols\]: [`AttentionShape::segments`] of the tokens' positions,
/// one after the other. `sinks` are those of the group's query heads; `out` is \[tokens, group · v_head_cols\]. May be
/// split by kv heads and, on both sides alike, by nothing else.
///
/// # Panics
/// When shapes differ.
pub fn attention_combine(
    isa: Isa,
    shape: &AttentionShape,
    partials: View,
    sinks: Option<&[f32]>,
    scratch: &mut AttentionScratch,
    out: ViewMut,
) {
    let group = shape.group();
    assert_eq!(partials.cols(), shape.partial_cols(), "columns of the partial results");
    assert_eq!(out.cols(), group * shape.v_head_cols, "columns of the result");
    assert!(out.rows() == 0 || partials.rows().is_multiple_of(out.rows() * group), "rows of the partial results");
    assert!(sinks.is_none_or(|s| s.len() == group), "one sink per query head of the group");
    dispatch(isa, Combine { v_cols: shape.v_head_cols, partials, sinks, running: &mut scratch.running, out });
}

struct Combine<'a> {
    v_cols: usize,
    partials: View<'a>,
    sinks: Option<&'a [f32]>,
    running: &'a mut Running,
    out: ViewMut<'a>,
}

impl Kernel for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        let group = self.out.cols() / self.v_cols;
        let rows = self.out.rows() * group;
        for r in 0..rows {
            self.running.clear(1);
            for row in (r..self.partials.rows()).step_by(rows) {
                self.running.join::<V>(0, running::Partial::read(self.partials.row(row)));
            }
            let head = r % group;
            let out = &mut self.out.row_mut(r / group)[head * self.v_cols..][..self.v_cols];
            self.running.finish::<V>(0, self.sinks.map(|s| s[head]), out);
        }
    }
}

const _: () = assert!(SEGMENT.is_multiple_of(KV_BLOCK));
