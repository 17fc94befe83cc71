//! Checks a schedule by its timeline: no slot is refilled before its last reader is done, no weight is read before it
//! has arrived, and everything fits the budget. A separate pass that trusts neither search nor evaluator.

use crate::simulate::{AfterLast, Lane, Run, Span, Timeline, simulate};
use plan_format::schedule::Slot;

/// A broken rule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScheduleFault {
    /// The schedule cannot run to its end.
    #[error("the schedule is not valid for the model, or never completes")]
    Stuck,
    /// Two live ranges in one slot.
    #[error("item {later} is copied at {copy_us} us over item {earlier}, which is read until {read_us} us")]
    SlotReused {
        /// The item whose copy comes too early.
        later: u32,
        /// The item still being read.
        earlier: u32,
        /// Start of the copy.
        copy_us: f64,
        /// End of the reader.
        read_us: f64,
    },
    /// A reader without its copy.
    #[error("item {item} starts on the GPU at {start_us} us before its weights are there")]
    ReadTooEarly {
        /// The item.
        item: u32,
        /// When it started.
        start_us: f64,
    },
    /// An item larger than its slot.
    #[error("item {item} needs {needed} bytes, its slot has {size}")]
    SlotTooSmall {
        /// The item.
        item: u32,
        /// Its bytes.
        needed: u64,
        /// The slot's.
        size: u64,
    },
    /// More GPU memory than allowed.
    #[error("the plan takes {needed} bytes of GPU memory, the budget is {budget}")]
    OverBudget {
        /// What it takes.
        needed: u64,
        /// What it may.
        budget: u64,
    },
}

/// GPU memory: what is taken outside the slots, and the ceiling of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// Resident weights, states, arena, context, kernels.
    pub fixed_bytes: u64,
    /// Ceiling.
    pub budget_bytes: u64,
}

/// Rounds that are played: enough for slots to be reused across rounds.
const ROUNDS: u32 = 4;

/// Checks a schedule. `slot_bytes[item]` is what an item needs in its slot.
///
/// # Errors
/// The first broken rule.
pub fn verify_schedule(run: &Run<'_>, slot_bytes: &[u64], memory: GpuMemory) -> Result<(), ScheduleFault> {
    let slot_end = run.slots.slots.iter().map(|slot| slot.offset_bytes + slot.size_bytes).max().unwrap_or(0);
    let needed = memory.fixed_bytes + slot_end;
    if needed > memory.budget_bytes {
        return Err(ScheduleFault::OverBudget { needed, budget: memory.budget_bytes });
    }
    for promotion in &run.schedule.promotions {
        let item = promotion.item.0;
        let size = run.slots.slots.get(promotion.slot.index()).ok_or(ScheduleFault::Stuck)?.size_bytes;
        let needed = *slot_bytes.get(item as usize).ok_or(ScheduleFault::Stuck)?;
        if needed > size {
            return Err(ScheduleFault::SlotTooSmall { item, needed, size });
        }
    }
    let run = Run { rounds: ROUNDS, after_last: AfterLast::Continue, ..*run };
    let timeline = simulate(&run).ok_or(ScheduleFault::Stuck)?;
    check_timeline(&run, &timeline)
}

/// Slack for the rounding of sums of times.
const SLACK_US: f64 = 1e-6;

fn check_timeline(run: &Run<'_>, timeline: &Timeline) -> Result<(), ScheduleFault> {
    let on = |lane: Lane| timeline.spans.iter().filter(move |span| span.lane == lane);
    let slot_of = |item: u32| {
        let promotion = run.schedule.promotions.iter().find(|promotion| promotion.item.0 == item)?;
        run.slots.slots.get(promotion.slot.index()).copied()
    };
    let copies: Vec<(&Span, Slot)> = on(Lane::Link).filter_map(|span| Some((span, slot_of(span.item)?))).collect();
    let there = run.placement.on_gpu(run.schedule.phase);
    let promoted = |span: &&Span| !there[span.item as usize];
    for reader in on(Lane::Gpu).filter(promoted) {
        let copy = copies.iter().find(|(copy, _)| (copy.item, copy.round) == (reader.item, reader.round));
        let arrived = copy.is_some_and(|(copy, _)| copy.end_us <= reader.start_us + SLACK_US);
        if !arrived {
            return Err(ScheduleFault::ReadTooEarly { item: reader.item, start_us: reader.start_us });
        }
        let Some((own, slot)) = copy else { continue };
        let overwritten = copies.iter().find(|(later, theirs)| {
            let overlaps = slot.offset_bytes < theirs.offset_bytes + theirs.size_bytes
                && theirs.offset_bytes < slot.offset_bytes + slot.size_bytes;
            let after_own = later.start_us >= own.end_us - SLACK_US && !std::ptr::eq(*later, *own);
            overlaps && after_own && later.start_us < reader.end_us - SLACK_US
        });
        if let Some((later, _)) = overwritten {
            return Err(ScheduleFault::SlotReused {
                later: later.item,
                earlier: reader.item,
                copy_us: later.start_us,
                read_us: reader.end_us,
            });
        }
    }
    Ok(())
}
