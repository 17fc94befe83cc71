//! The vocabulary: texts, scores and types of the tokens, and the bytes that each stands for.
//!
//! [`VocabData`] is what a file says; `Vocab` is that after checks, with the types corrected by [`super::roles`].
//! Not here: splitting and merging. Next file: [`super::roles`].

use super::roles::{self, Roles, SpecialIds};
use super::{FastMap, TokenId, alphabet};
use crate::error::{Result, TextError};

/// The tokenizer part of a GGUF file's metadata, decoded but not yet checked.
#[derive(Clone, Debug, Default)]
pub struct VocabData {
    /// `tokenizer.ggml.model`: `llama` (SPM), `gpt2` (BPE), `gemma4` (BPE over characters).
    pub model: String,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: texts, in the byte-level alphabet for BPE, with U+2581 for the space for SPM.
    pub tokens: Vec<Vec<u8>>,
    /// `tokenizer.ggml.token_type`; empty if absent (then all are normal).
    pub types: Vec<i32>,
    /// `tokenizer.ggml.scores`; empty if absent.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.merges`: pairs of texts with a space between, best first; empty if absent.
    pub merges: Vec<Vec<u8>>,
    /// The special ids that the file states.
    pub special: SpecialIds,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `general.name`; of use only because Phi-3 files say nowhere else that white space follows special tokens.
    pub model_name: Option<String>,
}

/// The properties of one token, a set of the constants below (with llama.cpp's values).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TokenAttributes(pub u16);

impl TokenAttributes {
    /// Stands for text that is no token.
    pub const UNKNOWN: Self = Self(1);
    /// A place holder.
    pub const UNUSED: Self = Self(2);
    /// Ordinary text.
    pub const NORMAL: Self = Self(4);
    /// A marker: read only where the caller says so, rendered as nothing by default.
    pub const CONTROL: Self = Self(8);
    /// A marker or word that is always read and always rendered.
    pub const USER_DEFINED: Self = Self(16);
    /// One byte (`<0x0A>`), for text that is no token.
    pub const BYTE: Self = Self(32);
    /// White space after the marker belongs to it.
    pub const STRIPS_RIGHT: Self = Self(256);

    /// The meaning of a number in `tokenizer.ggml.token_type`; unknown ones are no property at all.
    fn from_file(number: i32) -> Self {
        match number {
            1 => Self::NORMAL,
            2 => Self::UNKNOWN,
            3 => Self::CONTROL,
            4 => Self::USER_DEFINED,
            5 => Self::UNUSED,
            6 => Self::BYTE,
            _ => Self(0),
        }
    }

    /// The union of two sets.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without the members of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the two sets have a member in common.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Whether markers are shown when tokens are turned into text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenderSpecial {
    /// Control and unknown tokens as their text.
    Yes,
    /// Control and unknown tokens as nothing.
    No,
}

/// How token texts are written in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spelling {
    /// In the 256 characters of the byte-level alphabet.
    ByteLevel,
    /// As they are, but U+2581 for the space.
    Escaped,
}

/// U+2581, which stands for the space in SPM vocabularies.
pub const ESCAPED_SPACE: &str = "\u{2581}";

/// Checked vocabulary. Token ids are indices into all of its lists.
#[derive(Debug)]
pub struct Vocab {
    texts: Vec<Vec<u8>>,
    attributes: Vec<TokenAttributes>,
    pieces: Pieces,
    by_text: FastMap<Box<[u8]>, u32>,
    pub(super) roles: Roles,
}

impl Vocab {
    /// Checks `data` and works out types, roles and rendered bytes.
    pub(super) fn new(data: &VocabData, spelling: Spelling) -> Result<Vocab> {
        let texts: Vec<Vec<u8>> = data.tokens.iter().enumerate().map(named_if_empty).collect();
        if texts.is_empty() || u32::try_from(texts.len()).is_err() {
            return Err(TextError::BadKey {
                key: "tokenizer.ggml.tokens".into(),
                what: format!("{} tokens", texts.len()),
                expected: "between 1 and 2^32 - 1".into(),
            });
        }
        let by_text = index_texts(&texts)?;
        let mut attributes = attributes_of(data)?;
        let roles = roles::assign(data, &by_text, &texts, &mut attributes)?;
        let mut pieces = Pieces::default();
        for (text, &set) in texts.iter().zip(&attributes) {
            pieces.push(text, set, spelling);
        }
        roles::strip_white_space(data, &by_text, &mut attributes);
        Ok(Vocab { texts, attributes, pieces, by_text, roles })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// The token of this spelling.
    pub fn find(&self, text: &[u8]) -> Option<TokenId> {
        self.by_text.get(text).map(|&id| TokenId(id))
    }

    /// Properties; the empty set past the end.
    pub fn attributes(&self, id: TokenId) -> TokenAttributes {
        self.attributes.get(id.index()).copied().unwrap_or_default()
    }

    /// The bytes a token stands for; nothing past the end.
    pub fn bytes(&self, id: TokenId, render: RenderSpecial) -> &[u8] {
        let hidden = TokenAttributes::CONTROL.or(TokenAttributes::UNKNOWN);
        if render == RenderSpecial::No && self.attributes(id).meets(hidden) {
            return &[];
        }
        self.pieces.get(id.index())
    }

    /// The tokens that `byte` is written as when no token has it: `<0xNN>`, else the byte as a text of its own.
    pub fn byte_token(&self, byte: u8) -> Option<TokenId> {
        self.find(format!("<0x{byte:02X}>").as_bytes()).or_else(|| self.find(&[byte]))
    }

    /// All ids in order with texts and properties.
    pub fn iter(&self) -> impl Iterator<Item = (TokenId, &[u8], TokenAttributes)> {
        let ids = (0u32..).map(TokenId);
        ids.zip(&self.texts).zip(&self.attributes).map(|((id, text), &set)| (id, text.as_slice(), set))
    }
}

/// An empty text cannot be told from another; the reference names it so.
fn named_if_empty((id, text): (usize, &Vec<u8>)) -> Vec<u8> {
    if text.is_empty() { format!("[EMPTY_{id}]").into_bytes() } else { text.clone() }
}

fn index_texts(texts: &[Vec<u8>]) -> Result<FastMap<Box<[u8]>, u32>> {
    let mut by_text = FastMap::with_capacity_and_hasher(texts.len(), Default::default());
    for (id, text) in (0u32..).zip(texts) {
        if let Some(first) = by_text.insert(text.clone().into_boxed_slice(), id) {
            let text = String::from_utf8_lossy(text).into_owned();
            return Err(TextError::DuplicateToken { first, second: id, text });
        }
    }
    Ok(by_text)
}

fn attributes_of(data: &VocabData) -> Result<Vec<TokenAttributes>> {
    if data.types.is_empty() {
        return Ok(vec![TokenAttributes::NORMAL; data.tokens.len()]);
    }
    if data.types.len() < data.tokens.len() {
        return Err(TextError::BadKey {
            key: "tokenizer.ggml.token_type".into(),
            what: format!("{} entries", data.types.len()),
            expected: format!("one for each of the {} tokens", data.tokens.len()),
        });
    }
    Ok(data.types[..data.tokens.len()].iter().map(|&number| TokenAttributes::from_file(number)).collect())
}

/// The rendered bytes of all tokens, one after the other.
#[derive(Debug, Default)]
struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    fn push(&mut self, text: &[u8], attributes: TokenAttributes, spelling: Spelling) {
        let literal = TokenAttributes::UNKNOWN.or(TokenAttributes::CONTROL).or(TokenAttributes::USER_DEFINED);
        if attributes.meets(literal) {
            self.bytes.extend_from_slice(text);
        } else if attributes.meets(TokenAttributes::NORMAL) {
            match (spelling, std::str::from_utf8(text)) {
                (Spelling::ByteLevel, Ok(text)) => alphabet::decode(text, &mut self.bytes),
                (Spelling::Escaped, Ok(text)) => {
                    self.bytes.extend_from_slice(text.replace(ESCAPED_SPACE, " ").as_bytes());
                }
                (_, Err(_)) => self.bytes.extend_from_slice(text),
            }
        } else if attributes.meets(TokenAttributes::BYTE) {
            match byte_of_text(text) {
                Some(byte) => self.bytes.push(byte),
                None => self.bytes.extend_from_slice(text),
            }
        }
        self.ends.push(self.bytes.len());
    }

    fn get(&self, index: usize) -> &[u8] {
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        &self.bytes[start..end]
    }
}

/// The byte that `<0xNN>` names.
fn byte_of_text(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}
