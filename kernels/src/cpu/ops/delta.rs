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

/// Tokens whose keys and queries of one head (16 KiB at 128 columns) stay in L1 while the rows of M go by.
const TOKENS: usize = 16;

/// Rows of M that go together: they share the loads of k and q, and their sums along the keys overlap in time.
const ROWS: usize = 4;

impl Kernel for Delta<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        let tokens = self.inputs.q.rows();
        for (local, head) in self.range.clone().enumerate() {
            for first in (0..tokens).step_by(TOKENS) {
                self.run_tokens::<V>(local, head, first..tokens.min(first + TOKENS));
            }
        }
    }
}

impl Delta<'_> {
    /// Some tokens of one head: rows of M outside, tokens inside.
    #[inline(always)]
    fn run_tokens<V: Simd>(&mut self, local: usize, head: usize, tokens: Range<usize>) {
        let size = self.shape.head_cols;
        let key_cols = self.shape.key_head(head) * size;
        let mut gates = [(0.0, 0.0); TOKENS];
        for (gate, t) in gates.iter_mut().zip(tokens.clone()) {
            let x = self.inputs.alpha.row(t)[head] + self.shape.dt[head];
            *gate = (sigmoid_one(self.inputs.b.row(t)[head]), decay(self.shape.a[head], x));
        }
        let mut row = 0;
        while row < size {
            let rows = row..row + if size - row >= ROWS { ROWS } else { 1 };
            row = rows.end;
            match rows.len() {
                ROWS => self.run_rows::<V, ROWS>((local, head), key_cols, rows, tokens.clone(), &gates),
                _ => self.run_rows::<V, 1>((local, head), key_cols, rows, tokens.clone(), &gates),
            }
        }
    }

    /// R rows of M, held in a fixed block for the tokens.
    #[inline(always)]
    fn run_rows<V: Simd, const R: usize>(
        &mut self,
        (local, head): (usize, usize),
        key_cols: usize,
        rows: Range<usize>,
        tokens: Range<usize>,
        gates: &[(f32, f32); TOKENS],
    ) {
        let size = self.shape.head_cols;
        let (value_cols, out_cols) = (head * size + rows.start, local * size + rows.start);
        let mut block: Block<R> = [[[0.0; LANES]; HEAD_COLS_MAX / LANES]; R];
        for (r, m) in block.iter_mut().enumerate() {
            m.as_flattened_mut()[..size].copy_from_slice(self.state.row_mut(out_cols + r));
        }
        for (&(beta, decay), t) in gates.iter().zip(tokens) {
            let step = Step {
                q: &self.inputs.q.row(t)[key_cols..][..size],
                k: &self.inputs.k.row(t)[key_cols..][..size],
                v: self.inputs.v.row(t)[value_cols..].first_chunk().expect("R rows are left"),
                beta,
                decay,
            };
            let out = self.out.row_mut(t)[out_cols..].first_chunk_mut().expect("R rows are left");
            step.update::<V>(&mut block, out);
        }
        for (r, m) in block.iter().enumerate() {
            self.state.row_mut(out_cols + r).copy_from_slice(&m.as_flattened()[..size]);
        }
    }
}

/// Some rows of M, filled up with zeros.
type Block<const R: usize> = [[[f32; LANES]; HEAD_COLS_MAX / LANES]; R];

/// e^(a · softplus(x)).
fn decay(a: f32, x: f32) -> f32 {
    (f64::from(a) * f64::from(softplus(x))).exp() as f32
}

/// One token, R rows of M.
struct Step<'a, const R: usize> {
    q: &'a [f32],
    k: &'a [f32],
    /// Of these rows.
    v: &'a [f32; R],
    beta: f32,
    decay: f32,
}

impl<const R: usize> Step<'_, R> {
    /// Updates the rows; `out` gets their results. A decayed row is computed twice rather than stored between.
    #[inline(always)]
    fn update<V: Simd>(&self, block: &mut Block<R>, out: &mut [f32; R]) {
        let decay = V::splat(self.decay);
        let (keys, key_rest) = self.k.as_chunks::<LANES>();
        let (queries, query_rest) = self.q.as_chunks::<LANES>();
        let mut sums = [V::zero(); R];
        for (c, k) in keys.iter().enumerate() {
            along_keys(V::load(k), decay, c, block, &mut sums);
        }
        if !key_rest.is_empty() {
            along_keys(V::load_part(key_rest), decay, keys.len(), block, &mut sums);
        }
        let mut updates = [V::zero(); R];
        for r in 0..R {
            updates[r] = V::splat(self.beta * (self.v[r] - sums[r].reduce_add()));
            sums[r] = V::zero();
        }
        for (c, (k, q)) in keys.iter().zip(queries).enumerate() {
            along_queries((V::load(k), V::load(q)), decay, &updates, c, block, &mut sums);
        }
        if !key_rest.is_empty() {
            let rest = (V::load_part(key_rest), V::load_part(query_rest));
            along_queries(rest, decay, &updates, keys.len(), block, &mut sums);
        }
        for r in 0..R {
            out[r] = sums[r].reduce_add();
        }
    }
}

/// sums += decayed M · k, one chunk of columns.
#[inline(always)]
fn along_keys<V: Simd, const R: usize>(k: V, decay: V, chunk: usize, block: &Block<R>, sums: &mut [V; R]) {
    for r in 0..R {
        sums[r] = V::load(&block[r][chunk]).mul(decay).mul_add(k, sums[r]);
    }
}

/// M = decayed M + update · k; sums += M · q, one chunk of columns.
#[inline(always)]
fn along_queries<V: Simd, const R: usize>(
    (k, q): (V, V),
    decay: V,
    updates: &[V; R],
    chunk: usize,
    block: &mut Block<R>,
    sums: &mut [V; R],
) {
    for r in 0..R {
        let updated = k.mul_add(updates[r], V::load(&block[r][chunk]).mul(decay));
        updated.store(&mut block[r][chunk]);
        sums[r] = updated.mul_add(q, sums[r]);
    }
}
