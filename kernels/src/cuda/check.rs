//! The case tables on any machine that can run launches: a GPU, or the emulator of the tests.
//!
//! [`check_products`], [`check_operators`] and [`check_rest`] compare with the oracles; errors name the case. Nothing
//! is timed here. `device/examples/cuda_check.rs` runs it on a GPU, `tests/cuda_emulated.rs` on a CPU.

mod depth;
mod fused;
mod operators;
mod products;
mod rest;

use super::product::Chip;
use super::{DevicePtr, Launch, View};

pub use operators::check_operators;
pub use products::check_products;
pub use rest::check_rest;

/// Largest normalised mean squared error of a tensor-core product (two-byte activations and decoded weights).
pub const TENSOR_CORE_NMSE_MAX: f64 = 2e-5;
/// Relative error of attention with F16 queries, weights and cache.
pub const HALF_ATTENTION: f64 = 5e-3;

/// Device memory and launches. Errors are texts for people.
pub trait Machine {
    /// Name for failures.
    fn name(&self) -> String;
    /// Whose matrix kernels it runs.
    fn chips(&self) -> Vec<Chip>;
    /// Memory of any content, 16-byte aligned.
    ///
    /// # Errors
    /// No memory.
    fn alloc(&mut self, bytes: usize) -> Result<DevicePtr, String>;
    /// Host to device.
    ///
    /// # Errors
    /// A failed copy.
    fn write(&mut self, to: DevicePtr, bytes: &[u8]) -> Result<(), String>;
    /// Device to host, after all launches.
    ///
    /// # Errors
    /// A failed copy or an earlier failed launch.
    fn read(&mut self, from: DevicePtr, bytes: &mut [u8]) -> Result<(), String>;
    /// Runs or enqueues a launch.
    ///
    /// # Errors
    /// An unknown kernel or a refused launch.
    fn launch(&mut self, launch: &Launch) -> Result<(), String>;
    /// Frees all memory.
    ///
    /// # Errors
    /// An earlier failed launch.
    fn clear(&mut self) -> Result<(), String>;
}

/// Typed transfers on a machine.
struct Bench<'m> {
    machine: &'m mut dyn Machine,
}

impl Bench<'_> {
    fn put<T: bytemuck::Pod>(&mut self, values: &[T]) -> Result<DevicePtr, String> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let at = self.machine.alloc(bytes.len().max(16))?;
        self.machine.write(at, bytes)?;
        Ok(at)
    }

    /// A matrix with rows of `cols`.
    fn put_rows(&mut self, values: &[f32], cols: usize) -> Result<View, String> {
        Ok(View { data: self.put(values)?, stride: cols as u32, cols: cols as u32 })
    }

    /// Memory in which every byte is 0xff: NaN as a float, so that what is not written shows.
    fn room(&mut self, bytes: usize) -> Result<DevicePtr, String> {
        self.put(&vec![0xffu8; bytes])
    }

    fn room_rows(&mut self, rows: usize, cols: usize) -> Result<View, String> {
        Ok(View { data: self.room(rows * cols * 4)?, stride: cols as u32, cols: cols as u32 })
    }

    fn get<T: bytemuck::Pod>(&mut self, from: DevicePtr, count: usize) -> Result<Vec<T>, String> {
        let mut values = vec![T::zeroed(); count];
        self.machine.read(from, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    fn run(&mut self, launches: impl IntoIterator<Item = Launch>) -> Result<(), String> {
        launches.into_iter().filter(|launch| !launch.is_empty()).try_for_each(|launch| self.machine.launch(&launch))
    }
}

/// `Ok` if the error is a number and small enough.
fn judge(what: &str, error: f64, allowed: f64) -> Result<(), String> {
    if error <= allowed { Ok(()) } else { Err(format!("{what}: error {error:e}, allowed {allowed:e}")) }
}

/// Euclidean norm of the difference over that of what is wanted; NaN if lengths differ.
fn relative_norm(got: &[f32], want: &[f64]) -> f64 {
    if got.len() != want.len() {
        return f64::NAN;
    }
    let difference: f64 = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum();
    let power: f64 = want.iter().map(|w| w * w).sum();
    (difference / power.max(f64::MIN_POSITIVE)).sqrt()
}
