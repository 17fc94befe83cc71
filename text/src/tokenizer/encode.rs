//! The tokenizer as callers see it: text to ids, ids to bytes, and the rules for begin and end of a text.
//!
//! Not here: characters cut by token borders while streaming (`crate::stream`). Next file: [`super::special`].

use std::collections::HashSet;
use std::ops::Range;

use super::bpe::{Bpe, Scratch};
use super::pre::{PreTokenizer, WholePieces};
use super::special::{Fragment, Specials};
use super::spm::Spm;
use super::utf8;
use super::vocab::{ESCAPED_SPACE, RenderSpecial, Spelling, TokenAttributes, Vocab, VocabData};
use super::{FastMap, TokenId, alphabet};
use crate::error::{Result, TextError};

/// Whether BOS and EOS are added where the model says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddSpecial {
    /// Added, whatever the text begins with.
    Yes,
    /// Not added.
    No,
}

/// Whether the texts of control tokens in the text become those tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseSpecial {
    /// They do: right for text that a template wrote.
    Yes,
    /// They are ordinary text: right for everything that a user wrote. User-defined tokens are read all the same.
    No,
}

/// A model's tokenizer. Cheap to share between threads; encoding allocates only its own buffers.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    specials: Specials,
    algorithm: Algorithm,
    adds_bos: bool,
    adds_eos: bool,
    adds_space_prefix: bool,
}

#[derive(Debug)]
enum Algorithm {
    Spm(Spm),
    Bpe { bpe: Bpe, pre: PreTokenizer },
}

/// Values of `tokenizer.ggml.model`.
const MODELS: [&str; 3] = ["llama", "gpt2", "gemma4"];

/// Pieces longer than this are not remembered for the rest of the text.
pub(super) const REMEMBERED_BYTES_MAX: usize = 64;

impl Tokenizer {
    /// The tokenizer of a model file.
    ///
    /// # Errors
    /// Keys are missing, of a wrong shape, or name an algorithm or pre-tokenizer that is not known.
    pub fn from_gguf(model: &gguf::Model) -> Result<Tokenizer> {
        Self::new(&VocabData::from_metadata(model.metadata())?)
    }

    /// The tokenizer of a vocabulary.
    ///
    /// # Errors
    /// As [`Self::from_gguf`].
    pub fn new(data: &VocabData) -> Result<Tokenizer> {
        match data.model.as_str() {
            "llama" => Self::new_spm(data),
            "gpt2" => Self::new_bpe(data, data.pre.as_deref()),
            "gemma4" => Self::new_bpe(data, Some("gemma4")),
            name => Err(TextError::UnknownModel { name: name.into(), known: MODELS.join(", ") }),
        }
    }

    fn new_spm(data: &VocabData) -> Result<Tokenizer> {
        let vocab = Vocab::new(data, Spm::SPELLING)?;
        let spm = Spm::new(data, &vocab)?;
        Ok(Tokenizer {
            specials: Specials::new(&vocab),
            algorithm: Algorithm::Spm(spm),
            adds_bos: data.add_bos.unwrap_or(true) && vocab.roles.bos.is_some(),
            adds_eos: data.add_eos.unwrap_or(false) && vocab.roles.eos.is_some(),
            adds_space_prefix: data.add_space_prefix.unwrap_or(true),
            vocab,
        })
    }

    fn new_bpe(data: &VocabData, pre: Option<&str>) -> Result<Tokenizer> {
        let pre = pre.ok_or_else(|| TextError::MissingKey {
            key: "tokenizer.ggml.pre".into(),
            why: "it says how the text is cut before merging, and a wrong cut silently ruins the output",
        })?;
        if data.merges.is_empty() {
            let key = "tokenizer.ggml.merges".into();
            return Err(TextError::MissingKey { key, why: "byte-pair encoding is nothing without its merges" });
        }
        let pre = PreTokenizer::find(pre)?;
        let spelling = pre.kind.spelling;
        let vocab = Vocab::new(data, spelling)?;
        // Gemma 4 files of some converters say that no BOS is added; without it the model is useless.
        let says_bos = data.add_bos.unwrap_or(pre.kind.adds_bos) || pre.kind.names.contains(&"gemma4");
        Ok(Tokenizer {
            specials: Specials::new(&vocab),
            algorithm: Algorithm::Bpe { bpe: Bpe::new(data, &vocab, spelling), pre },
            adds_bos: says_bos && vocab.roles.bos.is_some(),
            adds_eos: data.add_eos.unwrap_or(false) && vocab.roles.eos.is_some(),
            adds_space_prefix: false,
            vocab,
        })
    }

    /// The ids of `text`, which need not be valid UTF-8.
    ///
    /// With [`AddSpecial::Yes`], BOS is put in front even of a text that begins with it, as the reference does;
    /// [`Self::encode_prompt`] does not.
    pub fn encode(&self, text: impl AsRef<[u8]>, add: AddSpecial, parse: ParseSpecial) -> Vec<TokenId> {
        let mut ids = Vec::new();
        if add == AddSpecial::Yes && self.adds_bos {
            ids.extend(self.vocab.roles.bos);
        }
        let text = text.as_ref();
        self.encode_fragments(text, self.specials.partition(text, parse), &mut ids);
        if add == AddSpecial::Yes && self.adds_eos {
            ids.extend(self.vocab.roles.eos);
        }
        ids
    }

    /// The ids of a raw prompt: with one BOS where the model wants it, whether or not the text has it already.
    /// No EOS is added, since the text is to be continued.
    pub fn encode_prompt(&self, text: impl AsRef<[u8]>, parse: ParseSpecial) -> Vec<TokenId> {
        let ids = self.encode(text, AddSpecial::No, parse);
        match self.vocab.roles.bos {
            Some(bos) if self.adds_bos && ids.first() != Some(&bos) => [vec![bos], ids].concat(),
            _ => ids,
        }
    }

    /// The ids of a text of which a user wrote the ranges `user` (ascending, apart): no token of `markers` is made of
    /// any of that. Nothing is added.
    pub(crate) fn encode_marked(&self, text: &str, user: &[Range<usize>], markers: &Markers) -> Vec<TokenId> {
        let is_user = |range: Range<usize>| {
            let after = user.partition_point(|part| part.end <= range.start);
            user.get(after).is_some_and(|part| part.start < range.end)
        };
        let allowed = |id: TokenId, range: Range<usize>| !self.is_marker(id, markers) || !is_user(range);
        let fragments = self.specials.partition_where(text.as_bytes(), ParseSpecial::Yes, &allowed);
        let mut ids = Vec::new();
        self.encode_fragments(text.as_bytes(), fragments, &mut ids);
        ids
    }

    /// The tokens that give a text of this template its structure, besides all control tokens: user-defined ones of
    /// the shape `<|…|>`, harmony's, the think tags, and other tags that stand in the template's source
    /// (`<tool_response>`). Other user-defined tokens are words, such as white space and HTML in Gemma's vocabulary.
    pub(crate) fn markers_of(&self, template_source: &str) -> Markers {
        let mut markers: HashSet<TokenId> = self.vocab.roles.harmony.iter().copied().collect();
        let user_defined = |set: TokenAttributes| set.meets(TokenAttributes::USER_DEFINED);
        let shaped = self.vocab.iter().filter(|&(_, text, set)| user_defined(set) && is_marker_text(text));
        markers.extend(shaped.map(|(id, _, _)| id));
        for fragment in self.specials.partition(template_source.as_bytes(), ParseSpecial::Yes) {
            if let Fragment::Token(id) = fragment
                && is_tag(self.token_bytes(id, RenderSpecial::Yes))
            {
                markers.insert(id);
            }
        }
        Markers(markers)
    }

    fn is_marker(&self, id: TokenId, markers: &Markers) -> bool {
        let control = TokenAttributes::CONTROL.or(TokenAttributes::UNKNOWN);
        self.attributes(id).meets(control) || markers.0.contains(&id)
    }

    /// The characters with which markers begin or end.
    pub(crate) fn edges_of(&self, markers: &Markers) -> HashSet<char> {
        let texts = self.vocab.iter().filter(|&(id, _, _)| self.is_marker(id, markers));
        texts
            .filter_map(|(_, text, _)| std::str::from_utf8(text).ok())
            .flat_map(|text| [text.chars().next(), text.chars().next_back()])
            .flatten()
            .collect()
    }

    /// Whether a special token, of whatever kind, is in `text`.
    pub(crate) fn has_special(&self, text: &str) -> bool {
        let fragments = self.specials.partition(text.as_bytes(), ParseSpecial::Yes);
        fragments.iter().any(|fragment| matches!(fragment, Fragment::Token(_)))
    }

    fn encode_fragments(&self, text: &[u8], fragments: Vec<Fragment>, ids: &mut Vec<TokenId>) {
        let mut after = AfterSpecial::Yes;
        for fragment in fragments {
            match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    after = AfterSpecial::Yes;
                }
                Fragment::Text(range) => {
                    self.encode_plain(&text[range], after, ids);
                    after = AfterSpecial::No;
                }
            }
        }
    }

    fn encode_plain(&self, text: &[u8], after: AfterSpecial, ids: &mut Vec<TokenId>) {
        match &self.algorithm {
            Algorithm::Spm(spm) if self.adds_space_prefix && after == AfterSpecial::Yes => {
                spm.encode(&self.vocab, &[b" ", text].concat(), ids);
            }
            Algorithm::Spm(spm) => spm.encode(&self.vocab, text, ids),
            Algorithm::Bpe { bpe, pre } if pre.kind.spelling == Spelling::Escaped => {
                let normal = utf8::normalize(text);
                let escaped = normal.text.replace(' ', ESCAPED_SPACE);
                self.encode_pieces(bpe, pre, escaped.as_bytes(), pre.split(&escaped), ids);
            }
            Algorithm::Bpe { bpe, pre } => {
                let normal = utf8::normalize(text);
                self.encode_pieces(bpe, pre, normal.bytes(), pre.split(&normal.text), ids);
            }
        }
    }

    /// Merges the pieces. Words come again and again in a text, so their tokens are looked up in what was written.
    fn encode_pieces(
        &self,
        bpe: &Bpe,
        pre: &PreTokenizer,
        text: &[u8],
        pieces: Vec<Range<usize>>,
        ids: &mut Vec<TokenId>,
    ) {
        let mut scratch = Scratch::default();
        let mut written: FastMap<&[u8], Range<usize>> = FastMap::default();
        for piece in pieces {
            let bytes = &text[piece];
            if let Some(range) = written.get(bytes) {
                ids.extend_from_within(range.clone());
                continue;
            }
            let start = ids.len();
            match self.whole_piece(pre, bytes) {
                Some(id) => ids.push(id),
                None => bpe.encode(bytes, &mut scratch, ids),
            }
            if bytes.len() <= REMEMBERED_BYTES_MAX {
                written.insert(bytes, start..ids.len());
            }
        }
    }

    fn whole_piece(&self, pre: &PreTokenizer, piece: &[u8]) -> Option<TokenId> {
        match pre.kind.whole_pieces {
            WholePieces::Merged => None,
            WholePieces::LookedUp => self.vocab.find(alphabet::encode(piece).as_bytes()),
            WholePieces::LookedUpIfLineEnds if piece.iter().all(|&byte| byte == b'\n') => self.vocab.find(piece),
            WholePieces::LookedUpIfLineEnds => None,
        }
    }

    /// The bytes of `ids` one after the other; the space that encoding put in front of the text is taken off again.
    pub fn decode(&self, ids: &[TokenId], render: RenderSpecial) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (at, &id) in ids.iter().enumerate() {
            let piece = self.token_bytes(id, render);
            let strips = at == 0 && self.adds_space_prefix;
            bytes.extend_from_slice(piece.strip_prefix(b" ").filter(|_| strips).unwrap_or(piece));
        }
        bytes
    }

    /// The bytes that a token stands for: perhaps a part of a character only, nothing for ids past the vocabulary.
    pub fn token_bytes(&self, id: TokenId, render: RenderSpecial) -> &[u8] {
        self.vocab.bytes(id, render)
    }

    /// The properties of a token.
    pub fn attributes(&self, id: TokenId) -> TokenAttributes {
        self.vocab.attributes(id)
    }

    /// The token whose text in the file is `text` (in the file's spelling; for markers that is their plain text).
    pub fn find(&self, text: &str) -> Option<TokenId> {
        self.vocab.find(text.as_bytes())
    }

    /// Number of tokens; a model may have more rows of logits, which are padding.
    pub fn vocab_tokens(&self) -> usize {
        self.vocab.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<TokenId> {
        self.vocab.roles.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<TokenId> {
        self.vocab.roles.eos
    }

    /// The token that ends a turn.
    pub fn eot(&self) -> Option<TokenId> {
        self.vocab.roles.eot
    }

    /// The padding token.
    pub fn padding(&self) -> Option<TokenId> {
        self.vocab.roles.padding
    }

    /// All tokens that end a generation, ascending.
    pub fn end_of_generation(&self) -> &[TokenId] {
        &self.vocab.roles.end_of_generation
    }

    /// Whether `id` ends a generation.
    pub fn is_end_of_generation(&self, id: TokenId) -> bool {
        self.end_of_generation().binary_search(&id).is_ok()
    }

    /// Whether texts begin with BOS.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// Whether texts end with EOS.
    pub fn adds_eos(&self) -> bool {
        self.adds_eos
    }
}

/// Whether a special token, or the start of the text, stands before a part: SPM puts a space there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AfterSpecial {
    Yes,
    No,
}

fn is_tag(text: &[u8]) -> bool {
    matches!(text, [b'<', .., b'>'] | [b'[', .., b']'])
}

/// Texts that are markers in any template: `<|…|>`, with ASCII's bar or the wide one, and the think tags.
fn is_marker_text(text: &[u8]) -> bool {
    let between = |open: &str, close: &str| text.starts_with(open.as_bytes()) && text.ends_with(close.as_bytes());
    between("<|", "|>") || between("<｜", "｜>") || matches!(text, b"<think>" | b"</think>")
}

/// Tokens that only a template's own text may become, besides the control tokens.
#[derive(Clone, Debug)]
pub(crate) struct Markers(HashSet<TokenId>);
