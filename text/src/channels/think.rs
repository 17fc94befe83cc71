//! `<think>` reasoning `</think>` answer.
//!
//! Reasoning is recognised only at the very start of a generation (white space aside), or where the prompt ends with
//! `<think>`; tags in an answer are text. White space around the tags belongs to neither side.

use super::{Channel, Part};
use crate::tokenizer::{RenderSpecial, TokenId, Tokenizer};

const OPEN: &[u8] = b"<think>";
const CLOSE: &[u8] = b"</think>";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space, or a part of the tag, has come.
    Start,
    /// Inside; `fresh` until the first character that is no white space.
    Reasoning { fresh: bool },
    /// Behind the closing tag, only white space has come.
    Between,
    /// The rest.
    Answer,
}

/// Follows one generation.
#[derive(Debug)]
pub struct Think {
    state: State,
    held: Vec<u8>,
    open: Option<TokenId>,
    close: Option<TokenId>,
}

/// How many of the prompt's last tokens may spell the opening tag with the white space after it.
const TAIL_TOKENS: usize = 16;

impl Think {
    /// Begins after `prompt`.
    pub fn after(tokenizer: &Tokenizer, prompt: &[TokenId]) -> Think {
        let tail = &prompt[prompt.len().saturating_sub(TAIL_TOKENS)..];
        let text = tokenizer.decode(tail, RenderSpecial::Yes);
        let state = if text.trim_ascii_end().ends_with(OPEN) { State::Reasoning { fresh: true } } else { State::Start };
        let find = |tag: &[u8]| std::str::from_utf8(tag).ok().and_then(|tag| tokenizer.find(tag));
        Think { state, held: Vec::new(), open: find(OPEN), close: find(CLOSE) }
    }

    /// Takes a token.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: TokenId) -> Vec<Part> {
        // The tags are control tokens in some files; they must be seen all the same.
        let is_tag = Some(id) == self.open || Some(id) == self.close;
        let render = if is_tag && self.state != State::Answer { RenderSpecial::Yes } else { RenderSpecial::No };
        self.push_bytes(tokenizer.token_bytes(id, render))
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> Vec<Part> {
        self.held.extend_from_slice(bytes);
        let mut parts = Vec::new();
        while let Some(next) = self.advance(&mut parts) {
            self.state = next;
        }
        parts
    }

    /// Gives out what is certain in this state; the next state if it is reached.
    fn advance(&mut self, parts: &mut Vec<Part>) -> Option<State> {
        match self.state {
            State::Start => {
                let text = self.held.trim_ascii_start();
                if let Some(rest) = text.strip_prefix(OPEN) {
                    self.held = rest.to_vec();
                    return Some(State::Reasoning { fresh: true });
                }
                (!OPEN.starts_with(text)).then_some(State::Answer)
            }
            State::Reasoning { fresh: true } => {
                self.held = self.held.trim_ascii_start().to_vec();
                (!self.held.is_empty()).then_some(State::Reasoning { fresh: false })
            }
            State::Reasoning { fresh: false } => {
                if let Some(at) = self.held.windows(CLOSE.len()).position(|window| window == CLOSE) {
                    push_part(parts, Channel::Reasoning, self.held[..at].trim_ascii_end());
                    self.held.drain(..at + CLOSE.len());
                    return Some(State::Between);
                }
                let open = (1..CLOSE.len()).rev().find(|&len| self.held.ends_with(&CLOSE[..len])).unwrap_or(0);
                let certain = self.held[..self.held.len() - open].trim_ascii_end().len();
                push_part(parts, Channel::Reasoning, &self.held[..certain]);
                self.held.drain(..certain);
                None
            }
            State::Between => {
                self.held = self.held.trim_ascii_start().to_vec();
                (!self.held.is_empty()).then_some(State::Answer)
            }
            State::Answer => {
                push_part(parts, Channel::Answer, &std::mem::take(&mut self.held));
                None
            }
        }
    }

    /// What is held back at the end: a tag that never came is text.
    pub fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let mut parts = Vec::new();
        match self.state {
            State::Start | State::Answer => push_part(&mut parts, Channel::Answer, &held),
            State::Reasoning { .. } => push_part(&mut parts, Channel::Reasoning, held.trim_ascii_end()),
            State::Between => {}
        }
        parts
    }
}

fn push_part(parts: &mut Vec<Part>, channel: Channel, bytes: &[u8]) {
    if !bytes.is_empty() {
        parts.push(Part::Bytes(channel, bytes.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(start: State, pieces: &[&[u8]]) -> (String, String) {
        let mut think = Think { state: start, held: Vec::new(), open: None, close: None };
        let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| think.push_bytes(piece)).collect();
        parts.extend(think.finish());
        let (mut reasoning, mut answer) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Part::Bytes(Channel::Reasoning, bytes) => reasoning.extend(bytes),
                Part::Bytes(Channel::Answer, bytes) => answer.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
        (String::from_utf8(reasoning).expect("text"), String::from_utf8(answer).expect("text"))
    }

    const INSIDE: State = State::Reasoning { fresh: true };

    #[test]
    fn reasoning_is_kept_apart_from_the_answer() {
        let cases = [
            (State::Start, "<think>\nhm\n</think>\n\nfour", "hm", "four"),
            (State::Start, "\n<think>hm</think>four", "hm", "four"),
            (State::Start, "<think>\n\n</think>\n\nfour", "", "four"),
            (State::Start, "four", "", "four"),
            (State::Start, "  four", "", "  four"),
            (State::Start, "four <think>x</think>", "", "four <think>x</think>"),
            (State::Start, "<thin", "", "<thin"),
            (State::Start, "<thing>", "", "<thing>"),
            (State::Start, "<think>cut", "cut", ""),
            (State::Start, "<think>a </thin b</think>c", "a </thin b", "c"),
            (State::Start, "<think>cut </thi", "cut </thi", ""),
            (INSIDE, "hm\n</think>\n\nfour", "hm", "four"),
            (INSIDE, "hm", "hm", ""),
            (INSIDE, "a\n\nb</think>", "a\n\nb", ""),
        ];
        for (start, text, reasoning, answer) in cases {
            assert_eq!(run(start, &[text.as_bytes()]), (reasoning.into(), answer.into()), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(
            text in "(<think>)?[ab \n</think>]{0,12}(</think>)?[ab \n]{0,4}",
            at: prop::sample::Index,
        ) {
            let bytes = text.as_bytes();
            let whole = run(State::Start, &[bytes]);
            let (left, right) = bytes.split_at(at.index(bytes.len() + 1));
            prop_assert_eq!(run(State::Start, &[left, right]), whole.clone());
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(run(State::Start, &single), whole);
        }
    }
}
