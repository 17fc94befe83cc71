//! What is held between prompts: brought when the first round of few tokens after another one begins, given up when a
//! round of another size needs the memory. Not here: where it lies (the plan), what brings it (`bound.rs`), the order
//! of copies and operators (`device::timeline`). Next: `driver.rs`.

use super::bound::{HeldItem, Rounds};
use crate::Error;
use device::timeline::{FillStep, SlotIndex, Timeline};
use std::ops::Range;

/// Held items, and whether they are there.
pub struct Held {
    /// Steps that bring each; its slot in the timeline is as far behind the plan's slots.
    steps: Vec<Vec<FillStep>>,
    first_slot: usize,
    is_there: bool,
}

impl Held {
    /// Nothing is there yet. The timeline's slots from `first_slot` on are theirs.
    pub fn new(items: Vec<HeldItem>, first_slot: usize) -> Held {
        Held { steps: items.into_iter().map(|item| item.steps).collect(), first_slot, is_there: false }
    }

    /// Whether nothing is ever held.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    fn slot(&self, number: usize) -> SlotIndex {
        SlotIndex(self.first_slot + number)
    }

    /// Before a round: rounds of few tokens find the items there or on their way, others find the memory free. The
    /// compute stream is empty, and transfers for another schedule have been discarded. Errors: the GPU is lost.
    pub fn enter(&mut self, timeline: &mut Timeline, rounds: Rounds) -> Result<(), Error> {
        match (rounds, self.is_there) {
            (Rounds::Few, false) => {
                for (number, steps) in self.steps.iter().enumerate() {
                    let slot = self.slot(number);
                    timeline.reclaim(slot)?;
                    timeline.fill_in_steps(slot, steps, None)?;
                }
            }
            (Rounds::All, true) => {
                for number in 0..self.steps.len() {
                    timeline.vacate(self.slot(number))?;
                }
            }
            _ => {}
        }
        self.is_there = rounds == Rounds::Few;
        Ok(())
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
