//! A plan that must do with fewer temporary slots than it has, because others have taken the GPU's memory: the same
//! schedules, streaming through what is left, and less held between prompts. Rounds take longer. Pure.
//! Next: `memory.rs`.

use plan_format::SlotId;
use plan_format::artifact::Plan;
use plan_format::schedule::{Slot, Slots};
use std::borrow::Cow;

/// The first `count` slots.
pub fn first_slots(slots: &Slots, count: usize) -> Slots {
    Slots { slots: slots.slots.iter().take(count).copied().collect() }
}

/// The plan with its first `count` slots. What was streamed through the others takes turns in those; without any
/// nothing is streamed. An item that is larger than a slot that it would get stays on the CPU. Slots are all that is
/// left behind the activations, so only what is held among these stays held.
pub fn with_slots(plan: &Plan, count: usize) -> Cow<'_, Plan> {
    if count >= plan.slots.slots.len() {
        return Cow::Borrowed(plan);
    }
    let count = apart(&plan.slots, count);
    let mut fewer = plan.clone();
    fewer.slots = first_slots(&plan.slots, count);
    let held = &mut fewer.placement.held;
    let slots_at_bytes = held.slots_at_bytes;
    held.items.retain(|held| count > 0 && held.offset_bytes + held.size_bytes <= slots_at_bytes);
    if held.items.is_empty() {
        fewer.few_arena = None;
    }
    for schedule in &mut fewer.schedules {
        let size_bytes = |slot: SlotId| plan.slots.slots[slot.index()].size_bytes;
        let mut next = 0;
        schedule.promotions.retain_mut(|promotion| {
            let Some(slot) = next_slot(next, count) else { return false };
            if size_bytes(slot) < size_bytes(promotion.slot) {
                return false;
            }
            next += 1;
            promotion.slot = slot;
            true
        });
    }
    Cow::Owned(fewer)
}

/// How many of the first `count` slots lie apart from all before them: phases have slots on the same bytes.
fn apart(slots: &Slots, count: usize) -> usize {
    let mut end_bytes = 0;
    let is_behind = |slot: &&Slot| {
        let begin = slot.offset_bytes >= end_bytes;
        end_bytes = slot.offset_bytes + slot.size_bytes;
        begin
    };
    slots.slots.iter().take(count).take_while(is_behind).count()
}

/// The slot of the how-manieth promotion.
fn next_slot(promotion: usize, count: usize) -> Option<SlotId> {
    Some(SlotId(promotion.checked_rem(count)? as u32))
}
