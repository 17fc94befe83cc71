//! The verifier: every invariant of an artifact, checked when a plan is written and again when it is mapped.
//!
//! It trusts nothing: all indices and sums are checked before use, and every refusal names section and field. It says
//! nothing of whether a plan is good. One file per group of invariants, each listing its own: `program.rs` (tables,
//! items, single assignment), `divided.rs` (experts in several places), `shapes.rs` (operators against their operands),
//! `plan.rs` (everything around the program), `held.rs` (what is held between prompts).

mod divided;
mod held;
mod plan;
mod program;
mod shapes;

pub use plan::{MAX_THREADS, SLOT_ALIGNMENT_BYTES, verify_plan};
pub use program::{MAX_COLS, MAX_GROUPS, verify_program};

use crate::error::Error;

/// What is wrong with one field; the caller knows which.
pub(super) type Problem = String;

/// Fails with a formatted [`Problem`] unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
use ensure;

/// Names the place of a problem.
fn invalid(section: &'static str, field: String, problem: Problem) -> Error {
    Error::Invalid { section, field, problem }
}
