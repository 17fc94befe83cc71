//! From operators to launches. What follows each other is fused where no one else reads what lies between: a norm or
//! gated unit writes the forms that products read, so does attention of few tokens, a product adds the residual, a
//! rotation takes the norm before it, and rotations and the cache write are one launch (`heads.rs`).
//!
//! Fusing moves an operator's reads to a later place only inside an item (there no two values share memory). Sums and
//! forms depend on the number of rows, so each emit decides anew in each round. Next: `heads.rs`, `mixers.rs`, `op.rs`.

use super::acts::{Acts, Group, split_rows};
use super::scratch::Scratch;
use super::{at, gpu_layout};
use crate::Error;
use crate::hybrid::ops::{GpuWeight, OpEnv, RoundArgs};
use device::gpu::Gpu;
use kernels::KernelError;
use kernels::cpu::ops::attention::AttentionShape;
use kernels::cpu::ops::elementwise::{ColGroups, Glu, Temperature};
use kernels::cpu::ops::rope::{RopePairing, RopeParams, RopeScaling, RopeTable};
use kernels::cuda::attention::Method;
use kernels::cuda::ops::{self, CacheType, GroupNorm, RopeShape};
use kernels::cuda::product::{self, Part};
use kernels::cuda::{Chip, DevicePtr, Forms, GpuMatrix, Launch, View, rows};
use plan_format::program::{self, OpKind, Program, Rows};
use plan_format::{ValueId, WeightId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Appends the launches of one or several fused operators for a round.
pub type Emit = Box<dyn Fn(RoundArgs, &mut Vec<Launch>) -> Result<(), KernelError> + Send + Sync>;

/// Launches of `ops`.
///
/// # Errors
/// Operands that are not on the GPU, or a shape without kernel.
pub fn lower(ops: Range<usize>, env: &OpEnv<'_>, chip: Chip) -> Result<Vec<Emit>, Error> {
    let scratch = Scratch::new(env.program, &env.sizes)?;
    let mut lower = Lower {
        env,
        scratch: &scratch,
        chip,
        emits: Vec::new(),
        done: Vec::new(),
        sorted: None,
        acts: BTreeMap::new(),
        ops,
    };
    lower.find_acts();
    for index in lower.ops.clone() {
        if !lower.done.contains(&index) {
            lower.operator(index)?;
        }
    }
    Ok(lower.emits)
}

/// The angles of all rotary tables; uploads the constants.
///
/// # Errors
/// A failed upload.
pub fn prologue(env: &OpEnv<'_>, gpu: &dyn Gpu) -> Result<Vec<Emit>, Error> {
    let scratch = Scratch::new(env.program, &env.sizes)?;
    let heads: Vec<u8> = (0..scratch.heads).flat_map(u32::to_le_bytes).collect();
    gpu.upload(env.scratch.start.offset(scratch.head_ids), &heads)?;
    let mut emits: Vec<Emit> = Vec::new();
    for (index, rope) in env.program.ropes.iter().enumerate() {
        let table = rope_table(rope, env, gpu)?;
        let turns = env.scratch.start.offset(scratch.turns[index]);
        let bytes: Vec<u8> = ops::rope_turns(&table).into_iter().flat_map(f64::to_le_bytes).collect();
        gpu.upload(turns, &bytes)?;
        let trig = at(env.trig(plan_format::RopeId(index as u32)));
        let (turns, positions) = (at(turns), at(env.inputs.positions));
        let (pairs, magnitude) = (rope.n_rot / 2, table.magnitude() as f32);
        emits.push(Box::new(move |args, out| {
            out.push(ops::rope_angles(turns, pairs, magnitude, positions, trig, args.tokens));
            Ok(())
        }));
    }
    Ok(emits)
}

fn rope_table(rope: &program::Rope, env: &OpEnv<'_>, gpu: &dyn Gpu) -> Result<RopeTable, Error> {
    let mut factors = Vec::new();
    if let Some(weight) = rope.factors {
        let small = env.small(weight)?;
        let mut bytes = vec![0; small.len * 4];
        gpu.download(&mut bytes, small.start)?;
        factors.extend(bytes.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)));
    }
    let scaling = match rope.scaling {
        program::RopeScaling::None => RopeScaling::None,
        program::RopeScaling::Linear { factor } => RopeScaling::Linear { factor },
        program::RopeScaling::Yarn { factor, original_context_tokens } => {
            RopeScaling::Yarn { factor, original_context_tokens }
        }
    };
    Ok(RopeTable::new(RopeParams {
        n_rot: rope.n_rot as usize,
        base: rope.base,
        scaling,
        magnitude: rope.magnitude,
        factors: rope.factors.map(|_| factors.as_slice()),
    }))
}

pub(super) struct Lower<'a> {
    pub(super) env: &'a OpEnv<'a>,
    pub(super) scratch: &'a Scratch,
    pub(super) chip: Chip,
    pub(super) emits: Vec<Emit>,
    /// Operators that an earlier emit includes.
    pub(super) done: Vec<usize>,
    /// The routing that was sorted last.
    pub(super) sorted: Option<program::View>,
    /// Inputs of the run's products by operator, and whether the first of them must convert.
    pub(super) acts: BTreeMap<usize, Input>,
    pub(super) ops: Range<usize>,
}

/// A product's activations.
#[derive(Clone)]
pub(super) struct Input {
    pub(super) acts: Arc<Acts>,
    /// Whether this product is the first that needs the forms, and nobody has written them.
    pub(super) converts: bool,
    /// The attention that makes the value: it writes forms in some rounds.
    attention: Option<Attending>,
}

/// An attention, as far as it decides who writes the forms of its results.
#[derive(Clone)]
pub(super) struct Attending {
    pub(super) shape: AttentionShape,
    pub(super) cache: CacheType,
}

impl Attending {
    /// Whether these forms are written with the results in a round of so many tokens: splits are joined head by head,
    /// so nobody knows a row's scale.
    pub(super) fn writes(&self, forms: &Forms, tokens: u32) -> bool {
        Method::for_shape(&self.shape, self.cache, tokens) == Method::Split && forms.f16.is_null()
    }
}

impl Input {
    /// The launch that writes the forms, if this product is to do it.
    pub(super) fn convert(&self, args: RoundArgs, out: &mut Vec<Launch>) {
        let forms = self.acts.forms(args);
        let written = self.attention.as_ref().is_some_and(|attention| attention.writes(&forms, args.tokens));
        if self.converts && !written && forms != Forms::default() {
            // `find_acts` has seen that the rows lie as they must.
            out.extend(self.acts.input_rows().map(|x| rows::convert(x, self.acts.rows(args), forms)));
        }
    }
}

impl Lower<'_> {
    pub(super) fn program(&self) -> &Program {
        self.env.program
    }

    pub(super) fn view(&self, view: program::View) -> View {
        let place = self.env.view(view);
        View { data: at(place.start), stride: place.stride, cols: place.cols }
    }

    pub(super) fn rows_of(&self, view: program::View) -> Rows {
        self.program().values[view.value.index()].rows
    }

    pub(super) fn emit(&mut self, emit: impl Fn(RoundArgs, &mut Vec<Launch>) + Send + Sync + 'static) {
        self.emits.push(Box::new(move |args, out| {
            emit(args, out);
            Ok(())
        }));
    }

    pub(super) fn small(&self, weight: Option<WeightId>) -> Result<DevicePtr, Error> {
        weight.map_or(Ok(DevicePtr::NULL), |weight| Ok(at(self.env.small(weight)?.start)))
    }

    /// Operators of the run that read a value, in order.
    fn readers(&self, value: ValueId) -> impl Iterator<Item = usize> {
        let reads = move |index: &usize| self.program().ops[*index].kind.reads().any(|columns| columns.value == value);
        self.ops.clone().filter(reads)
    }

    /// Whether `reader` alone reads a value.
    pub(super) fn is_read_only_by(&self, value: ValueId, reader: usize) -> bool {
        !self.env.is_read_outside(value, &self.ops) && self.readers(value).eq([reader])
    }

    /// Finds the inputs of the run's products and whether their producers in the run write the forms.
    fn find_acts(&mut self) {
        for group in &self.scratch.groups {
            let wants: Vec<_> = group.wants.iter().copied().filter(|want| self.ops.contains(&want.op)).collect();
            let Some(first) = wants.first().map(|want| want.op) else { continue };
            let writer = self.writer_of_forms(group);
            let attention = writer.and_then(|index| self.attending(index));
            let written = writer.is_some() && attention.is_none();
            let acts = Arc::new(Acts::new(group, wants.clone(), self.view(group.view), self.env.scratch.start));
            for want in wants {
                let converts = want.op == first && !written;
                let attention = attention.clone();
                self.acts.insert(want.op, Input { acts: Arc::clone(&acts), converts, attention });
            }
        }
    }

    /// The norm, gated unit or attention in the run that writes a group's forms.
    fn writer_of_forms(&self, group: &Group) -> Option<usize> {
        let index = group.producer(self.program()).filter(|index| self.ops.contains(index))?;
        let splits = |view: program::View| split_rows(self.view(view), group.parts).is_some();
        let fits = match &self.program().ops[index].kind {
            OpKind::Glu { gate, up, out, .. } => splits(*gate) && splits(*up) && splits(*out),
            _ => group.parts == 1,
        };
        fits.then_some(index)
    }

    /// What a producer of `out` writes: the forms for the group that reads it, if there is one in the run, and whether
    /// anyone else reads the value itself.
    pub(super) fn outputs(&self, index: usize, out: program::View) -> (Option<Arc<Acts>>, bool) {
        let groups = self.scratch.groups.iter().filter(|group| group.view == out);
        let group = groups.filter(|group| self.writer_of_forms(group) == Some(index)).find_map(|group| {
            group.wants.iter().find_map(|want| self.acts.get(&want.op)).map(|input| (group, Arc::clone(&input.acts)))
        });
        let products =
            |reader: usize| group.as_ref().is_some_and(|(group, _)| group.wants.iter().any(|w| w.op == reader));
        let others =
            self.env.is_read_outside(out.value, &self.ops) || self.readers(out.value).any(|reader| !products(reader));
        (group.map(|(_, acts)| acts), others)
    }

    fn operator(&mut self, index: usize) -> Result<(), Error> {
        if self.heads_and_store(index)? {
            return Ok(());
        }
        let kind = self.program().ops[index].kind.clone();
        match &kind {
            OpKind::RmsNorm { x, group, weight, eps, out } => self.rms_norm(index, *x, *group, *weight, *eps, *out)?,
            OpKind::Glu { gate, up, activation, out } => self.glu(index, *gate, *up, *activation, *out),
            OpKind::MatMul { parts, .. } => self.mat_mul(index, parts)?,
            OpKind::ExpertMatMul { chosen, ids, parts, input, .. } => {
                self.expert_mat_mul(index, *chosen, *ids, parts, *input)?;
            }
            OpKind::HeadMatMul { heads, weight, out, .. } => self.head_mat_mul(index, *heads, *weight, *out)?,
            OpKind::ExpertSum { x, chosen, weights, out } => self.expert_sum(index, *x, *chosen, *weights, *out),
            OpKind::HeldIds { ids, held, out } => self.held_ids(*ids, held, *out)?,
            OpKind::HeldSum { x, chosen, weights, ids, out } => self.held_sum(*x, *chosen, *weights, *ids, *out),
            OpKind::Router { .. } => self.router(index, &kind)?,
            OpKind::Attention { q, cache, attention, out } => self.attention(index, *q, *cache, attention, *out)?,
            OpKind::StoreKv { k, v, cache } => self.store_kv(*k, *v, *cache)?,
            OpKind::Rope { x, heads, head_cols, rope, out } => {
                let head = Head { heads: *heads, head_cols: *head_cols, norm: None };
                self.rope(*x, head, *rope, *out);
            }
            OpKind::Embed { table, scale, out } => {
                let (table, ids) = (self.matrix(self.env.weight(*table)?)?, at(self.env.inputs.tokens));
                let (out_view, rows, scale) = (self.view(*out), self.rows_of(*out), *scale);
                self.emits.push(Box::new(move |args, out| {
                    out.push(ops::embed(&table, ids, scale, out_view, args.rows(rows))?);
                    Ok(())
                }));
            }
            OpKind::CausalConv { x, filter, state, out } => self.conv(*x, *filter, *state, *out)?,
            OpKind::DeltaNet { delta, out } => self.delta(delta, *out)?,
            other => self.light(other)?,
        }
        Ok(())
    }

    /// Operators of one launch.
    fn light(&mut self, kind: &OpKind) -> Result<(), Error> {
        let positions = at(self.env.inputs.positions);
        let written = kind.writes().next().map(|columns| columns.value);
        let rows = written.map_or(Rows::Tokens, |value| self.program().values[value.index()].rows);
        let at_view = |view: &program::View| self.view(*view);
        let launch: Box<dyn Fn(u32) -> Launch + Send + Sync> = match kind {
            OpKind::SelectOutputs { x, out } => {
                let (x, out, chosen) = (at_view(x), at_view(out), at(self.env.inputs.outputs));
                Box::new(move |rows| ops::select_rows(x, chosen, out, rows))
            }
            OpKind::L2Norm { x, group, eps, scale, out } => {
                let (x, out, norm) = (at_view(x), at_view(out), GroupNorm::l2(*group, *eps, *scale));
                Box::new(move |rows| ops::group_norm(norm, x, DevicePtr::NULL, out, rows))
            }
            OpKind::Add { a, b, out } => {
                let (a, b, out) = (at_view(a), at_view(b), at_view(out));
                Box::new(move |rows| ops::add(a, b, out, rows))
            }
            OpKind::SigmoidGate { x, gate, out } => {
                let (x, gate, out) = (at_view(x), at_view(gate), at_view(out));
                Box::new(move |rows| ops::sigmoid_gate(x, gate, out, rows))
            }
            OpKind::CopyCols { x, x_stride, out, out_stride, width, groups } => {
                let [x_stride, out_stride, width, groups] =
                    [*x_stride, *out_stride, *width, *groups].map(|n| n as usize);
                let (x, out, groups) = (at_view(x), at_view(out), ColGroups { x_stride, out_stride, width, groups });
                Box::new(move |rows| ops::copy_cols(x, out, groups, rows))
            }
            OpKind::PositionScale { x, period_tokens, factor, out } => {
                let temperature = Temperature { period_tokens: *period_tokens, factor: *factor };
                let (x, out) = (at_view(x), at_view(out));
                Box::new(move |rows| ops::position_scale(temperature, x, positions, out, rows))
            }
            OpKind::Softcap { x, cap, out } => {
                let (x, out, cap) = (at_view(x), at_view(out), *cap);
                Box::new(move |rows| ops::softcap(x, cap, out, rows))
            }
            OpKind::ExpertScale { x, weights, out } => {
                let (x, weights, out) = (at_view(x), at_view(weights), at_view(out));
                Box::new(move |rows| ops::expert_scale(x, weights, out, rows))
            }
            OpKind::Reduce { partials, out } if partials.len() <= ops::ADDENDS_MAX => {
                let (partials, out): (Vec<View>, View) = (partials.iter().map(at_view).collect(), at_view(out));
                Box::new(move |rows| ops::reduce(&partials, out, rows))
            }
            _ => return Err(Error::Program { what: "an operator that the GPU has no kernel for" }),
        };
        self.emit(move |args, out| out.push(launch(args.rows(rows))));
        Ok(())
    }

    fn rms_norm(
        &mut self,
        index: usize,
        x: program::View,
        group: u32,
        weight: Option<WeightId>,
        eps: f32,
        out: program::View,
    ) -> Result<(), Error> {
        let weight = self.small(weight)?;
        let (x_view, out_view, rows) = (self.view(x), self.view(out), self.rows_of(out));
        if group != x.cols {
            if let Some((reader, heads, rope, rotated)) = self.rotation_after(index, group, out) {
                self.done.push(reader);
                let head = Head { heads, head_cols: group, norm: Some((weight, eps)) };
                self.rope(x, head, rope, rotated);
                return Ok(());
            }
            let norm = GroupNorm::rms(group, eps);
            self.emit(move |args, out| out.push(ops::group_norm(norm, x_view, weight, out_view, args.rows(rows))));
            return Ok(());
        }
        let (acts, others) = self.outputs(index, out);
        self.emit(move |args, out| {
            let forms = with_value(acts.as_deref(), args, others, out_view);
            out.push(rows::rms_norm(x_view, None, weight, eps, args.rows(rows), forms));
        });
        Ok(())
    }

    /// The rotation right after a norm of heads, if it alone reads the norm and is of the same item.
    fn rotation_after(
        &self,
        index: usize,
        group: u32,
        normed: program::View,
    ) -> Option<(usize, u32, plan_format::RopeId, program::View)> {
        let reader = self.readers(normed.value).next()?;
        let same_item = self.program().ops[reader].item == self.program().ops[index].item;
        match self.program().ops[reader].kind {
            OpKind::Rope { x, heads, head_cols, rope, out }
                if x == normed && head_cols == group && same_item && self.is_read_only_by(normed.value, reader) =>
            {
                Some((reader, heads, rope, out))
            }
            _ => None,
        }
    }

    fn glu(
        &mut self,
        index: usize,
        gate: program::View,
        up: program::View,
        activation: program::GluActivation,
        out: program::View,
    ) {
        let (gate, up, out_view, rows) = (self.view(gate), self.view(up), self.view(out), self.rows_of(out));
        let (acts, others) = self.outputs(index, out);
        let activation = match activation {
            program::GluActivation::Silu => Glu::Silu,
            program::GluActivation::GeluTanh => Glu::GeluTanh,
            program::GluActivation::ClampedSwish { alpha, limit } => Glu::ClampedSwish { alpha, limit },
        };
        self.emit(move |args, out| {
            let count = acts.as_ref().map_or_else(|| args.rows(rows), |acts| acts.rows(args));
            let parts = acts.as_ref().map_or(1, |acts| acts.parts());
            let split = |view| split_rows(view, parts).unwrap_or(view);
            let forms = with_value(acts.as_deref(), args, others, split(out_view));
            out.push(rows::glu(activation, split(gate), split(up), count, forms));
        });
    }

    pub(super) fn matrix(&self, weight: GpuWeight) -> Result<GpuMatrix, Error> {
        let layout = gpu_layout(weight.layout)?;
        let (rows, cols) = (weight.shape.rows as u32, weight.shape.cols as u32);
        Ok(GpuMatrix { ty: weight.shape.ty, layout, data: at(weight.start), rows, cols })
    }

    pub(super) fn part(&self, part: &program::MatMulPart) -> Result<Part, Error> {
        let weight = self.matrix(self.env.weight(part.weight)?)?;
        let (bias, out) = (self.small(part.bias)?, self.view(part.out));
        Ok(Part { weight, bias, residual: View::default(), out })
    }

    pub(super) fn input(&self, index: usize) -> Result<Input, Error> {
        let input = self.acts.get(&index).cloned().ok_or(Error::Program { what: "a product without its input" })?;
        if input.converts && input.acts.input_rows().is_none() {
            return Err(Error::Program { what: "a product of inputs that do not lie side by side" });
        }
        Ok(input)
    }

    /// The sum right after a product that alone reads it: the other addend and where the sum goes.
    pub(super) fn sum_after(&self, index: usize, product: program::View) -> Option<(View, View)> {
        let next = index + 1;
        if !self.ops.contains(&next) || self.program().ops[next].item != self.program().ops[index].item {
            return None;
        }
        let OpKind::Add { a, b, out } = self.program().ops[next].kind else { return None };
        let other = match (a == product, b == product) {
            (true, false) => b,
            (false, true) => a,
            _ => return None,
        };
        self.is_read_only_by(product.value, next).then(|| (self.view(other), self.view(out)))
    }

    fn mat_mul(&mut self, index: usize, parts: &[program::MatMulPart]) -> Result<(), Error> {
        let input = self.input(index)?;
        let x = parts.first().map_or(Rows::Tokens, |part| self.rows_of(part.out));
        let added = parts.last().and_then(|part| self.sum_after(index, part.out));
        if added.is_some() {
            self.done.push(index + 1);
        }
        let mut parts = parts.iter().map(|part| self.part(part)).collect::<Result<Vec<_>, _>>()?;
        if let (Some(last), Some((residual, sum))) = (parts.last_mut(), added) {
            (last.residual, last.out) = (residual, sum);
        }
        let chip = self.chip;
        self.emits.push(Box::new(move |args, out| {
            let rows = args.rows(x);
            if rows == 0 {
                return Ok(());
            }
            input.convert(args, out);
            let form = |part: &Part| product::form(part.weight.ty, part.weight.cols, rows);
            for group in parts.chunk_by(|a, b| form(a) == form(b)) {
                out.extend(product::product(chip, group, &input.acts.activations(form(&group[0])), rows)?);
            }
            Ok(())
        }));
        Ok(())
    }

    fn rope(&mut self, x: program::View, head: Head, rope: plan_format::RopeId, out: program::View) {
        let table = &self.program().ropes[rope.index()];
        let pairing = match table.pairing {
            program::RopePairing::Norm => RopePairing::Norm,
            program::RopePairing::Neox => RopePairing::Neox,
        };
        let Head { heads, head_cols, norm } = head;
        let norm_eps = norm.map(|(_, eps)| eps);
        let shape = RopeShape { heads, head_cols, n_rot: table.n_rot, pairing, norm_eps };
        let weight = norm.map_or(DevicePtr::NULL, |(weight, _)| weight);
        let (x, out_view, trig, rows) = (self.view(x), self.view(out), at(self.env.trig(rope)), self.rows_of(out));
        self.emit(move |args, out| out.push(ops::rope(&shape, x, trig, weight, out_view, args.rows(rows))));
    }
}

/// Heads to rotate, and the norm before (weight and eps).
struct Head {
    heads: u32,
    head_cols: u32,
    norm: Option<(DevicePtr, f32)>,
}

/// The forms to write, the value itself included if anyone reads it.
pub(super) fn with_value(acts: Option<&Acts>, args: RoundArgs, others: bool, out: View) -> Forms {
    let forms = acts.map_or_else(Forms::default, |acts| acts.forms(args));
    if others || acts.is_none_or(|acts| acts.reads_value(args)) {
        return Forms { f32: out.data, f32_stride: out.stride, ..forms };
    }
    forms
}
