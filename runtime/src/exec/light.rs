//! Light steps: row-wise operators on the rows of one worker.
//! Not here: which rows (`run.rs`), the arithmetic (`kernels::cpu::ops`).

use super::choices::Flip;
use super::prepare::act_bytes;
use super::run::Context;
use super::scratch::WorkerScratch;
use super::shared::Place;
use super::step::{ActForm, Light, RouterRule};
use crate::Error;
use kernels::cpu::Isa;
use kernels::cpu::matmul::{Layout, prepare_act, prepare_act_pair};
use kernels::cpu::ops::elementwise;
use kernels::cpu::ops::embed::{EmbedLayout, EmbedTable, embed};
use kernels::cpu::ops::kv::{slot, store_kv};
use kernels::cpu::ops::{View, ViewMut, experts, norm, rope, router};
use kernels::quant::WeightType;
use plan_format::{StateId, WeightId};
use std::ops::Range;

/// A worker's share of a light step.
pub struct Rows<'a> {
    pub context: &'a Context<'a>,
    pub scratch: &'a mut WorkerScratch,
    /// Its number.
    pub worker: usize,
    /// Its rows.
    pub rows: Range<usize>,
    /// Rows of the step in this round.
    pub total: usize,
}

impl Rows<'_> {
    fn read<T: bytemuck::Pod>(&self, place: Place) -> View<'_, T> {
        // SAFETY: light steps handle rows apart, and barriers separate them from other steps.
        unsafe { self.context.values(self.worker, place.home).view(place, self.rows.clone()) }
    }

    fn write<T: bytemuck::Pod>(&self, place: Place) -> ViewMut<'_, T> {
        // SAFETY: as `read`; an operator's output is no operand of it (single assignment).
        unsafe { self.context.values(self.worker, place.home).view_mut(place, self.rows.clone()) }
    }

    /// Runs the operator on the rows.
    pub fn run(&mut self, light: &Light) -> Result<(), Error> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let isa = self.context.isa;
        let positions = self.context.round.positions.get(self.rows.clone()).unwrap_or(&[]);
        match light {
            Light::Trig { table } => self.trig(*table, positions),
            Light::Embed { table, scale, out } => self.embed(*table, *scale, *out)?,
            Light::Select { x, out } => self.select(*x, *out),
            Light::RmsNorm { x, group, weight, eps, out } => {
                let weight = weight.map(|weight| self.context.weights.small(weight));
                let norm = norm::RmsNorm { group: *group, weight, eps: *eps };
                norm::rms_norm(isa, self.read(*x), norm, self.write(*out));
            }
            Light::L2Norm { x, group, eps, scale, out } => {
                let norm = norm::L2Norm { group: *group, eps: *eps, scale: *scale };
                norm::l2_norm(isa, self.read(*x), norm, self.write(*out));
            }
            Light::Add { a, b, out } => elementwise::add(isa, self.read(*a), self.read(*b), self.write(*out)),
            Light::Glu { gate, up, activation, out } => {
                elementwise::glu(isa, *activation, self.read(*gate), self.read(*up), self.write(*out));
            }
            Light::SigmoidGate { x, gate, out } => {
                elementwise::sigmoid_gate(isa, self.read(*x), self.read(*gate), self.write(*out));
            }
            Light::CopyCols { x, out, groups } => elementwise::copy_cols(self.read(*x), self.write(*out), *groups),
            Light::Rope { x, table, pairing, head_cols, out } => {
                let (memory, place) = self.context.trig(self.worker, *table);
                // SAFETY: the angles are written at the start of the round, before a barrier or by this worker.
                let trig = unsafe { memory.view(*place, self.rows.clone()) };
                rope::rope(isa, self.read(*x), *pairing, *head_cols, trig, self.write(*out));
            }
            Light::PositionScale { x, temperature, out } => {
                elementwise::position_scale(isa, self.read(*x), positions, *temperature, self.write(*out));
            }
            Light::StoreKv { k, v, cache } => self.store_kv(*k, *v, *cache),
            Light::Softcap { x, cap, out } => elementwise::softcap(isa, self.read(*x), *cap, self.write(*out)),
            Light::Router { logits, bias, router, ids, weights, number } => {
                self.router(*logits, *bias, *router, *ids, *weights);
                self.force(*number, *logits, (*bias, *router), (*ids, *weights))?;
                self.record(*number, *ids);
            }
            Light::ExpertScale { x, weights, out } => {
                experts::expert_scale(isa, self.read(*x), self.read(*weights), self.write(*out));
            }
            Light::ExpertSum { x, chosen, weights, first_col, out } => {
                let weights = weights.map(|weights| self.read(weights));
                let cols = *first_col..*first_col + out.cols;
                experts::expert_sum(isa, self.read(*x), *chosen, weights, cols, self.write(*out));
            }
            Light::Reduce { partials, out } => {
                let partials: Vec<View> = partials.iter().map(|place| self.read(*place)).collect();
                elementwise::sum(isa, &partials, self.write(*out));
            }
            Light::HeldIds { ids, places, out } => experts::held_ids(self.read(*ids), places, self.write(*out)),
            Light::HeldSum { x, weights, ids, out } => {
                let weights = weights.map(|weights| self.read(weights));
                experts::held_sum(isa, self.read(*x), weights, self.read(*ids), self.write(*out));
            }
            Light::Prepare { x, form, heads } => self.prepare(*x, *form, *heads)?,
        }
        Ok(())
    }

    fn trig(&self, table: usize, positions: &[u32]) {
        let (memory, place) = self.context.trig(self.worker, table);
        // SAFETY: rows are apart, and a barrier follows before other workers read them.
        let out = unsafe { memory.view_mut(*place, self.rows.clone()) };
        self.context.ropes[table].fill(positions, out);
    }

    fn embed(&self, table: WeightId, scale: f32, out: Place) -> Result<(), Error> {
        let matrix = self.context.weights.matrix(table, 0)?;
        let layout = match matrix.layout() {
            Layout::Gguf => EmbedLayout::File,
            Layout::Panel16 => EmbedLayout::Panels,
        };
        let table = EmbedTable { ty: matrix.ty(), rows: matrix.rows(), data: matrix.bytes(), layout };
        let tokens = &self.context.round.tokens[self.rows.clone()];
        Ok(embed(self.context.isa, table, tokens, scale, self.write(out))?)
    }

    fn select(&self, x: Place, out: Place) {
        let outputs = &self.context.round.outputs[self.rows.clone()];
        // SAFETY: all rows of `x` were written before the barrier in front of this step.
        let x: View = unsafe { self.context.values(self.worker, x.home).view(x, 0..self.context.round.tokens.len()) };
        elementwise::gather_rows(x, outputs, self.write(out));
    }

    fn store_kv(&mut self, k: Place, v: Option<Place>, cache: StateId) {
        let rows = self.rows.clone();
        let mut slots = std::mem::take(&mut self.scratch.slots);
        for span in self.context.round.spans {
            let table = self.context.states.block_table(cache, span.sequence);
            for token in span.tokens.start.max(rows.start)..span.tokens.end.min(rows.end) {
                slots[token - rows.start] = slot(table, self.context.round.positions[token]);
            }
        }
        // SAFETY: every token has a slot of its own; readers come after a barrier.
        if let Some((keys, values)) = unsafe { self.context.states.kv_mut(cache) } {
            store_kv(self.context.isa, self.read(k), &slots[..rows.len()], keys);
            if let (Some(v), Some(values)) = (v, values) {
                store_kv(self.context.isa, self.read(v), &slots[..rows.len()], values);
            }
        }
        self.scratch.slots = slots;
    }

    fn router(&mut self, logits: Place, bias: Option<WeightId>, rule: RouterRule, ids: Place, weights: Place) {
        let mut scratch = std::mem::take(&mut self.scratch.router);
        let router = self.router_of(bias, rule);
        let (logits, ids, weights) = (self.read(logits), self.write(ids), self.write(weights));
        router::router(self.context.isa, logits, router, ids, weights, &mut scratch);
        self.scratch.router = scratch;
    }

    fn router_of(&self, bias: Option<WeightId>, rule: RouterRule) -> router::Router<'_> {
        let select_bias = bias.map(|bias| self.context.weights.small(bias));
        let RouterRule { chosen, score, weights, scale } = rule;
        router::Router { chosen, score, select_bias, weights, scale }
    }

    /// Puts forced choices, if there are any, in the place of the router's own.
    fn force(
        &mut self,
        number: usize,
        logits: Place,
        (bias, rule): (Option<WeightId>, RouterRule),
        (ids, weights): (Place, Place),
    ) -> Result<(), Error> {
        let Some(forced) = self.context.forced else { return Ok(()) };
        let mut scratch = std::mem::take(&mut self.scratch.router);
        let (isa, router) = (self.context.isa, self.router_of(bias, rule));
        for (index, row) in self.rows.clone().enumerate() {
            let position = self.context.round.positions[row];
            let Some((layer, wanted)) = forced.at(number, position) else {
                return Err(Error::Program { what: "choices are forced for fewer tokens than there are" });
            };
            let (logits, mut ids, mut weights) = (self.read::<f32>(logits), self.write(ids), self.write(weights));
            let (logits, ids) = (logits.row(index), ids.row_mut(index));
            // With one token every worker chooses for itself.
            if self.worker == 0 || self.context.solo.is_none() {
                let scale = scale_of(logits, &router);
                let ranked = ranked(isa, logits, &router);
                if let Some(flip) = Flip::between(wanted, ids, (layer, position), (&ranked, scale)) {
                    forced.note(flip);
                }
            }
            ids.copy_from_slice(wanted);
            router::weigh(isa, logits, &router, ids, weights.row_mut(index), &mut scratch);
        }
        self.scratch.router = scratch;
        Ok(())
    }

    /// Writes down what a router has chosen, where that is recorded.
    fn record(&self, number: usize, ids: Place) {
        let Some(choices) = self.context.memory.choices.as_ref() else { return };
        // With one token every worker chooses for itself.
        let Some(place) = choices.routers.place(number).filter(|_| self.worker == 0 || self.context.solo.is_none())
        else {
            return;
        };
        let ids = self.read::<i32>(ids);
        // SAFETY: each router has a part of its own, each row one writer; it is read when the round is over.
        let mut out = unsafe { choices.region.view_mut::<i32>(place, self.rows.clone()) };
        (0..ids.rows()).for_each(|row| out.row_mut(row).copy_from_slice(ids.row(row)));
    }

    /// Row h · total + r of the activations is head h of row r.
    fn prepare(&self, x: Place, form: ActForm, heads: usize) -> Result<(), Error> {
        let cols = x.cols / heads;
        let bytes = act_bytes(form, cols)?;
        let x = self.read::<f32>(x);
        for (index, row) in self.rows.clone().enumerate() {
            for (head, values) in x.row(index).chunks_exact(cols).enumerate() {
                let at = (head * self.total + row) * bytes;
                // SAFETY: every row has activations of its own; readers come after a barrier.
                let out = unsafe { self.context.acts_region(self.worker, form).slice_mut(at, bytes) };
                match form {
                    ActForm::Pairs => prepare_act_pair(self.context.isa, act_type(form), values, out)?,
                    _ => prepare_act(self.context.isa, act_type(form), values, out)?,
                }
            }
        }
        Ok(())
    }
}

/// What a router ranks experts by: its logits where nothing is added to the scores, which have their order.
fn ranked(isa: Isa, logits: &[f32], router: &router::Router) -> Vec<f32> {
    let mut ranked = logits.to_vec();
    if router.select_bias.is_some() {
        router::ranks(isa, logits, router, &mut ranked);
    }
    ranked
}

/// Root mean square of the logits, times how much a rank can move with a logit.
fn scale_of(logits: &[f32], router: &router::Router) -> f32 {
    let mean_square = logits.iter().map(|x| x * x).sum::<f32>() / logits.len().max(1) as f32;
    let slope = match router.score {
        _ if router.select_bias.is_none() => 1.0,
        router::RouterScore::Logit => 1.0,
        router::RouterScore::Softmax => 0.5,
        router::RouterScore::Sigmoid => 0.25,
    };
    slope * mean_square.sqrt()
}

/// A weight type that wants this form.
pub fn act_type(form: ActForm) -> WeightType {
    match form {
        ActForm::Blocks | ActForm::Pairs => WeightType::Q8_0,
        ActForm::Plain => WeightType::F32,
    }
}
