//! CPU and GPU together: which parts of a round run where, in what order, and what moves between them.
//!
//! `ops.rs` is the seam to each kind of GPU. Not here: the CPU's operators (`exec`), ordering rules
//! (`device::timeline`), decisions (the plan). Next: `ops.rs`.

mod memory;
pub mod ops;
