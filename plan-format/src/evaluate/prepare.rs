//! A schedule in the form that the evaluator reads: checked, and with what frees each slot resolved.
//! Next: `evaluate.rs`, which plays it.

use crate::costs::{CaseCosts, CostModel};
use crate::schedule::{Placement, Schedule, Slots};

/// Why a schedule cannot be scored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvaluateError {
    /// The team size has no measured times.
    #[error("no CPU times for a team of {threads} threads; the plan has them for {known:?}")]
    UnknownTeam {
        /// Asked for.
        threads: u16,
        /// Present.
        known: Vec<u16>,
    },
    /// Tables of different lengths.
    #[error("the placement has {homes} homes but the cost model has {items} items")]
    ItemCount {
        /// Homes.
        homes: usize,
        /// Items.
        items: usize,
    },
    /// A promotion that the rules forbid.
    #[error("promotion {index} (item {item}): {reason}")]
    Promotion {
        /// Which promotion of the schedule.
        index: usize,
        /// Its item.
        item: u32,
        /// What is wrong.
        reason: &'static str,
    },
}

/// A schedule in the form that [`evaluate`] reads.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Prepared {
    /// Index into [`CostModel::teams`].
    pub team: usize,
    /// Whether each item executes on the GPU (resident, held or promoted).
    pub on_gpu: Vec<bool>,
    /// Transfers in order, items ascending.
    pub streams: Vec<Stream>,
}

/// One transfer of a prepared schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The promoted item.
    pub item: u32,
    /// Index in [`Prepared::streams`] of the one whose reader frees the slot.
    pub freed_by: u32,
    /// Whether `freed_by` belongs to the round before.
    pub freed_in: FreedIn,
}

/// The round in which a slot's previous reader runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreedIn {
    /// The same as the transfer's reader.
    SameRound,
    /// The one before.
    PreviousRound,
}

impl Prepared {
    /// Checks a schedule against placement, slots and cost model, and resolves what frees each slot.
    ///
    /// # Errors
    /// A team without times, tables of different lengths, or a promotion that is on the GPU anyway, out of order,
    /// without a slot or not streamable.
    pub fn new(
        model: &CostModel,
        case: &CaseCosts,
        placement: &Placement,
        slots: &Slots,
        schedule: &Schedule,
    ) -> Result<Prepared, EvaluateError> {
        let items = model.item_count();
        if placement.homes.len() != items {
            return Err(EvaluateError::ItemCount { homes: placement.homes.len(), items });
        }
        let team = model.team_index(schedule.cpu_threads).ok_or_else(|| EvaluateError::UnknownTeam {
            threads: schedule.cpu_threads,
            known: model.teams.iter().map(|team| team.threads).collect(),
        })?;
        let mut on_gpu = placement.on_gpu(schedule.phase);
        for (index, promotion) in schedule.promotions.iter().enumerate() {
            let item = promotion.item.0;
            let fault = |reason| EvaluateError::Promotion { index, item, reason };
            if item as usize >= items {
                return Err(fault("no such item"));
            }
            if index > 0 && schedule.promotions[index - 1].item.0 >= item {
                return Err(fault("transfers must be in the order of the items"));
            }
            if on_gpu[item as usize] {
                return Err(fault("the item is on the GPU anyway"));
            }
            if promotion.slot.index() >= slots.slots.len() {
                return Err(fault("no such slot"));
            }
            let cost = &case.items[item as usize];
            if cost.stream_us <= 0.0 {
                return Err(fault("the item has nothing to stream"));
            }
            if cost.stream_after.is_some_and(|after| after.0 >= item) {
                return Err(fault("its transfer waits for a later item"));
            }
            on_gpu[item as usize] = true;
        }
        Ok(Prepared { team, on_gpu, streams: streams(slots, schedule) })
    }
}

/// For each promotion the latest one before it, cyclically, that uses an overlapping slot.
fn streams(slots: &Slots, schedule: &Schedule) -> Vec<Stream> {
    let promotions = &schedule.promotions;
    let overlaps = |a: usize, b: usize| {
        let (a, b) = (&slots.slots[promotions[a].slot.index()], &slots.slots[promotions[b].slot.index()]);
        a.offset_bytes < b.offset_bytes + b.size_bytes && b.offset_bytes < a.offset_bytes + a.size_bytes
    };
    (0..promotions.len())
        .map(|p| {
            let item = promotions[p].item.0;
            let earlier = (0..p).rev().find(|&q| overlaps(p, q));
            let (freed_by, freed_in) = match earlier {
                Some(q) => (q, FreedIn::SameRound),
                None => ((p..promotions.len()).rev().find(|&q| overlaps(p, q)).unwrap_or(p), FreedIn::PreviousRound),
            };
            Stream { item, freed_by: freed_by as u32, freed_in }
        })
        .collect()
}
