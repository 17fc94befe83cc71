//! The outer search: ubatches, slot sizes and cache placements around the knapsack, hand-made splits and smaller
//! budgets as seeds, every candidate judged by simulated time of the workload. The result is never worse than the best
//! seed under the same judge, and the same for any number of threads.

use super::candidates::{Candidate, Source, candidates, host_only, smaller};
use super::held::{self, Choice};
use super::ilp;
use super::knapsack::Knapsack;
use super::memory::{self, Budget};
use super::seeds::last_layers;
use super::weigh::{CachePolicy, HostPrefill, Workload, chain, graph};
use crate::cost::Problem;
use crate::profile::Profile;
use crate::transfer::{Answer, Effort, SlotShape, Task, solve};
use plan_format::costs::Load;
use plan_format::schedule::{Home, Phase};
use rayon::prelude::*;

/// A candidate with its simulated times.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The candidate.
    pub candidate: Candidate,
    /// Homes of all items.
    pub homes: Vec<Home>,
    /// What decode rounds hold in the memory of prefill rounds.
    pub choice: Choice,
    /// Homes as decode rounds find them.
    pub few_homes: Vec<Home>,
    /// Best decode round found.
    pub decode: Answer,
    /// Best prefill round found.
    pub prefill: Answer,
    /// Simulated time of the workload.
    pub total_us: f64,
}

/// What the search decided and against what.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The winner, with the transfers of a full search.
    pub best: Scored,
    /// The best hand-made split under the same judge, if any fits.
    pub best_seed: Option<Scored>,
    /// The best solver placement without temporary memory, nothing streamed.
    pub best_static: Option<Scored>,
    /// Candidates that were judged.
    pub candidates: usize,
    /// Static time of the winner's placement on the graph, transfers left out.
    pub static_us: f64,
    /// The same of the dynamic program's placement (CPU times as executed, no slots).
    pub dp_us: Option<f64>,
    /// No placement of this ubatch has a smaller static time.
    pub lp_bound_us: Option<f64>,
}

/// Why no placement exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// The ceiling is below what is always needed.
    #[error(
        "a GPU budget of {} is too small for anything: context, kernels and activations of rounds of {ubatch_tokens} \
         tokens need {}",
        given_text(*budget_bytes), size_text(*needed_bytes)
    )]
    TooSmall {
        /// What was given.
        budget_bytes: u64,
        /// What is needed before the first item.
        needed_bytes: u64,
        /// The rounds that need least.
        ubatch_tokens: u32,
    },
    /// A budget for a machine without GPU.
    #[error("a GPU budget was given, but the device profile `{profile}` has no GPU")]
    NoGpu {
        /// Name of the profile.
        profile: String,
    },
    /// A demand whose cases were not priced.
    #[error("the demand was not priced: no decode or prefill case")]
    NotPriced,
}

/// A size as `--vram` takes it, rounded up: in MiB, or in KiB where those would say little.
pub fn size_text(bytes: u64) -> String {
    if bytes < 16 << 20 { format!("{}K", bytes.div_ceil(1 << 10)) } else { format!("{}M", bytes.div_ceil(1 << 20)) }
}

/// The same rounded down, so that what is too small is not shown as enough.
fn given_text(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        _ if bytes < 16 << 20 => format!("{}K", bytes >> 10),
        _ => format!("{}M", bytes >> 20),
    }
}

/// Model, device and ceilings.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// Model on device.
    pub problem: &'a Problem,
    /// The device.
    pub profile: &'a Profile,
    /// Ceilings.
    pub budget: Budget,
}

/// Candidates that get a full transfer search whatever the model.
const FINALISTS: usize = 3;
/// Items of all others that get one, and of those that get the search before it: of large models few.
const FINAL_ITEMS: usize = 400;
const NEAR_ITEMS: usize = 2000;
/// How near to the best a first look must be to be looked at again.
const PROMISING: f64 = 1.03;
/// How much a larger placement must gain to count as better than a smaller one.
const GAIN_LEAST: f64 = 5e-4;

/// Decides placement, ubatch and slots.
///
/// # Errors
/// A budget below the least that works, or for a machine without GPU.
pub fn decide(query: &Query<'_>) -> Result<Decision, SearchError> {
    let scored = judged(query)?;
    let count = scored.len();
    let best_seed = scored.iter().find(|s| s.candidate.source == Source::Seed).cloned();
    let is_static = |s: &&Scored| s.candidate.source != Source::Seed && s.candidate.slots == SlotShape::NONE;
    let best_static = scored.iter().find(is_static).cloned();
    let near = nearest(query, &scored, NEAR_ITEMS);
    let mut near: Vec<Scored> =
        near.into_par_iter().filter_map(|candidate| score(query, candidate, Effort::NEAR)).collect();
    near.sort_by(|a, b| a.total_us.total_cmp(&b.total_us));
    let mut finalists = nearest(query, &near, FINAL_ITEMS);
    for first in scored.iter().take(FINALISTS) {
        if !finalists.contains(&first.candidate) {
            finalists.push(first.candidate.clone());
        }
    }
    finalists.extend(best_seed.iter().map(|s| s.candidate.clone()));
    let judge = |candidate: Candidate| score(query, candidate, Effort::FULL);
    let finals: Vec<Scored> = finalists.into_par_iter().filter_map(judge).collect();
    let best_seed = best_seed.and_then(|_| finals.last().cloned());
    let best = finals.into_iter().reduce(|best, next| if next.total_us < best.total_us { next } else { best });
    let best = best.ok_or(SearchError::NotPriced)?;
    let (static_us, dp_us, lp_bound_us) = bounds(query, &best);
    Ok(Decision { best, best_seed, best_static, candidates: count, static_us, dp_us, lp_bound_us })
}

/// All candidates with the times of a quick search, the best first: a first look at everything, then more of what
/// smaller budgets would get with the ubatches and slots that did well.
fn judged(query: &Query<'_>) -> Result<Vec<Scored>, SearchError> {
    let judge = |candidates: Vec<Candidate>| -> Vec<Scored> {
        candidates.into_par_iter().filter_map(|candidate| score(query, candidate, Effort::QUICK)).collect()
    };
    let Some(gpu) = query.profile.gpu.as_ref().filter(|_| query.budget.vram_bytes > 0) else {
        if query.budget.vram_bytes > 0 {
            return Err(SearchError::NoGpu { profile: query.profile.name.clone() });
        }
        let mut scored = judge(host_only(query.problem));
        scored.sort_by(|a, b| a.total_us.total_cmp(&b.total_us));
        return Ok(scored);
    };
    let first = candidates(query, gpu)?;
    let mut scored = judge(first.clone());
    let best_us = scored.iter().map(|s| s.total_us).fold(f64::INFINITY, f64::min);
    let promising = scored.iter().filter(|s| s.total_us <= PROMISING * best_us);
    let promising = promising.map(|s| (s.candidate.ubatch, s.candidate.slots)).collect();
    scored.extend(judge(smaller(query, gpu, &promising, &first)));
    // Stable: the first of equals stays first, on any number of threads.
    scored.sort_by(|a, b| a.total_us.total_cmp(&b.total_us));
    Ok(scored)
}

/// The best so far, and as many near them, of up to so many items in all, that would be the best under a smaller
/// budget: a longer search may turn their order, and more memory must not make a plan slower.
fn nearest(query: &Query<'_>, scored: &[Scored], items: usize) -> Vec<Candidate> {
    let count = items / query.problem.items.len().max(1);
    let best = scored.iter().take((count / 2).max(FINALISTS));
    let mut nearest: Vec<Candidate> = best.map(|s| s.candidate.clone()).collect();
    let (Some(best), Some(gpu)) = (scored.first(), query.profile.gpu.as_ref()) else { return nearest };
    let mut by_bytes: Vec<(u64, &Scored)> =
        scored.iter().map(|s| (memory::candidate_bytes(query.problem, gpu, &s.candidate), s)).collect();
    by_bytes.sort_by_key(|(bytes, _)| *bytes);
    let mut records: Vec<&Scored> = Vec::new();
    for (_, next) in by_bytes {
        if records.last().is_none_or(|last| next.total_us < last.total_us * (1.0 - GAIN_LEAST)) {
            records.push(next);
        }
    }
    let near = records.into_iter().rev().take_while(|record| record.total_us <= PROMISING * best.total_us);
    for record in near.take(count) {
        if !nearest.contains(&record.candidate) {
            nearest.push(record.candidate.clone());
        }
    }
    nearest
}

/// The whole-layer split of an ubatch without temporary memory, judged like any candidate: the baseline of hand-tuned
/// engines. `None` without a GPU budget that holds the fixed parts.
pub fn whole_layers(query: &Query<'_>, ubatch: usize) -> Option<Scored> {
    let problem = query.problem;
    let gpu = query.profile.gpu.as_ref()?;
    let facts = problem.ubatches.get(ubatch)?;
    let room_bytes = query.budget.vram_bytes.checked_sub(memory::fixed_bytes(problem, gpu, facts))?;
    let bytes: Vec<u64> = (0..problem.items.len()).map(|item| memory::item_bytes(problem, facts, item)).collect();
    let seed = last_layers(problem, &bytes, room_bytes)?;
    let (source, slots) = (Source::Seed, SlotShape::NONE);
    score(query, Candidate { origin: seed.name, source, ubatch, resident: seed.resident, slots }, Effort::QUICK)
}

/// Simulated time of the workload under a candidate.
pub fn score(query: &Query<'_>, candidate: Candidate, effort: Effort) -> Option<Scored> {
    let ubatch_tokens = query.problem.ubatches[candidate.ubatch].ubatch_tokens;
    let homes = memory::homes(query.problem, &candidate.resident, &query.budget);
    let repriced = memory::priced_for(query.problem, query.profile, &homes);
    let problem = repriced.as_ref().unwrap_or(query.problem);
    let workload = Workload::new(problem, ubatch_tokens)?;
    let answer =
        |case, homes: &[Home], slots| solve(&Task { problem, case, homes, slots, load: Load::IDLE }, effort, &[]);
    let prefill = answer(workload.prefill.0, &homes, candidate.slots);
    let with = |choice: Choice| {
        let few_homes = choice.homes(&homes);
        let decode = answer(workload.decode.0, &few_homes, choice.temporary.few);
        let total_us = workload.decode.1 * decode.round_us + choice.held.load_us;
        (choice, few_homes, decode, total_us)
    };
    let choices = held::choices(problem, candidate.ubatch, &homes, candidate.slots);
    let all = std::iter::once(Choice::nothing(candidate.slots)).chain(choices).map(with);
    let (choice, few_homes, decode, decode_us) = all.reduce(|best, next| if next.3 < best.3 { next } else { best })?;
    let total_us = decode_us + workload.prefill.1 * prefill.round_us;
    Some(Scored { candidate, homes, choice, few_homes, decode, prefill, total_us })
}

impl Scored {
    /// The unloaded rounds of a case under this placement. `problem` has the costs that its homes imply.
    pub fn task<'a>(&'a self, problem: &'a Problem, case: usize) -> Task<'a> {
        let phase = problem.costs.cases[case].phase;
        Task { problem, case, homes: self.homes_in(phase), slots: self.choice.temporary.of(phase), load: Load::IDLE }
    }

    /// Homes as rounds of a phase find them.
    pub fn homes_in(&self, phase: Phase) -> &[Home] {
        if phase.is_prefill() { &self.homes } else { &self.few_homes }
    }
}

/// The integer program on the true graph within `limit_s` seconds, started from the dynamic program's placement: a
/// cross-check to print, not to store, since the limit makes it depend on the machine's speed.
///
/// # Errors
/// Nothing fits, or the limit came before any solution.
pub fn cross_check(query: &Query<'_>, decision: &Decision, limit_s: f64) -> Result<ilp::Integer, ilp::IlpError> {
    let none = |why: &str| ilp::IlpError::NoSolution(why.to_string());
    let (problem, ubatch) = (query.problem, decision.best.candidate.ubatch);
    let gpu = query.profile.gpu.as_ref().ok_or_else(|| none("the machine has no GPU"))?;
    let facts = &problem.ubatches[ubatch];
    let workload = Workload::new(problem, facts.ubatch_tokens).ok_or_else(|| none("the demand was not priced"))?;
    let room_bytes = query.budget.vram_bytes.saturating_sub(memory::fixed_bytes(problem, gpu, facts));
    let chain = chain(problem, ubatch, &workload, HostPrefill::Executed, CachePolicy::Free);
    let start = Knapsack::solve(&chain, room_bytes).best_within(room_bytes);
    let graph = graph(problem, ubatch, &workload);
    ilp::solve(&graph, room_bytes, limit_s, start.as_ref().map(|found| &found.resident[..]))
}

/// Static time of the winner, of the dynamic program, and the bound of the relaxed linear program, in microseconds.
fn bounds(query: &Query<'_>, best: &Scored) -> (f64, Option<f64>, Option<f64>) {
    let (problem, ubatch) = (query.problem, best.candidate.ubatch);
    let Some(workload) = Workload::new(problem, problem.ubatches[ubatch].ubatch_tokens) else {
        return (best.total_us, None, None);
    };
    let us = |ns: i64| ns as f64 / 1000.0;
    let graph = graph(problem, ubatch, &workload);
    let static_us = us(ilp::graph_ns(&graph, &best.candidate.resident));
    let Some(gpu) = query.profile.gpu.as_ref().filter(|_| query.budget.vram_bytes > 0) else {
        return (static_us, None, None);
    };
    let fixed_bytes = memory::fixed_bytes(problem, gpu, &problem.ubatches[ubatch]);
    let room_bytes = query.budget.vram_bytes.saturating_sub(fixed_bytes);
    let chain = chain(problem, ubatch, &workload, HostPrefill::Executed, CachePolicy::Free);
    let dp = Knapsack::solve(&chain, room_bytes).best_within(room_bytes);
    let dp_us = dp.map(|found| us(ilp::graph_ns(&graph, &found.resident)));
    (static_us, dp_us, ilp::lower_bound_ns(&graph, room_bytes).ok().map(us))
}
