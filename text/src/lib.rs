//! Between a person and token ids: tokenizers, chat templates, sampling, streaming.
//!
//! What is here needs a model file's metadata and, for sampling, one row of logits; it knows no tensor, device or plan.
//! Start with [`tokenizer`].
//!
//! **Invariant:** nothing here reads a file, a clock or the environment, and no input makes it panic.

pub mod channels;
pub mod error;
#[doc(hidden)]
pub mod oracle;
pub mod sampler;
pub mod stream;
pub mod template;
pub mod tokenizer;

pub use channels::ChannelFormat;
pub use error::TextError;
pub use sampler::{SampleError, Sampled, Sampler, SamplerOptions};
pub use stream::{Delta, EndTokens, Finish, Step, StreamOptions, TextStream};
pub use template::{Builtin, ChatRequest, ChatTemplate, CivilTime, GenerationPrompt};
pub use tokenizer::{AddSpecial, ParseSpecial, RenderSpecial, TokenId, Tokenizer, VocabData};
