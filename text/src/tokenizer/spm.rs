//! SentencePiece merging: adjacent pieces become one while their text is a token, highest score first, leftmost among
//! equals; what is no token in the end is written as byte tokens.
//!
//! Merging works on the whole text, not on words. But no merge can ever cross a place where no token has the two bytes
//! that meet there, so the text is cut before spaces wherever the vocabulary has no token that a cut would tear. The
//! parts, words mostly, give the same tokens on their own, and come again and again. Within a part a heap and a linked
//! list keep the work at O(n log n). Not here: special tokens and the space prefix ([`super::encode`]).

use std::collections::BinaryHeap;

use super::encode::REMEMBERED_BYTES_MAX;
use super::vocab::{ESCAPED_SPACE, Spelling, Vocab, VocabData};
use super::{FastMap, TokenId};
use crate::error::{Result, TextError};

/// The tables of an SPM vocabulary.
#[derive(Debug)]
pub struct Spm {
    scores: Vec<f32>,
    byte_tokens: Vec<Option<TokenId>>,
    longest_token_bytes: usize,
    /// By byte value: whether any token has this byte before a space within its text.
    joins_space: Vec<bool>,
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
    len: u32,
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
            joins_space: joins_space(vocab),
            unknown: vocab.roles.unknown,
        })
    }

    /// Appends the tokens of `text`, whose spaces are not escaped yet. Bytes that have no token become the unknown
    /// token, or nothing if there is none.
    pub fn encode(&self, vocab: &Vocab, text: &[u8], out: &mut Vec<TokenId>) {
        let text = escape_spaces(text);
        let mut session = Session { spm: self, vocab, text: &[], symbols: Vec::new(), heap: BinaryHeap::new() };
        let mut written: FastMap<&[u8], std::ops::Range<usize>> = FastMap::default();
        let mut rest = text.as_slice();
        while !rest.is_empty() {
            let (part, after) = rest.split_at(self.part_len(rest));
            rest = after;
            if let Some(range) = written.get(part) {
                out.extend_from_within(range.clone());
                continue;
            }
            let start = out.len();
            session.encode_part(part, out);
            if part.len() <= REMEMBERED_BYTES_MAX {
                written.insert(part, start..out.len());
            }
        }
    }

    /// The length of the first part of `text` that can be merged on its own.
    fn part_len(&self, text: &[u8]) -> usize {
        let mut at = stated_char_len(text[0]);
        while at < text.len() {
            let is_space = text[at..].starts_with(ESCAPED_SPACE.as_bytes());
            if is_space && !self.joins_space[text[at - 1] as usize] {
                return at;
            }
            at += stated_char_len(text[at]);
        }
        text.len()
    }
}

/// The bytes before a space in the texts of tokens.
fn joins_space(vocab: &Vocab) -> Vec<bool> {
    let mut joins = vec![false; 256];
    let space = ESCAPED_SPACE.as_bytes();
    for (_, text, _) in vocab.iter() {
        for part in text.windows(space.len() + 1).filter(|part| &part[1..] == space) {
            joins[part[0] as usize] = true;
        }
    }
    joins
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
fn fill_symbols(text: &[u8], symbols: &mut Vec<Symbol>) {
    symbols.clear();
    let mut start = 0;
    while start < text.len() {
        let len = stated_char_len(text[start]).min(text.len() - start);
        let index = symbols.len() as u32;
        let next = if start + len == text.len() { NONE } else { index + 1 };
        symbols.push(Symbol { start, len, previous: index.checked_sub(1).unwrap_or(NONE), next });
        start += len;
    }
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

impl<'a> Session<'a> {
    fn encode_part(&mut self, part: &'a [u8], out: &mut Vec<TokenId>) {
        self.text = part;
        fill_symbols(part, &mut self.symbols);
        self.merge_all();
        let mut at = if self.symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            let symbol = self.symbols[at as usize];
            let bytes = &part[symbol.start..symbol.start + symbol.len];
            let Spm { byte_tokens, unknown, .. } = self.spm;
            match self.vocab.find(bytes) {
                Some(id) => out.push(id),
                None => out.extend(bytes.iter().filter_map(|&byte| byte_tokens[byte as usize].or(*unknown))),
            }
            at = symbol.next;
        }
    }

    fn merge_all(&mut self) {
        let mut first = std::mem::take(&mut self.heap).into_vec();
        first.extend((1..self.symbols.len() as u32).filter_map(|right| self.candidate(right - 1, right)));
        self.heap = first.into();
        while let Some(candidate) = self.heap.pop() {
            let left = self.symbols[candidate.left as usize];
            let right = self.symbols[candidate.right as usize];
            if left.len == 0 || right.len == 0 || left.len + right.len != candidate.len as usize {
                continue;
            }
            self.symbols[candidate.right as usize].len = 0;
            self.symbols[candidate.left as usize].len = candidate.len as usize;
            self.symbols[candidate.left as usize].next = right.next;
            if right.next != NONE {
                self.symbols[right.next as usize].previous = candidate.left;
            }
            self.heap.extend(self.candidate(left.previous, candidate.left));
            self.heap.extend(self.candidate(candidate.left, right.next));
        }
    }

    /// Two neighbours, if their joint text is a token.
    fn candidate(&self, left: u32, right: u32) -> Option<Candidate> {
        if left == NONE || right == NONE {
            return None;
        }
        let start = self.symbols[left as usize].start;
        let len = self.symbols[left as usize].len + self.symbols[right as usize].len;
        if len > self.spm.longest_token_bytes {
            return None;
        }
        let id = self.vocab.find(&self.text[start..start + len])?;
        Some(Candidate { score: self.spm.scores[id.index()], left, right, len: len as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::spm_vocabulary;
    use proptest::prelude::*;

    /// The definition: over the whole text, again and again the best pair, the leftmost of equals.
    fn naive(spm: &Spm, vocab: &Vocab, text: &[u8]) -> Vec<TokenId> {
        let escaped = escape_spaces(text);
        let mut symbols = Vec::new();
        fill_symbols(&escaped, &mut symbols);
        let mut parts: Vec<&[u8]> =
            symbols.iter().map(|symbol| &escaped[symbol.start..symbol.start + symbol.len]).collect();
        loop {
            let score = |at: usize| vocab.find(&parts[at..at + 2].concat()).map(|id| spm.scores[id.index()]);
            let mut best: Option<(f32, usize)> = None;
            for at in 0..parts.len().saturating_sub(1) {
                if let Some(score) = score(at).filter(|score| best.is_none_or(|(highest, _)| *score > highest)) {
                    best = Some((score, at));
                }
            }
            let Some((_, at)) = best else { break };
            let start: usize = parts[..at].iter().map(|part| part.len()).sum();
            parts[at] = &escaped[start..start + parts[at].len() + parts[at + 1].len()];
            parts.remove(at + 1);
        }
        let bytes = |part: &[u8]| -> Vec<TokenId> {
            part.iter().filter_map(|&byte| spm.byte_tokens[byte as usize].or(spm.unknown)).collect()
        };
        parts.iter().flat_map(|part| vocab.find(part).map_or_else(|| bytes(part), |id| vec![id])).collect()
    }

    proptest! {
        #[test]
        fn parts_give_what_the_whole_text_gives(
            text in "[ab> é人/<]{0,40}",
            tail: Vec<u8>,
            scores in proptest::collection::vec(-3i8..3, 18),
        ) {
            let words = [
                "a", "b", " ", ">", "<", "/", "ab", " a", "a ", "  ", "> <", "> ", " <", "aa", " ab", "b>", "é", "</",
            ];
            let mut data = spm_vocabulary(&words);
            for (slot, score) in data.scores[259..].iter_mut().zip(scores) {
                *slot = f32::from(score);
            }
            let vocab = Vocab::new(&data, Spm::SPELLING).expect("a good vocabulary");
            let spm = Spm::new(&data, &vocab).expect("good scores");
            for text in [text.as_bytes(), &[text.as_bytes(), &tail].concat()] {
                let mut found = Vec::new();
                spm.encode(&vocab, text, &mut found);
                prop_assert_eq!(found, naive(&spm, &vocab, text));
            }
        }
    }
}
