//! ats-plan: lowering, profile, placement, transfer schedules, simulation, reports.
//!
//! The core is pure: a profile and a program in, a plan out; same input, same bytes out, on any number of threads.

pub mod arch;
pub mod cli;
pub mod compile;
pub mod cost;
pub mod graph;
pub mod measure;
pub mod place;
pub mod profile;
pub mod regime;
pub mod report;
pub mod simulate;
pub mod transfer;

pub use arch::lower_model;
pub use compile::plan_model;
