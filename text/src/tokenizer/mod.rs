//! Text to token ids and back, from the vocabulary arrays of a GGUF file.
//!
//! The order of work for one text: [`special`] cuts out special tokens; what is left goes through [`spm`] as it is, or
//! through [`pre`] (split) and [`bpe`] (merge). [`vocab`] holds the tokens with their types, [`roles`] finds the tokens
//! that begin and end texts. Behaviour is llama.cpp's (b11434), on which all the reference ids in the tests were made.
//! Where it would abort (a byte that the vocabulary lacks, code points past U+10FFFF) this one goes on, see `utf8`.
//!
//! Not here: the chat template, which decides what text there is to tokenise. Next file: [`vocab`].

mod alphabet;
mod bpe;
mod class;
mod encode;
mod metadata;
mod pre;
mod roles;
mod special;
mod spm;
mod utf8;
mod vocab;

pub(crate) use encode::Markers;
pub use encode::{AddSpecial, ParseSpecial, Tokenizer};
pub use pre::known_names as known_pre_tokenizers;
pub use roles::SpecialIds;
pub use vocab::{RenderSpecial, TokenAttributes, VocabData};

/// A map for look-ups only; its order is never used.
type FastMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// Index of a token in the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct TokenId(pub u32);

impl TokenId {
    /// The id as an index into rows of logits or embeddings.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for TokenId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(out)
    }
}
