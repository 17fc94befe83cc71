//! Measuring a machine: what fills a device profile. The only part of this crate with clocks, threads and devices; all
//! that follows from a profile is elsewhere and pure.
//!
//! The CPU is timed with the runtime's own team and kernels, on weights that rotate through memory so that no cache
//! answers. `figures` says what is measured and how long each figure may take, `settle` takes figures until others'
//! work shows in none of them, `products`, `attention` and `rows` time operators, `cpu` puts a profile together, `gpu`
//! asks a GPU through its interface. Next: `cpu.rs`.

mod attention;
mod buffer;
mod cpu;
pub mod cuda;
mod doubt;
mod figures;
mod gpu;
mod lab;
mod products;
mod rows;
mod settle;

pub(crate) use cpu::memory;
pub use cpu::{DISTURBANCE, add_curves, add_points, machine};
pub use figures::{Needs, Pace, Shape, all_needs, shapes, unmeasured};
pub use gpu::{GpuFigures, probe as probe_gpu, simulated};
pub use settle::AGAIN;

use device::DeviceError;
use device::probe::Timing;
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
    /// A figure that is larger than the GPU memory that is free.
    #[error("a figure needs {needed_mib} MiB of GPU memory, {free_mib} are free")]
    NoRoom {
        /// What it needs.
        needed_mib: u64,
        /// What there is.
        free_mib: u64,
    },
    /// A thread that could not be started or died.
    #[error("measuring ended early: {0}")]
    Interrupted(String),
}

/// Told what is being measured, for people who wait: what, and the share of all that is done, 0 to 1.
pub type Watch<'a> = dyn FnMut(&str, f64) + Send + 'a;

/// Spread of a figure's rounds above which others must have had the cores in some of them.
const DISTURBED: f64 = 1.3;

/// What a round takes: the median, or where rounds differ much the least disturbed tenth, since a profile is that of
/// the machine without load. Loads are what a plan's regimes are for.
fn steady_us(timing: &Timing) -> f64 {
    if timing.high_us > DISTURBED * timing.low_us { timing.low_us } else { timing.median_us }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_figure_is_its_calm_rounds() {
        let timing = |samples: &[f64]| Timing::of(samples.to_vec()).unwrap();
        assert_eq!(steady_us(&timing(&[10.0, 10.0, 11.0, 11.0, 12.0])), 11.0);
        assert_eq!(steady_us(&timing(&[10.0, 10.0, 50.0, 90.0, 90.0])), 10.0);
    }
}
