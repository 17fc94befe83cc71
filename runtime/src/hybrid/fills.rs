//! How slots are filled, and which fills one call queues: those that are the same in every round are recorded after the
//! round in which they were first queued, and replayed from then on. Not here: their steps (`staging.rs`, `routed.rs`),
//! their order (`device::timeline`). Next: `driver.rs`.

use super::routed::RoutedFill;
use crate::Error;
use crate::exec::shared::Shared;
use device::gpu::EventId;
use device::timeline::{FillStep, RecordedFill, SlotIndex, Timeline};

/// Fills that are recorded after one round: the next should not wait for long.
const RECORDED_AT_ONCE: usize = 16;
/// Fills that are recorded at all: each takes some of the driver's memory.
const RECORDED_MAX: usize = 512;

/// How a slot is filled.
pub enum Fill {
    /// With everything: a fill by its number in [`Fills`].
    Whole(usize),
    /// With the experts that the round has chosen.
    Routed(Box<RoutedFill>),
}

/// A fill that is the same in every round.
pub struct WholeFill {
    steps: Vec<FillStep>,
    repeat: Repeat,
}

/// How a fill is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// It has not been yet.
    New,
    /// Step by step. Its kernels have run, so it may be recorded between rounds.
    Queued,
    /// By one call.
    Recorded(RecordedFill),
    /// Step by step for good.
    StepByStep,
}

impl WholeFill {
    /// Of these steps.
    pub fn new(steps: Vec<FillStep>) -> WholeFill {
        WholeFill { steps, repeat: Repeat::New }
    }
}

/// The fills of all schedules.
pub struct Fills {
    whole: Vec<WholeFill>,
    recorded: usize,
    /// Steps of a fill that depends on the round.
    steps: Vec<FillStep>,
}

impl Fills {
    /// Fills that are the same in every round, by number.
    pub fn new(whole: Vec<WholeFill>) -> Fills {
        Fills { whole, recorded: 0, steps: Vec::new() }
    }

    /// Makes room for the steps of these fills.
    pub fn reserve<'a>(&mut self, fills: impl Iterator<Item = &'a Fill>) {
        let steps = fills.map(|fill| match fill {
            Fill::Routed(routed) => routed.steps_max(),
            Fill::Whole(_) => 0,
        });
        self.steps.reserve(steps.max().unwrap_or(0));
    }

    /// Queues a fill of a slot. The chosen experts stand in the host's arena, for so many tokens. `begun`, if given, is
    /// recorded when it may start. Errors: an expert that is none, the GPU is lost.
    pub fn queue(
        &mut self,
        timeline: &mut Timeline,
        slot: SlotIndex,
        fill: &Fill,
        (arena, tokens): (&Shared, usize),
        begun: Option<EventId>,
    ) -> Result<(), Error> {
        match fill {
            &Fill::Whole(number) => {
                let fill = &mut self.whole[number];
                match fill.repeat {
                    Repeat::Recorded(recorded) => timeline.fill_recorded(slot, recorded, begun)?,
                    _ => timeline.fill_in_steps(slot, &fill.steps, begun)?,
                }
                if fill.repeat == Repeat::New {
                    fill.repeat = Repeat::Queued;
                }
            }
            Fill::Routed(routed) => {
                self.steps.clear();
                routed.steps(&**timeline.gpu(), arena, tokens, &mut self.steps)?;
                timeline.fill_in_steps(slot, &self.steps, begun)?;
            }
        }
        Ok(())
    }

    /// Between rounds: records some of these fills, if they have been queued step by step. Errors: the GPU is lost.
    pub fn record(&mut self, timeline: &mut Timeline, fills: &[Fill]) -> Result<(), Error> {
        let mut left = RECORDED_AT_ONCE.min(RECORDED_MAX.saturating_sub(self.recorded));
        for fill in fills {
            let &Fill::Whole(number) = fill else { continue };
            let fill = &mut self.whole[number];
            if fill.repeat != Repeat::Queued || left == 0 {
                continue;
            }
            let recorded = timeline.record_fill(&fill.steps)?;
            fill.repeat = recorded.map_or(Repeat::StepByStep, Repeat::Recorded);
            self.recorded += usize::from(recorded.is_some());
            left -= 1;
        }
        Ok(())
    }
}
