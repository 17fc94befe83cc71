//! Measuring a machine: what fills a device profile. The only part of this crate with clocks, threads and devices; all
//! that follows from a profile is elsewhere and pure.
//!
//! The CPU is timed with the runtime's own team and kernels, on weights that rotate through memory so that no cache
//! answers. `figures` says what is measured and how long each figure may take, `products`, `attention` and `rows` time
//! operators, `cpu` puts a profile together, `gpu` asks a GPU through its interface. Next: `cpu.rs`.

mod attention;
mod buffer;
mod cpu;
pub mod cuda;
mod figures;
mod gpu;
mod products;
mod rows;

pub(crate) use cpu::memory;
pub use cpu::{add_curves, add_points, machine};
pub use figures::{Needs, Pace, Shape, all_needs, shapes};
pub use gpu::{GpuFigures, probe as probe_gpu, simulated};

use device::DeviceError;
use kernels::KernelError;

/// Why a figure cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// Threads, memory or a GPU.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A shape or type that no kernel takes.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A type that no kernel computes with.
    #[error("no kernel computes with weights of type {0}")]
    UnknownType(String),
    /// A thread that could not be started or died.
    #[error("measuring ended early: {0}")]
    Interrupted(String),
}

/// Told what is being measured, for people who wait: what, and the share of all that is done, 0 to 1.
pub type Watch<'a> = dyn FnMut(&str, f64) + Send + 'a;
