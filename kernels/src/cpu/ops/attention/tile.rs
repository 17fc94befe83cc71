//! One segment of the cache for a tile of query rows: scores, softmax, weighted sum of values.
//!
//! A row is one query head of one token; the rows of a tile share a kv head, so each key and value is read and
//! converted once for all of them. Keys are transposed on the way, so that both products have the form of
//! `product.rs`. Positions that a row does not see take no part in its arithmetic (rather than with weight 0: a cache
//! slot that holds no number would spoil the row in one batch and not in another). Next: `running.rs`.

use super::product::{Extent, Operand, Start, Target, multiply, rows_together};
use super::running::Partial;
use super::{AttentionInputs, AttentionShape, SEGMENT};
use crate::cpu::ops::kv::{KV_BLOCK, KvView};
use crate::cpu::ops::math;
use crate::cpu::ops::simd::{LANES, Simd};
use crate::cpu::ops::view::View;
use half::f16;
use std::ops::Range;

/// 0, 1, 2 … as lanes.
const LANE_INDEX: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// Rows of a tile: more share the work on a key, but their scores and sums have to stay in the L2 cache.
pub(super) fn rows_max(shape: &AttentionShape) -> usize {
    if shape.k_head_cols > 256 { 64 } else { 128 }
}

/// Buffers of a tile. Strides are multiples of 16, columns beyond a head's are zero.
#[derive(Debug)]
pub(super) struct Tile {
    rows_max: usize,
    k_cols_max: usize,
    v_stride: usize,
    /// Segments that any row sees.
    segments: Range<usize>,
    /// Positions that each row sees.
    visible: Vec<Range<usize>>,
    kv_head: usize,
    /// Scaled queries \[rows, k_head_cols\].
    queries: Buffer,
    /// Keys of a block, transposed: \[k_head_cols, KV_BLOCK\].
    keys: Buffer,
    /// Values of a block: \[KV_BLOCK, v_stride\].
    values: Buffer,
    /// Scores, then their exponentials: \[rows, SEGMENT\].
    scores: Buffer,
    /// Weighted values: \[rows, v_stride\].
    sums: Buffer,
    max: Vec<f32>,
    denominator: Vec<f32>,
    v_cols: usize,
}

impl Tile {
    pub(super) fn new(shape: &AttentionShape) -> Self {
        let rows = rows_max(shape);
        let v_stride = shape.v_head_cols.next_multiple_of(LANES);
        Self {
            rows_max: rows,
            k_cols_max: shape.k_head_cols,
            v_stride,
            segments: 0..0,
            visible: Vec::with_capacity(rows),
            kv_head: 0,
            queries: Buffer::new(rows * shape.k_head_cols),
            keys: Buffer::new(shape.k_head_cols * KV_BLOCK),
            values: Buffer::new(KV_BLOCK * v_stride),
            scores: Buffer::new(rows * SEGMENT),
            sums: Buffer::new(rows * v_stride),
            max: vec![0.0; rows],
            denominator: vec![0.0; rows],
            v_cols: shape.v_head_cols,
        }
    }

    pub(super) fn rows_max(&self) -> usize {
        self.rows_max
    }

    pub(super) fn rows(&self) -> usize {
        self.visible.len()
    }

    pub(super) fn segments(&self) -> Range<usize> {
        self.segments.clone()
    }

    /// What the last segment gave row `r`.
    #[inline(always)]
    pub(super) fn partial(&self, r: usize) -> Partial<'_> {
        let sum = &self.sums[r * self.v_stride..][..self.v_cols];
        Partial { max: self.max[r], denominator: self.denominator[r], sum }
    }

    /// Takes up the query rows `rows` (token · group + head of the group) of a kv head.
    #[inline(always)]
    pub(super) fn start<V: Simd>(
        &mut self,
        shape: &AttentionShape,
        inputs: &AttentionInputs,
        kv_head: usize,
        rows: Range<usize>,
    ) {
        let (group, cols) = (shape.group(), shape.k_head_cols);
        assert!(rows.len() <= self.rows_max && cols <= self.k_cols_max && shape.v_head_cols <= self.v_stride);
        assert_eq!(self.v_cols, shape.v_head_cols, "the scratch was made for other heads");
        self.kv_head = kv_head;
        self.visible.clear();
        for (r, row) in rows.enumerate() {
            let (token, head) = (row / group, kv_head * group + row % group);
            self.visible.push(shape.mask.visible(inputs.positions[token]));
            let query = &inputs.q.row(token)[head * cols..][..cols];
            let scaled = &mut self.queries[r * cols..][..cols];
            crate::cpu::ops::elementwise::scale_row::<V>(query, shape.scale, scaled);
        }
        let all = union(&self.visible, 0..usize::MAX);
        self.segments = all.start / SEGMENT..all.end.div_ceil(SEGMENT);
    }

    /// Computes one segment for all rows.
    #[inline(always)]
    pub(super) fn segment<V: Simd>(&mut self, shape: &AttentionShape, inputs: &AttentionInputs, segment: usize) {
        let positions = segment * SEGMENT..(segment + 1) * SEGMENT;
        let seen = union(&self.visible, positions.clone());
        let blocks = seen.start / KV_BLOCK..seen.end.div_ceil(KV_BLOCK);
        for block in blocks.clone() {
            let keys = Head::keys(shape, inputs, self.kv_head, block);
            let ahead = match block + 1 < blocks.end {
                true => Head::keys(shape, inputs, self.kv_head, block + 1),
                false => Head::values(shape, inputs, self.kv_head, blocks.start),
            };
            self.score_block::<V>(keys, ahead, block, within_block(&seen, block));
        }
        for r in 0..self.rows() {
            let range = clip(&self.visible[r], &positions);
            self.softmax_row::<V>(r, range.start - positions.start..range.end - positions.start, shape.softcap);
        }
        let rows = self.rows();
        self.sums[..rows * self.v_stride].fill(0.0);
        for block in blocks.clone() {
            let values = Head::values(shape, inputs, self.kv_head, block);
            let ahead = Head::values(shape, inputs, self.kv_head, (block + 1).min(blocks.end - 1));
            values.convert::<V>(&mut self.values, self.v_stride, within_block(&seen, block), ahead);
            self.sum_block::<V>(block);
        }
    }

    /// Scores of all rows against the positions `seen` (relative) of a block; those of other positions are arbitrary.
    #[inline(always)]
    fn score_block<V: Simd>(&mut self, keys: Head, ahead: Head, block: usize, seen: Range<usize>) {
        let cols = keys.cols;
        keys.transpose::<V>(&mut self.keys, seen.start / LANES..seen.end.div_ceil(LANES), ahead);
        let rows = 0..self.rows();
        let scores = &mut self.scores[block * KV_BLOCK % SEGMENT..];
        multiply::<V>(
            Operand { data: &self.queries, stride: cols },
            Operand { data: &self.keys, stride: KV_BLOCK },
            Target { data: scores, stride: SEGMENT },
            Start::Zero,
            Extent { rows, cols: KV_BLOCK, depth: 0..cols },
        );
    }

    /// Turns the scores of the positions `range` of the segment into exponentials and the others of their vectors
    /// into 0. Lanes belong to positions, so sums have one order whatever the range.
    #[inline(always)]
    fn softmax_row<V: Simd>(&mut self, r: usize, range: Range<usize>, softcap: Option<f32>) {
        (self.max[r], self.denominator[r]) = (f32::NEG_INFINITY, 0.0);
        if range.is_empty() {
            return;
        }
        let scores = self.scores[r * SEGMENT..][..SEGMENT].as_chunks_mut::<LANES>().0;
        let chunks = range.start / LANES..range.end.div_ceil(LANES);
        let none = V::splat(f32::NEG_INFINITY);
        let (first, end) = (V::splat(range.start as f32), V::splat(range.end as f32));
        let mut max = none;
        for i in chunks.clone() {
            let index = V::load(&LANE_INDEX).add(V::splat((i * LANES) as f32));
            let mut score = V::load(&scores[i]);
            if let Some(cap) = softcap {
                let cap = V::splat(cap);
                score = cap.mul(math::tanh(score.div(cap)));
            }
            let score = index.select_less(first, none, index.select_less(end, score, none));
            score.store(&mut scores[i]);
            // Not a number as the second operand stays.
            max = max.max(score);
        }
        let max = max.reduce_max();
        let mut sum = V::zero();
        for i in chunks {
            let power = math::exp(V::load(&scores[i]).sub(V::splat(max)));
            power.store(&mut scores[i]);
            sum = sum.add(power);
        }
        (self.max[r], self.denominator[r]) = (max, sum.reduce_add());
    }

    /// Adds the weighted values of a block. Rows go together over the positions that all of them see; what only
    /// some see is added for these alone, each row in rising order of positions.
    #[inline(always)]
    fn sum_block<V: Simd>(&mut self, block: usize) {
        let rows = self.rows();
        let mut first = 0;
        while first < rows {
            let together = first..first + rows_together::<V>(rows - first);
            first = together.end;
            let ranges = &self.visible[together.clone()];
            let start = ranges.iter().map(|v| within_block(v, block).start).max().unwrap_or(0);
            let end = ranges.iter().map(|v| within_block(v, block).end).min().unwrap_or(0).max(start);
            for r in together.clone() {
                let own = within_block(&self.visible[r], block);
                self.add_values::<V>(block, r..r + 1, own.start..start.min(own.end));
            }
            self.add_values::<V>(block, together.clone(), start..end);
            for r in together {
                let own = within_block(&self.visible[r], block);
                self.add_values::<V>(block, r..r + 1, end.max(own.start)..own.end);
            }
        }
    }

    #[inline(always)]
    fn add_values<V: Simd>(&mut self, block: usize, rows: Range<usize>, depth: Range<usize>) {
        if depth.is_empty() {
            return;
        }
        multiply::<V>(
            Operand { data: &self.scores[block * KV_BLOCK % SEGMENT..], stride: SEGMENT },
            Operand { data: &self.values, stride: self.v_stride },
            Target { data: &mut self.sums, stride: self.v_stride },
            Start::Kept,
            Extent { rows, cols: self.v_stride, depth },
        );
    }
}

/// The part of `range` inside `bounds`; empty and inside `bounds` when there is none.
fn clip(range: &Range<usize>, bounds: &Range<usize>) -> Range<usize> {
    let start = range.start.clamp(bounds.start, bounds.end);
    start..range.end.clamp(start, bounds.end)
}

/// The smallest range that holds all parts of `ranges` inside `bounds`.
fn union(ranges: &[Range<usize>], bounds: Range<usize>) -> Range<usize> {
    let parts = ranges.iter().map(|r| clip(r, &bounds)).filter(|r| !r.is_empty());
    parts.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(bounds.start..bounds.start)
}

/// The part of a range of positions in a block, counted from the block's start.
fn within_block(range: &Range<usize>, block: usize) -> Range<usize> {
    let first = block * KV_BLOCK;
    let part = clip(range, &(first..first + KV_BLOCK));
    part.start - first..part.end - first
}

/// One head's columns of the slots of a block, keys or values.
#[derive(Clone, Copy)]
struct Head<'a> {
    view: KvView<'a>,
    first_slot: usize,
    first_col: usize,
    cols: usize,
}

impl<'a> Head<'a> {
    #[inline(always)]
    fn keys(shape: &AttentionShape, inputs: &AttentionInputs<'a>, kv_head: usize, block: usize) -> Self {
        let first_slot = inputs.block_table[block] as usize * KV_BLOCK;
        let cols = shape.k_head_cols;
        Self { view: inputs.k, first_slot, first_col: kv_head * cols, cols }
    }

    #[inline(always)]
    fn values(shape: &AttentionShape, inputs: &AttentionInputs<'a>, kv_head: usize, block: usize) -> Self {
        let keys = Self::keys(shape, inputs, kv_head, block);
        let cols = shape.v_head_cols;
        match inputs.v {
            Some(view) => Self { view, first_col: kv_head * cols, cols, ..keys },
            None => Self { cols, ..keys },
        }
    }

    /// keys\[col\]\[slot\] for the groups of sixteen slots in `groups`; asks for the same slots of `ahead`.
    #[inline(always)]
    fn transpose<V: Simd>(self, keys: &mut [f32], groups: Range<usize>, ahead: Head) {
        match self.view {
            KvView::F16(view) => transpose_keys::<V, _>(keys, self.block(view), groups, ahead),
            KvView::F32(view) => transpose_keys::<V, _>(keys, self.block(view), groups, ahead),
        }
    }

    /// values\[slot\]\[col\] for the slots in `seen`, columns beyond the head's are 0; asks for the same slots of
    /// `ahead`.
    #[inline(always)]
    fn convert<V: Simd>(self, values: &mut [f32], stride: usize, seen: Range<usize>, ahead: Head) {
        match self.view {
            KvView::F16(view) => convert_values::<V, _>(values, stride, self.block(view), seen, ahead),
            KvView::F32(view) => convert_values::<V, _>(values, stride, self.block(view), seen, ahead),
        }
    }

    #[inline(always)]
    fn block<T>(self, view: View<'a, T>) -> View<'a, T> {
        let slots = self.first_slot..self.first_slot + KV_BLOCK;
        view.row_range(slots).col_range(self.first_col..self.first_col + self.cols)
    }

    /// Where the caches will be asked for the slots of this block.
    #[inline(always)]
    fn lines(self) -> Lines {
        match self.view {
            KvView::F16(view) => Lines::of(self.block(view)),
            KvView::F32(view) => Lines::of(self.block(view)),
        }
    }
}

/// Cache lines of the slots of a block: heads of a slot are too far apart for the hardware to foresee the next.
#[derive(Clone, Copy)]
struct Lines {
    first: *const u8,
    slot_bytes: usize,
    head_bytes: usize,
}

impl Lines {
    fn of<T>(block: View<T>) -> Self {
        let (first, second) = (block.row(0).as_ptr(), block.row(1).as_ptr());
        let slot_bytes = second.addr() - first.addr();
        Self { first: first.cast(), slot_bytes, head_bytes: block.cols() * size_of::<T>() }
    }

    #[inline(always)]
    fn prefetch<V: Simd>(self, slot: usize) {
        let start = self.first.wrapping_add(slot * self.slot_bytes);
        for byte in (0..self.head_bytes).step_by(64) {
            V::prefetch(start.wrapping_add(byte));
        }
    }
}

#[inline(always)]
fn transpose_keys<V: Simd, T: Element>(keys: &mut [f32], block: View<T>, groups: Range<usize>, ahead: Head) {
    let (ahead, whole) = (ahead.lines(), block.cols() / LANES * LANES);
    for group in groups {
        for i in 0..LANES {
            ahead.prefetch::<V>(group * LANES + i);
        }
        for col in (0..whole).step_by(LANES) {
            let columns = V::transpose(load_square::<V, T>(block, group, col));
            let to = &mut keys[col * KV_BLOCK..][..LANES * KV_BLOCK];
            for (column, to) in columns.into_iter().zip(to.chunks_exact_mut(KV_BLOCK)) {
                column.store(to[group * LANES..].first_chunk_mut().expect("a group has sixteen slots"));
            }
        }
        if whole < block.cols() {
            let columns = V::transpose(load_square::<V, T>(block, group, whole));
            let to = &mut keys[whole * KV_BLOCK..block.cols() * KV_BLOCK];
            for (column, to) in columns.into_iter().zip(to.chunks_exact_mut(KV_BLOCK)) {
                column.store(to[group * LANES..].first_chunk_mut().expect("a group has sixteen slots"));
            }
        }
    }
}

/// Sixteen columns from `col` of the sixteen slots of a group.
#[inline(always)]
fn load_square<V: Simd, T: Element>(block: View<T>, group: usize, col: usize) -> [V; LANES] {
    let mut rows = [V::zero(); LANES];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = load_at(block.row(group * LANES + i), col);
    }
    rows
}

#[inline(always)]
fn convert_values<V: Simd, T: Element>(
    values: &mut [f32],
    stride: usize,
    block: View<T>,
    seen: Range<usize>,
    ahead: Head,
) {
    let ahead = ahead.lines();
    for slot in seen {
        ahead.prefetch::<V>(slot);
        let (from, from_rest) = block.row(slot).as_chunks::<LANES>();
        let (to, to_rest) = values[slot * stride..][..stride].as_chunks_mut::<LANES>().0.split_at_mut(from.len());
        for (from, to) in from.iter().zip(to) {
            T::load::<V>(from).store(to);
        }
        for to in to_rest {
            T::load_part::<V>(from_rest).store(to);
        }
    }
}

/// What a cache holds.
trait Element: Copy {
    fn load<V: Simd>(from: &[Self; LANES]) -> V;
    fn load_part<V: Simd>(from: &[Self]) -> V;
}

impl Element for f16 {
    #[inline(always)]
    fn load<V: Simd>(from: &[f16; LANES]) -> V {
        V::load_f16(from)
    }

    #[inline(always)]
    fn load_part<V: Simd>(from: &[f16]) -> V {
        V::load_f16_part(from)
    }
}

impl Element for f32 {
    #[inline(always)]
    fn load<V: Simd>(from: &[f32; LANES]) -> V {
        V::load(from)
    }

    #[inline(always)]
    fn load_part<V: Simd>(from: &[f32]) -> V {
        V::load_part(from)
    }
}

/// Sixteen columns from `col`, or those that are left.
#[inline(always)]
fn load_at<V: Simd, T: Element>(row: &[T], col: usize) -> V {
    match row[col..].first_chunk() {
        Some(whole) => T::load(whole),
        None => T::load_part(&row[col..]),
    }
}

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// Floats that start on a cache line, so that vectors do not straddle two.
#[derive(Debug)]
struct Buffer(Vec<Line>);

impl Buffer {
    fn new(len: usize) -> Self {
        Self(vec![Line([0.0; LANES]); len.div_ceil(LANES)])
    }
}

impl std::ops::Deref for Buffer {
    type Target = [f32];

    #[inline(always)]
    fn deref(&self) -> &[f32] {
        // SAFETY: a line is sixteen floats without padding.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * LANES) }
    }
}

impl std::ops::DerefMut for Buffer {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: a line is sixteen floats without padding.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * LANES) }
    }
}
