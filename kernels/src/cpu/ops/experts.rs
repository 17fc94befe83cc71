//! Weighing the inputs and summing the outputs of the chosen experts.
//!
//! May be split by rows and, for [`expert_sum`], by columns within each expert (give the column range). Terms are
//! added in the order of choice; bits depend on the element's inputs alone. Not here: the choice (`router.rs`), the
//! products (`cpu/matmul`).

use super::elementwise::{accumulate_row, scale_row};
use super::simd::{Kernel, Simd, dispatch};
use super::view::{View, ViewMut};
use crate::cpu::Isa;
use std::ops::Range;

/// out\[:, j\] = weights\[j\] · x per chosen expert j: `x` \[rows, cols\], `weights` \[rows, chosen\],
/// `out` \[rows, chosen · cols\].
///
/// # Panics
/// When shapes differ.
pub fn expert_scale(isa: Isa, x: View, weights: View, out: ViewMut) {
    assert_eq!((x.rows(), x.rows()), (weights.rows(), out.rows()), "operands differ in rows");
    assert_eq!(out.cols(), weights.cols() * x.cols(), "columns of the scaled inputs");
    dispatch(isa, ExpertScale { x, weights, out });
}

struct ExpertScale<'a> {
    x: View<'a>,
    weights: View<'a>,
    out: ViewMut<'a>,
}

impl Kernel for ExpertScale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        let cols = self.x.cols();
        for r in 0..self.x.rows() {
            let out = self.out.row_mut(r);
            for (j, &weight) in self.weights.row(r).iter().enumerate() {
                scale_row::<V>(self.x.row(r), weight, &mut out[j * cols..][..cols]);
            }
        }
    }
}

/// out = Σ_j weights\[j\] · x\[:, j\] over the columns in `cols` of each expert's group; without weights a plain sum.
/// `x` is \[rows, chosen · group\], `out` \[rows, cols.len()\].
///
/// # Panics
/// When shapes differ.
pub fn expert_sum(isa: Isa, x: View, chosen: usize, weights: Option<View>, cols: Range<usize>, out: ViewMut) {
    assert!(chosen > 0 && x.cols().is_multiple_of(chosen), "{} columns for {chosen} experts", x.cols());
    assert!(cols.start <= cols.end && cols.end <= x.cols() / chosen, "columns {cols:?} of an expert");
    assert_eq!((x.rows(), cols.len()), (out.rows(), out.cols()), "shape of the sum");
    assert!(weights.is_none_or(|w| (w.rows(), w.cols()) == (x.rows(), chosen)), "shape of the weights");
    dispatch(isa, ExpertSum { x, chosen, weights, cols, out });
}

struct ExpertSum<'a> {
    x: View<'a>,
    chosen: usize,
    weights: Option<View<'a>>,
    cols: Range<usize>,
    out: ViewMut<'a>,
}

impl Kernel for ExpertSum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        let group = self.x.cols() / self.chosen;
        for r in 0..self.x.rows() {
            let (x, out) = (self.x.row(r), self.out.row_mut(r));
            for j in 0..self.chosen {
                let term = &x[j * group + self.cols.start..][..self.cols.len()];
                let weight = self.weights.map_or(1.0, |w| w.row(r)[j]);
                match j {
                    0 => scale_row::<V>(term, weight, out),
                    _ => accumulate_row::<V>(term, weight, out),
                }
            }
        }
    }
}
