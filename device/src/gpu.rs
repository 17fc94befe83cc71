//! The interface that the executor sees of a GPU: memory, streams, events, flags, copies, launches.
//!
//! Two implementations: `cuda/` (the real one) and `sim.rs` (the simulated one). Operators stay outside: a [`GpuOp`] is
//! an opaque object that knows how to put itself on a stream of either. All calls are asynchronous unless they say
//! otherwise; the order between streams is nobody's here: [`Timeline`](crate::timeline::Timeline) owns every rule, and
//! it alone calls the ordering methods. One thread drives a GPU at a time; other threads may only look at flags. Next:
//! `timeline.rs`.
//!
//! Semantics shared by the implementations (those of the CUDA driver):
//! - a stream executes its work in order; different streams are unordered unless events or flags order them;
//! - `wait_event` waits for the last `record` submitted before it; an event never recorded is no wait at all;
//! - a flag holds an epoch that only grows (cyclic 32-bit comparison); `wait_flag` passes once the epoch is reached;
//! - a wait must not be submitted before its producer is submitted, or certain to come;
//! - after a failed operator or copy the GPU is lost: every later call that can fail does, and waits end with the
//!   error.

use std::ops::Range;
use std::sync::Arc;

use crate::DeviceError;
use crate::clock::{Clock, Nanos};
use crate::memory::HostRegion;
use crate::team::Pressure;

/// An address in GPU memory as the GPU sees it. On the simulated GPU not an address of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address `bytes` further on.
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// A stream of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId(pub u32);

/// An event of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId(pub u32);

/// A flag in mapped memory of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlagId(pub u32);

/// A value of a flag. Epochs are compared cyclically, so they never need a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The next one.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether a flag that holds `self` lets a waiter for `wanted` pass: `self − wanted ≥ 0` as signed 32 bits.
    pub fn reaches(self, wanted: Self) -> bool {
        self.0.wrapping_sub(wanted.0) as i32 >= 0
    }
}

/// A recorded sequence of copies and operators of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GraphId(pub u32);

/// What a stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// Operators, and activations moved by kernels.
    Compute,
    /// Weights moved by the copy engine.
    Transfer,
    /// Weights brought into the GPU's order: short kernels that go before operators, since the link waits for them.
    Unpack,
}

/// GPU memory taken for good (until the GPU is dropped).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRegion {
    /// Its first byte.
    pub start: DevicePtr,
    /// Its size.
    pub bytes: u64,
}

/// Host memory that the GPU reads and writes in place (zero copy), taken for good. The CPU side is reached through the
/// pointer; who may touch it when is the [`Timeline`](crate::timeline::Timeline)'s hand-over.
#[derive(Debug, Clone, Copy)]
pub struct MappedRegion {
    /// As the CPU sees it.
    pub host: *mut u8,
    /// As the GPU sees it.
    pub device: DevicePtr,
    /// Its size.
    pub bytes: u64,
}

// SAFETY: a pointer is plain data; dereferencing it is unsafe where it happens.
unsafe impl Send for MappedRegion {}
// SAFETY: as above.
unsafe impl Sync for MappedRegion {}

/// Bytes of a host region, kept alive by whoever holds this.
#[derive(Debug, Clone)]
pub struct HostSpan {
    /// The region; never written while it is shared.
    pub region: Arc<HostRegion>,
    /// Bytes of it.
    pub range: Range<usize>,
}

impl HostSpan {
    /// The bytes; `None` if the range leaves the region.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.region.as_slice().get(self.range.clone())
    }
}

/// What the copy engine reads.
#[derive(Debug, Clone)]
pub enum CopySource {
    /// Weights: memory that nobody writes any more. Asynchronous only if the region is pinned: else the call may wait
    /// until the stream comes to it.
    Span(HostSpan),
    /// The same where nobody pinned it. The [`Timeline`](crate::timeline::Timeline) brings it through pinned memory; no
    /// GPU takes it as it is.
    Pageable(HostSpan),
    /// Mapped memory, for staging: the host must not refill it before the copy is done.
    Mapped {
        /// First byte, as the GPU sees it.
        start: DevicePtr,
        /// Length.
        bytes: u64,
    },
}

/// GPU memory now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuMemory {
    /// All of the GPU's.
    pub total_bytes: u64,
    /// What can still be taken.
    pub free_bytes: u64,
    /// What this process has taken, context included, as far as the driver tells.
    pub ours_bytes: u64,
    /// What nobody has, whatever this process is allowed.
    pub unclaimed_bytes: u64,
}

/// Who a GPU is, for fingerprints and people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuDescription {
    /// `NVIDIA H200`, `sim:rtx3060-laptop`.
    pub name: String,
    /// Compute capability, major and minor; (0, 0) for a simulated one.
    pub capability: (u32, u32),
    /// Driver version as the driver numbers it (12080 = 12.8); 0 for a simulated one.
    pub driver: u32,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Streaming multiprocessors; 0 for a simulated one.
    pub multiprocessors: u32,
}

/// Numbers that change from launch to launch; what they mean is the operator's. Everything else about an operator is
/// fixed when it is built, so that launches can be recorded once and replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaunchArgs {
    /// Tokens of the round.
    pub tokens: u32,
    /// Further numbers.
    pub extra: [u32; 3],
}

/// An operator that can be put on a stream.
pub trait GpuOp: Send + Sync {
    /// For traces and errors.
    fn name(&self) -> &str;

    /// Puts the operator's kernels on the stream (CUDA), or computes its result (simulated: called by the stream's
    /// thread when its turn has come).
    fn run(&self, target: GpuTarget<'_>, args: LaunchArgs) -> Result<(), DeviceError>;

    /// Whether [`GpuOp::settle`] has something to do. Cheap: asked after every round.
    fn is_unsettled(&self) -> bool {
        false
    }

    /// Called between rounds, when no stream waits for the host: the place for what a driver may do only once the
    /// device is idle. Instantiating a graph behind a stream that waits for the host waits for ever.
    fn settle(&self, _target: GpuTarget<'_>) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Where an operator runs.
#[non_exhaustive]
pub enum GpuTarget<'a> {
    /// The simulated GPU's memory, as the stream may see it now.
    Simulated(&'a crate::sim::SimTask<'a>),
    /// A stream of a CUDA device, to put kernels on.
    Cuda(&'a crate::cuda::CudaTask<'a>),
    /// Whoever takes CUDA kernels one by one: an emulator of the kernels.
    Kernels(&'a dyn KernelQueue),
}

/// Runs or enqueues CUDA kernels in order.
pub trait KernelQueue {
    /// Takes one launch. Errors: an unknown kernel.
    fn launch(&self, launch: &crate::cuda::KernelLaunch<'_>) -> Result<(), DeviceError>;
}

/// One launch.
#[derive(Clone)]
pub struct Launch {
    /// What runs.
    pub op: Arc<dyn GpuOp>,
    /// With which numbers.
    pub args: LaunchArgs,
    /// How long the plan thinks it takes; the simulated GPU takes exactly that (times its slowdown).
    pub expected: Nanos,
}

/// What a host access does; only the simulated GPU looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// A GPU; see the module text. Every method errors when the GPU is lost or a handle is not of this GPU.
pub trait Gpu: Send + Sync {
    /// Who it is.
    fn description(&self) -> &GpuDescription;

    /// The clock of this machine: wall time, or the virtual one.
    fn clock(&self) -> Clock;

    /// Its memory now.
    fn memory(&self) -> Result<GpuMemory, DeviceError>;

    /// Takes memory for `purpose` (named in errors), 256-byte aligned, content undefined.
    /// Errors: more than is free or than the ceiling allows.
    fn take_memory(&self, bytes: u64, purpose: &str) -> Result<DeviceRegion, DeviceError>;

    /// Takes zeroed host memory that both sides reach.
    fn take_mapped(&self, bytes: u64, purpose: &str) -> Result<MappedRegion, DeviceError>;

    /// Pins a region so that the copy engine reads it at full speed. The GPU keeps it alive.
    /// Errors: the driver refuses; the caller falls back to a pageable region and says so.
    fn pin(&self, region: &Arc<HostRegion>) -> Result<(), DeviceError>;

    /// Copies to the GPU and waits for the end; for loading, not inside a round.
    fn upload(&self, to: DevicePtr, from: &[u8]) -> Result<(), DeviceError>;

    /// Copies from the GPU and waits for the end; for tests and loading.
    fn download(&self, to: &mut [u8], from: DevicePtr) -> Result<(), DeviceError>;

    /// Makes a stream.
    fn new_stream(&self, kind: StreamKind) -> Result<StreamId, DeviceError>;

    /// Makes an event.
    fn new_event(&self) -> Result<EventId, DeviceError>;

    /// Makes a flag that holds epoch 0.
    fn new_flag(&self) -> Result<FlagId, DeviceError>;

    /// Records the event after all that is on the stream.
    fn record(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError>;

    /// Makes the stream wait for the event's last record.
    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError>;

    /// Whether the event's last record has been passed (true for one never recorded).
    fn event_passed(&self, event: EventId) -> Result<bool, DeviceError>;

    /// Time between two recorded and passed events: the GPU's own measure.
    fn elapsed(&self, from: EventId, to: EventId) -> Result<Nanos, DeviceError>;

    /// Makes the stream write the flag after all that is on it, its writes visible to the host before.
    fn signal_flag(&self, stream: StreamId, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError>;

    /// Makes the stream wait until the flag reaches the epoch.
    fn wait_flag(&self, stream: StreamId, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError>;

    /// The host writes the flag; its earlier writes to mapped memory are visible to whoever passes.
    fn host_signal(&self, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError>;

    /// Whether the flag has reached the epoch; if so, the signaller's writes are visible to the host. Cheap: for
    /// polling.
    fn host_sees(&self, flag: FlagId, epoch: Epoch) -> Result<bool, DeviceError>;

    /// Copies from the host to the GPU by the copy engine. Errors: a pageable source.
    fn copy_to_gpu(&self, stream: StreamId, to: DevicePtr, from: &CopySource) -> Result<(), DeviceError>;

    /// Puts an operator on the stream.
    fn launch(&self, stream: StreamId, launch: &Launch) -> Result<(), DeviceError>;

    /// Records what `work` puts on `stream`, and on streams that it lets follow by events and joins again, instead of
    /// doing it: [`Gpu::launch_graph`] does it by one call. Events of the work serve no other purpose, and it waits for
    /// nothing outside itself; its operators have run before. `None` = this GPU records nothing, `work` was not called.
    /// Between rounds only: no stream may wait for the host.
    fn record_graph(
        &self,
        _stream: StreamId,
        _work: &mut dyn FnMut() -> Result<(), DeviceError>,
    ) -> Result<Option<GraphId>, DeviceError> {
        Ok(None)
    }

    /// The recorded copy with this number (in the order of recording) reads `from` from the next launch on; its target
    /// `to` and its length stay. `false` = the driver refuses. Errors: no such copy.
    fn redirect_copy(
        &self,
        graph: GraphId,
        _number: usize,
        _to: DevicePtr,
        _from: &CopySource,
    ) -> Result<bool, DeviceError> {
        Err(DeviceError::GpuHandle { kind: "graph", id: graph.0 })
    }

    /// Puts a recorded sequence on a stream: it begins after all that is there, and what comes later waits for its end.
    fn launch_graph(&self, _stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        Err(DeviceError::GpuHandle { kind: "graph", id: graph.0 })
    }

    /// Lets an operator do its work between rounds on a stream that waits for nobody.
    fn settle(&self, _stream: StreamId, _op: &dyn GpuOp) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Waits until the stream is empty. Not inside a round.
    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError>;

    /// The host worked: the simulated machine's clock moves by `expected` times the CPU's slowdown. Elsewhere nothing.
    fn host_worked(&self, _expected: Nanos) {}

    /// The host works with so many threads of a full team from now on: only the simulated machine must be told.
    fn host_team(&self, _active: u32, _full: u32) {}

    /// What others take of the team's cores on a simulated machine; `None` where the team itself knows.
    fn host_pressure(&self) -> Option<Pressure> {
        None
    }

    /// The host touches mapped memory now: the simulated GPU checks that nothing else does. Elsewhere nothing.
    fn host_touches(&self, _start: DevicePtr, _bytes: u64, _access: Access) -> Result<(), DeviceError> {
        Ok(())
    }

    /// [`Gpu::host_sees`] for the thread that brings pageable memory, which is another agent than the host.
    fn carrier_sees(&self, flag: FlagId, epoch: Epoch) -> Result<bool, DeviceError> {
        self.host_sees(flag, epoch)
    }

    /// [`Gpu::host_signal`] for that thread.
    fn carrier_signals(&self, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        self.host_signal(flag, epoch)
    }

    /// That thread writes pageable bytes to mapped memory now: the simulated GPU checks it and knows how long it takes.
    fn carrier_writes(&self, _start: DevicePtr, _bytes: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Seeded real delay before CPU work, where the simulated GPU's faults ask for it. Elsewhere nothing.
    fn host_delay(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_compare_cyclically() {
        let cases = [(0, 0, true), (1, 0, true), (0, 1, false), (0, u32::MAX, true), (u32::MAX, 0, false)];
        for (held, wanted, passes) in cases {
            assert_eq!(Epoch(held).reaches(Epoch(wanted)), passes, "{held} {wanted}");
        }
        assert_eq!(Epoch(u32::MAX).next(), Epoch(0));
    }
}
