//! The outer search: ubatches, slot sizes and cache placements around the knapsack, hand-made splits and smaller
//! budgets as seeds, every candidate judged by simulated time of the workload. The result is never worse than the best
//! seed under the same judge, and the same for any number of threads.

use super::chain::Allowed;
use super::held::{self, Choice};
use super::ilp;
use super::knapsack::Knapsack;
use super::memory::{self, Budget};
use super::moe;
use super::seeds::{last_layers, seeds};
use super::weigh::{CachePolicy, HostPrefill, Workload, chain, graph};
use crate::cost::{Problem, is_expert};
use crate::profile::{Gpu, Profile};
use crate::transfer::{Answer, Effort, SlotShape, Task, is_streamable, solve};
use plan_format::costs::Load;
use plan_format::program::ItemKind;
use plan_format::schedule::{Home, Phase};
use rayon::prelude::*;

/// A candidate: what is resident, with which slots and ubatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Where it comes from, for people.
    pub origin: String,
    /// Kind of origin.
    pub source: Source,
    /// Index of the ubatch in the problem.
    pub ubatch: usize,
    /// Whether each item is resident.
    pub resident: Vec<bool>,
    /// Temporary memory.
    pub slots: SlotShape,
}

/// Who proposed a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The dynamic program.
    Solver,
    /// A split that people make by hand.
    Seed,
    /// The dynamic program at a smaller budget.
    SmallerBudget,
}

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
        "a GPU budget of {} is too small for anything: context, kernels and activations need {} with the smallest \
         ubatch; give at least that, or 0 to leave the GPU out",
        size_text(*budget_bytes), size_text(*needed_bytes)
    )]
    TooSmall {
        /// What was given.
        budget_bytes: u64,
        /// What is needed before the first item.
        needed_bytes: u64,
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

/// Candidates that get a full transfer search.
const FINALISTS: usize = 3;

/// Decides placement, ubatch and slots.
///
/// # Errors
/// A budget below the least that works, or for a machine without GPU.
pub fn decide(query: &Query<'_>) -> Result<Decision, SearchError> {
    let candidates = match (&query.profile.gpu, query.budget.vram_bytes) {
        (_, 0) => host_only(query.problem),
        (None, _) => return Err(SearchError::NoGpu { profile: query.profile.name.clone() }),
        (Some(gpu), _) => candidates(query, gpu)?,
    };
    let count = candidates.len();
    let judge = |candidate: Candidate| score(query, candidate, Effort::QUICK);
    let mut scored: Vec<Scored> = candidates.into_par_iter().filter_map(judge).collect();
    // Stable: the first of equals stays first, on any number of threads.
    scored.sort_by(|a, b| a.total_us.total_cmp(&b.total_us));
    let best_seed = scored.iter().find(|s| s.candidate.source == Source::Seed).cloned();
    let is_static = |s: &&Scored| s.candidate.source != Source::Seed && s.candidate.slots == SlotShape::NONE;
    let best_static = scored.iter().find(is_static).cloned();
    let mut finalists: Vec<Candidate> = scored.iter().take(FINALISTS).map(|s| s.candidate.clone()).collect();
    finalists.extend(best_seed.iter().map(|s| s.candidate.clone()));
    let judge = |candidate: Candidate| score(query, candidate, Effort::FULL);
    let finals: Vec<Scored> = finalists.into_par_iter().filter_map(judge).collect();
    let best_seed = best_seed.and_then(|_| finals.last().cloned());
    let best = finals.into_iter().reduce(|best, next| if next.total_us < best.total_us { next } else { best });
    let best = best.ok_or(SearchError::NotPriced)?;
    let (static_us, dp_us, lp_bound_us) = bounds(query, &best);
    Ok(Decision { best, best_seed, best_static, candidates: count, static_us, dp_us, lp_bound_us })
}

/// Everything on the CPU, for each ubatch.
fn host_only(problem: &Problem) -> Vec<Candidate> {
    let candidate = |ubatch| Candidate {
        origin: "everything on the CPU".to_string(),
        source: Source::Solver,
        ubatch,
        resident: vec![false; problem.items.len()],
        slots: SlotShape::NONE,
    };
    (0..problem.ubatches.len()).map(candidate).collect()
}

/// All candidates, in a fixed order.
fn candidates(query: &Query<'_>, gpu: &Gpu) -> Result<Vec<Candidate>, SearchError> {
    let problem = query.problem;
    let fixed: Vec<u64> = problem.ubatches.iter().map(|u| memory::fixed_bytes(problem, gpu, u)).collect();
    let least = fixed.iter().copied().min().unwrap_or(0);
    if least > query.budget.vram_bytes {
        return Err(SearchError::TooSmall { budget_bytes: query.budget.vram_bytes, needed_bytes: least });
    }
    let mut asks = Vec::new();
    for (ubatch, fixed_bytes) in fixed.into_iter().enumerate() {
        let Some(room_bytes) = query.budget.vram_bytes.checked_sub(fixed_bytes) else { continue };
        for host in [HostPrefill::Streamed, HostPrefill::Executed] {
            for caches in [CachePolicy::Free, CachePolicy::Gpu] {
                asks.push(Ask { problem, ubatch, room_bytes, host, caches });
            }
        }
    }
    let found: Vec<Vec<Candidate>> = asks.par_iter().map(Ask::candidates).collect();
    let mut all: Vec<Candidate> = Vec::new();
    for candidate in found.into_iter().flatten() {
        let same = |known: &Candidate| {
            (known.ubatch, known.slots) == (candidate.ubatch, candidate.slots) && known.resident == candidate.resident
        };
        if !all.iter().any(same) {
            all.push(candidate);
        }
    }
    Ok(all)
}

/// One knapsack to ask: an ubatch with what it leaves, and two policies.
struct Ask<'a> {
    problem: &'a Problem,
    ubatch: usize,
    room_bytes: u64,
    host: HostPrefill,
    caches: CachePolicy,
}

/// Smaller budgets whose plans are candidates too, in parts of the room.
const SMALLER: [u64; 4] = [98, 95, 90, 80];

impl Ask<'_> {
    fn candidates(&self) -> Vec<Candidate> {
        let Some(workload) = Workload::new(self.problem, self.problem.ubatches[self.ubatch].ubatch_tokens) else {
            return Vec::new();
        };
        let chain = chain(self.problem, self.ubatch, &workload, self.host, self.caches);
        let shapes = self.slot_shapes(&workload);
        let mut found = Vec::new();
        let mut ask = |items: &[super::chain::ChainItem], origin: &str| {
            let table = Knapsack::solve(items, self.room_bytes);
            for &slots in &shapes {
                let Some(room) = self.room_bytes.checked_sub(slots.total_bytes()) else { continue };
                found.extend(self.candidate(&table, room, slots, origin, Source::Solver));
                for percent in SMALLER {
                    let smaller = room / 100 * percent;
                    found.extend(self.candidate(&table, smaller, slots, origin, Source::SmallerBudget));
                }
            }
        };
        ask(&chain, "knapsack");
        if self.problem.is_moe() {
            let experts: Vec<bool> = self.problem.items.iter().map(|item| is_expert(item.kind)).collect();
            ask(&moe::narrow(&chain, &experts, self.room_bytes), "knapsack, experts last");
        }
        if self.host == HostPrefill::Streamed && self.caches == CachePolicy::Free {
            found.extend(self.seeds(&chain, &shapes));
        }
        found
    }

    fn candidate(
        &self,
        table: &Knapsack<'_>,
        room_bytes: u64,
        slots: SlotShape,
        origin: &str,
        source: Source,
    ) -> Option<Candidate> {
        let found = table.best_within(room_bytes)?;
        Some(Candidate { origin: origin.to_string(), source, ubatch: self.ubatch, resident: found.resident, slots })
    }

    fn seeds(&self, chain: &[super::chain::ChainItem], shapes: &[SlotShape]) -> Vec<Candidate> {
        let bytes: Vec<u64> =
            chain.iter().map(|item| if item.allowed == Allowed::Cpu { 0 } else { item.bytes }).collect();
        let mut found = Vec::new();
        for &slots in shapes {
            let Some(room) = self.room_bytes.checked_sub(slots.total_bytes()) else { continue };
            found.extend(seeds(self.problem, &bytes, room).into_iter().map(|seed| Candidate {
                origin: seed.name,
                source: Source::Seed,
                ubatch: self.ubatch,
                resident: seed.resident,
                slots,
            }));
        }
        found
    }

    /// Slot shapes worth trying: none, and 2 to 4 slots for the largest streamed item of prefill and of decode.
    fn slot_shapes(&self, workload: &Workload) -> Vec<SlotShape> {
        let largest = |case: usize| {
            let items = self.problem.items.iter().zip(&self.problem.slot_bytes[case]);
            // The head is far larger than the rest and runs once per round: a slot for it costs too much.
            let usual = items.filter(|(item, _)| item.kind != ItemKind::Head && is_streamable(item.kind));
            usual.map(|(_, &bytes)| bytes).max().unwrap_or(0)
        };
        let mut shapes = vec![SlotShape::NONE];
        for bytes in [largest(workload.prefill.0), largest(workload.decode.0)] {
            for count in [2, 3, 4] {
                let shape = SlotShape::new(count, bytes);
                if shape != SlotShape::NONE && !shapes.contains(&shape) && shape.total_bytes() <= self.room_bytes {
                    shapes.push(shape);
                }
            }
        }
        shapes
    }
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
