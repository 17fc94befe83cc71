//! The crate's one error enum. Every variant names what is wrong and where; what to do is added by the binaries, which
//! know the command that makes a fresh plan.

/// What can be wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No bytes.
    #[error("the plan file is empty")]
    Empty,
    /// Other first bytes.
    #[error("this is no plan file: it does not begin with ATSPLAN")]
    Magic,
    /// Written on a machine of the other byte order.
    #[error("the plan was written on a big-endian machine; plans are read little-endian only")]
    ByteOrder,
    /// Another version.
    #[error("the plan has format version {found}; this program reads version {supported}")]
    Version {
        /// In the file.
        found: u32,
        /// Of this program.
        supported: u32,
    },
    /// The header says another length.
    #[error("the plan file has {found_bytes} bytes and should have {stated_bytes}: it was cut or appended to")]
    Truncated {
        /// What the header says, or what a header needs.
        stated_bytes: u64,
        /// What is there.
        found_bytes: u64,
    },
    /// Header or section table.
    #[error("the plan file is damaged: {problem}")]
    Damaged {
        /// What was found.
        problem: String,
    },
    /// A section's bytes.
    #[error("the plan file is damaged: section {section}: its checksum is wrong")]
    Checksum {
        /// The section.
        section: String,
    },
    /// A section that should be there is not, or one that should not is.
    #[error("section {section} {problem}")]
    SectionSet {
        /// The section.
        section: String,
        /// `is missing`, `stands twice`, `is unknown`.
        problem: &'static str,
    },
    /// A section of another version.
    #[error("section {section} has version {found}; this program reads version {supported}")]
    SectionVersion {
        /// The section.
        section: &'static str,
        /// In the file.
        found: u32,
        /// Of this program.
        supported: u32,
    },
    /// A section that does not decode.
    #[error("section {section} cannot be decoded: {problem}")]
    Encoding {
        /// The section.
        section: &'static str,
        /// What was found.
        problem: String,
    },
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
