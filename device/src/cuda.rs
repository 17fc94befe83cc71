//! The real GPU: NVIDIA devices through the CUDA driver, opened at run time.
//!
//! The driver library is looked for when [`probe`] is called and never before: the same program runs where none is
//! installed, and says so in one line ([`GpuAbsence`]). [`CudaGpu`] implements [`Gpu`](crate::gpu::Gpu); operators put
//! kernels on a stream through [`CudaTask`]. It knows no operator: PTX comes in by module name, arguments as bytes.
//! Invariants: nothing here waits for the whole device; all memory counts against the ceiling; after the first failed
//! call the GPU is lost and every later call says so. Read `probe.rs` next, then `context.rs`, `gpu.rs`, `module.rs`.

mod context;
mod gpu;
mod graph;
mod management;
mod mapped;
mod module;
mod probe;

pub use context::CudaOptions;
pub use gpu::CudaGpu;
pub use graph::CudaGraph;
pub use management::{driver_name, link_name, memory_free_bytes};
pub use module::{CudaTask, KernelLaunch, ModuleSource};
pub use probe::{CudaDriver, DRIVER_FUNCTIONS, GpuAbsence, GpuModel, probe};
