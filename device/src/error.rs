//! The one error type of this crate. Every message says what failed and what to do.

use std::path::PathBuf;

/// What can go wrong in the device layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A closure that ran on the thread team panicked; the team itself goes on.
    #[error("worker {worker} of the thread team panicked: {message}; this is a bug, report it with this message")]
    WorkerPanicked {
        /// The worker's number.
        worker: usize,
        /// The panic's text.
        message: String,
    },
    /// The workers of a round did not all call the same barriers.
    #[error("worker {worker} met a barrier that another worker never reaches; this is a bug in the job, report it")]
    BarrierMismatch {
        /// The worker that noticed.
        worker: usize,
    },
    /// A team of no threads, or of more than the barrier counts.
    #[error("a thread team of {threads} threads is not possible; ask for 1 to {limit}")]
    TeamSize {
        /// What was asked for.
        threads: usize,
        /// The most that works.
        limit: usize,
    },
    /// The operating system refused to start a thread.
    #[error("cannot start thread {index} of the team: {source}; lower the thread count or raise `ulimit -u`")]
    ThreadStart {
        /// The worker's number.
        index: usize,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A system file cannot be read.
    #[error("cannot read {path}: {source}; is /proc or /sys mounted?")]
    SystemFile {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A system file has content this program does not understand.
    #[error("{path} holds `{content}`, expected {expected}; report this with the kernel version")]
    SystemFileContent {
        /// The file.
        path: PathBuf,
        /// What it holds (cut).
        content: String,
        /// What was expected.
        expected: &'static str,
    },
    /// The system refuses host memory.
    #[error("cannot get {bytes} bytes of host memory: {source}; close other programs or plan with a smaller `--ram`")]
    HostMemory {
        /// What was asked for.
        bytes: u64,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A piece of a file that does not fit its buffer or overlaps another.
    #[error("{piece:?} overlaps another, leaves the buffer or names no file; the plan is damaged, compile it again")]
    ReadPiece {
        /// The piece.
        piece: crate::memory::ReadPiece,
    },
    /// A file cannot be read, or ends early.
    #[error("cannot read {bytes} bytes at {offset_bytes} of file {file}: {source}; is the model file complete?")]
    FileRead {
        /// Index into the list of files.
        file: usize,
        /// Where.
        offset_bytes: u64,
        /// How much.
        bytes: u64,
        /// The system's reason.
        source: std::io::Error,
    },
    /// GPU memory is short.
    #[error(
        "{purpose} needs {bytes} bytes of GPU memory, {free_bytes} are left under the ceiling; \
             plan with a smaller `--vram` or close other programs that use the GPU"
    )]
    GpuMemory {
        /// What was asked for.
        bytes: u64,
        /// What for.
        purpose: String,
        /// What is left.
        free_bytes: u64,
    },
    /// Host memory cannot be pinned; the caller may go on with pageable memory.
    #[error(
        "cannot pin {bytes} bytes of host memory beyond {pinned_bytes} ({reason}); weights in it are streamed slowly: \
             plan with a smaller `--ram` budget for pinned memory"
    )]
    PinRefused {
        /// What was asked for.
        bytes: u64,
        /// What is pinned already.
        pinned_bytes: u64,
        /// The driver's reason.
        reason: String,
    },
    /// There is no GPU to use.
    #[error(transparent)]
    GpuAbsent(#[from] crate::cuda::GpuAbsence),
    /// A kernel does not load, or the driver refuses to launch it.
    #[error("kernel `{kernel}` of module `{module}`: {reason}; update the driver, or report it with this message")]
    GpuKernel {
        /// The module.
        module: String,
        /// The kernel; empty when the module itself does not load.
        kernel: String,
        /// The driver's reason.
        reason: String,
    },
    /// An earlier operator or copy failed; nothing on this GPU can be trusted any more.
    #[error("the GPU is lost: {message}; start again, and report it if it comes back")]
    GpuLost {
        /// What failed first.
        message: String,
    },
    /// A handle that this GPU did not give, or one more than it has.
    #[error("the GPU has no {kind} number {id}; this is a bug, report it")]
    GpuHandle {
        /// Stream, event or flag.
        kind: &'static str,
        /// The number.
        id: u32,
    },
    /// An address outside the memory that was taken.
    #[error("{bytes} bytes at GPU address {address:#x} are not in any memory taken; this is a bug, report it")]
    GpuAddress {
        /// First byte.
        address: u64,
        /// Length.
        bytes: u64,
    },
    /// Time asked of an event that has not been passed.
    #[error("event {event} has not been passed yet, so it has no time; this is a bug, report it")]
    EventPending {
        /// The event.
        event: u32,
    },
    /// The simulated GPU found two accesses that no rule orders.
    #[error("race at GPU address {address:#x}: {later} does not wait for {earlier}; this is a bug in the ordering")]
    SimRace {
        /// What was there first.
        earlier: String,
        /// What came without waiting.
        later: String,
        /// First byte of the later access.
        address: u64,
    },
    /// An operator on the simulated GPU asked twice for the same bytes.
    #[error(
        "operator {name} asks twice for the bytes at {address:#x}, once to write; use one view and change it in place"
    )]
    SimAlias {
        /// The operator.
        name: String,
        /// First byte of the second view.
        address: u64,
    },
    /// A failure that was asked for.
    #[error("operator {name} failed as the simulated GPU's faults ask")]
    SimFault {
        /// The operator.
        name: String,
    },
    /// The executor used the timeline in a way that no order could make right.
    #[error("timeline: {what}; this is a bug in the executor, report it")]
    Timeline {
        /// What was wrong.
        what: String,
    },
    /// The GPU does not answer.
    #[error("the GPU has not answered for {seconds} s; it hangs or was reset, look at `dmesg` and start again")]
    GpuSilent {
        /// How long the host waited.
        seconds: u64,
    },
}
