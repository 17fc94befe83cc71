//! What one round computes: the tokens of one or several sequences, and whose logits are wanted.
//! Not here: how rounds are made of prompts (`session.rs`).

use std::ops::Range;

/// Inputs of a round. Token t has a position and, through its span, a sequence; spans cover the tokens in order.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// Token ids, below the vocabulary.
    pub tokens: &'a [u32],
    /// Position of each token in its sequence.
    pub positions: &'a [u32],
    /// Runs of tokens of one sequence, positions rising by one.
    pub spans: &'a [Span],
    /// Indices of the tokens whose logits are wanted, rising.
    pub outputs: &'a [u32],
}

/// A run of tokens of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Sequence number, below [`super::Limits::sequences`].
    pub sequence: u32,
    /// Its tokens in the round.
    pub tokens: Range<usize>,
}
