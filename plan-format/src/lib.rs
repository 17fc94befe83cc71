//! The plan artifact, shared by both binaries: the op program, placement, transfer schedules, the regime map, and the
//! container that holds them.
//!
//! This crate does no I/O beyond bytes: it neither opens files nor reads clocks. It knows operators, not families.
//! Start with [`program`], then [`schedule`], then [`artifact`] (everything one file holds), [`sections`] (its bytes)
//! and [`verify`].

pub mod arena;
pub mod artifact;
pub mod container;
pub mod costs;
pub mod error;
pub mod evaluate;
pub mod find;
pub mod fingerprint;
pub mod ids;
pub mod operands;
pub mod oracle;
pub mod program;
pub mod routing;
pub mod schedule;
pub mod sections;
pub mod sizes;
pub mod text;
pub mod verify;
pub mod workload;

pub use error::{Error, Result};
pub use ids::*;
