//! Joining the partial results of segments, in rising order, and the sink at the end. `tile.rs` makes them.

use crate::cpu::ops::math;
use crate::cpu::ops::simd::{LANES, Simd};

/// What a segment contributes to one query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partial<'a> {
    /// Largest score.
    pub max: f32,
    /// Σ e^(score − max); 0 when the query sees nothing of the segment.
    pub denominator: f32,
    /// Σ e^(score − max) · value.
    pub sum: &'a [f32],
}

impl<'a> Partial<'a> {
    pub(super) fn write(self, row: &mut [f32]) {
        (row[0], row[1]) = (self.max, self.denominator);
        row[2..].copy_from_slice(self.sum);
    }

    pub(super) fn read(row: &'a [f32]) -> Self {
        Self { max: row[0], denominator: row[1], sum: &row[2..] }
    }
}

/// The same over all segments so far, for the rows of a tile.
#[derive(Debug)]
pub(super) struct Running {
    max: Vec<f32>,
    denominator: Vec<f32>,
    sum: Vec<f32>,
    v_cols: usize,
}

impl Running {
    pub(super) fn new(rows: usize, v_cols: usize) -> Self {
        Self { max: vec![0.0; rows], denominator: vec![0.0; rows], sum: vec![0.0; rows * v_cols], v_cols }
    }

    /// Nothing seen yet, in the first `rows` rows.
    pub(super) fn clear(&mut self, rows: usize) {
        self.max[..rows].fill(f32::NEG_INFINITY);
        self.denominator[..rows].fill(0.0);
        self.sum[..rows * self.v_cols].fill(0.0);
    }

    /// Adds a segment. One that the query does not see changes nothing, not even a bit.
    #[inline(always)]
    pub(super) fn join<V: Simd>(&mut self, row: usize, part: Partial) {
        if part.denominator == 0.0 {
            return;
        }
        let max = if part.max > self.max[row] { part.max } else { self.max[row] };
        let (old, new) = (exp_one::<V>(self.max[row] - max), exp_one::<V>(part.max - max));
        self.max[row] = max;
        self.denominator[row] = self.denominator[row].mul_add(old, part.denominator * new);
        let (old, new) = (V::splat(old), V::splat(new));
        let sum = &mut self.sum[row * self.v_cols..][..self.v_cols];
        let (sums, sums_rest) = sum.as_chunks_mut::<LANES>();
        let (parts, parts_rest) = part.sum.as_chunks::<LANES>();
        for (sum, part) in sums.iter_mut().zip(parts) {
            V::load(sum).mul_add(old, V::load(part).mul(new)).store(sum);
        }
        let rest = V::load_part(sums_rest).mul_add(old, V::load_part(parts_rest).mul(new));
        rest.store_part(sums_rest);
    }

    /// The query's result; the sink joins maximum and denominator. A query that saw nothing gets zeros.
    #[inline(always)]
    pub(super) fn finish<V: Simd>(&self, row: usize, sink: Option<f32>, out: &mut [f32]) {
        let (mut denominator, mut factor) = (self.denominator[row], 1.0);
        if let Some(sink) = sink {
            let max = if sink > self.max[row] { sink } else { self.max[row] };
            factor = exp_one::<V>(self.max[row] - max);
            denominator = denominator.mul_add(factor, exp_one::<V>(sink - max));
        }
        let factor = if self.denominator[row] == 0.0 { 0.0 } else { factor / denominator };
        let sum = &self.sum[row * self.v_cols..][..self.v_cols];
        for (sum, out) in sum.chunks(LANES).zip(out.chunks_mut(LANES)) {
            V::load_part(sum).mul(V::splat(factor)).store_part(out);
        }
    }
}

#[inline(always)]
fn exp_one<V: Simd>(x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    math::exp(V::splat(x)).store(&mut lanes);
    lanes[0]
}
