//! What the streams and the host of a simulated machine share under one lock: events, flags, the copy engine's time,
//! the shadow memory, and whether the GPU is lost.
//!
//! Every event and flag keeps the history of its values with the virtual time and the knowledge (vector clock) of
//! whoever set it. A waiter takes the first value that satisfies it, whenever its thread comes to look: so virtual
//! times and race reports do not depend on real timing. Next: `stream.rs`.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};

use super::race::{HOST, Shadow, VectorClock};
use crate::DeviceError;
use crate::clock::Nanos;
use crate::gpu::{Epoch, EventId, FlagId};

/// Values that a history keeps; a waiter that comes later than that takes the oldest one kept.
const HISTORY_MAX: usize = 4096;

/// When something happened and what its doer knew.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Virtual time.
    pub time: Nanos,
    /// Knowledge.
    pub knows: VectorClock,
}

/// Records of an event: submitted ones are numbered from 1.
#[derive(Debug, Default)]
pub struct Event {
    submitted: u64,
    passed: VecDeque<(u64, Moment)>,
}

/// Epochs written to a flag.
#[derive(Debug, Default)]
pub struct Flag {
    written: VecDeque<(Epoch, Moment)>,
}

/// See the module text.
#[derive(Debug, Default)]
pub struct State {
    /// By id.
    pub events: Vec<Event>,
    /// By id.
    pub flags: Vec<Flag>,
    /// When the copy engine is free.
    pub engine_free_at: Nanos,
    /// Last accesses to all memory.
    pub shadow: Shadow,
    /// What the host knows.
    pub host: VectorClock,
    /// Why the GPU is lost.
    pub lost: Option<String>,
    /// GPU memory taken.
    pub taken_bytes: u64,
    /// Requests for it so far.
    pub memory_requests: u32,
    /// Host memory pinned.
    pub pinned_bytes: u64,
    /// Launches so far.
    pub launches: u64,
}

impl State {
    /// The error of a lost GPU, if it is.
    pub fn check(&self) -> Result<(), DeviceError> {
        match &self.lost {
            Some(message) => Err(DeviceError::GpuLost { message: message.clone() }),
            None => Ok(()),
        }
    }

    /// The event, if it is one of this GPU.
    pub fn event(&mut self, id: EventId) -> Result<&mut Event, DeviceError> {
        self.events.get_mut(id.0 as usize).ok_or(DeviceError::GpuHandle { kind: "event", id: id.0 })
    }

    /// The flag, if it is one of this GPU.
    pub fn flag(&mut self, id: FlagId) -> Result<&mut Flag, DeviceError> {
        self.flags.get_mut(id.0 as usize).ok_or(DeviceError::GpuHandle { kind: "flag", id: id.0 })
    }

    /// What the host hands over with a submission.
    pub fn release_host(&mut self) -> VectorClock {
        self.host.release(HOST)
    }
}

impl Event {
    /// Numbers a record that is being submitted.
    pub fn submit(&mut self) -> u64 {
        self.submitted += 1;
        self.submitted
    }

    /// The number of the last submitted record; 0 = none.
    pub fn last_submitted(&self) -> u64 {
        self.submitted
    }

    /// The stream has come to the record.
    pub fn pass(&mut self, number: u64, moment: Moment) {
        push_bounded(&mut self.passed, (number, moment));
    }

    /// The moment from which record `number` holds; `None` = not yet. Record 0 has always held.
    pub fn passed(&self, number: u64) -> Option<Moment> {
        if number == 0 {
            return Some(Moment { time: Nanos(0), knows: VectorClock::default() });
        }
        self.passed.iter().find(|(passed, _)| *passed >= number).map(|(_, moment)| *moment)
    }
}

impl Flag {
    /// Writes an epoch.
    pub fn write(&mut self, epoch: Epoch, moment: Moment) {
        push_bounded(&mut self.written, (epoch, moment));
    }

    /// The moment from which the flag has reached `wanted`; `None` = not yet. A new flag holds epoch 0.
    pub fn reached(&self, wanted: Epoch) -> Option<Moment> {
        if self.written.is_empty() && Epoch(0).reaches(wanted) {
            return Some(Moment { time: Nanos(0), knows: VectorClock::default() });
        }
        self.written.iter().find(|(epoch, _)| epoch.reaches(wanted)).map(|(_, moment)| *moment)
    }
}

fn push_bounded<T>(history: &mut VecDeque<T>, entry: T) {
    if history.len() == HISTORY_MAX {
        history.pop_front();
    }
    history.push_back(entry);
}

/// The state, its lock, and the bell that rings when an event or flag moves or the GPU is lost.
#[derive(Debug, Default)]
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    /// A new machine's state.
    pub fn new() -> Self {
        let shared = Self::default();
        shared.lock().host = VectorClock::of(HOST);
        shared
    }

    /// The state, locked.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    /// Changes the state and rings.
    pub fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `ready` finds its moment, or the GPU is lost (`None`).
    pub fn wait(&self, ready: impl Fn(&State) -> Option<Moment>) -> Option<Moment> {
        let mut state = self.lock();
        loop {
            if state.lost.is_some() {
                return None;
            }
            if let Some(moment) = ready(&state) {
                return Some(moment);
            }
            state = self.changed.wait(state).unwrap_or_else(|broken| broken.into_inner());
        }
    }
}
