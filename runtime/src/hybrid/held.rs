//! What is held between prompts: brought when the first round of few tokens after another one begins, given up when a
//! round of another size needs the memory. Not here: where it lies (the plan), what brings it (`bound.rs`), the order
//! of copies and operators (`device::timeline`). Next: `driver.rs`.

use super::bound::{HeldItem, Rounds};
use crate::Error;
use device::gpu::EventId;
use device::timeline::{SlotIndex, Timeline};
use std::ops::Range;

/// Held items, and whether they are there.
pub struct Held {
    /// Each one's slot in the timeline is as far behind the plan's slots.
    items: Vec<HeldItem>,
    first_slot: usize,
    is_there: bool,
}

impl Held {
    /// Nothing is there yet. The timeline's slots from `first_slot` on are theirs.
    pub fn new(items: Vec<HeldItem>, first_slot: usize) -> Held {
        Held { items, first_slot, is_there: false }
    }

    /// Whether nothing is ever held.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn slot(&self, number: usize) -> SlotIndex {
        SlotIndex(self.first_slot + number)
    }

    /// Before a round: which items must be brought for it, by number; rounds of many tokens find the memory free. The
    /// compute stream is empty, and transfers for another schedule have been discarded. Errors: the GPU is lost.
    pub fn enter(&mut self, timeline: &mut Timeline, rounds: Rounds) -> Result<Range<usize>, Error> {
        let all = 0..self.items.len();
        let was_there = std::mem::replace(&mut self.is_there, rounds == Rounds::Few);
        match (rounds, was_there) {
            (Rounds::Few, false) => return Ok(all),
            (Rounds::All, true) => all.into_iter().try_for_each(|number| timeline.vacate(self.slot(number)))?,
            _ => {}
        }
        Ok(0..0)
    }

    /// Queues what brings an item and returns which one it is. `begun`, if given, is recorded when its memory is free.
    /// Errors: the GPU is lost.
    pub fn bring(&self, timeline: &mut Timeline, number: usize, begun: Option<EventId>) -> Result<usize, Error> {
        let (slot, HeldItem { item, steps }) = (self.slot(number), &self.items[number]);
        timeline.reclaim(slot)?;
        timeline.fill_in_steps(slot, steps, begun)?;
        Ok(*item)
    }

    /// Operators queued from now on read these items. Errors: they are not there.
    pub fn read(&self, timeline: &mut Timeline, numbers: &Range<usize>) -> Result<(), Error> {
        numbers.clone().try_for_each(|number| Ok(timeline.read(self.slot(number))?))
    }

    /// After a round that failed nothing is there.
    pub fn forget(&mut self) {
        self.is_there = false;
    }
}
