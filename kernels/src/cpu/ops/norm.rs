//! RMS and L2 norms over groups of columns.
//!
//! May be split by rows and by whole groups. The sum of a group runs in 64 lanes (four vectors) from the group's
//! first column, whatever else is computed with it: its bits are the same in every split, batch and thread count.
//! Sums are f32: squares overflow only beyond values of 1e18. Not here: what follows a norm.

use super::simd::{Kernel, LANES, Simd, dispatch};
use super::view::{View, ViewMut};
use crate::cpu::Isa;

/// Columns that one step of a sum of squares takes.
const STEP: usize = 4 * LANES;

/// RMS norm: per group, out = x / sqrt(mean(x²) + eps) · weight.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// Columns of a group: the whole row, or a head.
    pub group: usize,
    /// {group}, the same for all groups; without it 1.
    pub weight: Option<&'a [f32]>,
    /// Added to the mean.
    pub eps: f32,
}

/// L2 norm: per group, out = scale · x / sqrt(sum(x²) + eps).
#[derive(Clone, Copy, Debug)]
pub struct L2Norm {
    /// Columns of a group.
    pub group: usize,
    /// Added to the sum.
    pub eps: f32,
    /// Multiplies the result.
    pub scale: f32,
}

/// [`RmsNorm`] of every group of every row.
///
/// # Panics
/// When shapes differ, columns are no multiple of the group, or the weight is not of the group's length.
pub fn rms_norm(isa: Isa, x: View, norm: RmsNorm, out: ViewMut) {
    assert!(norm.weight.is_none_or(|w| w.len() == norm.group), "a norm's weight has the length of its group");
    let rule = |sum: f32| 1.0 / (sum / norm.group as f32 + norm.eps).sqrt();
    run_groups(isa, x, norm.group, norm.weight, rule, out);
}

/// [`L2Norm`] of every group of every row.
///
/// # Panics
/// When shapes differ or columns are no multiple of the group.
pub fn l2_norm(isa: Isa, x: View, norm: L2Norm, out: ViewMut) {
    let rule = |sum: f32| norm.scale / (sum + norm.eps).sqrt();
    run_groups(isa, x, norm.group, None, rule, out);
}

#[track_caller]
fn run_groups<F: Fn(f32) -> f32>(isa: Isa, x: View, group: usize, weight: Option<&[f32]>, rule: F, out: ViewMut) {
    assert_eq!((x.rows(), x.cols()), (out.rows(), out.cols()), "operand and result differ in shape");
    assert!(group > 0 && x.cols().is_multiple_of(group), "{} columns are no multiple of groups of {group}", x.cols());
    dispatch(isa, Groups { x, group, weight, rule, out });
}

/// Scales each group by `rule(sum of squares)` and the weight.
struct Groups<'a, F> {
    x: View<'a>,
    group: usize,
    weight: Option<&'a [f32]>,
    rule: F,
    out: ViewMut<'a>,
}

impl<F: Fn(f32) -> f32> Kernel for Groups<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        for r in 0..self.x.rows() {
            let x = self.x.row(r).chunks_exact(self.group);
            for (x, out) in x.zip(self.out.row_mut(r).chunks_exact_mut(self.group)) {
                let scale = (self.rule)(sum_of_squares::<V>(x));
                match self.weight {
                    Some(weight) => scale_weighted::<V>(x, scale, weight, out),
                    None => super::elementwise::scale_row::<V>(x, scale, out),
                }
            }
        }
    }
}

/// Σ x², in 64 lanes; the last partial step is filled with zeros.
#[inline(always)]
pub(super) fn sum_of_squares<V: Simd>(x: &[f32]) -> f32 {
    let mut sums = [V::zero(); STEP / LANES];
    let (steps, rest) = x.as_chunks::<STEP>();
    for step in steps {
        for (sum, x) in sums.iter_mut().zip(step.as_chunks::<LANES>().0) {
            let x = V::load(x);
            *sum = x.mul_add(x, *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest.chunks(LANES)) {
        let x = V::load_part(x);
        *sum = x.mul_add(x, *sum);
    }
    sums[0].add(sums[1]).add(sums[2].add(sums[3])).reduce_add()
}

/// out = x · scale · weight.
#[inline(always)]
fn scale_weighted<V: Simd>(x: &[f32], scale: f32, weight: &[f32], out: &mut [f32]) {
    let scale = V::splat(scale);
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (weight, weight_rest) = weight.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for ((x, weight), out) in x.iter().zip(weight).zip(out) {
        V::load(x).mul(scale).mul(V::load(weight)).store(out);
    }
    if !out_rest.is_empty() {
        V::load_part(x_rest).mul(scale).mul(V::load_part(weight_rest)).store_part(out_rest);
    }
}
