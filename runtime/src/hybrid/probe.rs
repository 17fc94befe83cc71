//! Which transfer senses a link that the schedule leaves idle. Not here: when (`driver.rs`).

use super::bound::{Bound, Rounds};
use super::fills::Fills;
use super::held::Held;
use plan_format::program::Program;

/// A transfer that can be made at any time.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// The schedule that knows how.
    pub schedule: usize,
    /// Which of its promotions.
    pub promotion: usize,
}

impl Probe {
    /// The one with the fewest bytes. It must not disturb what is held.
    pub fn smallest((bound, held): (&[Bound], &Held), fills: &Fills, program: &Program) -> Option<Probe> {
        let is_apart = |(_, bound): &(usize, &Bound)| held.is_empty() || bound.rounds == Rounds::Few;
        let of_schedule = |(schedule, bound): (usize, &Bound)| {
            let whole = |(promotion, fill): (usize, &usize)| {
                let item = &program.items[bound.items[promotion] as usize];
                fills.is_whole(*fill).then(|| (program.item_weight_bytes(item), Probe { schedule, promotion }))
            };
            bound.fills.iter().enumerate().filter_map(whole).min_by_key(|(bytes, _)| *bytes)
        };
        let apart = bound.iter().enumerate().filter(is_apart);
        apart.filter_map(of_schedule).min_by_key(|(bytes, _)| *bytes).map(|(_, probe)| probe)
    }
}
