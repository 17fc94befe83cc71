//! A stream of the simulated GPU: a thread that takes commands in order, waits as they say, works, and keeps the
//! stream's virtual time.
//!
//! Virtual time of a command: it starts when the stream is free, the host has submitted it and all that it waits for is
//! there (a copy also waits for the one copy engine); it ends after its cost under the scripted load. Real delays never
//! enter. Invariant: a lost GPU drains its streams, so nobody waits for ever. Next: `state.rs`.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::Machine;
use super::faults::Delays;
use super::memory::SimTask;
use super::profile::{Resource, SourceMemory};
use super::race::VectorClock;
use super::state::Moment;
use crate::DeviceError;
use crate::clock::Nanos;
use crate::gpu::{CopySource, DevicePtr, Epoch, EventId, FlagId, GpuTarget, Launch};

/// What a stream can be told. Event waits and records carry the number of the record.
pub enum Command {
    /// Run an operator; the number counts launches.
    Launch(Launch, u64),
    /// Copy from the host.
    Copy(DevicePtr, CopySource, SourceMemory),
    /// Pass a record of an event.
    Record(EventId, u64),
    /// Wait for a record of an event.
    WaitEvent(EventId, u64),
    /// Write a flag.
    Signal(FlagId, Epoch),
    /// Wait for a flag.
    WaitFlag(FlagId, Epoch),
    /// Answer when everything before is done.
    Tell(Sender<Moment>),
}

/// A command and the host's moment when it was submitted.
pub struct Submitted {
    /// What to do.
    pub command: Command,
    /// When it was said, and what the host knew.
    pub by: Moment,
}

/// The host's end of a stream.
pub struct Stream {
    queue: Option<Sender<Submitted>>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    /// Starts the stream's thread. Errors: the system refuses it.
    pub fn start(machine: Arc<Machine>, agent: usize) -> Result<Self, DeviceError> {
        let (queue, commands) = channel();
        let mut worker = Worker {
            delays: Delays::new(machine.faults.seed, agent as u64),
            machine,
            agent,
            time: Nanos(0),
            knows: VectorClock::of(agent),
        };
        let builder = std::thread::Builder::new().name(format!("sim-stream-{agent}"));
        let thread = builder.spawn(move || worker.serve(commands));
        let thread = thread.map_err(|source| DeviceError::ThreadStart { index: agent, source })?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Queues a command.
    pub fn submit(&self, submitted: Submitted) {
        if let Some(queue) = &self.queue {
            // The thread ends only after this sender is dropped.
            let _ = queue.send(submitted);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // Its panics are caught per command.
            let _ = thread.join();
        }
    }
}

struct Worker {
    machine: Arc<Machine>,
    agent: usize,
    delays: Delays,
    time: Nanos,
    knows: VectorClock,
}

impl Worker {
    fn serve(&mut self, commands: Receiver<Submitted>) {
        for Submitted { command, by } in commands {
            self.learn(by);
            let attempt = std::panic::AssertUnwindSafe(|| self.obey(command));
            let outcome = std::panic::catch_unwind(attempt);
            let message = match outcome {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "an operator panicked; this is a bug, report it".to_owned(),
            };
            self.machine.shared.update(|state| _ = state.lost.get_or_insert(message));
        }
    }

    fn learn(&mut self, moment: Moment) {
        self.time = self.time.max(moment.time);
        self.knows.join(&moment.knows);
    }

    fn obey(&mut self, command: Command) -> Result<(), DeviceError> {
        let machine = Arc::clone(&self.machine);
        match command {
            Command::Launch(launch, number) => self.run(&launch, number)?,
            Command::Copy(to, from, memory) => self.copy(to, &from, memory)?,
            Command::Record(event, number) => {
                let moment = self.release(Nanos(0));
                machine.shared.update(|state| _ = state.event(event).map(|event| event.pass(number, moment)));
            }
            Command::WaitEvent(event, number) => {
                let passed = machine.shared.wait(|state| state.events.get(event.0 as usize)?.passed(number));
                passed.into_iter().for_each(|moment| self.learn(moment));
            }
            Command::Signal(flag, epoch) => {
                let moment = self.release(machine.profile.to_cpu);
                machine.shared.update(|state| _ = state.flag(flag).map(|flag| flag.write(epoch, moment)));
            }
            Command::WaitFlag(flag, epoch) => {
                let reached = machine.shared.wait(|state| state.flags.get(flag.0 as usize)?.reached(epoch));
                reached.into_iter().for_each(|moment| self.learn(moment));
            }
            // A host that no longer listens does not mind.
            Command::Tell(sender) => _ = sender.send(self.release(Nanos(0))),
        }
        Ok(())
    }

    /// This moment, for others; what it means takes effect `after` later.
    fn release(&mut self, after: Nanos) -> Moment {
        Moment { time: self.time + after, knows: self.knows.release(self.agent) }
    }

    fn run(&mut self, launch: &Launch, number: u64) -> Result<(), DeviceError> {
        self.delays.delay(self.machine.faults.op_delay);
        if self.machine.shared.lock().lost.is_some() {
            return Ok(());
        }
        if self.machine.faults.fail_launch == Some(number) {
            return Err(DeviceError::SimFault { name: launch.op.name().to_owned() });
        }
        let machine = &*self.machine;
        let task = SimTask::new(&machine.memory, &machine.shared, self.agent, self.knows, launch.op.name());
        launch.op.run(GpuTarget::Simulated(&task), launch.args)?;
        self.time = machine.load.end_of(Resource::Gpu, self.time, launch.expected);
        Ok(())
    }

    fn copy(&mut self, to: DevicePtr, from: &CopySource, memory: SourceMemory) -> Result<(), DeviceError> {
        self.delays.delay(self.machine.faults.copy_delay);
        let machine = &*self.machine;
        // The engine serves one copy at a time, in the order in which they become ready.
        let _engine = machine.engine.lock().unwrap_or_else(|broken| broken.into_inner());
        if machine.shared.lock().lost.is_some() {
            return Ok(());
        }
        let task = SimTask::new(&machine.memory, &machine.shared, self.agent, self.knows, "copy");
        let bytes = match from {
            CopySource::Span(span) => {
                let bytes = span.range.len() as u64;
                span.bytes().ok_or(DeviceError::GpuAddress { address: span.range.start as u64, bytes })?
            }
            CopySource::Mapped { start, bytes } => task.read(*start, *bytes)?,
            CopySource::Pageable(_) => return Err(crate::timeline::pageable()),
        };
        task.write(to, bytes.len() as u64)?.copy_from_slice(bytes);
        let mut state = machine.shared.lock();
        let start = self.time.max(state.engine_free_at);
        let work = machine.profile.copy_time(bytes.len() as u64, memory);
        self.time = machine.load.end_of(Resource::Link, start, work);
        state.engine_free_at = self.time;
        Ok(())
    }
}
