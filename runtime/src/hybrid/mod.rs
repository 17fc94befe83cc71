//! CPU and GPU together: which parts of a round run where, in what order, and what moves between them.
//!
//! At load `memory.rs` takes GPU memory, `script.rs` turns each schedule into CPU parts and a GPU queue, `bound.rs`
//! makes the operators through the kind of GPU at hand (`ops.rs`, `sim.rs`, `cuda/`). In a round `driver.rs` queues and
//! hands over; between rounds `adapt.rs` chooses the schedule.
//! Not here: the CPU's operators (`exec`), ordering rules (`device::timeline`), decisions (the plan). Next: `ops.rs`.

pub mod adapt;
pub(crate) mod bound;
pub(crate) mod build;
pub(crate) mod choose;
mod conditions;
mod crossings;
pub mod cuda;
pub(crate) mod driver;
pub(crate) mod fills;
pub(crate) mod held;
pub(crate) mod inputs;
pub(crate) mod marks;
pub(crate) mod memory;
pub mod ops;
mod probe;
pub(crate) mod routed;
mod script;
pub(crate) mod select;
mod sense;
mod shrink;
pub mod sim;
mod staging;
pub(crate) mod states;
mod switch;
mod tries;

pub use build::GpuSide;
pub use driver::HandOver;
pub use marks::Timing;
