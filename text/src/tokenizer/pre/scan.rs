//! Hand-written scanners for the two common pre-tokenizer expressions, ten times faster than an expression engine.
//!
//! Each yields the length of the next piece; a property test compares them with the published expressions. The
//! look-ahead `\s+(?!\S)` means in both: a run of white space that something follows leaves its last character to it.

use super::super::class::{Class, class_of};

const LETTER: Class = Class::LETTER;
const NUMBER: Class = Class::NUMBER;
const SPACE: Class = Class::SPACE;

/// What differs between the expressions that llama 3 began (llama-bpe, qwen2, qwen35, glm4 …).
#[derive(Clone, Copy, Debug)]
pub struct WordRule {
    /// How many digits may stand together.
    pub digits_max: usize,
    /// The classes that make words: letters, or letters and marks.
    pub word: Class,
}

/// A position in a text.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(text: &'a str) -> Self {
        Cursor { text, at: 0 }
    }

    fn peek(&self) -> Option<char> {
        let byte = *self.text.as_bytes().get(self.at)?;
        if byte < 0x80 { Some(byte as char) } else { self.text[self.at..].chars().next() }
    }

    fn bump(&mut self) {
        self.at += self.peek().map_or(0, char::len_utf8);
    }

    fn while_in(&mut self, class: Class) {
        while self.peek().is_some_and(|symbol| class_of(symbol).meets(class)) {
            self.bump();
        }
    }

    /// Skips characters that are in none of the classes.
    fn while_not_in(&mut self, class: Class) {
        while self.peek().is_some_and(|symbol| !class_of(symbol).meets(class)) {
            self.bump();
        }
    }

    fn is_at(&self, class: Class) -> bool {
        self.peek().is_some_and(|symbol| class_of(symbol).meets(class))
    }
}

/// The length of an English contraction at the start: `'s 't 'm 'd 're 've 'll`.
fn contraction(text: &str, ignore_case: bool) -> Option<usize> {
    let rest = text.as_bytes().strip_prefix(b"'")?;
    let letter = |at: usize| rest.get(at).map(|byte| if ignore_case { byte.to_ascii_lowercase() } else { *byte });
    match (letter(0)?, letter(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(3),
        _ => None,
    }
}

/// The length of the first piece by GPT-2's expression
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`; 0 only for an empty text.
pub fn gpt2(text: &str) -> usize {
    if let Some(len) = contraction(text, false) {
        return len;
    }
    let mut cursor = Cursor::new(text);
    if cursor.peek() == Some(' ') {
        cursor.bump();
    }
    if cursor.is_at(LETTER) {
        cursor.while_in(LETTER);
    } else if cursor.is_at(NUMBER) {
        cursor.while_in(NUMBER);
    } else if cursor.peek().is_some() && !cursor.is_at(SPACE) {
        cursor.while_not_in(SPACE.or(LETTER).or(NUMBER));
    } else {
        return white_space(text);
    }
    cursor.at
}

/// The length of the first piece by
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?W+|\p{N}{1,D}| ?[^\s W \p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
/// with W and D from `rule`; 0 only for an empty text.
pub fn words(text: &str, rule: WordRule) -> usize {
    if let Some(len) = contraction(text, true) {
        return len;
    }
    let mut cursor = Cursor::new(text);
    let Some(first) = cursor.peek() else { return 0 };
    let class = class_of(first);
    let may_lead = !matches!(first, '\r' | '\n') && !class.meets(LETTER.or(NUMBER));
    if may_lead {
        cursor.bump();
    }
    if cursor.is_at(rule.word) || (may_lead && class.meets(rule.word)) {
        cursor.while_in(rule.word);
        return cursor.at;
    }
    cursor.at = 0;
    if class.meets(NUMBER) {
        for _ in 0..rule.digits_max {
            if cursor.is_at(NUMBER) {
                cursor.bump();
            }
        }
        return cursor.at;
    }
    if first == ' ' {
        cursor.bump();
    }
    if cursor.peek().is_some() && !cursor.is_at(SPACE.or(NUMBER).or(rule.word)) {
        cursor.while_not_in(SPACE.or(NUMBER).or(rule.word));
        while matches!(cursor.peek(), Some('\r' | '\n')) {
            cursor.bump();
        }
        return cursor.at;
    }
    lines(text).unwrap_or_else(|| white_space(text))
}

/// `\s*[\r\n]+`: white space up to and with its last line end.
fn lines(text: &str) -> Option<usize> {
    let mut cursor = Cursor::new(text);
    cursor.while_in(SPACE);
    text[..cursor.at].rfind(['\r', '\n']).map(|at| at + 1)
}

/// `\s+(?!\S)|\s+`, or one character where there is no white space.
pub fn white_space(text: &str) -> usize {
    let mut cursor = Cursor::new(text);
    cursor.while_in(SPACE);
    if cursor.at == 0 {
        cursor.bump();
        return cursor.at;
    }
    leave_last(text, cursor.at)
}

/// Shortens a run of white space of `len` bytes by its last character, if another character follows it and one remains.
pub fn leave_last(text: &str, len: usize) -> usize {
    let last = text[..len].chars().next_back().map_or(0, char::len_utf8);
    if len < text.len() && len > last { len - last } else { len }
}

/// The length of the first run of characters that are all line ends, or all not.
pub fn line_runs(text: &str) -> usize {
    let is_end = text.starts_with('\n');
    text.find(|symbol: char| (symbol == '\n') != is_end).unwrap_or(text.len())
}

/// Appends the lengths of the pieces of `text` whose numbers are cut in threes, counted from their ends.
///
/// `bounded` asks, as `\d{1,3}(?=(?:\d{3})*\b)` does, that no part of a word follows the digits; other numbers stay
/// with their neighbours.
pub fn digit_groups(text: &str, bounded: Bounded, lengths: &mut Vec<usize>) {
    let digit = if bounded == Bounded::Yes { Class::DIGIT } else { NUMBER };
    let mut cursor = Cursor::new(text);
    let mut start = 0;
    while cursor.at < text.len() {
        cursor.while_not_in(digit);
        let digits_start = cursor.at;
        cursor.while_in(digit);
        if bounded == Bounded::Yes && cursor.is_at(Class::WORD) {
            continue;
        }
        if digits_start > start {
            lengths.push(digits_start - start);
        }
        let digits = &text[digits_start..cursor.at];
        let mut ahead = (digits.chars().count() + 2) % 3 + 1;
        let mut group_bytes = 0;
        for symbol in digits.chars() {
            group_bytes += symbol.len_utf8();
            ahead -= 1;
            if ahead == 0 {
                lengths.push(group_bytes);
                (group_bytes, ahead) = (0, 3);
            }
        }
        start = cursor.at;
    }
    if start < text.len() {
        lengths.push(text.len() - start);
    }
}

/// Whether numbers are grouped only where a word ends after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounded {
    /// Only there.
    Yes,
    /// Everywhere.
    No,
}
