//! Dynamic transfer: which host items a schedule streams to the GPU, through which slots.
//!
//! `paper` is Algorithm 2, `pipelined` the search that lifts its limits and keeps the best of all methods; `task` is
//! the question that both answer, `slots` the memory, `verify` the check of what was found.

pub mod paper;
mod pipelined;
mod slots;
mod task;
mod verify;

pub use pipelined::{Effort, paper as paper_promotions, solve};
pub use slots::{SlotShape, Temporary, is_streamable};
pub use task::{Answer, Method, Task};
pub use verify::{GpuMemory, ScheduleFault, verify_schedule};
