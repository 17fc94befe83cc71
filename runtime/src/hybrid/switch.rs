//! A change of schedules, for people. Not here: deciding it (`adapt.rs`). Next: `conditions.rs`.

use super::conditions::Cause;
use std::fmt;

/// A switch and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Tokens of context when it happened.
    pub context_tokens: u32,
    /// Schedule before.
    pub from: usize,
    /// Schedule after.
    pub to: usize,
    /// What had moved most.
    pub cause: Cause,
    /// Expected times of a round under the measured ratios, before and after.
    pub expected_us: (f64, f64),
    /// Cores that others left to a team of any size; infinite where nothing is known.
    pub free_cores: f64,
    /// What the system said of the machine then; empty if nothing.
    pub evidence: String,
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Switch { context_tokens, from, to, cause, expected_us: (before, after), free_cores, evidence } = self;
        write!(f, "at {context_tokens} tokens: schedule {from} -> {to}, since ")?;
        match cause {
            Cause::Moved(resource, ratio) => {
                let resource = resource.name();
                write!(f, "the {resource} takes {ratio:.2} times as long as planned")?;
            }
            Cause::Cores(free) => write!(f, "{free:.1} cores are left")?,
            Cause::Failed(was, is) => write!(f, "a round took {is:.0} us with it and {was:.0} before")?,
            Cause::Surprise(hoped, is) => write!(f, "a round took {is:.0} us with it instead of {hoped:.0}")?,
            Cause::Context => write!(f, "the context has grown")?,
        }
        write!(f, "; a round should take {after:.0} us instead of {before:.0}")?;
        if free_cores.is_finite() && !matches!(cause, Cause::Cores(_)) {
            write!(f, " with {free_cores:.1} cores left")?;
        }
        if evidence.is_empty() { Ok(()) } else { write!(f, " ({evidence})") }
    }
}
