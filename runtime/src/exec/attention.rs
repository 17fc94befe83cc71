//! Attention steps: how the work is divided among workers. With few tokens of one sequence and a long cache it is
//! divided by kv heads and segments of the cache, and joined after a barrier; otherwise by kv heads and blocks of
//! tokens. The bits are the same either way. Not here: the arithmetic (`kernels::cpu::ops::attention`).

use super::prepare::FEW_TOKENS;
use super::round::Span;
use super::run::Context;
use super::scratch::WorkerScratch;
use super::shared::{Home, Place, Shared};
use super::step::Attention;
use crate::Error;
use device::team::Worker;
use kernels::cpu::ops::attention::{AttentionInputs, attention, attention_combine, attention_partial};
use kernels::cpu::ops::kv::{KvViewMut, slot, store_kv};
use std::ops::Range;

/// Tokens of a block when the work is divided by tokens.
const BLOCK_TOKENS: usize = 32;

/// Segments that a worker joins for all heads rather than meet the others to divide that.
const JOINED_ALONE: usize = 4;

impl<'a> Context<'a> {
    /// Segments that are computed apart and then joined, if any are.
    pub fn segments_apart(&self, step: &Attention) -> Option<Range<usize>> {
        match self.solo {
            Some(_) => Some(step.shape.segments(self.round.positions)),
            None => self.divided_segments(step),
        }
    }

    /// Segments by which the round's only span is divided, if it is.
    fn divided_segments(&self, step: &Attention) -> Option<Range<usize>> {
        let [span] = self.round.spans else { return None };
        if span.tokens.len() > FEW_TOKENS {
            return None;
        }
        let segments = step.shape.segments(self.round.positions);
        (segments.len() > 1).then_some(segments)
    }

    /// A worker's part of an attention step.
    pub fn attention(&self, worker: &Worker, scratch: &mut WorkerScratch, step: &Attention) -> Result<(), Error> {
        if let Some(segments) = self.segments_apart(step) {
            return self.attention_by_segments(worker, scratch, step, segments);
        }
        for span in self.round.spans {
            self.attention_by_tokens(worker, scratch, step, span)?;
        }
        Ok(())
    }

    fn inputs(
        &self,
        worker: &Worker,
        step: &Attention,
        span: &Span,
        tokens: Range<usize>,
    ) -> Result<AttentionInputs<'a>, Error> {
        let queries = self.values(worker.index(), step.q.home);
        // SAFETY: queries and this round's keys and values were written before the last barrier or by this worker.
        let (q, kv) = unsafe { (queries.view(step.q, tokens.clone()), self.states.kv(step.cache)) };
        let (k, v) = kv.ok_or(Error::Program { what: "an attention operator without a cache" })?;
        Ok(AttentionInputs {
            q,
            positions: &self.round.positions[tokens],
            k,
            v,
            block_table: self.states.block_table(step.cache, span.sequence),
            sinks: step.sinks.map(|sinks| self.weights.small(sinks)),
        })
    }

    /// Columns of the result that belong to kv head `head`.
    fn head_place(&self, step: &Attention, head: usize) -> Place {
        let cols = step.shape.group() * step.shape.v_head_cols;
        step.out.col_range(head * cols..(head + 1) * cols)
    }

    fn attention_by_tokens(
        &self,
        worker: &Worker,
        scratch: &mut WorkerScratch,
        step: &Attention,
        span: &Span,
    ) -> Result<(), Error> {
        let heads = step.shape.kv_heads;
        let blocks = span.tokens.len().div_ceil(BLOCK_TOKENS);
        let work = worker.begin_step();
        while let Some(claimed) = worker.claim(work, (heads * blocks) as u32, 1) {
            for unit in claimed {
                // Late blocks see more of the cache: begin with them.
                let (head, block) = (unit % heads, blocks - 1 - unit / heads);
                let first = span.tokens.start + block * BLOCK_TOKENS;
                let tokens = first..span.tokens.end.min(first + BLOCK_TOKENS);
                let inputs = self.inputs(worker, step, span, tokens.clone())?;
                // SAFETY: each unit has its own tokens and columns; readers come after a barrier.
                let out = unsafe { self.memory.values.view_mut(self.head_place(step, head), tokens) };
                let scratch = &mut scratch.attention[step.scratch];
                attention(self.isa, &step.shape, &inputs, head..head + 1, scratch, out);
            }
        }
        Ok(())
    }

    /// Partial results of (head, segment) are rows of one matrix, segment by segment within a head.
    fn partials(&self, step: &Attention, unit: Range<usize>) -> (Place, Range<usize>) {
        let cols = step.shape.partial_cols();
        let rows = self.round.tokens.len() * step.shape.group();
        (Place::rows_of(cols), unit.start * rows..unit.end * rows)
    }

    fn attention_by_segments(
        &self,
        worker: &Worker,
        scratch: &mut WorkerScratch,
        step: &Attention,
        segments: Range<usize>,
    ) -> Result<(), Error> {
        let inputs = self.inputs(worker, step, &self.round.spans[0], 0..self.round.tokens.len())?;
        let work = worker.begin_step();
        while let Some(claimed) = worker.claim(work, (step.shape.kv_heads * segments.len()) as u32, 1) {
            for unit in claimed {
                // Heads of one segment lie side by side in the cache: neighbouring units share its pages.
                let (head, index) = (unit % step.shape.kv_heads, unit / step.shape.kv_heads);
                let segment = segments.start + index;
                if segment + 1 == segments.end
                    && let Some((k, v)) = step.store
                {
                    self.store_head(worker, step, (k, v), head);
                }
                let place_of_unit = head * segments.len() + index;
                let (place, rows) = self.partials(step, place_of_unit..place_of_unit + 1);
                // SAFETY: each unit has its own rows; readers come after a barrier.
                let partials = unsafe { self.memory.partials.view_mut(place, rows) };
                let scratch = &mut scratch.attention[step.scratch];
                attention_partial(self.isa, &step.shape, &inputs, (head, segment), scratch, partials);
            }
        }
        Ok(())
    }

    /// Stores the only token's keys and values of one head: nobody else reads them in this step.
    fn store_head(&self, worker: &Worker, step: &Attention, (k, v): (Place, Option<Place>), head: usize) {
        let table = self.states.block_table(step.cache, self.round.spans[0].sequence);
        let slots = [slot(table, self.round.positions[0])];
        let store = |from: Place, cols: usize, cache: KvViewMut| {
            let cols = head * cols..(head + 1) * cols;
            // SAFETY: the worker's own memory, or written before the last barrier.
            let x = unsafe { self.values(worker.index(), from.home).view(from.col_range(cols.clone()), 0..1) };
            store_kv(self.isa, x, &slots, cache.col_range(cols));
        };
        // SAFETY: the head's columns of the last segment belong to the worker who claimed them.
        let Some((keys, values)) = (unsafe { self.states.kv_mut(step.cache) }) else { return };
        store(k, step.shape.k_head_cols, keys);
        if let (Some(v), Some(values)) = (v, values) {
            store(v, step.shape.v_head_cols, values);
        }
    }

    /// Joins what [`Self::attention`] left in pieces.
    pub fn attention_join(&self, worker: &Worker, scratch: &mut WorkerScratch, step: &Attention) {
        let Some(segments) = self.segments_apart(step) else { return };
        let index = worker.index();
        if step.out.home == Home::Own && segments.len() <= JOINED_ALONE {
            let own = self.values(index, Home::Own);
            return (0..step.shape.kv_heads)
                .for_each(|head| self.join_head(scratch, step, (head, segments.len()), own));
        }
        worker.for_blocks(step.shape.kv_heads as u32, 1, |heads| {
            heads.for_each(|head| self.join_head(scratch, step, (head, segments.len()), &self.memory.values));
        });
        if step.out.home == Home::Own {
            worker.barrier();
            if index > 0 {
                // SAFETY: the result was written before the barrier, and is not again before the next.
                let from = unsafe { self.memory.values.view::<f32>(step.out, 0..1) };
                // SAFETY: the worker's own memory.
                let mut to = unsafe { self.values(index, Home::Own).view_mut::<f32>(step.out, 0..1) };
                to.row_mut(0).copy_from_slice(from.row(0));
            }
        }
    }

    /// Joins the segments of a kv head.
    fn join_head(
        &self,
        scratch: &mut WorkerScratch,
        step: &Attention,
        (head, segments): (usize, usize),
        to: &'a Shared,
    ) {
        let (group, tokens) = (step.shape.group(), self.round.tokens.len());
        let sinks = step.sinks.map(|sinks| &self.weights.small(sinks)[head * group..][..group]);
        let (place, rows) = self.partials(step, head * segments..(head + 1) * segments);
        // SAFETY: the pieces were written before a barrier; each head has columns of its own.
        let (partials, out) =
            unsafe { (self.memory.partials.view(place, rows), to.view_mut(self.head_place(step, head), 0..tokens)) };
        attention_combine(self.isa, &step.shape, partials, sinks, &mut scratch.attention[step.scratch], out);
    }
}
