//! Routed experts: the round's (token, choice) pairs are sorted by expert, so that each expert that the round uses is
//! read once and multiplies all its tokens together.
//!
//! The region `Memory::groups` holds u32: the number of groups; per group its expert, first row and row count; then the
//! pairs (token · chosen + choice) in the order of the groups. With one token the results go straight to their places.
//! Pairs whose id is −1 are in no group: another part of the layer's experts computes them.
//! Not here: the choice (`kernels::cpu::ops::router`).

use super::light::act_type;
use super::prepare::act_bytes;
use super::product::Grain;
use super::run::Context;
use super::shared::{Place, Shared};
use super::step::{ActForm, ExpertRows, Part};
use super::walk::share;
use crate::Error;
use device::team::Worker;
use kernels::cpu::matmul::prepare_act;
use plan_format::program;
use plan_format::sizes::experts_in;

/// The id of an expert that another part holds.
const ELSEWHERE: i32 = -1;
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
    /// Where a worker finds the groups.
    fn groups_region(&self, worker: usize) -> &'a Shared {
        self.solo.map_or(&self.memory.groups, |solo| &solo.own[worker].groups)
    }

    /// Sorts the pairs by expert: counts them, gives each expert its rows, and deals the pairs out in their order.
    /// `ids` is \[tokens, chosen\]. In rounds of one token each worker does it for itself, else worker 0 for all.
    pub fn group_experts(&self, worker: &Worker, (ids, experts): (Place, usize)) -> Result<(), Error> {
        let (tokens, chosen) = (self.round.tokens.len(), ids.cols);
        let region = self.groups_region(worker.index());
        // SAFETY: this worker alone works between the barriers around this step, or in memory of its own.
        let words: &mut [u32] = unsafe { region.slice_mut(0, groups_bytes(tokens * chosen, experts) / 4) };
        let (header, rest) = words.split_at_mut(HEADER_WORDS);
        let (groups, pairs) = rest.split_at_mut(GROUP_WORDS * experts);
        let groups = groups.as_chunks_mut::<GROUP_WORDS>().0;
        // SAFETY: the ids were written before the barrier in front of this step, or by this worker.
        let ids = unsafe { self.values(worker.index(), ids.home).view::<i32>(ids, 0..tokens) };
        groups.fill([0; GROUP_WORDS]);
        let held = |(_, id): &(usize, i32)| *id != ELSEWHERE;
        let chosen_here = || (0..tokens).flat_map(|token| ids.row(token)).copied().enumerate().filter(held);
        for (_, id) in chosen_here() {
            let Some([_, _, count]) = groups.get_mut(id as usize) else {
                return Err(Error::Program { what: "a router chose an expert that the layer does not have" });
            };
            *count += 1;
        }
        let mut first = 0;
        for [_, start, count] in groups.iter_mut() {
            (*start, first) = (first, first + *count);
        }
        for (pair, id) in chosen_here() {
            let [placed, start, _] = &mut groups[id as usize];
            pairs[(*start + *placed) as usize] = pair as u32;
            *placed += 1;
        }
        let mut used = 0;
        for expert in 0..experts {
            let [_, first, count] = groups[expert];
            if count > 0 {
                groups[used] = [expert as u32, first, count];
                used += 1;
            }
        }
        header[0] = used as u32;
        Ok(())
    }

    fn groups(&self, worker: &Worker, experts: usize, pairs: usize) -> Groups<'a> {
        let region = self.groups_region(worker.index());
        // SAFETY: written before the last barrier or by this worker, not again before the next.
        let words: &[u32] = unsafe { region.slice(0, groups_bytes(pairs, experts) / 4) };
        let count = words[0] as usize;
        let groups = words[HEADER_WORDS..][..GROUP_WORDS * count].as_chunks().0;
        let used = groups.last().map_or(0, |[_, first, count]| first + count) as usize;
        Groups { groups, pairs: &words[HEADER_WORDS + GROUP_WORDS * experts..][..used] }
    }

    /// Rows of prepared activations: one for each of `pairs`, but a token alone needs its own only once.
    fn act_rows(&self, input: ExpertRows, pairs: usize) -> usize {
        match (input, self.round.tokens.len()) {
            (ExpertRows::Shared, 1) => pairs.min(1),
            _ => pairs,
        }
    }

    /// Prepares this worker's share of the activations of sorted pairs; in rounds of one token, all of them.
    pub fn prepare_experts(
        &self,
        worker: &Worker,
        (x, cols, input): (Place, usize, ExpertRows),
        form: ActForm,
        (chosen, experts): (usize, usize),
    ) -> Result<(), Error> {
        let tokens = self.round.tokens.len();
        let bytes = act_bytes(form, cols)?;
        let pairs = self.groups(worker, experts, tokens * chosen).pairs;
        let all = self.act_rows(input, pairs.len());
        let rows = if self.solo.is_some() { 0..all } else { share(worker, all) };
        for row in rows {
            let (token, choice) = (pairs[row] as usize / chosen, pairs[row] as usize % chosen);
            let columns = match input {
                ExpertRows::Shared => 0..cols,
                ExpertRows::PerExpert => choice * cols..(choice + 1) * cols,
            };
            // SAFETY: `x` was written before a barrier; each sorted row has activations of its own.
            let (x, out) = unsafe {
                let x = self.values(worker.index(), x.home).view::<f32>(x, token..token + 1);
                (x, self.acts_region(worker.index(), form).slice_mut(row * bytes, bytes))
            };
            prepare_act(self.isa, act_type(form), &x.row(0)[columns], out)?;
        }
        Ok(())
    }

    /// Panels of all experts that the round uses.
    pub fn expert_product(
        &self,
        worker: &Worker,
        (chosen, experts, input): (usize, usize, ExpertRows),
        part: &Part,
    ) -> Result<(), Error> {
        let tokens = self.round.tokens.len();
        let (rows, cols) = self.weights.dims(part.weight);
        let panels = rows.div_ceil(16);
        let groups = self.groups(worker, experts, tokens * chosen);
        let total = groups.groups.len() * panels;
        let per_expert = groups.pairs.len().div_ceil(groups.groups.len().max(1));
        let Some([some_expert, ..]) = groups.groups.first() else { return Ok(()) };
        let some_matrix = self.weights.matrix(part.weight, *some_expert as usize)?;
        let grain = Grain::new(&some_matrix, per_expert, total, worker.count());
        let step = worker.begin_step();
        while let Some(claimed) = grain.claim(worker, step, total) {
            let mut unit = claimed.start;
            while unit < claimed.end {
                let (group, panel) = (unit / panels, unit % panels);
                let end = panels.min(panel + claimed.end - unit);
                let [expert, first, count] = groups.groups[group].map(|word| word as usize);
                let matrix = self.weights.matrix(part.weight, expert)?;
                let bias = part.bias.map(|bias| &self.weights.small(bias)[expert * rows..][..rows]);
                let act = if self.act_rows(input, groups.pairs.len()) == 1 { 0 } else { first };
                let acts = self.acts(worker, part.form, act..act + count, cols)?;
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
    pub fn scatter_experts(&self, worker: &Worker, (chosen, experts): (usize, usize), out: Place) {
        let cols = out.cols / chosen;
        let pairs = self.groups(worker, experts, self.round.tokens.len() * chosen).pairs;
        for row in share(worker, pairs.len()) {
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
    Place::rows_of(cols)
}

/// By expert up to the last one of these ranges: its place among them, −1 for those between.
pub fn places_of(held: &[program::Part]) -> Vec<i32> {
    let mut places = vec![ELSEWHERE; held.last().map_or(0, |part| part.end as usize)];
    for (place, expert) in experts_in(held).enumerate() {
        places[expert as usize] = place as i32;
    }
    places
}
