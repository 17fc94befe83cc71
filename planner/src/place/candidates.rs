//! Which placements are worth judging: the knapsack's for each ubatch, slot shape and policy, those of smaller budgets,
//! and the splits that people make by hand.
//!
//! What a smaller budget would get is a candidate too, since simulated time knows what the knapsack does not: with more
//! memory the knapsack may change to a placement that the simulator likes less. Small models, for which that shows
//! most, have all of the knapsack's answers among the candidates; of large ones the nearest and a few far ones are
//! tried. Next: `search.rs`, which judges.

use super::chain::{Allowed, ChainItem};
use super::knapsack::{Assignment, Knapsack};
use super::memory;
use super::moe;
use super::search::{Query, SearchError};
use super::seeds::seeds;
use super::weigh::{CachePolicy, HostPrefill, Workload, chain};
use crate::cost::{Problem, is_expert};
use crate::profile::Gpu;
use crate::transfer::{SlotShape, is_streamable};
use plan_format::program::ItemKind;
use rayon::prelude::*;
use std::collections::BTreeSet;

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

/// Everything on the CPU, for each ubatch.
pub(super) fn host_only(problem: &Problem) -> Vec<Candidate> {
    let candidate = |ubatch| Candidate {
        origin: "everything on the CPU".to_string(),
        source: Source::Solver,
        ubatch,
        resident: vec![false; problem.items.len()],
        slots: SlotShape::NONE,
    };
    (0..problem.ubatches.len()).map(candidate).collect()
}

/// A first look at every ubatch, slot shape and policy, in a fixed order.
pub(super) fn candidates(query: &Query<'_>, gpu: &Gpu) -> Result<Vec<Candidate>, SearchError> {
    let asks = asks(query, gpu);
    if asks.is_empty() {
        let ubatches = query.problem.ubatches.iter();
        let fixed = ubatches.map(|u| (memory::fixed_bytes(query.problem, gpu, u), u.ubatch_tokens)).min();
        let (needed_bytes, ubatch_tokens) = fixed.unwrap_or_default();
        return Err(SearchError::TooSmall { budget_bytes: query.budget.vram_bytes, needed_bytes, ubatch_tokens });
    }
    let found: Vec<Vec<Candidate>> = asks.par_iter().map(Ask::candidates).collect();
    Ok(distinct(found.into_iter().flatten(), &[]))
}

/// More of what smaller budgets would get, for ubatches and slots that a first look found promising.
pub(super) fn smaller(
    query: &Query<'_>,
    gpu: &Gpu,
    promising: &BTreeSet<(usize, SlotShape)>,
    known: &[Candidate],
) -> Vec<Candidate> {
    let of_ask = |ask: &Ask<'_>| {
        let of_ubatch = promising.iter().filter(|(ubatch, _)| *ubatch == ask.ubatch);
        let shapes: Vec<SlotShape> = of_ubatch.map(|&(_, slots)| slots).collect();
        if shapes.is_empty() { Vec::new() } else { ask.of_tables(&shapes, Depth::All) }
    };
    let found: Vec<Vec<Candidate>> = asks(query, gpu).par_iter().map(of_ask).collect();
    distinct(found.into_iter().flatten(), known)
}

/// Without repetitions and without those that are known.
fn distinct(candidates: impl Iterator<Item = Candidate>, known: &[Candidate]) -> Vec<Candidate> {
    let key = |c: &Candidate| (c.ubatch, c.slots, c.resident.clone());
    let mut seen: BTreeSet<_> = known.iter().map(key).collect();
    candidates.filter(|candidate| seen.insert(key(candidate))).collect()
}

/// Every ubatch that leaves room, under every policy.
fn asks<'a>(query: &Query<'a>, gpu: &Gpu) -> Vec<Ask<'a>> {
    let problem = query.problem;
    let mut asks = Vec::new();
    for (ubatch, facts) in problem.ubatches.iter().enumerate() {
        let fixed_bytes = memory::fixed_bytes(problem, gpu, facts);
        let Some(room_bytes) = query.budget.vram_bytes.checked_sub(fixed_bytes) else { continue };
        for host in [HostPrefill::Streamed, HostPrefill::Executed] {
            for caches in [CachePolicy::Free, CachePolicy::Gpu] {
                asks.push(Ask { problem, ubatch, room_bytes, host, caches });
            }
        }
    }
    asks
}

/// One knapsack to ask: an ubatch with what it leaves, and two policies.
struct Ask<'a> {
    problem: &'a Problem,
    ubatch: usize,
    room_bytes: u64,
    host: HostPrefill,
    caches: CachePolicy,
}

/// Placements of smaller budgets that lose little by the chain's times: the nearest, and one for each of some equal
/// parts of the memory axis, which are the same for every budget.
fn spread(table: &Knapsack<'_>, chain: &[ChainItem], room_bytes: u64, most_ns: i64) -> Vec<Assignment> {
    let count = PROPOSED_ITEMS / chain.len().max(1);
    let all_bytes: u64 = chain.iter().map(|item| item.bytes).fold(0, u64::saturating_add);
    let part_bytes = (all_bytes / count.max(1) as u64).max(1);
    let mut parts = BTreeSet::new();
    let good = table.descending(room_bytes).take_while(|found| found.total_ns <= most_ns).enumerate();
    let chosen = good.filter(|(index, found)| parts.insert(found.bytes / part_bytes) || *index < count / 2);
    chosen.map(|(_, found)| found).collect()
}

/// How many of a table's placements are candidates.
#[derive(Clone, Copy, PartialEq)]
enum Depth {
    /// The best, and those of a few smaller budgets.
    Few,
    /// Also those of all budgets that are a little smaller.
    All,
}

/// Smaller budgets whose plans are candidates too, in parts of the room.
const SMALLER: [u64; 4] = [98, 95, 90, 80];

/// Items of all placements that one table may propose when asked for all: few placements of large models, which differ
/// little from one to the next.
const PROPOSED_ITEMS: usize = 1600;

/// Part of the best total that placements of smaller budgets may lose and still be proposed, as one in so many.
const LOST_PART: i64 = 16;

impl Ask<'_> {
    fn candidates(&self) -> Vec<Candidate> {
        let Some(workload) = Workload::new(self.problem, self.problem.ubatches[self.ubatch].ubatch_tokens) else {
            return Vec::new();
        };
        let shapes = self.slot_shapes(&workload);
        let mut found = self.of_tables(&shapes, Depth::Few);
        if self.host == HostPrefill::Streamed && self.caches == CachePolicy::Free {
            let chain = chain(self.problem, self.ubatch, &workload, self.host, self.caches);
            found.extend(self.seeds(&chain, &shapes));
        }
        found
    }

    /// What the knapsack has for the chain, and for Algorithm 1's: as the room allows, and as a smaller one would.
    fn of_tables(&self, shapes: &[SlotShape], depth: Depth) -> Vec<Candidate> {
        let Some(workload) = Workload::new(self.problem, self.problem.ubatches[self.ubatch].ubatch_tokens) else {
            return Vec::new();
        };
        let chain = chain(self.problem, self.ubatch, &workload, self.host, self.caches);
        let mut found = self.of_table(&chain, shapes, ("knapsack", depth));
        if self.problem.is_moe() {
            let experts: Vec<bool> = self.problem.items.iter().map(|item| is_expert(item.kind)).collect();
            let rooms = if depth == Depth::All { vec![self.room_bytes, 0] } else { vec![self.room_bytes] };
            for room_bytes in rooms {
                let narrow = moe::narrow(&chain, &experts, room_bytes);
                found.extend(self.of_table(&narrow, shapes, ("knapsack, experts last", depth)));
            }
        }
        found
    }

    /// What the knapsack has for a chain, with what each slot shape leaves of the room and with less.
    fn of_table(&self, chain: &[ChainItem], shapes: &[SlotShape], (origin, depth): (&str, Depth)) -> Vec<Candidate> {
        let table = Knapsack::solve(chain, self.room_bytes);
        let mut found = Vec::new();
        for &slots in shapes {
            let Some(room) = self.room_bytes.checked_sub(slots.total_bytes()) else { continue };
            let Some(best) = table.best_within(room) else { continue };
            let most_ns = best.total_ns.saturating_add(best.total_ns / LOST_PART);
            let far = SMALLER.into_iter().filter_map(|percent| table.best_within(room / 100 * percent));
            let near = if depth == Depth::All { spread(&table, chain, room, most_ns) } else { Vec::new() };
            let mut push = |resident: Vec<bool>, source: Source| {
                found.push(Candidate { origin: origin.to_string(), source, ubatch: self.ubatch, resident, slots });
            };
            push(best.resident, Source::Solver);
            near.into_iter().chain(far).for_each(|smaller| push(smaller.resident, Source::SmallerBudget));
        }
        found
    }

    fn seeds(&self, chain: &[ChainItem], shapes: &[SlotShape]) -> Vec<Candidate> {
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
