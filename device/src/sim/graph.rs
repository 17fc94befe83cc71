//! Recorded sequences on the simulated GPU: the calls of a recording, checked as a driver checks them, and done again
//! when the sequence is launched.
//!
//! Work of streams that follow the recorded one runs on a stream of its own: like nodes of a real graph it is ordered
//! by the recording's events alone, not by what else is on those streams. Next: `stream.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{SimGpu, lock};
use crate::DeviceError;
use crate::gpu::{CopySource, DevicePtr, EventId, Gpu, GraphId, Launch, StreamId, StreamKind};

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

    /// Another source for the copy with this number. Errors: there is none, or it goes elsewhere.
    pub fn redirect(&mut self, number: usize, to: DevicePtr, from: &CopySource) -> Result<(), DeviceError> {
        let mut copies = self.calls.iter_mut().filter_map(|(_, call)| match call {
            Call::Copy(to, from) => Some((to, from)),
            _ => None,
        });
        match copies.nth(number) {
            Some((known, source)) if *known == to => {
                source.clone_from(from);
                Ok(())
            }
            _ => Err(DeviceError::Timeline { what: format!("copy {number} of a recording does not go to {to:?}") }),
        }
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

impl SimGpu {
    /// Takes a call into the recording under way, if there is one.
    pub(super) fn is_recorded(&self, stream: StreamId, call: impl FnOnce() -> Call) -> bool {
        let mut recording = lock(&self.recording);
        if recording.is_none() {
            self.count_call();
        }
        recording.as_mut().map(|recording| recording.calls.push((stream, call()))).is_some()
    }

    /// Does a call of a recording.
    fn repeat(&self, stream: StreamId, call: &Call) -> Result<(), DeviceError> {
        match call {
            Call::Copy(to, from) => self.submit_copy(stream, *to, from),
            Call::Launch(launch) => self.submit_launch(stream, launch),
            Call::Record(event) => self.submit_record(stream, *event),
            Call::Wait(event) => self.submit_wait(stream, *event),
        }
    }

    /// Records the calls of `work`.
    pub(super) fn record_calls(
        &self,
        stream: StreamId,
        work: &mut dyn FnMut() -> Result<(), DeviceError>,
    ) -> Result<GraphId, DeviceError> {
        self.machine.shared.lock().check()?;
        *lock(&self.recording) = Some(Recording::new(stream));
        let outcome = work();
        let recording = lock(&self.recording).take();
        outcome?;
        let recording = recording.unwrap_or_else(|| Recording::new(stream));
        recording.check()?;
        let mut side_stream = lock(&self.side_stream);
        if side_stream.is_none() {
            *side_stream = Some(self.new_stream(StreamKind::Unpack)?);
        }
        let mut graphs = lock(&self.graphs);
        graphs.push(Arc::new(recording));
        Ok(GraphId(graphs.len() as u32 - 1))
    }

    /// Another source for a recorded copy.
    pub(super) fn redirect(
        &self,
        graph: GraphId,
        number: usize,
        (to, from): (DevicePtr, &CopySource),
    ) -> Result<(), DeviceError> {
        self.count_call();
        let mut graphs = lock(&self.graphs);
        let known = graphs.get_mut(graph.0 as usize);
        let recording = known.ok_or(DeviceError::GpuHandle { kind: "graph", id: graph.0 })?;
        Arc::make_mut(recording).redirect(number, to, from)
    }

    /// Does all calls of a recording by one.
    pub(super) fn repeat_calls(&self, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        let unknown = || DeviceError::GpuHandle { kind: "graph", id: graph.0 };
        let recording = lock(&self.graphs).get(graph.0 as usize).cloned().ok_or_else(unknown)?;
        let side_stream = (*lock(&self.side_stream)).ok_or_else(unknown)?;
        self.count_call();
        self.spend_call();
        let on = |recorded| if recorded == recording.root { stream } else { side_stream };
        recording.calls.iter().try_for_each(|(recorded, call)| self.repeat(on(*recorded), call))
    }
}
