//! ats-run: maps model and plan, executes the op program, talks.
//!
//! The executor knows operators, not model families; the runtime never decides placement. Next: `exec/mod.rs`.

mod error;
pub mod exec;

pub use error::Error;
