//! Choosing experts: scores, the top k, their weights.
//!
//! May be split by rows; a row's bits depend on its logits alone. Equal scores go to the lower expert index; what is
//! not a number ranks last. Not here: the router's product (`cpu/matmul`), the experts (`experts.rs`).

use super::math;
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::softmax::{exp_row, max_of, scale_in_place};
use super::view::{View, ViewMut};
use crate::cpu::Isa;

/// How experts are chosen and weighed.
#[derive(Clone, Copy, Debug)]
pub struct Router<'a> {
    /// Chosen per row.
    pub chosen: usize,
    /// What is ranked.
    pub score: RouterScore,
    /// {experts}: added to the scores for the choice only.
    pub select_bias: Option<&'a [f32]>,
    /// Weights of the chosen, from the scores without the bias.
    pub weights: RouterWeights,
    /// Multiplies the weights (1 = nothing).
    pub scale: f32,
}

/// Router scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScore {
    /// softmax over all experts.
    Softmax,
    /// sigmoid of each logit.
    Sigmoid,
    /// The logit itself.
    Logit,
}

/// Weights of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterWeights {
    /// The scores.
    Score,
    /// The scores divided by their sum, which is clamped to ≥ 2⁻¹⁴.
    ScoreNormalised,
    /// softmax over the chosen logits.
    SoftmaxOfChosen,
}

/// The least sum that scores are divided by.
const SUM_MIN: f32 = 6.103_515_6e-5;

/// Chooses experts per row of `logits` \[rows, experts\]: `ids` and `weights` \[rows, chosen\], best first.
/// `scratch` needs 2 · experts floats.
///
/// # Panics
/// When shapes differ, more are chosen than there are, or the scratch is too small.
pub fn router(isa: Isa, logits: View, router: Router, ids: ViewMut<i32>, weights: ViewMut, scratch: &mut [f32]) {
    assert_eq!((ids.rows(), ids.cols()), (logits.rows(), router.chosen), "shape of the expert ids");
    assert_eq!((weights.rows(), weights.cols()), (logits.rows(), router.chosen), "shape of the expert weights");
    assert!(router.chosen <= logits.cols(), "{} of {} experts", router.chosen, logits.cols());
    assert!(router.select_bias.is_none_or(|b| b.len() == logits.cols()), "one selection bias per expert");
    assert!(scratch.len() >= 2 * logits.cols(), "the router's scratch is 2 floats per expert");
    dispatch(isa, Choose { logits, router, ids, weights, scratch });
}

/// What experts are ranked by in the choice, for one row of logits.
///
/// # Panics
/// When lengths differ.
pub fn ranks(isa: Isa, logits: &[f32], router: &Router, ranked: &mut [f32]) {
    dispatch(isa, Rank { logits, router, ranked });
}

/// The weights of given experts instead of chosen ones, for one row of logits. `scratch` needs a float per expert.
///
/// # Panics
/// When lengths differ, or an id is no expert.
pub fn weigh(isa: Isa, logits: &[f32], router: &Router, ids: &[i32], weights: &mut [f32], scratch: &mut [f32]) {
    assert_eq!(ids.len(), weights.len(), "a weight per expert");
    let scores = &mut scratch[..logits.len()];
    dispatch(isa, Weigh { logits, router, ids, weights, scores });
}

struct Rank<'a> {
    logits: &'a [f32],
    router: &'a Router<'a>,
    ranked: &'a mut [f32],
}

impl Kernel for Rank<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(self) {
        fill_scores::<V>(self.router.score, self.logits, self.ranked);
        if let Some(bias) = self.router.select_bias {
            self.ranked.iter_mut().zip(bias).for_each(|(rank, bias)| *rank += bias);
        }
    }
}

struct Weigh<'a> {
    logits: &'a [f32],
    router: &'a Router<'a>,
    ids: &'a [i32],
    weights: &'a mut [f32],
    scores: &'a mut [f32],
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(self) {
        fill_scores::<V>(self.router.score, self.logits, self.scores);
        fill_weights::<V>(self.router, self.scores, self.logits, self.ids, self.weights);
    }
}

struct Choose<'a> {
    logits: View<'a>,
    router: Router<'a>,
    ids: ViewMut<'a, i32>,
    weights: ViewMut<'a>,
    scratch: &'a mut [f32],
}

impl Kernel for Choose<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        let experts = self.logits.cols();
        let (scores, ranked) = self.scratch[..2 * experts].split_at_mut(experts);
        for r in 0..self.logits.rows() {
            let logits = self.logits.row(r);
            fill_scores::<V>(self.router.score, logits, scores);
            match self.router.select_bias {
                Some(bias) => ranked.iter_mut().zip(&*scores).zip(bias).for_each(|((to, s), b)| *to = s + b),
                None => ranked.copy_from_slice(scores),
            }
            let ids = self.ids.row_mut(r);
            choose_best(ranked, ids);
            fill_weights::<V>(&self.router, scores, logits, ids, self.weights.row_mut(r));
        }
    }
}

#[inline(always)]
fn fill_scores<V: Simd>(score: RouterScore, logits: &[f32], scores: &mut [f32]) {
    scores.copy_from_slice(logits);
    match score {
        RouterScore::Logit => {}
        RouterScore::Sigmoid => {
            for chunk in scores.chunks_mut(LANES) {
                math::sigmoid(V::load_part(chunk)).store_part(chunk);
            }
        }
        RouterScore::Softmax => {
            let sum = exp_row::<V>(scores, max_of::<V>(scores));
            scale_in_place::<V>(scores, 1.0 / sum);
        }
    }
}

/// Indices of the `ids.len()` largest, largest first: one pass that keeps the best so far in order.
fn choose_best(ranked: &mut [f32], ids: &mut [i32]) {
    let mut kept = 0;
    for i in 0..ranked.len() {
        if ranked[i].is_nan() {
            ranked[i] = f32::NEG_INFINITY;
        }
        let mut place = kept;
        while place > 0 && ranked[i] > ranked[ids[place - 1] as usize] {
            place -= 1;
        }
        if place < ids.len() {
            kept = ids.len().min(kept + 1);
            ids[place..kept].rotate_right(1);
            ids[place] = i as i32;
        }
    }
}

#[inline(always)]
fn fill_weights<V: Simd>(router: &Router, scores: &[f32], logits: &[f32], ids: &[i32], weights: &mut [f32]) {
    let source = if router.weights == RouterWeights::SoftmaxOfChosen { logits } else { scores };
    for (weight, &id) in weights.iter_mut().zip(ids) {
        *weight = source[id as usize];
    }
    match router.weights {
        RouterWeights::Score => {}
        RouterWeights::ScoreNormalised => {
            let sum: f32 = weights.iter().sum();
            // In this order, a sum that is not a number stays so.
            let sum = if sum < SUM_MIN { SUM_MIN } else { sum };
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        RouterWeights::SoftmaxOfChosen => {
            let sum = exp_row::<V>(weights, max_of::<V>(weights));
            weights.iter_mut().for_each(|w| *w /= sum);
        }
    }
    if router.scale != 1.0 {
        weights.iter_mut().for_each(|w| *w *= router.scale);
    }
}
