//! The simulated GPU: executes really, on threads and in memory of its own, while its time is virtual.
//!
//! It is the GPU for everyone without one, and the place where ordering is proven: `sim/race.rs` reports accesses that
//! no rule orders, `sim/faults.rs` refuses, fails and delays on request. Times come from `sim/profile.rs` and the
//! launches' expected durations, never from this machine. Invariants: same submissions, same results and same virtual
//! times, for any delays (as long as one stream uses the copy engine); memory taken never exceeds the profile's or the
//! ceiling; a failed operator loses the GPU, as a real one is lost. Not a model of a GPU's inside: an operator is its
//! result and a duration, and what CPU and link take from each other in the DRAM is part of the durations that the
//! caller gives. Next: `sim/stream.rs`.

mod carrier;
mod faults;
mod graph;
mod memory;
mod profile;
mod race;
mod state;
mod stream;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use faults::{Delays, Faults};
pub use memory::SimTask;
pub use profile::{LinkPoint, LoadScript, LoadStep, Resource, SimProfile, SourceMemory};

use crate::DeviceError;
use crate::clock::{Clock, Nanos, VirtualClock};
use crate::gpu::{
    Access, CopySource, DevicePtr, DeviceRegion, Epoch, EventId, FlagId, Gpu, GpuDescription, GpuMemory, GraphId,
    Launch, MappedRegion, StreamId, StreamKind,
};
use crate::memory::HostRegion;
use crate::team::Pressure;
use carrier::Carrier;
use graph::{Call, Recording};
use memory::SimMemory;
use race::{CARRIER, HOST};
use state::{Event, Flag, Moment, Shared};
use stream::{Command, Stream, Submitted};

/// Alignment and granularity of GPU memory.
const ALIGNMENT_BYTES: u64 = 256;

/// What streams and host share.
struct Machine {
    profile: SimProfile,
    load: LoadScript,
    faults: Faults,
    memory: SimMemory,
    shared: Shared,
    engine: Mutex<()>,
}

/// How to build a simulated GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct SimConfig {
    /// The machine's figures.
    pub profile: SimProfile,
    /// What slows it down when.
    pub load: LoadScript,
    /// What goes wrong.
    pub faults: Faults,
    /// Ceiling on all GPU memory of this process, the profile's context included; `None` = the device's memory.
    pub ceiling_bytes: Option<u64>,
}

/// See the module text.
pub struct SimGpu {
    machine: Arc<Machine>,
    streams: Mutex<Vec<Stream>>,
    pinned: Mutex<Vec<Arc<HostRegion>>>,
    /// The recording under way.
    recording: Mutex<Option<Recording>>,
    graphs: Mutex<Vec<Arc<Recording>>>,
    /// Where graphs do the work of streams that followed their recording.
    side_stream: Mutex<Option<StreamId>>,
    carrier: Mutex<Carrier>,
    calls: AtomicU64,
    clock: Arc<VirtualClock>,
    host_delays: Mutex<Delays>,
    description: GpuDescription,
    ceiling_bytes: u64,
    /// Threads of the host's team, and of a full one.
    team: Mutex<(u32, u32)>,
}

impl SimGpu {
    /// A GPU with nothing on it. Its clock starts at 0.
    pub fn new(config: SimConfig) -> Self {
        let SimConfig { profile, load, faults, ceiling_bytes } = config;
        let description = GpuDescription {
            name: format!("sim:{}", profile.name),
            capability: (0, 0),
            driver: 0,
            memory_bytes: profile.memory_bytes,
            multiprocessors: 0,
        };
        let ceiling_bytes = ceiling_bytes.unwrap_or(u64::MAX).min(profile.memory_bytes);
        let host_delays = Mutex::new(Delays::new(faults.seed, HOST as u64));
        let carrier = Carrier::new(faults.seed);
        let (memory, shared) = (SimMemory::default(), Shared::new());
        let machine = Machine { profile, load, faults, memory, shared, engine: Mutex::new(()) };
        Self {
            machine: Arc::new(machine),
            streams: Mutex::default(),
            pinned: Mutex::default(),
            recording: Mutex::default(),
            graphs: Mutex::default(),
            side_stream: Mutex::default(),
            calls: AtomicU64::new(0),
            carrier: Mutex::new(carrier),
            clock: Arc::default(),
            host_delays,
            description,
            ceiling_bytes,
            team: Mutex::new((1, 1)),
        }
    }

    /// Continues the scripted load. The steps must lie in the future.
    pub fn add_load(&self, steps: impl IntoIterator<Item = LoadStep>) {
        self.machine.load.add(steps);
    }

    /// The host's address of bytes of the GPU's memory, which lives as long as the GPU: for operators that work through
    /// pointers. They must declare every access with [`SimTask::touch`] before they make it.
    /// Errors: not inside one region.
    pub fn address(&self, start: DevicePtr, bytes: u64) -> Result<*mut u8, DeviceError> {
        self.machine.memory.locate(start, bytes)
    }

    /// Calls of the host so far that put something on a stream: what queueing costs, whatever the machine.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The host's moment, handed over with what it submits or signals.
    fn host_moment(&self, after: Nanos) -> Moment {
        Moment { time: self.clock.now() + after, knows: self.machine.shared.lock().release_host() }
    }

    fn submit(&self, stream: StreamId, command: Command) -> Result<(), DeviceError> {
        let by = self.host_moment(Nanos(0));
        let streams = lock(&self.streams);
        let stream = streams.get(stream.0 as usize).ok_or(DeviceError::GpuHandle { kind: "stream", id: stream.0 })?;
        stream.submit(Submitted { command, by });
        self.machine.shared.lock().check()
    }

    fn submit_copy(&self, stream: StreamId, to: DevicePtr, from: &CopySource) -> Result<(), DeviceError> {
        let memory = match from {
            CopySource::Span(span) if !lock(&self.pinned).iter().any(|region| Arc::ptr_eq(region, &span.region)) => {
                SourceMemory::Pageable
            }
            CopySource::Span(_) | CopySource::Mapped { .. } => SourceMemory::Pinned,
            CopySource::Pageable(_) => return Err(crate::timeline::pageable()),
        };
        self.submit(stream, Command::Copy(to, from.clone(), memory))
    }

    fn submit_record(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let number = self.machine.shared.lock().event(event)?.submit();
        self.submit(stream, Command::Record(event, number))
    }

    fn submit_wait(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let number = self.machine.shared.lock().event(event)?.last_submitted();
        self.submit(stream, Command::WaitEvent(event, number))
    }

    fn submit_launch(&self, stream: StreamId, launch: &Launch) -> Result<(), DeviceError> {
        let number = {
            let mut state = self.machine.shared.lock();
            state.launches += 1;
            state.launches - 1
        };
        self.submit(stream, Command::Launch(launch.clone(), number))
    }

    /// The host spends the time of a call.
    fn spend_call(&self) {
        self.clock.move_to(self.clock.now() + self.machine.profile.submit);
    }

    /// The host takes part in what happened at `moment`.
    fn host_learns(&self, moment: Moment) {
        self.clock.move_to(moment.time);
        self.machine.shared.lock().host.join(&moment.knows);
    }

    fn host_task(&self) -> SimTask<'_> {
        let knows = self.machine.shared.lock().host;
        SimTask::new(&self.machine.memory, &self.machine.shared, HOST, knows, "host")
    }

    fn refused(&self, bytes: u64, purpose: &str, free_bytes: u64) -> DeviceError {
        DeviceError::GpuMemory { bytes, purpose: purpose.to_owned(), free_bytes }
    }
}

impl Drop for SimGpu {
    /// A stream may wait for a signal of the host that never comes: let it go before its thread is joined.
    fn drop(&mut self) {
        self.machine.shared.update(|state| _ = state.lost.get_or_insert_with(|| "it was given back".to_owned()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu for SimGpu {
    fn description(&self) -> &GpuDescription {
        &self.description
    }

    fn clock(&self) -> Clock {
        Clock::Virtual(Arc::clone(&self.clock))
    }

    fn memory(&self) -> Result<GpuMemory, DeviceError> {
        let state = self.machine.shared.lock();
        state.check()?;
        let ours_bytes = self.machine.profile.context_bytes.saturating_add(state.taken_bytes);
        let total_bytes = self.machine.profile.memory_bytes;
        let others_bytes = self.machine.faults.others_bytes(state.launches);
        let unclaimed_bytes = total_bytes.saturating_sub(ours_bytes).saturating_sub(others_bytes);
        let free_bytes = self.ceiling_bytes.saturating_sub(ours_bytes).min(unclaimed_bytes);
        Ok(GpuMemory { total_bytes, free_bytes, ours_bytes, unclaimed_bytes })
    }

    fn take_memory(&self, bytes: u64, purpose: &str) -> Result<DeviceRegion, DeviceError> {
        let rounded = bytes.checked_next_multiple_of(ALIGNMENT_BYTES).unwrap_or(u64::MAX);
        let mut state = self.machine.shared.lock();
        state.check()?;
        let used = self.machine.profile.context_bytes.saturating_add(state.taken_bytes);
        let unclaimed = self.machine.profile.memory_bytes.saturating_sub(used);
        let unclaimed = unclaimed.saturating_sub(self.machine.faults.others_bytes(state.launches));
        let free = self.ceiling_bytes.saturating_sub(used).min(unclaimed);
        let fails = self.machine.faults.fail_memory_request == Some(state.memory_requests);
        state.memory_requests += 1;
        if rounded > free || fails {
            return Err(self.refused(bytes, purpose, if fails { 0 } else { free }));
        }
        let (start, _) = self.machine.memory.add(rounded)?;
        state.taken_bytes += rounded;
        Ok(DeviceRegion { start, bytes })
    }

    fn take_mapped(&self, bytes: u64, _purpose: &str) -> Result<MappedRegion, DeviceError> {
        let (device, region) = self.machine.memory.add(bytes)?;
        Ok(MappedRegion { host: region.as_ptr().cast_mut(), device, bytes })
    }

    fn pin(&self, region: &Arc<HostRegion>) -> Result<(), DeviceError> {
        let machine = &*self.machine;
        let limit =
            machine.faults.refuse_pinning_from_bytes.unwrap_or(u64::MAX).min(machine.profile.pinned_limit_bytes);
        let mut state = machine.shared.lock();
        state.check()?;
        let bytes = region.len() as u64;
        let pinned_bytes = state.pinned_bytes.saturating_add(bytes);
        if pinned_bytes > limit {
            return Err(DeviceError::PinRefused {
                bytes,
                pinned_bytes: state.pinned_bytes,
                reason: "limit".to_owned(),
            });
        }
        state.pinned_bytes = pinned_bytes;
        lock(&self.pinned).push(Arc::clone(region));
        Ok(())
    }

    fn upload(&self, to: DevicePtr, from: &[u8]) -> Result<(), DeviceError> {
        self.machine.shared.lock().check()?;
        self.host_task().write(to, from.len() as u64)?.copy_from_slice(from);
        Ok(())
    }

    fn download(&self, to: &mut [u8], from: DevicePtr) -> Result<(), DeviceError> {
        self.machine.shared.lock().check()?;
        to.copy_from_slice(self.host_task().read(from, to.len() as u64)?);
        Ok(())
    }

    fn new_stream(&self, _kind: StreamKind) -> Result<StreamId, DeviceError> {
        let mut streams = lock(&self.streams);
        let agent = streams.len() + 1;
        if agent >= CARRIER {
            return Err(DeviceError::GpuHandle { kind: "stream", id: agent as u32 });
        }
        streams.push(Stream::start(Arc::clone(&self.machine), agent)?);
        Ok(StreamId(agent as u32 - 1))
    }

    fn new_event(&self) -> Result<EventId, DeviceError> {
        let mut state = self.machine.shared.lock();
        state.events.push(Event::default());
        Ok(EventId(state.events.len() as u32 - 1))
    }

    fn new_flag(&self) -> Result<FlagId, DeviceError> {
        let mut state = self.machine.shared.lock();
        state.flags.push(Flag::default());
        Ok(FlagId(state.flags.len() as u32 - 1))
    }

    fn record(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        if self.is_recorded(stream, || Call::Record(event)) {
            return Ok(());
        }
        self.submit_record(stream, event)
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        if self.is_recorded(stream, || Call::Wait(event)) {
            return Ok(());
        }
        self.submit_wait(stream, event)
    }

    fn event_passed(&self, event: EventId) -> Result<bool, DeviceError> {
        let passed = {
            let mut state = self.machine.shared.lock();
            state.check()?;
            let event = state.event(event)?;
            event.passed(event.last_submitted())
        };
        passed.into_iter().for_each(|moment| self.host_learns(moment));
        Ok(passed.is_some())
    }

    fn elapsed(&self, from: EventId, to: EventId) -> Result<Nanos, DeviceError> {
        let mut state = self.machine.shared.lock();
        let mut time = |id: EventId| {
            let event = state.event(id)?;
            event.passed(event.last_submitted()).map(|m| m.time).ok_or(DeviceError::EventPending { event: id.0 })
        };
        Ok(time(to)?.since(time(from)?))
    }

    fn signal_flag(&self, stream: StreamId, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        self.count_call();
        self.machine.shared.lock().flag(flag)?;
        self.submit(stream, Command::Signal(flag, epoch))
    }

    fn wait_flag(&self, stream: StreamId, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        self.count_call();
        self.machine.shared.lock().flag(flag)?;
        self.submit(stream, Command::WaitFlag(flag, epoch))
    }

    fn host_signal(&self, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        self.machine.shared.lock().flag(flag)?;
        self.host_delay();
        let moment = self.host_moment(self.machine.profile.to_gpu);
        self.machine.shared.update(|state| _ = state.flag(flag).map(|flag| flag.write(epoch, moment)));
        Ok(())
    }

    fn host_sees(&self, flag: FlagId, epoch: Epoch) -> Result<bool, DeviceError> {
        let reached = {
            let mut state = self.machine.shared.lock();
            state.check()?;
            state.flag(flag)?.reached(epoch)
        };
        match reached {
            Some(moment) => self.host_learns(moment),
            None => std::thread::yield_now(), // the streams' threads need the cores that a poll would burn
        }
        Ok(reached.is_some())
    }

    fn copy_to_gpu(&self, stream: StreamId, to: DevicePtr, from: &CopySource) -> Result<(), DeviceError> {
        if self.is_recorded(stream, || Call::Copy(to, from.clone())) {
            return Ok(());
        }
        self.spend_call();
        self.submit_copy(stream, to, from)
    }

    fn launch(&self, stream: StreamId, launch: &Launch) -> Result<(), DeviceError> {
        if self.is_recorded(stream, || Call::Launch(launch.clone())) {
            return Ok(());
        }
        self.spend_call();
        self.submit_launch(stream, launch)
    }

    fn record_graph(
        &self,
        stream: StreamId,
        work: &mut dyn FnMut() -> Result<(), DeviceError>,
    ) -> Result<Option<GraphId>, DeviceError> {
        self.record_calls(stream, work).map(Some)
    }

    fn redirect_copy(
        &self,
        graph: GraphId,
        number: usize,
        to: DevicePtr,
        from: &CopySource,
    ) -> Result<bool, DeviceError> {
        self.redirect(graph, number, (to, from)).map(|()| true)
    }

    fn launch_graph(&self, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        self.repeat_calls(stream, graph)
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        let (sender, done) = channel();
        self.submit(stream, Command::Tell(sender))?;
        done.recv().into_iter().for_each(|moment| self.host_learns(moment));
        self.machine.shared.lock().check()
    }

    fn host_worked(&self, expected: Nanos) {
        let team = *lock(&self.team);
        self.clock.move_to(self.machine.load.end_of_team(team, self.clock.now(), expected));
    }

    fn host_team(&self, active: u32, full: u32) {
        *lock(&self.team) = (active, full);
    }

    fn host_pressure(&self) -> Option<Pressure> {
        let (active, full) = *lock(&self.team);
        let (load, now) = (&self.machine.load, self.clock.now());
        let share = (1.0 - 1.0 / load.crowding((active, full), now)) as f32;
        let contested = if share > 0.0 { active as usize } else { 0 };
        let free_cores = Some((load.cores_left(now) * f64::from(full)) as f32);
        Some(Pressure { worst_share: share, mean_share: share, contested, free_cores })
    }

    fn host_touches(&self, start: DevicePtr, bytes: u64, access: Access) -> Result<(), DeviceError> {
        self.host_task().touch(start, bytes, access)
    }

    fn carrier_sees(&self, flag: FlagId, epoch: Epoch) -> Result<bool, DeviceError> {
        lock(&self.carrier).sees(&self.machine, flag, epoch)
    }

    fn carrier_writes(&self, start: DevicePtr, bytes: u64) -> Result<(), DeviceError> {
        lock(&self.carrier).writes(&self.machine, start, bytes)
    }

    fn carrier_signals(&self, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        lock(&self.carrier).signals(&self.machine, flag, epoch);
        Ok(())
    }

    fn host_delay(&self) {
        lock(&self.host_delays).delay(self.machine.faults.host_delay);
    }
}
