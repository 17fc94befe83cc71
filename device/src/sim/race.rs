//! Finds accesses that no rule orders: vector clocks over the host and the streams, and a shadow of the memory.
//!
//! Works on declared order, not on luck: two accesses to the same bytes, one of them a write, must be connected by
//! submissions, events, flags or waits of the host. If not, that is reported whatever the threads' timing was. An
//! access is registered before it touches memory, so the second one of a race is refused and no bytes are ever torn.
//! Pure; locked by `state.rs`.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::gpu::Access;

/// The host, the carrier of pageable memory, and at most this many streams less two.
pub const AGENTS: usize = 10;

/// The carrier's index.
pub const CARRIER: usize = AGENTS - 1;

/// The host's index; stream s is s + 1.
pub const HOST: usize = 0;

/// What an agent knows to have happened, per agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VectorClock([u32; AGENTS]);

impl VectorClock {
    /// The clock of an agent that has done nothing yet.
    pub fn of(agent: usize) -> Self {
        let mut clock = Self::default();
        clock.0[agent] = 1;
        clock
    }

    /// Learns what `other` knows.
    pub fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(theirs);
        }
    }

    /// What to hand to others; what `agent` does from now on is not part of it.
    pub fn release(&mut self, agent: usize) -> Self {
        let released = *self;
        self.0[agent] += 1;
        released
    }
}

/// The last accesses to a range of bytes.
#[derive(Debug, Clone)]
struct Segment {
    end: u64,
    write: Option<(usize, u32)>,
    writer: String,
    reads: [u32; AGENTS],
    reader: String,
}

/// Last accesses by address; see the module text.
#[derive(Debug, Default)]
pub struct Shadow(BTreeMap<u64, Segment>);

/// Two accesses without order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Race {
    /// What was there first.
    pub earlier: String,
    /// What came without waiting for it.
    pub later: String,
}

impl Shadow {
    /// Registers an access of `agent`, whose knowledge is `clock`. Errors: some byte was accessed by another agent in a
    /// conflicting way that `clock` does not know of.
    pub fn access(
        &mut self,
        range: Range<u64>,
        access: Access,
        agent: usize,
        clock: &VectorClock,
        name: &str,
    ) -> Result<(), Race> {
        if range.is_empty() {
            return Ok(());
        }
        self.split_at(range.start);
        self.split_at(range.end);
        for segment in self.0.range(range.clone()).map(|(_, segment)| segment) {
            segment.check(access, clock, name)?;
        }
        match access {
            Access::Write => self.replace_by_write(range, (agent, clock.0[agent]), name),
            Access::Read => self.add_read(range, (agent, clock.0[agent]), name),
        }
        Ok(())
    }

    fn split_at(&mut self, at: u64) {
        let Some((_, segment)) = self.0.range_mut(..at).next_back() else { return };
        if segment.end > at {
            let tail = segment.clone();
            segment.end = at;
            self.0.insert(at, tail);
        }
    }

    fn replace_by_write(&mut self, range: Range<u64>, write: (usize, u32), name: &str) {
        let old: Vec<u64> = self.0.range(range.clone()).map(|(&start, _)| start).collect();
        for start in old {
            self.0.remove(&start);
        }
        let reader = String::new();
        let segment =
            Segment { end: range.end, write: Some(write), writer: name.to_owned(), reads: [0; AGENTS], reader };
        self.0.insert(range.start, segment);
    }

    fn add_read(&mut self, range: Range<u64>, (agent, time): (usize, u32), name: &str) {
        let mut at = range.start;
        while at < range.end {
            let next = self.0.range(at..range.end).next().map_or(range.end, |(&start, _)| start);
            if next > at {
                let writer = String::new();
                self.0
                    .insert(at, Segment { end: next, write: None, writer, reads: [0; AGENTS], reader: String::new() });
            }
            let Some(segment) = self.0.get_mut(&at) else { return };
            segment.reads[agent] = time;
            name.clone_into(&mut segment.reader);
            at = segment.end;
        }
    }
}

impl Segment {
    fn check(&self, access: Access, clock: &VectorClock, name: &str) -> Result<(), Race> {
        let race = |earlier: String| Err(Race { earlier, later: format!("{access:?} by {name}") });
        if self.write.is_some_and(|(writer, time)| time > clock.0[writer]) {
            return race(format!("Write by {}", self.writer));
        }
        if access == Access::Write && self.reads.iter().zip(clock.0).any(|(&read, known)| read > known) {
            return race(format!("Read by {}", self.reader));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two agents, 1 and 2, and what happens in turn: an access (agent, range, kind) or an edge from one to the other.
    enum Happens {
        Access(usize, Range<u64>, Access),
        Edge(usize, usize),
    }
    use Access::{Read, Write};
    use Happens::{Access as At, Edge};

    #[track_caller]
    fn check(steps: &[Happens], races: bool) {
        let mut clocks = [VectorClock::of(0), VectorClock::of(1), VectorClock::of(2)];
        let mut shadow = Shadow::default();
        let mut found = false;
        for step in steps {
            match step {
                Edge(from, to) => {
                    let released = clocks[*from].release(*from);
                    clocks[*to].join(&released);
                }
                At(agent, range, access) => {
                    found |= shadow.access(range.clone(), *access, *agent, &clocks[*agent], "x").is_err();
                }
            }
        }
        assert_eq!(found, races);
    }

    #[test]
    fn conflicting_accesses_without_an_edge_are_races() {
        check(&[At(1, 0..10, Write), At(2, 5..6, Read)], true);
        check(&[At(1, 0..10, Read), At(2, 9..20, Write)], true);
        check(&[At(1, 0..10, Write), At(2, 0..1, Write)], true);
        check(&[At(1, 0..10, Write), Edge(2, 1), At(2, 0..1, Read)], true);
        // The edge was before the access.
        check(&[Edge(1, 2), At(1, 0..10, Write), At(2, 0..1, Read)], true);
        // One of two readers is not known.
        check(&[At(0, 0..4, Read), At(1, 2..4, Read), Edge(0, 2), At(2, 0..4, Write)], true);
        // A split range keeps its history.
        check(&[At(1, 0..10, Write), At(1, 3..4, Write), At(2, 8..9, Read)], true);
    }

    #[test]
    fn ordered_or_harmless_accesses_are_none() {
        check(&[At(1, 0..10, Write), At(2, 10..20, Write), At(2, 0..0, Write)], false);
        check(&[At(1, 0..10, Read), At(2, 0..10, Read)], false);
        check(&[At(1, 0..10, Write), Edge(1, 2), At(2, 0..10, Write), Edge(2, 1), At(1, 0..3, Read)], false);
        check(&[At(1, 0..10, Write), At(1, 0..10, Read), At(1, 0..10, Write)], false);
        // Through a third.
        check(&[At(1, 0..10, Write), Edge(1, 0), Edge(0, 2), At(2, 0..10, Write)], false);
        check(&[At(0, 0..4, Read), At(1, 2..4, Read), Edge(0, 2), Edge(1, 2), At(2, 0..4, Write)], false);
    }
}
