//! Models that say what a script says: each token has one successor, whatever came before. So tests of what lies
//! between the logits and a person know every answer.
//!
//! The model is a `llama` of one layer that adds nothing: embeddings are unit vectors, one per token, and row `next` of
//! the head looks at the unit vector of `token`. Not here: models that compute (`fixtures`).

use gguf::GgmlType;
use gguf::write::{FileSpec, MetaValue};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// A token by what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// A word: read wherever it stands in a text, and shown.
    Word(&'a str),
    /// A marker: read where a template or a raw prompt has it, and not shown.
    Control(&'a str),
    /// A few bytes, perhaps a part of a character.
    Bytes(&'a [u8]),
}

/// What a model says, and what its file says of it.
#[derive(Clone, Debug, Default)]
pub struct Script {
    tokens: Vec<(String, i32)>,
    next: BTreeMap<usize, usize>,
    keys: Vec<(String, MetaValue)>,
}

/// Hidden size: the vocabulary must not be larger.
const HIDDEN: usize = 320;
const HEADS: u32 = 5;
const FEED_FORWARD: usize = 32;
/// Factor of the head; with the norm's square root of [`HIDDEN`] a successor's logit is about 18, all others are 0.
const HEAD_FACTOR: f32 = 1.0;
const EPSILON: f32 = 1e-5;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

impl Script {
    /// A model with the 256 bytes as tokens, each followed by the first of them.
    pub fn new() -> Self {
        let bytes = (0..=255).map(|byte| (letter(byte).to_string(), NORMAL));
        let merged = (format!("{}a", letter(b' ')), NORMAL);
        Script { tokens: bytes.chain([merged]).collect(), ..Script::default() }
    }

    /// Each of these tokens is followed by the next.
    ///
    /// # Panics
    /// When one has another successor already, or there are too many.
    #[track_caller]
    pub fn says(mut self, tokens: &[Token]) -> Self {
        let ids: Vec<usize> = tokens.iter().map(|&token| self.id_or_new(token)).collect();
        for pair in ids.windows(2) {
            let before = self.next.insert(pair[0], pair[1]);
            assert!(before.is_none_or(|next| next == pair[1]), "{:?} has two successors", self.tokens[pair[0]]);
        }
        self
    }

    /// Sets a key of the file.
    pub fn key(mut self, name: &str, value: impl Into<MetaValue>) -> Self {
        self.keys.push((name.into(), value.into()));
        self
    }

    /// Sets a key that names a token.
    pub fn role(self, name: &str, token: Token) -> Self {
        let mut script = self;
        let id = script.id_or_new(token) as u32;
        script.key(&format!("tokenizer.ggml.{name}_token_id"), id)
    }

    /// The id of a token.
    ///
    /// # Panics
    /// When the script does not have it.
    #[track_caller]
    pub fn id(&self, token: Token) -> u32 {
        let (text, _) = spelled(token);
        let at = self.tokens.iter().position(|(known, _)| *known == text);
        at.unwrap_or_else(|| panic!("{token:?} is not in the script")) as u32
    }

    /// Number of tokens.
    pub fn vocab(&self) -> usize {
        self.tokens.len()
    }

    /// The logit of a successor; all other tokens have 0.
    pub fn logit() -> f64 {
        f64::from(HEAD_FACTOR) / (1.0 / HIDDEN as f64 + f64::from(EPSILON)).sqrt()
    }

    fn id_or_new(&mut self, token: Token) -> usize {
        let spelled = spelled(token);
        let known = self.tokens.iter().position(|(text, _)| *text == spelled.0);
        known.unwrap_or_else(|| {
            self.tokens.push(spelled);
            assert!(self.tokens.len() <= HIDDEN, "too many tokens");
            self.tokens.len() - 1
        })
    }

    /// Writes the model.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, path: &Path) {
        let spec = self.spec();
        let file = std::fs::File::create(path).expect("creates");
        let data = |tensor: &gguf::write::TensorSpec, out: &mut dyn Write| {
            let elements = tensor.shape.iter().product::<u64>() as usize;
            let mut values = vec![0.0_f32; elements];
            match tensor.name.as_str() {
                "token_embd.weight" => (0..self.vocab()).for_each(|token| values[token * HIDDEN + token] = 1.0),
                "output.weight" => (0..self.vocab()).for_each(|token| {
                    let next = self.next.get(&token).copied().unwrap_or(0);
                    values[next * HIDDEN + token] = HEAD_FACTOR;
                }),
                name if name.contains("norm") => values.fill(1.0),
                _ => {}
            }
            values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
        };
        spec.write_to(std::io::BufWriter::new(file), data).expect("writes");
    }

    fn spec(&self) -> FileSpec {
        let mut spec = FileSpec::new();
        spec.set("general.architecture", "llama");
        for (name, value) in [
            ("context_length", 65536),
            ("embedding_length", HIDDEN as u32),
            ("block_count", 1),
            ("feed_forward_length", FEED_FORWARD as u32),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", HEADS),
            ("rope.dimension_count", HIDDEN as u32 / HEADS),
        ] {
            spec.set(&format!("llama.{name}"), value);
        }
        spec.set("llama.attention.layer_norm_rms_epsilon", EPSILON);
        spec.set("tokenizer.ggml.model", "gpt2");
        spec.set("tokenizer.ggml.pre", "gpt-2");
        spec.set("tokenizer.ggml.tokens", self.tokens.iter().map(|(text, _)| text.clone()).collect::<Vec<_>>());
        spec.set("tokenizer.ggml.token_type", self.tokens.iter().map(|&(_, kind)| kind).collect::<Vec<_>>());
        spec.set("tokenizer.ggml.merges", vec![format!("{} a", letter(b' '))]);
        for (name, value) in &self.keys {
            spec.set(name, value.clone());
        }
        let (hidden, ff) = (HIDDEN as u64, FEED_FORWARD as u64);
        for (name, shape) in [
            ("token_embd.weight", vec![hidden, self.vocab() as u64]),
            ("output_norm.weight", vec![hidden]),
            ("output.weight", vec![hidden, self.vocab() as u64]),
            ("blk.0.attn_norm.weight", vec![hidden]),
            ("blk.0.attn_q.weight", vec![hidden, hidden]),
            ("blk.0.attn_k.weight", vec![hidden, hidden]),
            ("blk.0.attn_v.weight", vec![hidden, hidden]),
            ("blk.0.attn_output.weight", vec![hidden, hidden]),
            ("blk.0.ffn_norm.weight", vec![hidden]),
            ("blk.0.ffn_gate.weight", vec![hidden, ff]),
            ("blk.0.ffn_up.weight", vec![hidden, ff]),
            ("blk.0.ffn_down.weight", vec![ff, hidden]),
        ] {
            spec.tensor(name, &shape, GgmlType::F32);
        }
        spec
    }
}

/// A token's text in the file, and its type.
fn spelled(token: Token) -> (String, i32) {
    match token {
        Token::Word(text) => (text.into(), USER_DEFINED),
        Token::Control(text) => (text.into(), CONTROL),
        Token::Bytes(bytes) => (bytes.iter().map(|&byte| letter(byte)).collect(), NORMAL),
    }
}

/// The letter of the byte-level alphabet: printable bytes stand for themselves, the others for U+0100 and up.
fn letter(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !is_printable(byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(' ')
}
