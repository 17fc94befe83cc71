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
}
