//! Weighing the inputs and summing the outputs of the chosen experts; which of them a part of the experts holds.
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

/// out\[:, j\] = places\[ids\[j\]\]: the place of each chosen expert among those that a part of them holds, −1 for one
/// that it does not hold, and for ids of no expert.
///
/// # Panics
/// When shapes differ.
pub fn held_ids(ids: View<i32>, places: &[i32], mut out: ViewMut<i32>) {
    assert_eq!((ids.rows(), ids.cols()), (out.rows(), out.cols()), "shape of the held ids");
    let place = |id: i32| usize::try_from(id).ok().and_then(|id| places.get(id)).copied().unwrap_or(-1);
    for r in 0..ids.rows() {
        out.row_mut(r).iter_mut().zip(ids.row(r)).for_each(|(out, &id)| *out = place(id));
    }
}

/// out = Σ_j weights\[j\] · x\[:, j\] over the j with ids\[j\] ≥ 0; without weights a plain sum, without any j 0. What
/// `x` holds for other j is not read. `x` is \[rows, chosen · cols\], `ids` \[rows, chosen\], `out` \[rows, cols\].
///
/// # Panics
/// When shapes differ.
pub fn held_sum(isa: Isa, x: View, weights: Option<View>, ids: View<i32>, out: ViewMut) {
    let chosen = ids.cols();
    assert_eq!((x.rows(), x.cols()), (out.rows(), chosen * out.cols()), "shape of the terms");
    assert_eq!(ids.rows(), out.rows(), "rows of the ids");
    assert!(weights.is_none_or(|w| (w.rows(), w.cols()) == (x.rows(), chosen)), "shape of the weights");
    dispatch(isa, HeldSum { x, weights, ids, out });
}

struct HeldSum<'a> {
    x: View<'a>,
    weights: Option<View<'a>>,
    ids: View<'a, i32>,
    out: ViewMut<'a>,
}

impl Kernel for HeldSum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        let cols = self.out.cols();
        for r in 0..self.x.rows() {
            let (x, out) = (self.x.row(r), self.out.row_mut(r));
            out.fill(0.0);
            for (j, _) in self.ids.row(r).iter().enumerate().filter(|(_, id)| **id >= 0) {
                let weight = self.weights.map_or(1.0, |w| w.row(r)[j]);
                accumulate_row::<V>(&x[j * cols..][..cols], weight, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Random;

    #[test]
    fn parts_of_the_experts_take_their_choices_and_add_up() {
        let (rows, chosen, cols, experts) = (5, 4, 19, 7);
        let mut random = Random::new(3);
        let ids: Vec<i32> = (0..rows * chosen).map(|e| ((e / chosen + e % chosen * 2) % experts) as i32).collect();
        let x: Vec<f32> = (0..rows * chosen * cols).map(|_| random.normal()).collect();
        let weights: Vec<f32> = (0..rows * chosen).map(|_| random.normal()).collect();
        let own = [[0, -1, 1, -1, -1, 2, -1], [-1, 0, -1, 1, 2, -1, 3]];
        for isa in Isa::available() {
            let mut whole = vec![0.0; rows * cols];
            let (x_view, weights_view) = (View::new(&x, rows, chosen * cols), View::new(&weights, rows, chosen));
            let out = ViewMut::new(&mut whole, rows, cols);
            expert_sum(isa, x_view, chosen, Some(weights_view), 0..cols, out);
            let parts = own.map(|places| {
                let (mut held, mut sum) = (vec![9; rows * chosen], vec![f32::NAN; rows * cols]);
                held_ids(View::new(&ids, rows, chosen), &places, ViewMut::new(&mut held, rows, chosen));
                assert!(held.iter().zip(&ids).all(|(held, &id)| *held == places[id as usize]));
                // What others compute is not read.
                let mut x = x.clone();
                for (entry, _) in held.iter().enumerate().filter(|(_, held)| **held < 0) {
                    x[entry * cols..][..cols].fill(f32::NAN);
                }
                let (x, held) = (View::new(&x, rows, chosen * cols), View::new(&held, rows, chosen));
                held_sum(isa, x, Some(weights_view), held, ViewMut::new(&mut sum, rows, cols));
                sum
            });
            for (i, whole) in whole.iter().enumerate() {
                let sum = parts[0][i] + parts[1][i];
                assert!((sum - whole).abs() < 1e-5, "{isa:?} {i}: {sum} for {whole}");
            }
        }
        let mut none = [1];
        held_ids(View::new(&[-1], 1, 1), &own[0], ViewMut::new(&mut none, 1, 1));
        assert_eq!(none, [-1]);
    }
}
