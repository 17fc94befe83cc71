//! Routed experts: the round's (token, choice) pairs are sorted by expert, so that each expert that the round uses is
//! read once and multiplies all its tokens together.
//!
//! The region `Memory::groups` holds u32: the number of groups; per group its expert, first row and row count; then the
//! pairs (token · chosen + choice) in the order of the groups. With one token the results go straight to their places.
//! Not here: the choice (`kernels::cpu::ops::router`).

use super::light::act_type;
use super::prepare::act_bytes;
use super::product::grain;
use super::run::Context;
use super::shared::Place;
use super::step::{ActForm, ExpertRows, Part};
use crate::Error;
use device::team::Worker;
use kernels::cpu::matmul::prepare_act;
use std::ops::Range;

/// Words in front of the groups.
const HEADER_WORDS: usize = 1;
/// Words of a group.
const GROUP_WORDS: usize = 3;

/// Bytes of the region for so many pairs and experts.
pub fn groups_bytes(pairs: usize, experts: usize) -> usize {
    (HEADER_WORDS + GROUP_WORDS * experts + pairs) * 4
}

/// The groups of a round, as read back from the region.
#[derive(Clone, Copy)]
struct Groups<'a> {
    groups: &'a [[u32; GROUP_WORDS]],
    pairs: &'a [u32],
}

impl<'a> Context<'a> {
    /// Sorts the pairs by expert (worker 0). `ids` is \[tokens, chosen\].
    pub fn group_experts(&self, ids: Place, experts: usize) -> Result<(), Error> {
        let (tokens, chosen) = (self.round.tokens.len(), ids.cols);
        // SAFETY: worker 0 alone works between the barriers around this step.
        let words: &mut [u32] = unsafe { self.memory.groups.slice_mut(0, groups_bytes(tokens * chosen, experts) / 4) };
        let (header, rest) = words.split_at_mut(HEADER_WORDS);
        let (groups, pairs) = rest.split_at_mut(GROUP_WORDS * experts);
        // SAFETY: the ids were written before the barrier in front of this step.
        let ids = unsafe { self.memory.values.view::<i32>(ids, 0..tokens) };
        let (mut group_count, mut placed) = (0, 0);
        for expert in 0..experts {
            let first = placed;
            for token in 0..tokens {
                for (choice, &id) in ids.row(token).iter().enumerate() {
                    if id as usize == expert {
                        pairs[placed] = (token * chosen + choice) as u32;
                        placed += 1;
                    }
                }
            }
            if placed > first {
                groups[group_count * GROUP_WORDS..][..GROUP_WORDS].copy_from_slice(&[
                    expert as u32,
                    first as u32,
                    (placed - first) as u32,
                ]);
                group_count += 1;
            }
        }
        header[0] = group_count as u32;
        if placed != tokens * chosen {
            return Err(Error::Program { what: "a router chose an expert that the layer does not have" });
        }
        Ok(())
    }

    fn groups(&self, experts: usize, pairs: usize) -> Groups<'a> {
        // SAFETY: written before the last barrier, not again before the next.
        let words: &[u32] = unsafe { self.memory.groups.slice(0, groups_bytes(pairs, experts) / 4) };
        let count = words[0] as usize;
        let groups = words[HEADER_WORDS..][..GROUP_WORDS * count].as_chunks().0;
        Groups { groups, pairs: &words[HEADER_WORDS + GROUP_WORDS * experts..] }
    }

    /// Prepares activations of sorted pairs `rows`.
    pub fn prepare_experts(
        &self,
        (x, cols, input): (Place, usize, ExpertRows),
        form: ActForm,
        (chosen, experts): (usize, usize),
        rows: Range<usize>,
    ) -> Result<(), Error> {
        let tokens = self.round.tokens.len();
        let bytes = act_bytes(form, cols)?;
        let pairs = self.groups(experts, tokens * chosen).pairs;
        for row in rows {
            let (token, choice) = (pairs[row] as usize / chosen, pairs[row] as usize % chosen);
            let columns = match input {
                ExpertRows::Shared => 0..cols,
                ExpertRows::PerExpert => choice * cols..(choice + 1) * cols,
            };
            // SAFETY: `x` was written before a barrier; each sorted row has activations of its own.
            let (x, out) = unsafe {
                let x = self.memory.values.view::<f32>(x, token..token + 1);
                (x, self.memory.acts[form as usize].slice_mut(row * bytes, bytes))
            };
            prepare_act(self.isa, act_type(form), &x.row(0)[columns], out)?;
        }
        Ok(())
    }

    /// Panels of all experts that the round uses.
    pub fn expert_product(&self, worker: &Worker, chosen: usize, part: &Part, experts: usize) -> Result<(), Error> {
        let tokens = self.round.tokens.len();
        let (rows, cols) = self.weights.dims(part.weight);
        let panels = rows.div_ceil(16);
        let groups = self.groups(experts, tokens * chosen);
        let total = groups.groups.len() * panels;
        let per_expert = (tokens * chosen).div_ceil(groups.groups.len().max(1));
        let Some([some_expert, ..]) = groups.groups.first() else { return Ok(()) };
        let grain = grain(&self.weights.matrix(part.weight, *some_expert as usize)?, per_expert, total, worker.count());
        let step = worker.begin_step();
        while let Some(claimed) = worker.claim(step, total as u32, grain) {
            let mut unit = claimed.start;
            while unit < claimed.end {
                let (group, panel) = (unit / panels, unit % panels);
                let end = panels.min(panel + claimed.end - unit);
                let [expert, first, count] = groups.groups[group].map(|word| word as usize);
                let matrix = self.weights.matrix(part.weight, expert)?;
                let bias = part.bias.map(|bias| &self.weights.small(bias)[expert * rows..][..rows]);
                let acts = self.acts(part, first, count, cols)?;
                // SAFETY: claimed panels are disjoint, so are the rows of groups; readers come after a barrier.
                let output = unsafe {
                    match tokens {
                        1 => {
                            let choice = groups.pairs[first] as usize;
                            self.memory.values.output(part.out.col_range(choice * rows..(choice + 1) * rows), 0..1)
                        }
                        _ => self.memory.grouped.output(grouped_place(rows), first..first + count),
                    }
                };
                self.multiply_into(&matrix, bias, acts, count, panel..end, output)?;
                unit += end - panel;
            }
        }
        Ok(())
    }

    /// Copies results of sorted pairs `rows` to their places in `out` \[tokens, chosen · cols\].
    pub fn scatter_experts(&self, chosen: usize, experts: usize, out: Place, rows: Range<usize>) {
        let cols = out.cols / chosen;
        let pairs = self.groups(experts, self.round.tokens.len() * chosen).pairs;
        for row in rows {
            let (token, choice) = (pairs[row] as usize / chosen, pairs[row] as usize % chosen);
            let target = out.col_range(choice * cols..(choice + 1) * cols);
            // SAFETY: the grouped results were written before a barrier; each pair has a place of its own.
            unsafe {
                let from = self.memory.grouped.view::<f32>(grouped_place(cols), row..row + 1);
                self.memory.values.view_mut::<f32>(target, token..token + 1).row_mut(0).copy_from_slice(from.row(0));
            }
        }
    }
}

fn grouped_place(cols: usize) -> Place {
    Place { base_bytes: 0, offset_bytes: 0, stride: cols, cols }
}
