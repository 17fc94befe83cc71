//! The one error type of this crate. Messages say what is wrong, why, and what to do.

/// Everything that can go wrong between a person and token ids.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The model file's metadata cannot be read as what it should be.
    #[error(transparent)]
    Gguf(#[from] gguf::GgufError),
    /// A metadata key that the tokenizer needs is absent.
    #[error("the model file has no `{key}`: {why}. Convert the model again with a current converter")]
    MissingKey {
        /// The metadata key.
        key: String,
        /// What it is needed for.
        why: &'static str,
    },
    /// A metadata key holds something of another type or shape than its meaning allows.
    #[error("`{key}`: {what}; expected {expected}")]
    BadKey {
        /// The metadata key.
        key: String,
        /// What the file has.
        what: String,
        /// What would be accepted.
        expected: String,
    },
    /// `tokenizer.ggml.model` names an algorithm that is not implemented.
    #[error("unknown tokenizer model `{name}` in `tokenizer.ggml.model`; known are: {known}")]
    UnknownModel {
        /// The value in the file.
        name: String,
        /// The accepted values.
        known: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not in the table.
    #[error(
        "unknown pre-tokenizer `{name}` in `tokenizer.ggml.pre`; a wrong split silently ruins the output, \
         so nothing is guessed. Known are: {known}"
    )]
    UnknownPre {
        /// The value in the file.
        name: String,
        /// The accepted values.
        known: String,
    },
    /// Two tokens of a vocabulary have the same text.
    #[error("tokens {first} and {second} of `tokenizer.ggml.tokens` are both {text:?}; texts must differ")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// Their text.
        text: String,
    },
    /// A special token's id lies beyond the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has only {vocab_tokens} tokens")]
    SpecialOutOfRange {
        /// The metadata key.
        key: String,
        /// The id in the file.
        id: u64,
        /// Number of tokens in the file.
        vocab_tokens: usize,
    },
    /// The model file has no chat template.
    #[error(
        "the model file has no chat template (`tokenizer.chat_template`), so it is not known how it wants a \
         conversation written; use raw text, or name a template"
    )]
    NoTemplate,
    /// A chat template does not compile.
    #[error("the chat template does not compile: {why}")]
    TemplateSyntax {
        /// The engine's message.
        why: String,
    },
    /// A chat template refused the conversation by `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRaised {
        /// The template's own message.
        message: String,
    },
    /// A chat template failed while it ran.
    #[error("the chat template failed: {why}")]
    TemplateFailed {
        /// The engine's message.
        why: String,
    },
    /// It cannot be told which markers in a rendered conversation are the template's own.
    #[error(
        "the chat template takes message text apart in a way that cannot be followed, and the text has characters of \
         the model's markers; it is refused, since message text could become control tokens. Use another template"
    )]
    TemplateUntracked,
    /// An expression of the pre-tokenizer table does not compile: a fault of this crate, found by its tests.
    #[error("pre-tokenizer `{name}`: {why}")]
    BadExpression {
        /// The pre-tokenizer's name.
        name: String,
        /// The compiler's message.
        why: String,
    },
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, TextError>;
