//! Whether a run computed what it should: its logits beside those of the exact kernels, its choices of experts beside
//! the exact routers'.
//!
//! A choice of experts is not continuous: where two scores nearly tie, rounding chooses another expert, and the logits
//! of that position differ wholly although nothing is wrong. So the exact run takes the choices of the run that is
//! judged: then logits say what the kernels did, and each choice that the exact router would not have made is judged by
//! itself. Scores that are off by at most `tolerance` of their root mean square cannot change the order of two that lie
//! more than twice that apart; a choice across a wider margin is a fault. Not here: running (`engine.rs`), recording
//! and forcing (`exec/choices.rs`).

use crate::Error;
use crate::engine::{Engine, Sequence, Wanted};
use crate::exec::{Chosen, Flip};
use std::fmt;

/// What a run gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Logits of all positions, row by row.
    pub logits: Vec<f32>,
    /// Its choices of experts.
    pub chosen: Chosen,
}

/// What the exact kernels gave with these choices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exact {
    /// Logits of all positions, row by row.
    pub logits: Vec<f32>,
    /// Choices that its routers would not have made.
    pub flips: Vec<Flip>,
}

/// A run beside the exact one.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Positions.
    pub positions: usize,
    /// Relative L2 error of the logits.
    pub error: f64,
    /// Positions whose best token is the same.
    pub same_best: usize,
    /// Tokens' choices of all routers.
    pub choices: usize,
    /// Choices that the exact routers would not have made.
    pub flips: Vec<Flip>,
    /// Largest error that passes.
    pub tolerance: f64,
}

/// What is wrong with a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// Experts that no rounding can have chosen.
    #[error(
        "{wide} choices of experts are none of rounding; the first: layer {layer} chose {taken} instead of {own} for \
         token {position}, {margin:.4} behind, where {bound:.4} is allowed",
        layer = flip.layer, taken = Experts(&flip.taken), own = Experts(&flip.own), position = flip.position,
        margin = flip.margin
    )]
    Choice {
        /// The first of them.
        flip: Flip,
        /// The widest margin that it may have.
        bound: f64,
        /// How many there are.
        wide: usize,
    },
    /// Logits that are too far from the exact ones.
    #[error("the planned run is off by {error:.5}, more than {tolerance}")]
    Logits {
        /// How far.
        error: f64,
        /// Largest error that passes.
        tolerance: f64,
    },
}

/// Runs a model on these tokens. Its choices are kept where it records them. Errors: those of a feed.
pub fn run_of(engine: &mut Engine, ids: &[u32]) -> Result<Outcome, Error> {
    engine.executor().keep_choices();
    let logits = all_logits(engine, ids)?;
    Ok(Outcome { logits, chosen: engine.executor().take_choices() })
}

/// The exact kernels with the experts that a run has chosen. Errors: those of a feed, another model's choices.
pub fn exact_run(engine: &mut Engine, ids: &[u32], run: &Outcome) -> Result<Exact, Error> {
    if engine.has_experts() {
        engine.force_choices(run.chosen.clone())?;
    }
    let logits = all_logits(engine, ids)?;
    Ok(Exact { logits, flips: engine.executor().take_flips() })
}

fn all_logits(engine: &mut Engine, ids: &[u32]) -> Result<Vec<f32>, Error> {
    let mut all = Vec::new();
    let wanted = Wanted::LastTokens(ids.len());
    engine.feed(&mut Sequence::default(), ids, wanted, &mut |_, row| all.extend_from_slice(row))?;
    Ok(all)
}

struct Experts<'a>(&'a [i32]);

impl fmt::Display for Experts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<String> = self.0.iter().map(i32::to_string).collect();
        write!(f, "expert{} {}", if ids.len() == 1 { "" } else { "s" }, ids.join(", "))
    }
}

impl Comparison {
    /// Of a run with rows of `vocab` logits.
    pub fn new(run: &Outcome, exact: Exact, (vocab, tolerance): (usize, f64)) -> Comparison {
        let choices = run.chosen.iter().map(|by| by.ids.len() / by.chosen.max(1)).sum();
        Comparison {
            positions: run.logits.len() / vocab.max(1),
            error: relative_l2(&exact.logits, &run.logits),
            same_best: same_best(&exact.logits, &run.logits, vocab),
            choices,
            flips: exact.flips,
            tolerance,
        }
    }

    /// The widest margin of a choice that rounding may have made.
    fn bound(&self, flip: &Flip) -> f64 {
        2.0 * self.tolerance * f64::from(flip.scale)
    }

    /// What is wrong, the choices first: they say where.
    pub fn fault(&self) -> Option<Fault> {
        let is_near = |flip: &&Flip| f64::from(flip.margin) <= self.bound(flip);
        let mut wide = self.flips.iter().filter(|flip| !is_near(flip));
        if let Some(first) = wide.next() {
            let (flip, bound, wide) = (first.clone(), self.bound(first), 1 + wide.count());
            return Some(Fault::Choice { flip, bound, wide });
        }
        let (error, tolerance) = (self.error, self.tolerance);
        let passes = error <= tolerance;
        (!passes).then_some(Fault::Logits { error, tolerance })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { positions, error, same_best, choices, flips, .. } = self;
        write!(f, "{positions} positions: relative L2 error {error:.5}, best token the same at {same_best} of them")?;
        if *choices > 0 {
            write!(f, "\n{} of {choices} choices of experts differ from the exact routers'", flips.len())?;
        }
        let share = |flip: &Flip| f64::from(flip.margin) / self.bound(flip);
        let Some(widest) = flips.iter().max_by(|a, b| share(a).total_cmp(&share(b))) else { return Ok(()) };
        let (layer, position, margin) = (widest.layer, widest.position, widest.margin);
        let (taken, own, bound) = (Experts(&widest.taken), Experts(&widest.own), self.bound(widest));
        write!(f, "; the widest: layer {layer}, token {position}, {taken} instead of {own}, {margin:.4} behind ")?;
        write!(f, "({bound:.4} is allowed)")
    }
}

/// L2 norm of the difference over that of the reference.
pub fn relative_l2(reference: &[f32], got: &[f32]) -> f64 {
    assert_eq!(reference.len(), got.len(), "logits of the same positions");
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = reference.iter().zip(got).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = reference.iter().map(|a| square(*a)).sum();
    (difference / norm).sqrt()
}

fn same_best(a: &[f32], b: &[f32], vocab: usize) -> usize {
    let best = |row: &[f32]| row.iter().enumerate().max_by(|x, y| x.1.total_cmp(y.1)).map(|(index, _)| index);
    a.chunks(vocab.max(1)).zip(b.chunks(vocab.max(1))).filter(|(a, b)| best(a) == best(b)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flip(layer: u32, margin: f32) -> Flip {
        Flip { layer, position: 5, taken: vec![3], own: vec![1, 2], margin, scale: 1.5 }
    }

    fn compared(flips: Vec<Flip>, error: f64) -> Comparison {
        Comparison { positions: 8, error, same_best: 7, choices: 16, flips, tolerance: 0.1 }
    }

    #[test]
    fn only_margins_that_rounding_can_bridge_pass() {
        assert_eq!(compared(vec![flip(0, 0.29), flip(1, 0.0)], 0.05).fault(), None);
        let fault = compared(vec![flip(0, 0.29), flip(2, 0.31), flip(3, 9.0)], 0.5).fault().expect("a fault");
        assert_eq!(
            fault.to_string(),
            "2 choices of experts are none of rounding; the first: layer 2 chose expert 3 instead of experts 1, 2 for \
             token 5, 0.3100 behind, where 0.3000 is allowed"
        );
        assert!(compared(vec![flip(0, f32::NAN)], 0.05).fault().is_some(), "no number passes for a small one");
    }

    #[test]
    fn logits_are_judged_by_themselves() {
        assert_eq!(compared(vec![], 0.1).fault(), None);
        assert_eq!(compared(vec![flip(0, 0.1)], 0.11).fault(), Some(Fault::Logits { error: 0.11, tolerance: 0.1 }));
        assert!(compared(vec![], f64::NAN).fault().is_some());
    }

    #[test]
    fn the_widest_choice_is_told() {
        let told = compared(vec![flip(0, 0.1), flip(4, 0.2)], 0.05).to_string();
        assert_eq!(
            told,
            "8 positions: relative L2 error 0.05000, best token the same at 7 of them\n2 of 16 choices of experts \
             differ from the exact routers'; the widest: layer 4, token 5, expert 3 instead of experts 1, 2, 0.2000 \
             behind (0.3000 is allowed)"
        );
    }

    #[test]
    fn errors_are_relative_to_the_reference() {
        assert!((relative_l2(&[3.0, 4.0], &[3.0, 4.5]) - 0.1).abs() < 1e-9);
        assert_eq!(same_best(&[1.0, 2.0, 5.0, 4.0], &[1.0, 9.0, 4.0, 5.0], 2), 1);
    }
}
