//! Recorded sequences on the simulated GPU: the calls of a recording, checked as a driver checks them, and done again
//! when the sequence is launched.
//!
//! Work of streams that follow the recorded one runs on a stream of its own: like nodes of a real graph it is ordered by
//! the recording's events alone, not by what else is on those streams. Next: `stream.rs`.

use std::collections::BTreeMap;

use crate::DeviceError;
use crate::gpu::{CopySource, DevicePtr, EventId, Launch, StreamId};

/// A call of a recording.
#[derive(Clone)]
pub enum Call {
    /// A copy.
    Copy(DevicePtr, CopySource),
    /// An operator.
    Launch(Launch),
    /// An event is recorded.
    Record(EventId),
    /// An event is waited for.
    Wait(EventId),
}

/// A recording under way or done.
#[derive(Clone)]
pub struct Recording {
    /// The stream on which it began.
    pub root: StreamId,
    /// Calls with their streams, in order.
    pub calls: Vec<(StreamId, Call)>,
}

impl Recording {
    /// One that begins.
    pub fn new(root: StreamId) -> Self {
        Self { root, calls: Vec::new() }
    }

    /// What a driver demands: waits for events of the recording only, and every stream's work joined by the root.
    pub fn check(&self) -> Result<(), DeviceError> {
        let refuse = |what: &str| Err(DeviceError::Timeline { what: format!("a recording {what}") });
        // Per event: the stream on which it was recorded, and how many calls of that stream came before.
        let mut recorded: BTreeMap<u32, (StreamId, usize)> = BTreeMap::new();
        // Per stream: calls so far, and how many of them the root has waited for.
        let mut streams: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
        for (stream, call) in &self.calls {
            match call {
                Call::Record(event) => {
                    let so_far = streams.get(&stream.0).map_or(0, |(calls, _)| *calls);
                    recorded.insert(event.0, (*stream, so_far));
                }
                Call::Wait(event) => {
                    let Some(&(from, calls)) = recorded.get(&event.0) else {
                        return refuse("waits for an event outside it");
                    };
                    if *stream == self.root {
                        let joined = &mut streams.entry(from.0).or_default().1;
                        *joined = calls.max(*joined);
                    }
                    streams.entry(stream.0).or_default();
                }
                Call::Copy(..) | Call::Launch(_) => {
                    if *stream != self.root && !streams.contains_key(&stream.0) {
                        return refuse("puts work on a stream that does not follow it");
                    }
                    streams.entry(stream.0).or_default().0 += 1;
                }
            }
        }
        let left = streams.iter().any(|(&stream, (calls, joined))| stream != self.root.0 && calls > joined);
        if left { refuse("ends before the work of its streams is joined") } else { Ok(()) }
    }
}
