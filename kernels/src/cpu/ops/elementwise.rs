//! Operators that treat each element (or group of columns) alone: add, sum, GLU, gates, softcap, copies.
//!
//! All may be split by rows and by columns (give each thread its window); an element's bits depend on that element's
//! inputs alone, so no split, batch or thread count changes them. Not here: anything that sums along a row (`norm.rs`).

use super::math;
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::view::{View, ViewMut};
use crate::cpu::Isa;

/// Gated linear units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Glu {
    /// silu(gate) · up.
    Silu,
    /// gelu_tanh(gate) · up.
    GeluTanh,
    /// g = min(gate, limit), u = clamp(up, ±limit): g · sigmoid(alpha · g) · (u + 1) (gpt-oss).
    ClampedSwish {
        /// 1.702.
        alpha: f32,
        /// 7.
        limit: f32,
    },
}

/// out = a + b.
///
/// # Panics
/// When shapes differ.
pub fn add(isa: Isa, a: View, b: View, out: ViewMut) {
    binary(isa, Add, a, b, out);
}

/// out = activation(gate, up).
///
/// # Panics
/// When shapes differ.
pub fn glu(isa: Isa, activation: Glu, gate: View, up: View, out: ViewMut) {
    match activation {
        Glu::Silu => binary(isa, SiluGlu, gate, up, out),
        Glu::GeluTanh => binary(isa, GeluGlu, gate, up, out),
        Glu::ClampedSwish { alpha, limit } => binary(isa, ClampedSwish { alpha, limit }, gate, up, out),
    }
}

/// out = x · sigmoid(gate); `gate` has as many columns as `x`, or one for all of the row.
///
/// # Panics
/// When shapes differ.
pub fn sigmoid_gate(isa: Isa, x: View, gate: View, out: ViewMut) {
    if gate.cols() == x.cols() {
        return binary(isa, SigmoidGate, x, gate, out);
    }
    assert_eq!(gate.cols(), 1, "a gate has one column or as many as its operand");
    check_same_shape(x.rows(), x.cols(), &out);
    assert_eq!(gate.rows(), x.rows());
    dispatch(isa, RowGate { x, gate, out });
}

/// out = cap · tanh(x / cap).
///
/// # Panics
/// When shapes differ.
pub fn softcap(isa: Isa, x: View, cap: f32, out: ViewMut) {
    binary(isa, Softcap { cap }, x, x, out);
}

/// Sum of partial results, in their order.
///
/// # Panics
/// When there are none, or shapes differ.
pub fn sum(isa: Isa, partials: &[View], mut out: ViewMut) {
    let (first, rest) = partials.split_first().expect("a sum has at least one term");
    check_same_shape(first.rows(), first.cols(), &out);
    for r in 0..out.rows() {
        out.row_mut(r).copy_from_slice(first.row(r));
    }
    for partial in rest {
        check_same_shape(partial.rows(), partial.cols(), &out);
        dispatch(isa, Accumulate { x: *partial, out: out.reborrow() });
    }
}

/// out\[r\] = x\[rows\[r\]\].
///
/// # Panics
/// When shapes differ or a row index is too large.
pub fn gather_rows<T: Copy>(x: View<T>, rows: &[u32], mut out: ViewMut<T>) {
    assert_eq!((rows.len(), x.cols()), (out.rows(), out.cols()));
    for (r, &from) in rows.iter().enumerate() {
        out.row_mut(r).copy_from_slice(x.row(from as usize));
    }
}

/// Which columns [`copy_cols`] copies; strides count from the first column of each view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColGroups {
    /// Distance of two groups in the source.
    pub x_stride: usize,
    /// Distance of two groups in the destination.
    pub out_stride: usize,
    /// Columns of a group.
    pub width: usize,
    /// Number of groups.
    pub groups: usize,
}

/// out\[g · out_stride + i\] = x\[g · x_stride + i\] for g < groups, i < width, in every row.
///
/// # Panics
/// When the views have different numbers of rows, or a group does not fit.
pub fn copy_cols(x: View, out: ViewMut, groups: ColGroups) {
    let ColGroups { x_stride, out_stride, width, groups } = groups;
    assert_eq!(x.rows(), out.rows());
    let mut out = out;
    for r in 0..x.rows() {
        let (from, to) = (x.row(r), out.row_mut(r));
        for g in 0..groups {
            to[g * out_stride..][..width].copy_from_slice(&from[g * x_stride..][..width]);
        }
    }
}

/// out = x · (1 + factor · ln(floor((position + 1) / period) + 1)) (llama4's temperature); positions of the rows.
///
/// # Panics
/// When shapes differ.
pub fn position_scale(isa: Isa, x: View, positions: &[u32], temperature: Temperature, mut out: ViewMut) {
    check_same_shape(x.rows(), x.cols(), &out);
    assert_eq!(positions.len(), x.rows());
    for (r, &position) in positions.iter().enumerate() {
        let scale = temperature.at(position);
        let rows = r..r + 1;
        let (x, out) = (x.row_range(rows.clone()), out.reborrow().row_range(rows));
        dispatch(isa, Binary { f: Scale { scale }, a: x, b: x, out });
    }
}

/// How queries grow with the position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// 8192; at least 1.
    pub period_tokens: u32,
    /// 0.1.
    pub factor: f32,
}

impl Temperature {
    /// The factor of a query at `position`.
    pub fn at(self, position: u32) -> f32 {
        let periods = (u64::from(position) + 1) / u64::from(self.period_tokens);
        (1.0 + f64::from(self.factor) * (periods as f64).ln_1p()) as f32
    }
}

#[track_caller]
fn check_same_shape(rows: usize, cols: usize, out: &ViewMut) {
    assert_eq!((rows, cols), (out.rows(), out.cols()), "operand and result differ in shape");
}

/// A function of two vectors.
trait Map: Copy {
    fn apply<V: Simd>(self, a: V, b: V) -> V;
}

/// A [`Map`] over all elements of two operands.
struct Binary<'a, F> {
    f: F,
    a: View<'a>,
    b: View<'a>,
    out: ViewMut<'a>,
}

fn binary<F: Map>(isa: Isa, f: F, a: View, b: View, out: ViewMut) {
    check_same_shape(a.rows(), a.cols(), &out);
    check_same_shape(b.rows(), b.cols(), &out);
    dispatch(isa, Binary { f, a, b, out });
}

impl<F: Map> Kernel for Binary<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        for r in 0..self.out.rows() {
            map_row::<V, F>(self.f, self.a.row(r), self.b.row(r), self.out.row_mut(r));
        }
    }
}

#[inline(always)]
fn map_row<V: Simd, F: Map>(f: F, a: &[f32], b: &[f32], out: &mut [f32]) {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for ((a, b), out) in a.iter().zip(b).zip(out) {
        f.apply(V::load(a), V::load(b)).store(out);
    }
    if !out_rest.is_empty() {
        f.apply(V::load_part(a_rest), V::load_part(b_rest)).store_part(out_rest);
    }
}

#[derive(Clone, Copy)]
struct Add;

impl Map for Add {
    #[inline(always)]
    fn apply<V: Simd>(self, a: V, b: V) -> V {
        a.add(b)
    }
}

#[derive(Clone, Copy)]
struct SiluGlu;

impl Map for SiluGlu {
    #[inline(always)]
    fn apply<V: Simd>(self, gate: V, up: V) -> V {
        math::silu(gate).mul(up)
    }
}

#[derive(Clone, Copy)]
struct GeluGlu;

impl Map for GeluGlu {
    #[inline(always)]
    fn apply<V: Simd>(self, gate: V, up: V) -> V {
        math::gelu_tanh(gate).mul(up)
    }
}

#[derive(Clone, Copy)]
struct ClampedSwish {
    alpha: f32,
    limit: f32,
}

impl Map for ClampedSwish {
    #[inline(always)]
    fn apply<V: Simd>(self, gate: V, up: V) -> V {
        let (low, high) = (V::splat(-self.limit), V::splat(self.limit));
        // The bound is the first operand, so that what is not a number stays so.
        let g = high.min(gate);
        let u = low.max(high.min(up));
        g.mul(math::sigmoid(g.mul(V::splat(self.alpha)))).mul(u.add(V::splat(1.0)))
    }
}

#[derive(Clone, Copy)]
struct SigmoidGate;

impl Map for SigmoidGate {
    #[inline(always)]
    fn apply<V: Simd>(self, x: V, gate: V) -> V {
        x.mul(math::sigmoid(gate))
    }
}

#[derive(Clone, Copy)]
struct Softcap {
    cap: f32,
}

impl Map for Softcap {
    #[inline(always)]
    fn apply<V: Simd>(self, x: V, _: V) -> V {
        let cap = V::splat(self.cap);
        cap.mul(math::tanh(x.div(cap)))
    }
}

/// x · scale, for operators whose factor is one number per row.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub(super) scale: f32,
}

impl Map for Scale {
    #[inline(always)]
    fn apply<V: Simd>(self, x: V, _: V) -> V {
        x.mul(V::splat(self.scale))
    }
}

impl Scale {
    /// x ← x · scale for all of `x`.
    pub(super) fn in_place(self, x: ViewMut) -> impl Kernel<Output = ()> {
        ScaleInPlace { scale: self.scale, x }
    }
}

struct ScaleInPlace<'a> {
    scale: f32,
    x: ViewMut<'a>,
}

impl Kernel for ScaleInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        for r in 0..self.x.rows() {
            super::softmax::scale_in_place::<V>(self.x.row_mut(r), self.scale);
        }
    }
}

/// out = scale · x, one row.
#[inline(always)]
pub(super) fn scale_row<V: Simd>(x: &[f32], scale: f32, out: &mut [f32]) {
    map_row::<V, Scale>(Scale { scale }, x, x, out);
}

/// Row by row, x · sigmoid of one gate.
struct RowGate<'a> {
    x: View<'a>,
    gate: View<'a>,
    out: ViewMut<'a>,
}

impl Kernel for RowGate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        for r in 0..self.x.rows() {
            let mut gate = [0.0; LANES];
            math::sigmoid(V::splat(self.gate.row(r)[0])).store(&mut gate);
            scale_row::<V>(self.x.row(r), gate[0], self.out.row_mut(r));
        }
    }
}

/// out += x.
struct Accumulate<'a> {
    x: View<'a>,
    out: ViewMut<'a>,
}

impl Kernel for Accumulate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        for r in 0..self.x.rows() {
            accumulate_row::<V>(self.x.row(r), 1.0, self.out.row_mut(r));
        }
    }
}

/// out += x · weight, each element rounded once.
#[inline(always)]
pub(super) fn accumulate_row<V: Simd>(x: &[f32], weight: f32, out: &mut [f32]) {
    let weight = V::splat(weight);
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for (x, out) in x.iter().zip(out) {
        V::load(x).mul_add(weight, V::load(out)).store(out);
    }
    if !out_rest.is_empty() {
        V::load_part(x_rest).mul_add(weight, V::load_part(out_rest)).store_part(out_rest);
    }
}
