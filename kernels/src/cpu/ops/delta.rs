//! The gated delta net, token by token.
//!
//! Per value head a matrix M, here stored as rows of one value each over all keys. Per token: M ← M·decay;
//! u = beta·(v − M·k); M ← M + u·kᵀ; o = M·q. A row of M needs nothing of the other rows, so the work may be split
//! by value heads (give the range); tokens of a sequence follow one another. Bits are the same for any split of the
//! tokens into calls. Not here: normalisation of q and k (`norm.rs`), convolution (`conv.rs`).

use super::math::{sigmoid_one, softplus};
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::view::{View, ViewMut};
use crate::cpu::Isa;
use std::ops::Range;

/// Which key head value head j uses, with r = value heads / key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadMap {
    /// j / r (qwen3next).
    Grouped,
    /// j % key heads (qwen35moe).
    Tiled,
}

/// Heads and per-head constants of a delta net.
#[derive(Clone, Copy, Debug)]
pub struct DeltaShape<'a> {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Columns of a key and of a value head, at most [`HEAD_COLS_MAX`].
    pub head_cols: usize,
    /// Which key head a value head uses.
    pub heads: HeadMap,
    /// {value_heads}: log decay = a · softplus(alpha + dt); negative.
    pub a: &'a [f32],
    /// {value_heads}.
    pub dt: &'a [f32],
}

/// Inputs of the tokens, each \[tokens, ...\].
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs<'a> {
    /// \[key_heads · head_cols\], normalised and scaled.
    pub q: View<'a>,
    /// \[key_heads · head_cols\], normalised.
    pub k: View<'a>,
    /// \[value_heads · head_cols\].
    pub v: View<'a>,
    /// \[value_heads\]: beta = sigmoid(b).
    pub b: View<'a>,
    /// \[value_heads\].
    pub alpha: View<'a>,
}

/// Largest head.
pub const HEAD_COLS_MAX: usize = 256;

/// Runs the tokens of one sequence, in order, for the value heads in `range`, and leaves the state after the last.
///
/// `state` is \[range.len() · head_cols (value), head_cols (key)\] and `out` \[tokens, range.len() · head_cols\], of
/// the heads in `range` only; the inputs are whole.
///
/// # Panics
/// When shapes differ or heads are larger than [`HEAD_COLS_MAX`].
pub fn delta_net(isa: Isa, shape: DeltaShape, inputs: DeltaInputs, range: Range<usize>, state: ViewMut, out: ViewMut) {
    shape.check(&inputs);
    assert!(range.start <= range.end && range.end <= shape.value_heads, "value heads {range:?}");
    let rows = range.len() * shape.head_cols;
    assert_eq!((state.rows(), state.cols()), (rows, shape.head_cols), "shape of the state");
    assert_eq!((out.rows(), out.cols()), (inputs.q.rows(), rows), "shape of the result");
    dispatch(isa, Delta { shape, inputs, range, state, out });
}

impl DeltaShape<'_> {
    #[track_caller]
    fn check(&self, inputs: &DeltaInputs) {
        let (keys, values) = (self.key_heads * self.head_cols, self.value_heads * self.head_cols);
        assert!(self.head_cols <= HEAD_COLS_MAX, "heads of {} columns", self.head_cols);
        assert!(self.key_heads > 0 && self.value_heads.is_multiple_of(self.key_heads), "value heads per key head");
        assert_eq!((self.a.len(), self.dt.len()), (self.value_heads, self.value_heads), "constants per value head");
        let cols = [inputs.q, inputs.k, inputs.v, inputs.b, inputs.alpha].map(|x| x.cols());
        assert_eq!(cols, [keys, keys, values, self.value_heads, self.value_heads], "columns of the inputs");
        let rows = [inputs.k, inputs.v, inputs.b, inputs.alpha].map(|x| x.rows());
        assert_eq!(rows, [inputs.q.rows(); 4], "the inputs differ in tokens");
    }

    fn key_head(&self, value_head: usize) -> usize {
        match self.heads {
            HeadMap::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadMap::Tiled => value_head % self.key_heads,
        }
    }
}

struct Delta<'a> {
    shape: DeltaShape<'a>,
    inputs: DeltaInputs<'a>,
    range: Range<usize>,
    state: ViewMut<'a>,
    out: ViewMut<'a>,
}

impl Kernel for Delta<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        let size = self.shape.head_cols;
        for (local, head) in self.range.clone().enumerate() {
            let key_cols = self.shape.key_head(head) * size;
            for t in 0..self.inputs.q.rows() {
                let step = Step {
                    q: &self.inputs.q.row(t)[key_cols..][..size],
                    k: &self.inputs.k.row(t)[key_cols..][..size],
                    v: &self.inputs.v.row(t)[head * size..][..size],
                    beta: sigmoid_one(self.inputs.b.row(t)[head]),
                    decay: decay(self.shape.a[head], self.inputs.alpha.row(t)[head] + self.shape.dt[head]),
                };
                let out = &mut self.out.row_mut(t)[local * size..][..size];
                for (i, out) in out.iter_mut().enumerate() {
                    *out = step.row::<V>(i, self.state.row_mut(local * size + i));
                }
            }
        }
    }
}

/// e^(a · softplus(x)).
fn decay(a: f32, x: f32) -> f32 {
    (f64::from(a) * f64::from(softplus(x))).exp() as f32
}

/// One token of one head.
struct Step<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    beta: f32,
    decay: f32,
}

impl Step<'_> {
    /// Updates the matrix's row of value `i`; returns its output.
    #[inline(always)]
    fn row<V: Simd>(&self, i: usize, row: &mut [f32]) -> f32 {
        let decay = V::splat(self.decay);
        let mut along_key = V::zero();
        for (m, k) in row.chunks_mut(LANES).zip(self.k.chunks(LANES)) {
            let decayed = load::<V>(m).mul(decay);
            store(decayed, m);
            along_key = decayed.mul_add(load(k), along_key);
        }
        let update = V::splat(self.beta * (self.v[i] - along_key.reduce_add()));
        let mut result = V::zero();
        for ((m, k), q) in row.chunks_mut(LANES).zip(self.k.chunks(LANES)).zip(self.q.chunks(LANES)) {
            let updated = load::<V>(k).mul_add(update, load(m));
            store(updated, m);
            result = updated.mul_add(load(q), result);
        }
        result.reduce_add()
    }
}

#[inline(always)]
fn load<V: Simd>(from: &[f32]) -> V {
    match from.first_chunk() {
        Some(whole) => V::load(whole),
        None => V::load_part(from),
    }
}

#[inline(always)]
fn store<V: Simd>(x: V, to: &mut [f32]) {
    match to.first_chunk_mut() {
        Some(whole) => x.store(whole),
        None => x.store_part(to),
    }
}
