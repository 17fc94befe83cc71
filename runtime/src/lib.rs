//! ats-run: maps model and plan, executes the op program, talks.
//!
//! The executor knows operators, not model families; the runtime never decides placement. Next: `engine.rs`.

pub mod cli;
pub mod engine;
mod error;
pub mod exec;
pub mod generation;
pub mod hybrid;
pub mod machine;
pub mod plans;
pub mod quantiles;
pub mod sequence;
pub mod verify;

pub use error::Error;
