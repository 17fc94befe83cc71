//! The links of the sampling chain, each a function over a list of candidates. No state, no random numbers.
//!
//! Candidates are ordered by logit, highest first, lowest id first among equals, wherever order matters; so results do
//! not depend on how a sort treats ties.

use std::cmp::Ordering;

use super::Logprobs;
use crate::tokenizer::TokenId;

/// A token that may still be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: TokenId,
    /// Its logit so far.
    pub logit: f32,
}

/// Makes every token of `row` a candidate, in order of id.
pub fn fill(candidates: &mut Vec<Candidate>, row: &[f32]) {
    candidates.clear();
    candidates.extend((0..).map(TokenId).zip(row).map(|(id, &logit)| Candidate { id, logit }));
}

fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// The candidate of the highest logit; `None` if all are forbidden.
pub fn greedy(candidates: &[Candidate]) -> Option<TokenId> {
    let best = candidates.iter().min_by(|a, b| best_first(a, b))?;
    (best.logit > f32::NEG_INFINITY).then_some(best.id)
}

/// Keeps the `count` highest, or all if `count` is 0.
pub fn top_k(candidates: &mut Vec<Candidate>, count: usize) {
    if count > 0 && count < candidates.len() {
        candidates.select_nth_unstable_by(count - 1, best_first);
        candidates.truncate(count);
    }
}

/// Keeps the most likely until their probabilities sum to at least `mass`; at least one.
pub fn top_p(candidates: &mut Vec<Candidate>, mass: f32) {
    if mass >= 1.0 || candidates.len() < 2 {
        return;
    }
    let highest = highest_logit(candidates);
    let weight = |candidate: &Candidate| f64::from(candidate.logit - highest).exp();
    let total: f64 = candidates.iter().map(weight).sum();
    // What lies below this share cannot be needed: all of it together is less than what may be left out. The hundredth
    // is for rounding.
    let negligible = (total * (1.0 - f64::from(mass)) / candidates.len() as f64).ln() as f32 - 0.01;
    candidates.retain(|candidate| candidate.logit - highest >= negligible);
    candidates.sort_unstable_by(best_first);
    let mut sum = 0.0;
    let wanted = total * f64::from(mass);
    let needed = candidates.iter().position(|candidate| {
        sum += weight(candidate);
        sum >= wanted
    });
    candidates.truncate(needed.map_or(candidates.len(), |last| last + 1));
}

/// Keeps those whose probability is at least `share` of the highest.
pub fn min_p(candidates: &mut Vec<Candidate>, share: f32) {
    if share > 0.0 {
        let least = highest_logit(candidates) + share.ln();
        candidates.retain(|candidate| candidate.logit >= least);
    }
}

/// The candidate at which the probabilities at `temperature`, summed in order of id, pass `unit` (0 to 1).
pub fn draw(candidates: &mut [Candidate], temperature: f32, unit: f64) -> Option<TokenId> {
    candidates.sort_unstable_by_key(|candidate| candidate.id);
    let highest = highest_logit(candidates);
    let weight = |candidate: &Candidate| (f64::from(candidate.logit - highest) / f64::from(temperature)).exp();
    let total: f64 = candidates.iter().map(weight).sum();
    let mut left = unit * total;
    let passed = candidates.iter().find(|candidate| {
        left -= weight(candidate);
        left < 0.0
    });
    // Rounding may leave a rest after the last one.
    passed.or(candidates.last()).map(|candidate| candidate.id)
}

fn highest_logit(candidates: &[Candidate]) -> f32 {
    candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max)
}

/// Log-probabilities of `chosen` and of the `count` most likely tokens of `row`.
pub fn logprobs(row: &[f32], chosen: TokenId, count: usize) -> Logprobs {
    let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&logit| f64::from(logit - highest).exp()).sum();
    let log_sum = f64::from(highest) + sum.ln();
    let logprob = |id: TokenId| (f64::from(row[id.index()]) - log_sum) as f32;
    let mut best = Vec::new();
    if count > 0 {
        fill(&mut best, row);
        top_k(&mut best, count);
        best.sort_unstable_by(best_first);
    }
    Logprobs {
        chosen: logprob(chosen),
        top: best.iter().map(|candidate| (candidate.id, logprob(candidate.id))).collect(),
    }
}
