//! A discrete-event simulator of rounds under a schedule: the judge of every candidate, and the source of timelines.
//!
//! The rules are those of `plan_format::evaluate`, played here by an event heap that keeps every span, so that a plan
//! can be looked at; a test holds both to the same times. `timeline` is what it returns; `round` asks what a plan does
//! under a load, `what_if` changes the machine.

mod events;
pub mod round;
mod timeline;
mod what_if;

pub use events::{AfterLast, Run, simulate};
pub use timeline::{Lane, Span, Timeline};
pub use what_if::with_link;
