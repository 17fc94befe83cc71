//! SentencePiece merging: adjacent pieces become one while their text is a token, highest score first, leftmost among
//! equals; what is no token in the end is written as byte tokens.
//!
//! Works on the whole text at once, so a heap and a linked list keep it at O(n log n). Not here: special tokens and the
//! space prefix ([`super::encode`]).

use std::collections::BinaryHeap;

use super::TokenId;
use super::vocab::{ESCAPED_SPACE, Spelling, Vocab, VocabData};
use crate::error::{Result, TextError};

/// The tables of an SPM vocabulary.
#[derive(Debug)]
pub struct Spm {
    scores: Vec<f32>,
    byte_tokens: Vec<Option<TokenId>>,
    longest_token_bytes: usize,
    unknown: Option<TokenId>,
}

/// Marks the end of the list of symbols.
const NONE: u32 = u32::MAX;

/// A run of the text; dead when `len` is 0.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    previous: u32,
    next: u32,
}

/// Two neighbours whose joint text is a token.
#[derive(PartialEq)]
struct Candidate {
    score: f32,
    left: u32,
    right: u32,
    len: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left)).then(self.len.cmp(&other.len))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Spm {
    pub const SPELLING: Spelling = Spelling::Escaped;

    pub fn new(data: &VocabData, vocab: &Vocab) -> Result<Spm> {
        let scores = data.scores.get(..vocab.len()).ok_or_else(|| TextError::BadKey {
            key: "tokenizer.ggml.scores".into(),
            what: format!("{} entries", data.scores.len()),
            expected: format!("one for each of the {} tokens", vocab.len()),
        })?;
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(TextError::BadKey {
                key: "tokenizer.ggml.scores".into(),
                what: format!("token {id} has the score NaN"),
                expected: "numbers".into(),
            });
        }
        Ok(Spm {
            scores: scores.iter().map(|score| score + 0.0).collect(), // -0 and 0 are equal
            byte_tokens: (0..=255).map(|byte| vocab.byte_token(byte)).collect(),
            longest_token_bytes: vocab.iter().map(|(_, text, _)| text.len()).max().unwrap_or(0),
            unknown: vocab.roles.unknown,
        })
    }

    /// Appends the tokens of `text`, whose spaces are not escaped yet. Bytes that have no token become the unknown
    /// token, or nothing if there is none.
    pub fn encode(&self, vocab: &Vocab, text: &[u8], out: &mut Vec<TokenId>) {
        let text = escape_spaces(text);
        let mut session =
            Session { spm: self, vocab, text: &text, symbols: symbols_of(&text), heap: BinaryHeap::new() };
        session.merge_all();
        let mut at = if session.symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            let symbol = session.symbols[at as usize];
            let bytes = &text[symbol.start..symbol.start + symbol.len];
            match vocab.find(bytes) {
                Some(id) => out.push(id),
                None => out.extend(bytes.iter().filter_map(|&byte| self.byte_tokens[byte as usize].or(self.unknown))),
            }
            at = symbol.next;
        }
    }
}

fn escape_spaces(text: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(text.len() + text.len() / 2);
    for &byte in text {
        match byte {
            b' ' => escaped.extend_from_slice(ESCAPED_SPACE.as_bytes()),
            _ => escaped.push(byte),
        }
    }
    escaped
}

/// One symbol for each character, by the length that its first byte states.
fn symbols_of(text: &[u8]) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    let mut start = 0;
    while start < text.len() {
        let len = stated_char_len(text[start]).min(text.len() - start);
        let index = symbols.len() as u32;
        let next = if start + len == text.len() { NONE } else { index + 1 };
        symbols.push(Symbol { start, len, previous: index.checked_sub(1).unwrap_or(NONE), next });
        start += len;
    }
    symbols
}

/// The length of a character by its first byte; 1 for bytes that begin none.
pub fn stated_char_len(lead: u8) -> usize {
    match lead {
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xFF => 4,
        _ => 1,
    }
}

struct Session<'a> {
    spm: &'a Spm,
    vocab: &'a Vocab,
    text: &'a [u8],
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Candidate>,
}

impl Session<'_> {
    fn merge_all(&mut self) {
        for right in 1..self.symbols.len() as u32 {
            self.propose(right - 1, right);
        }
        while let Some(candidate) = self.heap.pop() {
            let left = self.symbols[candidate.left as usize];
            let right = self.symbols[candidate.right as usize];
            if left.len == 0 || right.len == 0 || left.len + right.len != candidate.len {
                continue;
            }
            self.symbols[candidate.right as usize].len = 0;
            self.symbols[candidate.left as usize].len = candidate.len;
            self.symbols[candidate.left as usize].next = right.next;
            if right.next != NONE {
                self.symbols[right.next as usize].previous = candidate.left;
            }
            self.propose(left.previous, candidate.left);
            self.propose(candidate.left, right.next);
        }
    }

    fn propose(&mut self, left: u32, right: u32) {
        if left == NONE || right == NONE {
            return;
        }
        let start = self.symbols[left as usize].start;
        let len = self.symbols[left as usize].len + self.symbols[right as usize].len;
        if len > self.spm.longest_token_bytes {
            return;
        }
        if let Some(id) = self.vocab.find(&self.text[start..start + len]) {
            let score = self.spm.scores[id.index()];
            self.heap.push(Candidate { score, left, right, len });
        }
    }
}
