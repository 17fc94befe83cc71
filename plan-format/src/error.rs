//! The crate's one error enum. Every variant names what is wrong and where; what to do is added by the binaries, which
//! know the command that makes a fresh plan.

/// What can be wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An invariant of a section does not hold.
    #[error("section {section}, {field}: {problem}")]
    Invalid {
        /// Section of the artifact.
        section: &'static str,
        /// Field in it, as a path: `ops[12] (mat_mul)`.
        field: String,
        /// What was found and what would be right.
        problem: String,
    },
}

/// Shorthand of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
