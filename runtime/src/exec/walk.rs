//! One worker's way through the steps of a round. Not here: rounds (`run.rs`), what each kind of step does (`light.rs`,
//! `product.rs`, `attention.rs`, and so on).

use super::light::Rows;
use super::run::Context;
use super::scratch::WorkerScratch;
use super::step::{Light, Step, Task};
use super::trace::{Label, Trace};
use crate::Error;
use crate::hybrid::build::PartSteps;
use device::team::Worker;
use plan_format::program;
use std::ops::Range;

/// The rows of `worker` out of `total`: contiguous, the same in every light step.
pub fn share(worker: &Worker, total: usize) -> Range<usize> {
    let each = total.div_ceil(worker.count());
    (worker.index() * each).min(total)..((worker.index() + 1) * each).min(total)
}

/// Columns of a light step that is divided by columns, in lines of memory.
fn share_of_cols(worker: &Worker, cols: usize) -> Range<usize> {
    const LINE_COLS: usize = 64;
    let lines = share(worker, cols.div_ceil(LINE_COLS));
    (lines.start * LINE_COLS).min(cols)..(lines.end * LINE_COLS).min(cols)
}

impl Context<'_> {
    pub fn total(&self, rows: program::Rows) -> usize {
        match rows {
            program::Rows::Tokens => self.round.tokens.len(),
            program::Rows::Outputs => self.round.outputs.len(),
        }
    }

    /// This worker's share of a part of a round with a GPU. All meet at its end.
    pub fn part(
        &self,
        worker: &Worker,
        scratch: &mut WorkerScratch,
        steps: &[Step],
        (split, part): (usize, &PartSteps),
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        for step in &steps[part.first.clone()] {
            outcome = outcome.and(self.traced(worker, scratch, step, split));
        }
        // In rounds of one token each worker has its own angles.
        if !part.first.is_empty() && self.solo.is_none() {
            worker.barrier();
        }
        let own = &steps[part.own.clone()];
        for step in own {
            outcome = outcome.and(self.step(worker, scratch, step, split));
        }
        if own.last().is_some_and(|last| !last.barrier) {
            worker.barrier();
        }
        outcome
    }

    /// This worker's part of a step, and the barrier after it.
    pub fn step(&self, worker: &Worker, scratch: &mut WorkerScratch, step: &Step, split: usize) -> Result<(), Error> {
        let result = self.traced(worker, scratch, step, split);
        let idle = matches!(&step.task, Task::AttentionJoin(join) if self.segments_apart(join).is_none());
        if step.barrier && !idle {
            worker.barrier();
        }
        result
    }

    /// A step, written down: in rounds of one token only where the clock does not take as long as the step.
    fn traced(&self, worker: &Worker, scratch: &mut WorkerScratch, step: &Step, split: usize) -> Result<(), Error> {
        let is_seen = |trace: &&Trace| step.barrier || self.solo.is_none() || trace.sees_all_steps(worker.index());
        let Some(trace) = self.trace.filter(is_seen) else { return self.task(worker, scratch, &step.task) };
        let start = trace.now();
        let result = self.task(worker, scratch, &step.task);
        trace.worker(worker.index(), split, Label::Op(step.op.0), start);
        result
    }

    pub fn task(&self, worker: &Worker, scratch: &mut WorkerScratch, task: &Task) -> Result<(), Error> {
        let tokens = self.round.tokens.len();
        match task {
            Task::Light { rows, light } => {
                let total = self.total(*rows);
                let mut run = |rows, light: &Light| {
                    Rows { context: self, scratch, worker: worker.index(), rows, total }.run(light)
                };
                if self.solo.is_none() {
                    return run(share(worker, total), light);
                }
                match light.is_for_all().then(|| light.by_cols(|cols| share_of_cols(worker, cols))).flatten() {
                    Some(own) if own.outputs().iter().flatten().all(|place| place.cols == 0) => Ok(()),
                    Some(own) => run(0..total, &own),
                    None if light.is_for_all() && worker.index() > 0 => Ok(()),
                    None => run(0..total, light),
                }
            }
            Task::Product { rows, parts } => self.product(worker, scratch, parts, self.total(*rows)),
            Task::HeadProduct { heads, part } => self.head_product(worker, *heads, part, tokens),
            Task::GroupExperts { ids, experts } if worker.index() == 0 || self.solo.is_some() => {
                self.group_experts(worker, (*ids, *experts))
            }
            Task::GroupExperts { .. } => Ok(()),
            Task::PrepareExperts { x, chosen, experts, input, form, cols } => {
                self.prepare_experts(worker, (*x, *cols, *input), *form, (*chosen, *experts))
            }
            Task::ExpertProduct { chosen, experts, input, part } => {
                self.expert_product(worker, (*chosen, *experts, *input), part)
            }
            Task::ScatterExperts { chosen, experts, out } => {
                if tokens > 1 {
                    self.scatter_experts(worker, (*chosen, *experts), *out);
                }
                Ok(())
            }
            Task::Attention(step) => self.attention(worker, scratch, step),
            Task::AttentionJoin(step) => {
                self.attention_join(worker, scratch, step);
                Ok(())
            }
            Task::Conv { x, filter, state, taps, out } => {
                self.conv(worker, (*x, *out), (*filter, *state), *taps);
                Ok(())
            }
            Task::Delta(delta) => {
                self.delta(worker, delta);
                Ok(())
            }
        }
    }
}
