//! How slots are filled, and which fills one call queues: after the round in which it was first queued a fill is
//! recorded, and replayed from then on. Chosen experts are replayed with other sources. Not here: steps of fills
//! (`staging.rs`, `routed.rs`), their order (`device::timeline`). Next: `driver.rs`.

use super::routed::RoutedFill;
use super::staging::HostCopies;
use crate::Error;
use crate::exec::shared::Shared;
use device::clock::Nanos;
use device::gpu::EventId;
use device::timeline::{FillStep, RecordedFill, SlotIndex, Timeline};

/// Fills that are recorded after one round: the next should not wait for long.
const RECORDED_AT_ONCE: usize = 16;
/// Steps of a fill that is recorded; a longer one takes the link so long that its calls do not matter.
const STEPS_MAX: usize = 64;
/// Steps that are recorded at all: each takes some of the driver's memory.
const RECORDED_STEPS_MAX: usize = 8192;
/// How long the driver may take for one; a slower one is the last.
const RECORDING_MAX: Nanos = Nanos(20_000_000);

/// How a slot is filled.
pub struct Fill {
    kind: FillKind,
    repeat: Repeat,
}

/// What it is filled with.
pub enum FillKind {
    /// Everything, by the same steps in every round.
    Whole(Vec<FillStep>),
    /// The experts that the round has chosen.
    Routed(Box<RoutedFill>),
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

impl Fill {
    /// One that has not been queued. What a thread brings cannot be recorded.
    pub fn new(kind: FillKind, copies: HostCopies) -> Fill {
        let repeat = if copies == HostCopies::Direct { Repeat::New } else { Repeat::StepByStep };
        Fill { kind, repeat }
    }

    fn steps_max(&self) -> usize {
        match &self.kind {
            FillKind::Whole(steps) => steps.len(),
            FillKind::Routed(routed) => routed.steps_max(),
        }
    }
}

/// The fills of all schedules.
pub struct Fills {
    all: Vec<Fill>,
    recorded_steps: usize,
    /// Steps of a fill that depends on the round.
    steps: Vec<FillStep>,
    /// First bytes of the chosen experts.
    starts: Vec<usize>,
}

impl Fills {
    /// Fills by number.
    pub fn new(all: Vec<Fill>) -> Fills {
        let routed = all.iter().filter_map(|fill| match &fill.kind {
            FillKind::Routed(routed) => Some((routed.steps_max(), routed.room())),
            FillKind::Whole(_) => None,
        });
        let (steps, room) = routed.fold((0, 0), |(a, b), (steps, room)| (steps.max(a), room.max(b)));
        Fills { all, recorded_steps: 0, steps: Vec::with_capacity(steps), starts: Vec::with_capacity(room) }
    }

    /// Whether a fill brings everything, so that it can be queued at any time.
    pub fn is_whole(&self, number: usize) -> bool {
        matches!(self.all[number].kind, FillKind::Whole(_))
    }

    /// Queues a fill of a slot. The chosen experts stand in the host's arena, for so many tokens. `begun`, if given, is
    /// recorded when it may start. Errors: an expert that is none, the GPU is lost.
    pub fn queue(
        &mut self,
        timeline: &mut Timeline,
        slot: SlotIndex,
        number: usize,
        (arena, tokens): (&Shared, usize),
        begun: Option<EventId>,
    ) -> Result<(), Error> {
        let Self { all, steps, starts, .. } = self;
        let Fill { kind, repeat } = &mut all[number];
        let (steps, is_full, is_routed) = match kind {
            FillKind::Whole(steps) => (&*steps, true, false),
            FillKind::Routed(routed) => {
                steps.clear();
                let experts = routed.choose(&**timeline.gpu(), arena, tokens, starts)?;
                routed.steps(starts, steps)?;
                (&*steps, experts == routed.room(), true)
            }
        };
        if let (Repeat::Recorded(recorded), true) = (*repeat, is_full) {
            if !is_routed || timeline.redirect_fill(recorded, steps)? {
                return Ok(timeline.fill_recorded(slot, recorded, begun)?);
            }
            *repeat = Repeat::StepByStep;
        }
        if (*repeat, is_full) == (Repeat::New, true) {
            *repeat = Repeat::Queued;
        }
        Ok(timeline.fill_in_steps(slot, steps, begun)?)
    }

    /// Between rounds: records some of these fills, if they have been queued step by step. Errors: the GPU is lost.
    pub fn record(&mut self, timeline: &mut Timeline, numbers: &[usize]) -> Result<(), Error> {
        let mut left = RECORDED_AT_ONCE;
        for &number in numbers {
            let Self { all, recorded_steps, steps, starts } = self;
            let fill = &mut all[number];
            if fill.repeat != Repeat::Queued || left == 0 {
                continue;
            }
            let count = fill.steps_max();
            if count > STEPS_MAX.min(RECORDED_STEPS_MAX.saturating_sub(*recorded_steps)) {
                fill.repeat = Repeat::StepByStep;
                continue;
            }
            let template = match &fill.kind {
                FillKind::Whole(steps) => steps,
                FillKind::Routed(routed) => {
                    steps.clear();
                    starts.clear();
                    starts.extend(0..routed.room());
                    routed.steps(starts, steps)?;
                    &*steps
                }
            };
            let clock = timeline.gpu().clock();
            let start = clock.now();
            let recorded = timeline.record_fill(template)?;
            fill.repeat = recorded.map_or(Repeat::StepByStep, Repeat::Recorded);
            let took = clock.now().since(start);
            *recorded_steps = if took > RECORDING_MAX { RECORDED_STEPS_MAX } else { *recorded_steps + count };
            left -= 1;
        }
        Ok(())
    }
}
