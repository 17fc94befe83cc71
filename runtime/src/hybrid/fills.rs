//! How slots are filled, and which fills one call queues: after the round in which it was first queued so, a fill is
//! recorded, and replayed from then on. Chosen experts are replayed with other sources. Where worker 0 has other things
//! to do, a fill is queued piece by piece. Not here: steps of fills (`staging.rs`, `routed.rs`), their order
//! (`device::timeline`). Next: `driver.rs`.

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
/// Copies of a piece that needs no unpacking.
const COPIES_AT_ONCE: usize = 4;

/// How a fill that brings everything is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// By few calls.
    AtOnce,
    /// So that each call takes little of the caller's time. On the H200 machine 100 MB take 190 us as a recorded fill,
    /// 15 us for each of 24 pieces otherwise.
    InPieces,
}

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
    /// The fill that is queued in part.
    open: Option<Open>,
}

/// A fill that is queued in part.
#[derive(Clone, Copy, Debug)]
struct Open {
    slot: SlotIndex,
    number: usize,
    /// Steps queued.
    queued: usize,
}

impl Fills {
    /// Fills by number.
    pub fn new(all: Vec<Fill>) -> Fills {
        let routed = all.iter().filter_map(|fill| match &fill.kind {
            FillKind::Routed(routed) => Some((routed.steps_max(), routed.room())),
            FillKind::Whole(_) => None,
        });
        let (steps, room) = routed.fold((0, 0), |(a, b), (steps, room)| (steps.max(a), room.max(b)));
        Fills { all, recorded_steps: 0, steps: Vec::with_capacity(steps), starts: Vec::with_capacity(room), open: None }
    }

    /// Whether a fill brings everything, so that it can be queued at any time.
    pub fn is_whole(&self, number: usize) -> bool {
        matches!(self.all[number].kind, FillKind::Whole(_))
    }

    /// Begins to queue a fill of a slot, no other being open. The chosen experts stand in the host's arena, for so many
    /// tokens. `begun`, if given, is recorded when it may start. Errors: an expert that is none, the GPU is lost.
    pub fn begin(
        &mut self,
        timeline: &mut Timeline,
        (slot, number): (SlotIndex, usize),
        (arena, tokens): (&Shared, usize),
        (pace, begun): (Pace, Option<EventId>),
    ) -> Result<(), Error> {
        let Self { all, steps, starts, .. } = self;
        let Fill { kind, repeat } = &mut all[number];
        let (steps, is_repeated, is_routed) = match kind {
            FillKind::Whole(steps) => (&*steps, pace == Pace::AtOnce, false),
            FillKind::Routed(routed) => {
                steps.clear();
                let experts = routed.choose(&**timeline.gpu(), arena, tokens, starts)?;
                routed.steps(starts, steps)?;
                (&*steps, experts == routed.room(), true)
            }
        };
        if let (Repeat::Recorded(recorded), true) = (*repeat, is_repeated) {
            if !is_routed || timeline.redirect_fill(recorded, steps)? {
                return Ok(timeline.fill_recorded(slot, recorded, begun)?);
            }
            *repeat = Repeat::StepByStep;
        }
        if (*repeat, is_repeated) == (Repeat::New, true) {
            *repeat = Repeat::Queued;
        }
        timeline.begin_fill(slot, begun)?;
        self.open = Some(Open { slot, number, queued: 0 });
        Ok(())
    }

    /// Whether a fill is queued in part.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Queues the next piece of the open fill, if there is one. Errors: the GPU is lost.
    pub fn go_on(&mut self, timeline: &mut Timeline) -> Result<(), Error> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let steps = match &self.all[open.number].kind {
            FillKind::Whole(steps) => steps,
            FillKind::Routed(_) => &self.steps,
        };
        let rest = &steps[open.queued..];
        let unpack = rest.iter().position(|step| matches!(step, FillStep::Unpack(..)));
        let count = unpack.map_or(COPIES_AT_ONCE, |unpack| unpack + 1).min(rest.len());
        timeline.queue_fill(&rest[..count])?;
        open.queued += count;
        if open.queued == steps.len() {
            timeline.end_fill(open.slot, steps)?;
            self.open = None;
        }
        Ok(())
    }

    /// After a round that failed nothing is open.
    pub fn forget(&mut self) {
        self.open = None;
    }

    /// Between rounds: records some of these fills, if they have been queued step by step. Errors: the GPU is lost.
    pub fn record(&mut self, timeline: &mut Timeline, numbers: &[usize]) -> Result<(), Error> {
        let mut left = RECORDED_AT_ONCE;
        for &number in numbers {
            let Self { all, recorded_steps, steps, starts, .. } = self;
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
