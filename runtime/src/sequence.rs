//! One sequence: the tokens that the caches hold, and how it goes back to a shorter one.
//!
//! Whole caches go back by moving the position. A ring still holds what was written last, so it goes back a little by
//! the same means. Everything else goes by marks: snapshots that were taken at lengths to which a caller expects to
//! come back, of which the last few are kept. Not here: the states themselves (`exec/states.rs`). Next: `engine.rs`.

use crate::exec::{Rewind, Ring, StateSnapshot};

/// Marks that a sequence keeps: the border of the last answer, and that of the one before for good measure. Each costs
/// as much memory as the recurrent states and windows.
const MARKS_AT_MOST: usize = 2;

/// One sequence.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// Tokens in order of their positions.
    pub tokens: Vec<u32>,
    /// Snapshots, shortest first.
    marks: Vec<StateSnapshot>,
    /// Rings still hold the positions from here on.
    ring_start: usize,
}

impl Sequence {
    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether there is a mark at the present length.
    pub(crate) fn is_marked(&self) -> bool {
        self.marks.last().is_some_and(|mark| mark.len_tokens() == self.tokens.len())
    }

    /// Keeps a snapshot of the present length, and lets the oldest go.
    pub(crate) fn add_mark(&mut self, mark: StateSnapshot) {
        if self.marks.len() == MARKS_AT_MOST {
            self.marks.remove(0);
        }
        self.marks.push(mark);
    }

    /// Appends tokens that were fed.
    pub(crate) fn extend(&mut self, tokens: &[u32], rewind: Rewind) {
        self.tokens.extend_from_slice(tokens);
        if let Rewind::Ring(Ring { slots, .. }) = rewind {
            self.ring_start = self.ring_start.max(self.tokens.len().saturating_sub(slots));
        }
    }

    /// Goes back to at most `len_tokens`. Returns the snapshot that the states must be restored from, if any.
    pub(crate) fn go_back(&mut self, len_tokens: usize, rewind: Rewind) -> Option<&StateSnapshot> {
        if len_tokens >= self.tokens.len() {
            return None;
        }
        self.marks.retain(|mark| mark.len_tokens() <= len_tokens);
        if self.is_in_reach(len_tokens, rewind) {
            self.tokens.truncate(len_tokens);
            return None;
        }
        let marked = self.marks.last().map_or(0, StateSnapshot::len_tokens);
        self.tokens.truncate(marked);
        self.ring_start = match rewind {
            Rewind::Ring(Ring { window_tokens, .. }) => marked.saturating_sub(window_tokens),
            Rewind::Anywhere | Rewind::Snapshots => 0,
        };
        self.marks.last()
    }

    /// Whether moving the position is enough.
    fn is_in_reach(&self, len_tokens: usize, rewind: Rewind) -> bool {
        match rewind {
            Rewind::Anywhere => true,
            Rewind::Ring(Ring { window_tokens, .. }) => len_tokens.saturating_sub(window_tokens) >= self.ring_start,
            Rewind::Snapshots => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: Rewind = Rewind::Ring(Ring { window_tokens: 10, slots: 64 });

    /// A sequence of `len_tokens`, marked on the way.
    fn sequence(len_tokens: usize, marks: &[usize], rewind: Rewind) -> Sequence {
        let mut sequence = Sequence::default();
        for len in 1..=len_tokens {
            sequence.extend(&[7], rewind);
            if marks.contains(&len) {
                sequence.add_mark(StateSnapshot::empty(len));
            }
        }
        sequence
    }

    /// Goes back and checks the length and whether a snapshot brings it.
    #[track_caller]
    fn check(mut sequence: Sequence, to: usize, rewind: Rewind, len: usize, restored: Option<usize>) -> Sequence {
        let mark = sequence.go_back(to, rewind).map(StateSnapshot::len_tokens);
        assert_eq!((sequence.tokens.len(), mark), (len, restored));
        sequence
    }

    #[test]
    fn whole_caches_go_anywhere() {
        check(sequence(100, &[], Rewind::Anywhere), 3, Rewind::Anywhere, 3, None);
        check(sequence(100, &[], Rewind::Anywhere), 100, Rewind::Anywhere, 100, None);
        check(sequence(100, &[], Rewind::Anywhere), 200, Rewind::Anywhere, 100, None);
    }

    #[test]
    fn recurrent_states_go_to_marks_only() {
        let marked = || sequence(100, &[40, 80], Rewind::Snapshots);
        check(marked(), 100, Rewind::Snapshots, 100, None);
        check(marked(), 99, Rewind::Snapshots, 80, Some(80));
        check(marked(), 80, Rewind::Snapshots, 80, Some(80));
        let back = check(marked(), 79, Rewind::Snapshots, 40, Some(40));
        check(back, 39, Rewind::Snapshots, 0, None);
        check(sequence(100, &[], Rewind::Snapshots), 99, Rewind::Snapshots, 0, None);
    }

    #[test]
    fn rings_go_back_as_far_as_they_hold_the_window() {
        // Of 100 positions a ring of 64 holds those from 36 on; position 46 sees back to there.
        check(sequence(100, &[], RING), 46, RING, 46, None);
        check(sequence(100, &[], RING), 45, RING, 0, None);
        check(sequence(100, &[30], RING), 45, RING, 30, Some(30));
        check(sequence(64, &[], RING), 1, RING, 1, None);
    }

    #[test]
    fn a_ring_that_went_back_does_not_hold_more_than_before() {
        let back = check(sequence(100, &[], RING), 50, RING, 50, None);
        check(back, 45, RING, 0, None);
        let restored = check(sequence(100, &[30], RING), 40, RING, 30, Some(30));
        check(restored, 29, RING, 0, None);
    }

    #[test]
    fn the_last_marks_are_kept() {
        check(sequence(100, &[20, 40, 60], Rewind::Snapshots), 39, Rewind::Snapshots, 0, None);
        check(sequence(100, &[20, 40, 60], Rewind::Snapshots), 59, Rewind::Snapshots, 40, Some(40));
    }
}
