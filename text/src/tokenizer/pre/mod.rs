//! Pre-tokenizers: how a text is cut into pieces before merging, by the name in `tokenizer.ggml.pre`.
//!
//! Each kind is a list of steps; the first cuts the text, each further one cuts the pieces of the one before, and what
//! a step does not match is a piece too. Expressions are those that the model's makers published, run by an engine of
//! linear time; the two common ones have scanners of their own ([`scan`]). The kinds are listed in [`table`].

mod scan;
mod table;

use std::ops::Range;

use regex_automata::Input;
use regex_automata::meta::Regex;

use crate::error::{Result, TextError};
use scan::{Bounded, WordRule};
use table::{Kind, Step, Tail};

/// Whether a piece that is a token as a whole is taken as that token, without merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholePieces {
    /// Looked up first (`ignore_merges`).
    LookedUp,
    /// Looked up first if the piece is line ends only.
    LookedUpIfLineEnds,
    /// Merged like all others.
    Merged,
}

/// A pre-tokenizer ready to run.
#[derive(Debug)]
pub struct PreTokenizer {
    pub kind: &'static Kind,
    steps: Vec<Ready>,
}

/// A step with its expression compiled.
#[derive(Debug)]
enum Ready {
    Gpt2,
    Words(WordRule),
    DigitGroups(Bounded),
    LineRuns,
    Expression(Regex, Tail),
}

/// All names of the table, in order.
pub fn known_names() -> Vec<&'static str> {
    let mut names: Vec<_> = table::KINDS.iter().flat_map(|kind| kind.names).copied().collect();
    names.sort_unstable();
    names
}

impl PreTokenizer {
    /// The pre-tokenizer `name`.
    pub fn find(name: &str) -> Result<PreTokenizer> {
        let kind = table::KINDS
            .iter()
            .find(|kind| kind.names.contains(&name))
            .ok_or_else(|| TextError::UnknownPre { name: name.into(), known: known_names().join(", ") })?;
        let steps = kind.steps.iter().map(|step| ready(name, step)).collect::<Result<_>>()?;
        Ok(PreTokenizer { kind, steps })
    }

    /// The pieces of `text` in order; together they are the text.
    pub fn split(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        if let Some((first, rest)) = self.steps.split_first() {
            cut(first, text, &mut pieces);
            for step in rest {
                let before = std::mem::take(&mut pieces);
                let mut start = 0;
                for len in before {
                    cut(step, &text[start..start + len], &mut pieces);
                    start += len;
                }
            }
        }
        let mut start = 0;
        pieces.into_iter().map(|len| (start, start += len).0..start).collect()
    }
}

fn ready(name: &str, step: &Step) -> Result<Ready> {
    Ok(match *step {
        Step::Gpt2 => Ready::Gpt2,
        Step::Words(rule) => Ready::Words(rule),
        Step::DigitGroups(bounded) => Ready::DigitGroups(bounded),
        Step::LineRuns => Ready::LineRuns,
        Step::Expression(expression, tail) => {
            let patterns: &[&str] = if tail == Tail::Gap { &[expression] } else { &[expression, r"\s+"] };
            let regex = Regex::new_many(patterns)
                .map_err(|error| TextError::BadExpression { name: name.into(), why: error.to_string() })?;
            Ready::Expression(regex, tail)
        }
    })
}

/// Appends the lengths of the pieces into which `step` cuts `text`.
fn cut(step: &Ready, text: &str, lengths: &mut Vec<usize>) {
    match step {
        Ready::Gpt2 => cut_by(text, scan::gpt2, lengths),
        Ready::Words(rule) => cut_by(text, |rest| scan::words(rest, *rule), lengths),
        Ready::DigitGroups(bounded) => scan::digit_groups(text, *bounded, lengths),
        Ready::LineRuns => cut_by(text, scan::line_runs, lengths),
        Ready::Expression(regex, tail) => cut_by_expression(text, regex, *tail, lengths),
    }
}

fn cut_by(text: &str, first_piece: impl Fn(&str) -> usize, lengths: &mut Vec<usize>) {
    let mut rest = text;
    while !rest.is_empty() {
        let len = first_piece(rest);
        lengths.push(len);
        rest = &rest[len..];
    }
}

/// Pattern 0 is the published expression up to its white space rule, pattern 1 a run of white space.
fn cut_by_expression(text: &str, regex: &Regex, tail: Tail, lengths: &mut Vec<usize>) {
    let mut start = 0;
    while start < text.len() {
        let Some(found) = regex.search(&Input::new(text).range(start..)) else { break };
        if found.start() > start {
            lengths.push(found.start() - start);
        }
        let len = match found.pattern().as_usize() {
            0 => found.end() - found.start(),
            _ => tail.piece_of(&text[found.start()..], found.end() - found.start()),
        };
        lengths.push(len);
        start = found.start() + len;
    }
    if start < text.len() {
        lengths.push(text.len() - start);
    }
}

#[cfg(test)]
mod tests;
