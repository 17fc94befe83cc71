//! Between a person and token ids: tokenizers, chat templates, sampling, streaming.
//!
//! What is here needs a model file's metadata and, for sampling, one row of logits; it knows no tensor, device or plan.
//! Start with [`tokenizer`].
//!
//! **Invariant:** nothing here reads a file, a clock or the environment, and no input makes it panic.

pub mod error;
pub mod tokenizer;

pub use error::TextError;
pub use tokenizer::{AddSpecial, ParseSpecial, RenderSpecial, TokenId, Tokenizer, VocabData};
