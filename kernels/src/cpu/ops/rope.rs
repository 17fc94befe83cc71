//! Rotary position embedding: frequency tables (base, linear, YaRN, per-pair factors) and the rotation.
//!
//! Angles are formed in f64 and only their cos and sin rounded to f32, so that positions of a million are as precise
//! as small ones. The rotation may be split by rows and by whole heads; its bits depend on the row alone.
//! Not here: which layers rotate (the op program says so).

use super::simd::{Kernel, LANES, Simd, dispatch};
use super::view::{View, ViewMut};
use crate::cpu::Isa;

/// Which dimensions rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (2i, 2i + 1).
    Norm,
    /// (i, i + n_rot/2).
    Neox,
}

/// Scaling of the frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as they are.
    None,
    /// Frequencies divided by `factor`.
    Linear {
        /// How much longer the context became.
        factor: f32,
    },
    /// Between both by frequency, with beta_fast 32 and beta_slow 1.
    Yarn {
        /// How much longer the context became.
        factor: f32,
        /// Context before.
        original_context_tokens: u32,
    },
}

/// What a rotary table is made of.
#[derive(Clone, Copy, Debug)]
pub struct RopeParams<'a> {
    /// Rotated dimensions of a head, even.
    pub n_rot: usize,
    /// Frequency i is base^(−2i / n_rot).
    pub base: f32,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
    /// Multiplies cos and sin: 1, for YaRN mostly [`yarn_magnitude`].
    pub magnitude: f32,
    /// {n_rot / 2}: divide the frequencies (`rope_freqs.weight`).
    pub factors: Option<&'a [f32]>,
}

/// Frequencies of the pairs, with the magnitude.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    frequencies: Vec<f64>,
    magnitude: f64,
}

/// 1 + 0.1 · ln(factor), YaRN's usual magnitude.
pub fn yarn_magnitude(factor: f32) -> f32 {
    (1.0 + 0.1 * f64::from(factor).ln()) as f32
}

impl RopeTable {
    /// Frequencies for `params`.
    ///
    /// # Panics
    /// When `n_rot` is odd or the factors are not n_rot / 2.
    pub fn new(params: RopeParams) -> Self {
        let pairs = params.n_rot / 2;
        assert!(params.n_rot.is_multiple_of(2), "{} rotated dimensions do not pair up", params.n_rot);
        assert!(params.factors.is_none_or(|f| f.len() == pairs), "one rope factor per rotated pair");
        let frequencies = (0..pairs).map(|i| {
            let plain = f64::from(params.base).powf(-2.0 * i as f64 / params.n_rot as f64);
            let divided = plain / params.factors.map_or(1.0, |f| f64::from(f[i]));
            scaled_frequency(&params, i, divided)
        });
        Self { frequencies: frequencies.collect(), magnitude: f64::from(params.magnitude) }
    }

    /// Radians per position of each pair.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// What multiplies cosines and sines.
    pub fn magnitude(&self) -> f64 {
        self.magnitude
    }

    /// Columns of a row of angles: n_rot.
    pub fn cols(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Fills `trig` \[positions, n_rot\]: per position n_rot/2 cosines, then n_rot/2 sines, magnitude included.
    /// Needed once per round and table, not per layer. May be split by rows.
    ///
    /// # Panics
    /// When `trig` has another shape.
    pub fn fill(&self, positions: &[u32], mut trig: ViewMut) {
        assert_eq!((positions.len(), self.cols()), (trig.rows(), trig.cols()), "shape of the angles");
        for (r, &position) in positions.iter().enumerate() {
            let (cos, sin) = trig.row_mut(r).split_at_mut(self.frequencies.len());
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&self.frequencies) {
                let (s, c) = (f64::from(position) * frequency).sin_cos();
                (*cos, *sin) = ((c * self.magnitude) as f32, (s * self.magnitude) as f32);
            }
        }
    }
}

fn scaled_frequency(params: &RopeParams, pair: usize, frequency: f64) -> f64 {
    match params.scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / f64::from(factor),
        RopeScaling::Yarn { factor, original_context_tokens } => {
            let kept = yarn_kept_share(params, pair, f64::from(original_context_tokens));
            frequency / f64::from(factor) * (1.0 - kept) + frequency * kept
        }
    }
}

/// Share of a frequency that YaRN leaves alone: 1 for fast pairs, 0 for slow ones, a ramp between.
fn yarn_kept_share(params: &RopeParams, pair: usize, original_context: f64) -> f64 {
    let n_rot = params.n_rot as f64;
    let dimension = |turns: f64| {
        n_rot * (original_context / (2.0 * std::f64::consts::PI * turns)).ln() / (2.0 * f64::from(params.base).ln())
    };
    let low = dimension(32.0).floor().max(0.0);
    let high = dimension(1.0).ceil().min(n_rot - 1.0);
    1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
}

/// Rotates the first n_rot columns of each head by the row's angles; the other columns are copied.
///
/// `trig` is what [`RopeTable::fill`] made for the rows' positions.
///
/// # Panics
/// When shapes differ, columns are no multiple of `head_cols`, or n_rot exceeds it.
pub fn rope(isa: Isa, x: View, pairing: RopePairing, head_cols: usize, trig: View, out: ViewMut) {
    assert_eq!((x.rows(), x.cols()), (out.rows(), out.cols()), "operand and result differ in shape");
    assert_eq!(trig.rows(), x.rows(), "one row of angles per row");
    assert!(head_cols > 0 && x.cols().is_multiple_of(head_cols), "columns are no multiple of heads");
    assert!(trig.cols() <= head_cols, "{} rotated dimensions in heads of {head_cols}", trig.cols());
    dispatch(isa, Rotate { x, pairing, head_cols, trig, out });
}

struct Rotate<'a> {
    x: View<'a>,
    pairing: RopePairing,
    head_cols: usize,
    trig: View<'a>,
    out: ViewMut<'a>,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        let n_rot = self.trig.cols();
        for r in 0..self.x.rows() {
            let (cos, sin) = self.trig.row(r).split_at(n_rot / 2);
            let heads = self.x.row(r).chunks_exact(self.head_cols);
            for (x, out) in heads.zip(self.out.row_mut(r).chunks_exact_mut(self.head_cols)) {
                match self.pairing {
                    RopePairing::Norm => rotate_neighbours(&x[..n_rot], cos, sin, &mut out[..n_rot]),
                    RopePairing::Neox => rotate_halves::<V>(&x[..n_rot], cos, sin, &mut out[..n_rot]),
                }
                out[n_rot..].copy_from_slice(&x[n_rot..]);
            }
        }
    }
}

/// Pairs (2i, 2i + 1). Plain Rust, vectorised by the compiler for the caller's instruction set; the fused operations
/// fix the bits.
#[inline(always)]
fn rotate_neighbours(x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
    let pairs = x.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<2>().0);
    for (([a, b], out), (cos, sin)) in pairs.zip(cos.iter().zip(sin)) {
        *out = [a.mul_add(*cos, -(b * sin)), a.mul_add(*sin, b * cos)];
    }
}

/// Pairs (i, i + n_rot/2).
#[inline(always)]
fn rotate_halves<V: Simd>(x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
    let (a, b) = x.split_at(cos.len());
    let (out_a, out_b) = out.split_at_mut(cos.len());
    let whole = cos.len() / LANES * LANES;
    for i in (0..whole).step_by(LANES) {
        let (x0, x1) = (load_at::<V>(a, i), load_at::<V>(b, i));
        let (c, s) = (load_at::<V>(cos, i), load_at::<V>(sin, i));
        let first = x0.mul_add(c, V::zero().sub(x1.mul(s)));
        let second = x0.mul_add(s, x1.mul(c));
        first.store(out_a[i..].first_chunk_mut().expect("16 are left"));
        second.store(out_b[i..].first_chunk_mut().expect("16 are left"));
    }
    for i in whole..cos.len() {
        out_a[i] = a[i].mul_add(cos[i], -(b[i] * sin[i]));
        out_b[i] = a[i].mul_add(sin[i], b[i] * cos[i]);
    }
}

#[inline(always)]
fn load_at<V: Simd>(x: &[f32], first: usize) -> V {
    V::load(x[first..].first_chunk().expect("16 are left"))
}
