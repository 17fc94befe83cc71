//! From a program to steps and memory, once at load: values become places, operators become one or several steps, and
//! barriers are put where a worker could otherwise touch what another writes.
//!
//! Light steps in a row need no barrier among them: a row is always handled by the same worker. They do need one where
//! the rows are other rows (tokens, outputs), or where a value lies over memory that an earlier step of the run used
//! with another geometry. Not here: running (`run.rs`), where values lie (`plan_format::arena`). Next: `run.rs`.

use super::barriers::place_barriers;
use super::choices::{ChoiceMemory, Choices};
use super::pairs::fine_values;
use super::shared::{Home, Place, Shared};
use super::solo::{Own, Solo, Worker0, own_values, own_values_beside, solo_arena, solo_steps, solo_steps_beside};
use super::states::{KvType, StateLimits};
use super::step::*;
use super::terms::{attention_shape, glu, pairing, rope_table, router_rule};
use super::weights::{Precision, WeightStore};
use crate::Error;
use kernels::cpu::matmul::act_row_bytes;
use kernels::cpu::ops::attention::{AttentionShape, SEGMENT};
use kernels::cpu::ops::delta::HeadMap;
use kernels::cpu::ops::elementwise::{ColGroups, Temperature};
use kernels::cpu::ops::rope::RopeTable;
use plan_format::arena::Arena;
use plan_format::program::{self, OpKind, Program, Rows, View};
use plan_format::{OpId, WeightId};

/// Sizes that bound a run's memory.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest sequence in tokens.
    pub context_tokens: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// Cache elements.
    pub kv_type: KvType,
    /// How products are computed.
    pub precision: Precision,
    /// Whether choices of experts are recorded.
    pub choices: Choices,
}

/// Everything a round needs besides the team.
#[derive(Debug)]
pub struct Prepared {
    pub steps: Vec<Step>,
    pub ropes: Vec<RopeTable>,
    pub shapes: Vec<AttentionShape>,
    pub sizes: Sizes,
    pub logits: Place,
}

/// Regions that workers share.
#[derive(Debug)]
pub struct Memory {
    /// Values of the program.
    pub values: Shared,
    /// Activations by form.
    pub acts: [Shared; ACT_FORMS],
    /// Angles per rotary table.
    pub trig: Vec<(Shared, Place)>,
    /// Partial results of attention.
    pub partials: Shared,
    /// Order of (token, choice) pairs by expert: see `experts.rs`.
    pub groups: Shared,
    /// Expert results in that order.
    pub grouped: Shared,
    /// The round's choices of experts, where they are recorded.
    pub choices: Option<ChoiceMemory>,
}

/// Forms of activations.
pub const ACT_FORMS: usize = 3;

/// Tokens of a span up to which attention is divided by segments of the cache.
pub const FEW_TOKENS: usize = 8;

/// Resolves a verified program.
pub fn prepare(program: &Program, arena: &Arena, weights: &WeightStore, limits: Limits) -> Result<Prepared, Error> {
    let own = vec![false; program.values.len()];
    let builder = Builder::build(program, (arena, arena), weights, limits, &own)?;
    let logits = builder.logits();
    let mut steps = builder.steps;
    place_barriers(&mut steps, arena.limits);
    let ropes: Vec<RopeTable> = program.ropes.iter().map(|rope| rope_table(rope, weights)).collect();
    let ubatch_tokens = arena.limits.ubatch_tokens as usize;
    let trig = ropes.iter().map(|table| ubatch_tokens * table.cols() * 4).collect();
    let sizes = Sizes { trig, ..builder.sizes };
    Ok(Prepared { steps, ropes, shapes: builder.shapes, sizes, logits })
}

/// Resolves a verified program for rounds of one token and `workers` workers. `ropes` are those of [`Prepared`].
pub fn prepare_solo(
    program: &Program,
    weights: &WeightStore,
    limits: Limits,
    (workers, ropes): (usize, &[RopeTable]),
) -> Result<Solo, Error> {
    let arena = solo_arena(program);
    let own = own_values(program);
    let builder = Builder::build(program, (&arena, &arena), weights, limits, &own)?;
    let own = |index| Own::new(index, (Worker0::SharesValues, arena.size_bytes as usize), &builder.sizes, ropes);
    let (own, logits) = ((0..workers).map(own).collect(), builder.logits());
    Ok(Solo { steps: solo_steps(builder.steps), logits, own })
}

/// The same beside a GPU: values that another item touches stay in `shared`, which both sides know.
pub fn prepare_solo_beside(
    program: &Program,
    shared: &Arena,
    weights: &WeightStore,
    limits: Limits,
    (workers, ropes): (usize, &[RopeTable]),
) -> Result<Solo, Error> {
    let arena = solo_arena(program);
    let own = own_values_beside(program);
    let builder = Builder::build(program, (&arena, shared), weights, limits, &own)?;
    let own = |index| Own::new(index, (Worker0::HasOwn, arena.size_bytes as usize), &builder.sizes, ropes);
    let (own, logits) = ((0..workers).map(own).collect(), builder.logits());
    Ok(Solo { steps: solo_steps_beside(builder.steps), logits, own })
}

/// Bytes of the regions that hold no values, and the most experts of a layer.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    pub acts: [usize; ACT_FORMS],
    pub trig: Vec<usize>,
    pub partials: usize,
    pub groups: usize,
    pub grouped: usize,
    pub experts: usize,
    /// Routers so far: the next one's number.
    pub routers: usize,
}

impl Memory {
    /// Memory for rounds: the values' region as given, all others as `take` gives them for their sizes.
    pub fn new(values: Shared, sizes: &Sizes, ropes: &[RopeTable], take: &mut dyn FnMut(usize) -> Shared) -> Self {
        Memory {
            values,
            acts: sizes.acts.map(&mut *take),
            trig: sizes
                .trig
                .iter()
                .zip(ropes)
                .map(|(&bytes, table)| (take(bytes), Place::rows_of(table.cols())))
                .collect(),
            partials: take(sizes.partials),
            groups: take(sizes.groups),
            grouped: take(sizes.grouped),
            choices: None,
        }
    }
}

impl Limits {
    /// What bounds the states in rounds of so many tokens.
    pub fn of_states(&self, ubatch_tokens: usize) -> StateLimits {
        let Limits { context_tokens, sequences, kv_type, .. } = *self;
        StateLimits { context_tokens, ubatch_tokens, sequences, kv_type }
    }
}

struct Builder<'a> {
    program: &'a Program,
    /// Limits of the rounds, and where workers' own values lie.
    arena: &'a Arena,
    /// Where values for all workers lie.
    shared: &'a Arena,
    weights: &'a WeightStore,
    limits: Limits,
    /// Which values each worker computes for itself.
    own: &'a [bool],
    /// Values that are computed in [`ActForm::Pairs`].
    fine: Vec<bool>,
    steps: Vec<Step>,
    shapes: Vec<AttentionShape>,
    sizes: Sizes,
}

impl<'a> Builder<'a> {
    fn build(
        program: &'a Program,
        (arena, shared): (&'a Arena, &'a Arena),
        weights: &'a WeightStore,
        limits: Limits,
        own: &'a [bool],
    ) -> Result<Self, Error> {
        let (steps, shapes, sizes) = (Vec::new(), Vec::new(), Sizes::default());
        let fine = fine_values(program);
        let mut builder = Builder { program, arena, shared, weights, limits, own, fine, steps, shapes, sizes };
        for table in 0..program.ropes.len() {
            builder.light(OpId(0), Rows::Tokens, Light::Trig { table });
        }
        for (index, op) in program.ops.iter().enumerate() {
            builder.operator(OpId(index as u32), &op.kind)?;
        }
        Ok(builder)
    }

    fn logits(&self) -> Place {
        let value = self.program.logits;
        self.place(View { value, first_col: 0, cols: self.program.values[value.index()].cols })
    }

    fn place(&self, view: View) -> Place {
        let stride = self.program.values[view.value.index()].cols as usize;
        let (home, arena) =
            if self.own[view.value.index()] { (Home::Own, self.arena) } else { (Home::Shared, self.shared) };
        let base_bytes = arena.offsets_bytes[view.value.index()] as usize;
        let offset_bytes = base_bytes + view.first_col as usize * 4;
        Place { base_bytes, offset_bytes, stride, cols: view.cols as usize, home }
    }

    fn rows_of(&self, view: View) -> Rows {
        self.program.values[view.value.index()].rows
    }

    fn rows_max(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.arena.limits.ubatch_tokens as usize,
            Rows::Outputs => self.arena.limits.output_tokens as usize,
        }
    }

    fn push(&mut self, op: OpId, task: Task) {
        self.steps.push(Step { op, task, barrier: true });
    }

    fn light(&mut self, op: OpId, rows: Rows, light: Light) {
        self.push(op, Task::Light { rows, light });
    }

    fn operator(&mut self, op: OpId, kind: &OpKind) -> Result<(), Error> {
        match kind {
            OpKind::MatMul { x, parts } => self.mat_mul(op, *x, parts),
            OpKind::HeadMatMul { x, heads, weight, out } => self.head_mat_mul(op, *x, *heads as usize, *weight, *out),
            OpKind::ExpertMatMul { x, input, chosen, ids, parts } => {
                self.expert_mat_mul(op, *x, *input, *chosen as usize, *ids, parts)
            }
            OpKind::Attention { q, cache, attention, out } => {
                self.attention(op, *q, *cache, attention, *out);
                Ok(())
            }
            OpKind::CausalConv { x, filter, state, out } => {
                let program::StateKind::Conv { taps, .. } = self.program.states[state.index()].kind else {
                    return Err(Error::Program { what: "a convolution without a convolution state" });
                };
                let (x, out) = (self.place(*x), self.place(*out));
                self.push(op, Task::Conv { x, filter: *filter, state: *state, taps: taps as usize, out });
                Ok(())
            }
            OpKind::DeltaNet { delta, out } => {
                let delta = self.delta(delta, *out);
                self.push(op, Task::Delta(Box::new(delta)));
                Ok(())
            }
            other => {
                let (rows, light) = self.light_operator(other)?;
                self.light(op, rows, light);
                if let OpKind::Router { router, .. } = other {
                    self.sizes.experts = self.sizes.experts.max(router.experts as usize);
                    self.sizes.routers += 1;
                }
                Ok(())
            }
        }
    }

    fn light_operator(&self, kind: &OpKind) -> Result<(Rows, Light), Error> {
        let at = |view: &View| self.place(*view);
        let light = match kind {
            OpKind::Embed { table, scale, out } => Light::Embed { table: *table, scale: *scale, out: at(out) },
            OpKind::SelectOutputs { x, out } => Light::Select { x: at(x), out: at(out) },
            OpKind::RmsNorm { x, group, weight, eps, out } => {
                Light::RmsNorm { x: at(x), group: *group as usize, weight: *weight, eps: *eps, out: at(out) }
            }
            OpKind::L2Norm { x, group, eps, scale, out } => {
                Light::L2Norm { x: at(x), group: *group as usize, eps: *eps, scale: *scale, out: at(out) }
            }
            OpKind::Add { a, b, out } => Light::Add { a: at(a), b: at(b), out: at(out) },
            OpKind::Glu { gate, up, activation, out } => {
                Light::Glu { gate: at(gate), up: at(up), activation: glu(*activation), out: at(out) }
            }
            OpKind::SigmoidGate { x, gate, out } => Light::SigmoidGate { x: at(x), gate: at(gate), out: at(out) },
            OpKind::CopyCols { x, x_stride, out, out_stride, width, groups } => {
                let [x_stride, out_stride, width, groups] =
                    [*x_stride, *out_stride, *width, *groups].map(|n| n as usize);
                Light::CopyCols { x: at(x), out: at(out), groups: ColGroups { x_stride, out_stride, width, groups } }
            }
            OpKind::Rope { x, head_cols, rope, out, .. } => {
                let pairing = pairing(self.program.ropes[rope.index()].pairing);
                let (x, out, head_cols) = (at(x), at(out), *head_cols as usize);
                Light::Rope { x, table: rope.index(), pairing, head_cols, out }
            }
            OpKind::PositionScale { x, period_tokens, factor, out } => {
                let temperature = Temperature { period_tokens: *period_tokens, factor: *factor };
                Light::PositionScale { x: at(x), temperature, out: at(out) }
            }
            OpKind::StoreKv { k, v, cache } => Light::StoreKv { k: at(k), v: v.as_ref().map(at), cache: *cache },
            OpKind::Softcap { x, cap, out } => Light::Softcap { x: at(x), cap: *cap, out: at(out) },
            OpKind::Router { logits, select_bias, router, ids, weights } => {
                let (logits, ids, weights) = (at(logits), at(ids), at(weights));
                let (router, number) = (router_rule(router), self.sizes.routers);
                Light::Router { logits, bias: *select_bias, router, ids, weights, number }
            }
            OpKind::ExpertScale { x, weights, out } => {
                Light::ExpertScale { x: at(x), weights: at(weights), out: at(out) }
            }
            OpKind::ExpertSum { x, chosen, weights, out } => {
                let (x, weights, out) = (at(x), weights.as_ref().map(at), at(out));
                Light::ExpertSum { x, chosen: *chosen as usize, weights, first_col: 0, out }
            }
            OpKind::Reduce { partials, out } => {
                Light::Reduce { partials: partials.iter().map(at).collect(), out: at(out) }
            }
            OpKind::HeldIds { ids, held, out } => {
                Light::HeldIds { ids: at(ids), places: super::experts::places_of(held).into(), out: at(out) }
            }
            OpKind::HeldSum { x, weights, ids, out, .. } => {
                Light::HeldSum { x: at(x), weights: weights.as_ref().map(at), ids: at(ids), out: at(out) }
            }
            _ => return Err(Error::Program { what: "an operator that is not row-wise among the row-wise ones" }),
        };
        let written = kind.writes().next().map(|columns| columns.value);
        let rows = written.map_or(Rows::Tokens, |value| self.program.values[value.index()].rows);
        Ok((rows, light))
    }

    fn form(&self, weight: WeightId) -> ActForm {
        match self.limits.precision {
            Precision::Fast if !self.weights.ty(weight).is_plain() => ActForm::Blocks,
            _ => ActForm::Plain,
        }
    }

    /// A part of a dense product: finer where its result is a key or value.
    fn dense_part(&self, part: &program::MatMulPart) -> Part {
        match self.part(part) {
            coarse if coarse.form == ActForm::Blocks && self.fine[part.out.value.index()] => {
                Part { form: ActForm::Pairs, ..coarse }
            }
            part => part,
        }
    }

    fn part(&self, part: &program::MatMulPart) -> Part {
        Part { weight: part.weight, bias: part.bias, form: self.form(part.weight), out: self.place(part.out) }
    }

    /// Makes room for `rows` activations of `cols` columns.
    fn reserve_acts(&mut self, form: ActForm, rows: usize, cols: usize) -> Result<(), Error> {
        let region = &mut self.sizes.acts[form as usize];
        *region = (*region).max(rows * act_bytes(form, cols)?);
        Ok(())
    }

    fn mat_mul(&mut self, op: OpId, x: View, parts: &[program::MatMulPart]) -> Result<(), Error> {
        let parts: Vec<Part> = parts.iter().map(|part| self.dense_part(part)).collect();
        let (rows, place) = (self.rows_of(x), self.place(x));
        for form in [ActForm::Blocks, ActForm::Plain, ActForm::Pairs] {
            if parts.iter().any(|part| part.form == form) {
                self.reserve_acts(form, self.rows_max(rows), place.cols)?;
                self.light(op, rows, Light::Prepare { x: place, form, heads: 1 });
            }
        }
        self.push(op, Task::Product { rows, parts });
        Ok(())
    }

    fn head_mat_mul(&mut self, op: OpId, x: View, heads: usize, weight: WeightId, out: View) -> Result<(), Error> {
        let form = self.form(weight);
        let x = self.place(x);
        self.reserve_acts(form, self.rows_max(Rows::Tokens) * heads, x.cols / heads)?;
        self.light(op, Rows::Tokens, Light::Prepare { x, form, heads });
        let part = Part { weight, bias: None, form, out: self.place(out) };
        self.push(op, Task::HeadProduct { heads, part });
        Ok(())
    }

    fn expert_mat_mul(
        &mut self,
        op: OpId,
        x: View,
        input: program::ExpertInput,
        chosen: usize,
        ids: View,
        parts: &[program::MatMulPart],
    ) -> Result<(), Error> {
        let pairs = self.rows_max(Rows::Tokens) * chosen;
        let experts = parts.first().map_or(0, |part| self.stack(part.weight));
        self.sizes.groups = self.sizes.groups.max(super::experts::groups_bytes(pairs, experts));
        let (x, ids) = (self.place(x), self.place(ids));
        self.push(op, Task::GroupExperts { ids, experts });
        let input = match input {
            program::ExpertInput::Shared => ExpertRows::Shared,
            program::ExpertInput::PerExpert => ExpertRows::PerExpert,
        };
        let mut prepared: Option<(ActForm, usize)> = None;
        for part in parts {
            let part = self.part(part);
            let (rows, cols) = self.weights.dims(part.weight);
            self.reserve_acts(part.form, pairs, cols)?;
            self.sizes.grouped = self.sizes.grouped.max(pairs * rows * 4);
            if prepared != Some((part.form, cols)) {
                self.push(op, Task::PrepareExperts { x, chosen, experts, input, form: part.form, cols });
                prepared = Some((part.form, cols));
            }
            self.push(op, Task::ExpertProduct { chosen, experts, input, part });
            self.push(op, Task::ScatterExperts { chosen, experts, out: part.out });
        }
        Ok(())
    }

    fn stack(&self, weight: WeightId) -> usize {
        self.program.held(weight).dims[2] as usize
    }

    fn attention(&mut self, op: OpId, q: View, cache: plan_format::StateId, attention: &program::Attention, out: View) {
        let shape = attention_shape(attention);
        let known = self.shapes.iter().position(|known| *known == shape);
        let scratch = known.unwrap_or_else(|| {
            self.shapes.push(shape);
            self.shapes.len() - 1
        });
        let segments = self.limits.context_tokens.div_ceil(SEGMENT);
        let rows = shape.kv_heads * segments * FEW_TOKENS.min(self.rows_max(Rows::Tokens)) * shape.group();
        self.sizes.partials = self.sizes.partials.max(rows * shape.partial_cols() * 4);
        let (q, out) = (self.place(q), self.place(out));
        let step = Attention { q, cache, shape, scratch, sinks: attention.sinks, out, store: None };
        self.push(op, Task::Attention(step));
        self.push(op, Task::AttentionJoin(step));
    }

    fn delta(&self, delta: &program::DeltaNet, out: View) -> Delta {
        let heads = match delta.heads {
            program::HeadMap::Grouped => HeadMap::Grouped,
            program::HeadMap::Tiled => HeadMap::Tiled,
        };
        Delta {
            q: self.place(delta.q),
            k: self.place(delta.k),
            v: self.place(delta.v),
            b: self.place(delta.b),
            alpha: self.place(delta.alpha),
            a: delta.a,
            dt: delta.dt,
            key_heads: delta.key_heads as usize,
            value_heads: delta.value_heads as usize,
            head_cols: delta.head_cols as usize,
            heads,
            state: delta.state,
            out: self.place(out),
        }
    }
}

/// Bytes of a prepared activation row.
pub fn act_bytes(form: ActForm, cols: usize) -> Result<usize, Error> {
    let rows = if form == ActForm::Pairs { 2 } else { 1 };
    Ok(rows * act_row_bytes(super::light::act_type(form), cols)?)
}
