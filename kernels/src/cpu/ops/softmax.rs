//! Parts of a softmax over one row, and the whole of it.
//!
//! Sums run in sixteen lanes from the row's start, so bits do not depend on who computes the row. Not here: attention's
//! softmax, which is cut at cache positions (`attention/`).

use super::math;
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::view::{View, ViewMut};
use crate::cpu::Isa;

/// out = softmax of each row. May be split by rows.
///
/// # Panics
/// When shapes differ.
pub fn softmax(isa: Isa, x: View, out: ViewMut) {
    assert_eq!((x.rows(), x.cols()), (out.rows(), out.cols()), "operand and result differ in shape");
    dispatch(isa, Softmax { x, out });
}

struct Softmax<'a> {
    x: View<'a>,
    out: ViewMut<'a>,
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        for r in 0..self.x.rows() {
            let out = self.out.row_mut(r);
            out.copy_from_slice(self.x.row(r));
            let sum = exp_row::<V>(out, max_of::<V>(out));
            scale_in_place::<V>(out, 1.0 / sum);
        }
    }
}

/// Largest of the row, −∞ of an empty one.
#[inline(always)]
pub(super) fn max_of<V: Simd>(row: &[f32]) -> f32 {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut max = V::splat(f32::NEG_INFINITY);
    for chunk in chunks {
        max = V::load(chunk).max(max);
    }
    rest.iter().fold(max.reduce_max(), |max, &x| if x > max { x } else { max })
}

/// row = e^(row − max); returns the sum.
#[inline(always)]
pub(super) fn exp_row<V: Simd>(row: &mut [f32], max: f32) -> f32 {
    let max = V::splat(max);
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    let mut sum = V::zero();
    for chunk in chunks {
        let power = math::exp(V::load(chunk).sub(max));
        power.store(chunk);
        sum = sum.add(power);
    }
    math::exp(V::load_part(rest).sub(max)).store_part(rest);
    // Read again: the lanes beyond the rest must add nothing.
    sum.add(V::load_part(rest)).reduce_add()
}

/// row · factor.
#[inline(always)]
pub(super) fn scale_in_place<V: Simd>(row: &mut [f32], factor: f32) {
    let factor = V::splat(factor);
    for chunk in row.chunks_mut(LANES) {
        V::load_part(chunk).mul(factor).store_part(chunk);
    }
}
