//! What executes operators: the CPU team, CUDA, the simulated GPU, clocks, probes.
//!
//! Invariant: only this crate touches CUDA, the decode team's threads, and the clocks that plans and sensors use. It
//! knows no model and no operator: what runs on it comes in as closures. Open `team.rs` first for the CPU side.

mod affinity;
mod cgroup;
pub mod clock;
pub mod cuda;
mod error;
pub mod evidence;
pub mod gpu;
pub mod machine;
pub mod memory;
pub mod probe;
pub mod sim;
#[cfg(not(loom))]
mod sync;
#[cfg(loom)]
pub mod sync;
mod sysfile;
pub mod team;
pub mod timeline;
pub mod topology;
pub mod trace;

pub use affinity::unpinned;
pub use error::DeviceError;
pub use sysfile::SysRoot;
