//! What `ats-plan` and `ats-run` share where they meet people and files: failures with exit codes, output that appears
//! whole, progress, command lines, completions and man pages, the user's folders, and the fingerprint of this machine
//! and its GPU code, on which both must agree.
//!
//! It knows no model, no plan and no command. Next: `failure.rs`, `machine.rs`.

pub mod failure;
pub mod folders;
pub mod gpu_code;
pub mod input;
pub mod machine;
pub mod manual;
pub mod output;
pub mod typed;

pub use failure::Failure;
