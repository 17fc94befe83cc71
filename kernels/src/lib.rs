//! The operators' mathematics: scalar oracles, SIMD for x86-64, one operator table.
//!
//! Pure: no clock, file, thread, environment or device state lives here; callers pass memory in and own
//! the threads. Not here: who runs what on which thread (crate `device`), what a model is (crate `planner`).
//! Read `quant/mod.rs` (what the weight bytes mean) first, then `cpu/mod.rs` (operators on the CPU).

pub mod arch;
pub mod cases;
pub mod cpu;
pub mod cuda;
mod error;
pub mod quant;
#[cfg(test)]
mod reference;

pub use error::KernelError;
