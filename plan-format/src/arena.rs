//! Where each activation lies in the arena, for rounds up to a stated size. The CPU and the GPU have an arena each,
//! with the same offsets, but that rounds of few tokens may have a smaller one on the GPU (`Plan::few_arena`).
//!
//! Two values may share bytes only if no item touches both, so whoever executes an item may fuse or reorder its
//! operators, and no operator's output ever lies on its input (kernels take disjoint slices; in place is never used).
//! Items must still begin in program order on each processor, and a value that arrives from the other processor counts
//! as written when its producer's turn would be; keeping to that is the executor's part.
//!
//! Placement is greedy: largest value first, into the lowest gap that fits. It is within a few percent of the largest
//! set of values alive at once, which is a lower bound ([`Arena::floor_bytes`]).
//! Next: `artifact.rs`.

use crate::error::{Error, Result};
use crate::operands::Operand;
use crate::program::{Program, Rows, Value};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Every value starts at a multiple of this: a cache line and the widest vector register.
pub const ALIGNMENT_BYTES: u64 = 64;

/// Largest round that an arena is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundLimits {
    /// Most tokens (T).
    pub ubatch_tokens: u32,
    /// Most tokens whose logits are wanted (O).
    pub output_tokens: u32,
}

/// Offsets of all values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arena {
    /// What it is made for.
    pub limits: RoundLimits,
    /// Size of the whole arena.
    pub size_bytes: u64,
    /// Where each value of the program starts, by [`crate::ValueId`].
    pub offsets_bytes: Vec<u64>,
}

impl RoundLimits {
    /// Bytes of a value in the largest round. Elements are 4 bytes, F32 or I32.
    pub fn value_bytes(&self, value: &Value) -> u64 {
        let rows = match value.rows {
            Rows::Tokens => self.ubatch_tokens,
            Rows::Outputs => self.output_tokens,
        };
        // Below 2^32 rows of 2^24 columns: no overflow.
        u64::from(rows) * u64::from(value.cols) * 4
    }
}

/// First and last item that touch a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    first: u32,
    last: u32,
}

impl Life {
    fn meets(self, other: Life) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl Arena {
    /// Lays out the values of a verified program.
    pub fn new(program: &Program, limits: RoundLimits) -> Arena {
        let lives = lives(program);
        let size = |i: usize| limits.value_bytes(&program.values[i]).next_multiple_of(ALIGNMENT_BYTES);
        let mut by_size: Vec<usize> = (0..program.values.len()).collect();
        by_size.sort_by_key(|&i| (std::cmp::Reverse(size(i)), i));
        let mut offsets_bytes = vec![0; program.values.len()];
        // (begin, end, value) of those that have a place, by begin.
        let mut placed: Vec<(u64, u64, usize)> = Vec::with_capacity(by_size.len());
        let mut size_bytes = 0;
        for i in by_size {
            let begin = lowest_gap(placed.iter().filter(|p| lives[p.2].meets(lives[i])), size(i));
            offsets_bytes[i] = begin;
            let end = begin + size(i);
            size_bytes = size_bytes.max(end);
            let at = placed.partition_point(|p| p.0 <= begin);
            placed.insert(at, (begin, end, i));
        }
        Arena { limits, size_bytes, offsets_bytes }
    }

    /// Bytes of the largest set of values alive in one item: no arena is smaller.
    pub fn floor_bytes(program: &Program, limits: RoundLimits) -> u64 {
        let mut change = vec![0_i128; program.items.len() + 1];
        for (value, life) in program.values.iter().zip(lives(program)) {
            let bytes = i128::from(limits.value_bytes(value).next_multiple_of(ALIGNMENT_BYTES));
            change[life.first as usize] += bytes;
            change[life.last as usize + 1] -= bytes;
        }
        let alive = change.iter().scan(0, |sum, &delta| {
            *sum += delta;
            Some(*sum)
        });
        alive.max().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
    }

    /// Checks that the offsets are aligned and inside, and that values that are alive together do not overlap. The
    /// program must be verified.
    ///
    /// # Errors
    /// The first value that is misplaced.
    pub fn verify(&self, program: &Program) -> Result<()> {
        self.verify_table(program)?;
        let lives = lives(program);
        let mut by_start: Vec<usize> = (0..program.values.len()).collect();
        by_start.sort_by_key(|&i| lives[i].first);
        let mut alive: BTreeMap<u64, usize> = BTreeMap::new();
        let mut by_end: BTreeSet<(u32, usize)> = BTreeSet::new();
        for i in by_start {
            while let Some(&(last, ended)) = by_end.first().filter(|(last, _)| *last < lives[i].first) {
                by_end.remove(&(last, ended));
                alive.remove(&self.offsets_bytes[ended]);
            }
            if let Some(other) = self.neighbour_that_overlaps(program, &alive, i) {
                let names = [i, other].map(|v| &program.values[v].name);
                return Err(misplaced(i, format!("{} overlaps {}, both alive in one item", names[0], names[1])));
            }
            alive.insert(self.offsets_bytes[i], i);
            by_end.insert((lives[i].last, i));
        }
        Ok(())
    }

    fn verify_table(&self, program: &Program) -> Result<()> {
        let (found, expected) = (self.offsets_bytes.len(), program.values.len());
        if found != expected {
            return Err(arena_error("offsets_bytes", format!("has {found} entries for {expected} values")));
        }
        if self.limits.ubatch_tokens == 0 || self.limits.output_tokens == 0 {
            return Err(arena_error("limits", format!("are {:?}; 1 or more are accepted", self.limits)));
        }
        if self.size_bytes > i64::MAX as u64 {
            return Err(arena_error("size_bytes", format!("is {}", self.size_bytes)));
        }
        for (i, (&offset, value)) in self.offsets_bytes.iter().zip(&program.values).enumerate() {
            if !offset.is_multiple_of(ALIGNMENT_BYTES) {
                return Err(misplaced(i, format!("is {offset}, no multiple of {ALIGNMENT_BYTES}")));
            }
            let end = offset.checked_add(self.limits.value_bytes(value));
            if end.is_none_or(|end| end > self.size_bytes) {
                return Err(misplaced(i, format!("{} ends beyond the arena of {} bytes", value.name, self.size_bytes)));
            }
        }
        Ok(())
    }

    /// Of the disjoint values alive, only the neighbours by offset can overlap.
    fn neighbour_that_overlaps(&self, program: &Program, alive: &BTreeMap<u64, usize>, i: usize) -> Option<usize> {
        let bytes = |v: usize| self.limits.value_bytes(&program.values[v]);
        let begin = self.offsets_bytes[i];
        let after = alive.range(begin..).next().filter(|(b, _)| **b < begin + bytes(i));
        let before = alive.range(..=begin).next_back().filter(|(b, v)| **b + bytes(**v) > begin);
        after.or(before).map(|(_, &v)| v)
    }
}

/// Lowest offset at which `size` bytes fit between the occupied ranges, which come by ascending begin.
fn lowest_gap<'a>(occupied: impl Iterator<Item = &'a (u64, u64, usize)>, size: u64) -> u64 {
    let mut free_from = 0;
    for &(begin, end, _) in occupied {
        if free_from + size <= begin {
            break;
        }
        free_from = free_from.max(end);
    }
    free_from
}

/// Lives of all values; the logits live to the end of the round.
fn lives(program: &Program) -> Vec<Life> {
    let mut lives = vec![Life { first: u32::MAX, last: 0 }; program.values.len()];
    for op in &program.ops {
        for operand in op.kind.operands() {
            if let Operand::Read(c) | Operand::Write(c) = operand {
                let life = &mut lives[c.value.index()];
                life.first = life.first.min(op.item.0);
                life.last = life.last.max(op.item.0);
            }
        }
    }
    lives[program.logits.index()].last = (program.items.len() as u32).saturating_sub(1);
    lives
}

fn arena_error(field: &str, problem: String) -> Error {
    Error::Invalid { section: "arena", field: field.to_owned(), problem }
}

fn misplaced(value: usize, problem: String) -> Error {
    arena_error(&format!("offsets_bytes[{value}]"), problem)
}
