//! When the GPU's work ran: events around commands, read when the round has ended. Only while somebody wants to know:
//! every event costs a call. Not here: rings (`exec/trace.rs`). Next: `driver.rs`.

use super::adapt::{Resource, Sample};
use crate::Error;
use crate::exec::trace::{Label, Trace};
use device::DeviceError;
use device::clock::Nanos;
use device::gpu::{EventId, Gpu, StreamId};
use device::trace::Track;

/// Whether GPU work is timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// It is not.
    #[default]
    Off,
    /// Every command of some rounds is: enough to know how loaded the GPU is.
    Sampled,
    /// Every command of every round is.
    On,
}

/// One round in so many is timed where samples are enough.
const SAMPLED_ONE_IN: u32 = 4;

/// Events of one timed command.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    index: usize,
    /// Before it.
    pub begin: EventId,
    /// After it.
    pub end: EventId,
}

/// A command that was queued with its events.
#[derive(Clone, Copy, Debug)]
struct Open {
    mark: Mark,
    track: Track,
    split: usize,
    label: Label,
    expected_us: f64,
    base: usize,
}

impl Open {
    /// Adds it to the resource that it used.
    fn count(&self, took: Nanos, sample: &mut Sample) {
        let resource = match self.label {
            Label::Items(_) => Resource::Gpu,
            Label::Fill(_) => Resource::Link,
            _ => return,
        };
        sample.add(resource, took.as_micros_f64(), self.expected_us);
    }
}

/// Marks of this round and, for transfers that go on, of the one before.
#[derive(Debug, Default)]
pub struct Marks {
    timing: Timing,
    events: Vec<(EventId, EventId)>,
    free: Vec<usize>,
    open: Vec<Open>,
    /// Two in turn: an event at the start of a round, and when that was.
    bases: Vec<(EventId, Nanos)>,
    base: usize,
    rounds: u32,
    /// Rounds that are timed whatever their number.
    timed_next: u32,
}

impl Marks {
    /// Turns timing on or off. Events are made when they are first needed.
    pub fn set(&mut self, timing: Timing) {
        self.timing = timing;
    }

    /// Where samples are enough, the next rounds are all timed.
    pub fn time_next(&mut self, rounds: u32) {
        self.timed_next = self.timed_next.max(rounds);
    }

    /// A round begins on the compute stream. Errors: the GPU is lost.
    pub fn begin(&mut self, gpu: &dyn Gpu, compute: StreamId, now: Nanos) -> Result<(), Error> {
        self.rounds = self.rounds.wrapping_add(1);
        self.timed_next = self.timed_next.saturating_sub(1);
        if !self.is_timed() {
            return Ok(());
        }
        while self.bases.len() < 2 {
            self.bases.push((gpu.new_event()?, now));
        }
        self.base = 1 - self.base;
        let (event, time) = &mut self.bases[self.base];
        *time = now;
        Ok(gpu.record(compute, *event)?)
    }

    /// Whether this round is timed because something may have changed.
    pub fn is_hasty(&self) -> bool {
        self.timed_next > 0
    }

    /// Whether this round is timed.
    pub fn is_timed(&self) -> bool {
        match self.timing {
            Timing::Off => false,
            Timing::Sampled => self.timed_next > 0 || self.rounds % SAMPLED_ONE_IN == 1,
            Timing::On => true,
        }
    }

    /// Events for a command; `None` if it is not timed. Errors: the GPU is lost.
    pub fn take(&mut self, gpu: &dyn Gpu) -> Result<Option<Mark>, Error> {
        if !self.is_timed() {
            return Ok(None);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.events.push((gpu.new_event()?, gpu.new_event()?));
                self.events.len() - 1
            }
        };
        let (begin, end) = self.events[index];
        Ok(Some(Mark { index, begin, end }))
    }

    /// The command with these events is queued; it should take so long.
    pub fn queued(&mut self, mark: Mark, (track, split, label): (Track, usize, Label), expected_us: f64) {
        self.open.push(Open { mark, track, split, label, expected_us, base: self.base });
    }

    /// Hands the times of finished commands to the trace and to the sample. Errors: the GPU is lost.
    pub fn collect(&mut self, gpu: &dyn Gpu, trace: &Trace, sample: &mut Sample) -> Result<(), Error> {
        let mut left = Vec::new();
        for open in self.open.drain(..) {
            let (base, start) = self.bases[open.base];
            let at = |event| gpu.elapsed(base, event).map(|span| start + span);
            match at(open.mark.begin).and_then(|begin| Ok((begin, at(open.mark.end)?))) {
                Ok(span) => {
                    trace.other(open.track, open.split, open.label, span);
                    open.count(span.1.since(span.0), sample);
                    self.free.push(open.mark.index);
                }
                // A transfer for the next round, unless the base has been used again since.
                Err(DeviceError::EventPending { .. }) if open.base == self.base => left.push(open),
                Err(DeviceError::EventPending { .. }) => self.free.push(open.mark.index),
                Err(error) => return Err(error.into()),
            }
        }
        self.open = left;
        Ok(())
    }
}
