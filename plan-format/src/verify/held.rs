//! Invariants of what is held between prompts:
//!
//! 1. With held items there is an arena for rounds of few tokens, made for every decode and verification schedule;
//!    without any there is none.
//! 2. Held items come in item order, live in anonymous host memory, and are nothing but weights.
//! 3. They lie aligned in the temporary region, apart from each other, from the activations of rounds of few tokens,
//!    from the slots that such rounds stream through, and from the staging area, which there is.
//! 4. No schedule of those rounds promotes one.
//! 5. The time to bring them is finite.
//!
//! Next: `program.rs`.

use super::{Problem, SLOT_ALIGNMENT_BYTES, ensure, invalid};
use crate::artifact::Plan;
use crate::error::Result;
use crate::schedule::{HeldItem, Home, HostMemory, Schedule, Slot};
use std::ops::Range;

/// Checks the invariants above. The rest of the plan has been verified.
pub(super) fn verify_held(plan: &Plan) -> Result<()> {
    let at = |field: &str| {
        let field = field.to_owned();
        move |problem| invalid("held", field, problem)
    };
    few_arena(plan)?;
    for (i, held) in plan.placement.held.items.iter().enumerate() {
        item(plan, held).map_err(at(&format!("items[{i}]")))?;
    }
    ranges(plan).map_err(at("items"))?;
    few_schedules(plan).try_for_each(|schedule| unpromoted(plan, schedule)).map_err(at("items"))?;
    let load_us = plan.placement.held.load_us;
    let is_time = load_us.is_finite() && load_us >= 0.0;
    is_time.then_some(()).ok_or_else(|| at("load_us")(format!("is {load_us}")))
}

fn few_schedules(plan: &Plan) -> impl Iterator<Item = &Schedule> {
    plan.schedules.iter().filter(|schedule| !schedule.phase.is_prefill())
}

fn few_arena(plan: &Plan) -> Result<()> {
    let at = |problem| invalid("held", "few_arena".to_owned(), problem);
    let Some(arena) = &plan.few_arena else {
        let count = plan.placement.held.items.len();
        return if count == 0 { Ok(()) } else { Err(at(format!("is missing for {count} held items"))) };
    };
    if plan.placement.held.items.is_empty() {
        return Err(at("is there, but no item is held".to_owned()));
    }
    arena.verify(&plan.program)?;
    for Schedule { phase, .. } in few_schedules(plan) {
        let (tokens, limits) = (phase.tokens(), arena.limits);
        if tokens > limits.ubatch_tokens || tokens > limits.output_tokens {
            return Err(at(format!("is made for {limits:?}, which {phase:?} does not fit")));
        }
    }
    Ok(())
}

fn item(plan: &Plan, held: &HeldItem) -> Result<(), Problem> {
    let HeldItem { item: id, offset_bytes, size_bytes } = *held;
    let item = plan.program.items.get(id.index()).ok_or_else(|| format!("item {} does not exist", id.0))?;
    let readable = matches!(plan.placement.homes[id.index()], Home::Host(HostMemory::Pinned | HostMemory::Pageable));
    ensure!(readable, "{} does not live in host memory", item.name);
    ensure!(!item.weights.is_empty() && item.states.is_empty(), "{} is not weights alone", item.name);
    let least = plan.program.item_weight_bytes(item);
    ensure!(size_bytes >= least, "{} needs {least} bytes, it has room for {size_bytes}", item.name);
    let is_aligned = offset_bytes.is_multiple_of(SLOT_ALIGNMENT_BYTES);
    ensure!(is_aligned, "{} starts at {offset_bytes}, no multiple of {SLOT_ALIGNMENT_BYTES}", item.name);
    let end = offset_bytes.checked_add(size_bytes);
    ensure!(end.is_some_and(|end| end <= i64::MAX as u64), "{} ends beyond 2^63", item.name);
    Ok(())
}

/// Order, and who lies where. Items have been checked one by one.
fn ranges(plan: &Plan) -> Result<(), Problem> {
    let held = &plan.placement.held;
    if held.items.is_empty() {
        return Ok(());
    }
    let in_order = held.items.windows(2).all(|pair| pair[0].item < pair[1].item);
    ensure!(in_order, "are not in item order");
    let name = |held: &HeldItem| plan.program.items[held.item.index()].name.as_str();
    let Some(staging) = plan.slots.staging() else { return Err("are held without a staging area".to_owned()) };
    let in_region = |slot: Slot| -> Result<Range<u64>, Problem> {
        let begin = held.slots_at_bytes.checked_add(slot.offset_bytes);
        let end = begin.and_then(|begin| begin.checked_add(slot.size_bytes));
        begin.zip(end).map(|(begin, end)| begin..end).ok_or_else(|| "slots end beyond 2^64".to_owned())
    };
    let mut taken = vec![("the activations", 0..plan.few_arena.as_ref().map_or(0, |arena| arena.size_bytes))];
    taken.push(("the staging area", in_region(staging)?));
    for promotion in few_schedules(plan).flat_map(|schedule| &schedule.promotions) {
        taken.push(("a slot", in_region(plan.slots.slots[promotion.slot.index()])?));
    }
    let region_end = taken[1].1.end;
    let mut by_offset: Vec<&HeldItem> = held.items.iter().collect();
    by_offset.sort_by_key(|held| held.offset_bytes);
    let range = |held: &HeldItem| held.offset_bytes..held.offset_bytes + held.size_bytes;
    for pair in by_offset.windows(2) {
        ensure!(range(pair[0]).end <= pair[1].offset_bytes, "{} overlaps {}", name(pair[0]), name(pair[1]));
    }
    for held in by_offset {
        let own = range(held);
        ensure!(own.end <= region_end, "{} ends at {}, the region at {region_end}", name(held), own.end);
        let meets = |other: &Range<u64>| own.start < other.end && other.start < own.end;
        if let Some((what, _)) = taken.iter().find(|(_, other)| meets(other)) {
            return Err(format!("{} overlaps {what} of rounds of few tokens", name(held)));
        }
    }
    Ok(())
}

fn unpromoted(plan: &Plan, schedule: &Schedule) -> Result<(), Problem> {
    let held = &plan.placement.held.items;
    let both = schedule.promotions.iter().find(|p| held.binary_search_by_key(&p.item, |held| held.item).is_ok());
    both.map_or(Ok(()), |promotion| {
        Err(format!("item {} is promoted by a schedule of {:?}", promotion.item.0, schedule.phase))
    })
}
