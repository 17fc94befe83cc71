//! What rounds of few tokens hold in GPU memory that only prefill rounds need: their activations and most of the slots.
//!
//! Given a static placement and the slots of its prefill rounds, the knapsack is asked once more, for decode rounds
//! alone: resident items stay, and host items may join for the bytes that they take and the time to bring them, which
//! a prompt pays once. How many slots such rounds keep is tried. Placement itself is not changed by it. Next:
//! `search.rs`, which judges the answer.

use super::chain::{Allowed, ChainItem};
use super::knapsack::Knapsack;
use super::weigh::{CachePolicy, HostPrefill, Workload, chain};
use crate::cost::{Problem, UbatchFacts};
use crate::transfer::{SlotShape, Temporary, is_streamable};
use plan_format::ItemId;
use plan_format::program::ItemKind;
use plan_format::schedule::{Held, HeldItem, Home, HostMemory};
use plan_format::text::bytes_text;

/// Alignment of held items.
const ALIGN_BYTES: u64 = 256;

/// What is held, and which slots are left to the rounds that hold it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Slots of all rounds.
    pub temporary: Temporary,
    /// Held items with their places.
    pub held: Held,
}

/// The temporary region from the ubatch and slots that a placement has.
#[derive(Clone, Copy, Debug)]
struct Room {
    begin_bytes: u64,
    slots_at_bytes: u64,
    end_bytes: u64,
}

impl Room {
    /// What activations of few tokens and their slots leave.
    fn new(ubatch: &UbatchFacts, temporary: &Temporary) -> Room {
        let slots_at_bytes = ubatch.work_bytes().next_multiple_of(ALIGN_BYTES);
        let begin_bytes = ubatch.few_bytes.next_multiple_of(ALIGN_BYTES);
        Room { begin_bytes, slots_at_bytes, end_bytes: slots_at_bytes + temporary.few_at_bytes() }
    }
}

impl Choice {
    /// Nothing is held.
    pub fn nothing(slots: SlotShape) -> Choice {
        Choice { temporary: Temporary::same(slots), held: Held::default() }
    }

    /// Homes as rounds of few tokens find them: what is held is there for them.
    pub fn homes(&self, homes: &[Home]) -> Vec<Home> {
        let mut homes = homes.to_vec();
        self.held.items.iter().for_each(|held| homes[held.item.index()] = Home::Resident);
        homes
    }
}

/// What decode rounds hold, in words; `None` if nothing.
pub fn text(held: &Held) -> Option<String> {
    let (count, size, ms) = (held.items.len(), bytes_text(held.total_bytes()), held.load_us / 1000.0);
    let items = if count == 1 { "item" } else { "items" };
    (count > 0).then(|| {
        format!(
            "keeps {count} more {items}, {size}, in memory that prefill rounds use: brought in {ms:.1} ms once a prompt"
        )
    })
}

/// Choices beside holding nothing, for each way to cut the slots.
pub fn choices(problem: &Problem, ubatch: usize, homes: &[Home], slots: SlotShape) -> Vec<Choice> {
    // What arrives does so through the staging area behind the slots.
    let Some(workload) = Workload::new(problem, problem.ubatches[ubatch].ubatch_tokens) else { return Vec::new() };
    if slots == SlotShape::NONE || workload.decode.1 <= 0.0 {
        return Vec::new();
    }
    let chain = held_chain(problem, ubatch, &workload, homes);
    let cuts = cuts(problem, workload.decode.0, homes, slots).into_iter();
    let choices = cuts.filter_map(|temporary| choice(problem, ubatch, (&workload, homes, &chain), temporary));
    choices.collect()
}

/// The slots as in prefill, and two for the largest item that a decode round streams.
fn cuts(problem: &Problem, case: usize, homes: &[Home], slots: SlotShape) -> Vec<Temporary> {
    let streamed = (0..homes.len()).filter(|&item| {
        let kind = problem.items[item].kind;
        homes[item] != Home::Resident && kind != ItemKind::Head && is_streamable(kind)
    });
    let largest = streamed.map(|item| problem.slot_bytes[case][item]).max().unwrap_or(0);
    let few = SlotShape::new(2, largest.min(slots.size_bytes));
    let mut cuts = vec![Temporary::same(slots)];
    if few.end_bytes() < slots.end_bytes() {
        cuts.push(Temporary { prefill: slots, few });
    }
    cuts
}

/// Bytes and time to bring an item whole, which prefill's costs imply; `None` for items that cannot be held.
fn holdable(problem: &Problem, case: usize, homes: &[Home], item: usize) -> Option<(u64, f64)> {
    let bytes = problem.items[item].weight_bytes.next_multiple_of(ALIGN_BYTES);
    let readable = matches!(homes[item], Home::Host(HostMemory::Pinned | HostMemory::Pageable));
    let (slot_bytes, stream_us) = (problem.slot_bytes[case][item], problem.costs.cases[case].items[item].stream_us);
    let is_weights = is_streamable(problem.items[item].kind) && bytes > 0 && slot_bytes > 0;
    (readable && is_weights).then(|| (bytes, f64::from(stream_us) * (bytes as f64 / slot_bytes as f64).max(1.0)))
}

/// Decode rounds of the workload: resident items take no memory here, held ones cost their transfer once.
fn held_chain(problem: &Problem, ubatch: usize, workload: &Workload, homes: &[Home]) -> Vec<ChainItem> {
    let decode = Workload { prefill: (workload.prefill.0, 0.0), ..*workload };
    let mut chain = chain(problem, ubatch, &decode, HostPrefill::Executed, CachePolicy::Free);
    for (index, item) in chain.iter_mut().enumerate() {
        match holdable(problem, workload.prefill.0, homes, index) {
            Some((bytes, load_us)) => {
                (item.bytes, item.allowed) = (bytes, Allowed::Either);
                item.gpu_ns += (load_us * 1000.0).round() as i64;
            }
            None => {
                item.bytes = 0;
                item.allowed = if homes[index] == Home::Resident { Allowed::Gpu } else { Allowed::Cpu };
            }
        }
    }
    chain
}

fn choice(
    problem: &Problem,
    ubatch: usize,
    (workload, homes, chain): (&Workload, &[Home], &[ChainItem]),
    temporary: Temporary,
) -> Option<Choice> {
    let Room { begin_bytes, slots_at_bytes, end_bytes } = Room::new(&problem.ubatches[ubatch], &temporary);
    let room_bytes = end_bytes.checked_sub(begin_bytes)?;
    let found = Knapsack::solve(chain, room_bytes).best_within(room_bytes)?;
    let mut held = Held { items: Vec::new(), slots_at_bytes, load_us: 0.0 };
    let mut offset_bytes = begin_bytes;
    for item in (0..homes.len()).filter(|&item| found.resident[item]) {
        let Some((size_bytes, load_us)) = holdable(problem, workload.prefill.0, homes, item) else { continue };
        held.items.push(HeldItem { item: ItemId(item as u32), offset_bytes, size_bytes });
        held.load_us += load_us;
        offset_bytes += size_bytes;
    }
    (!held.items.is_empty()).then_some(Choice { temporary, held })
}
