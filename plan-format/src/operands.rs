//! What each operator reads and writes: the one place that knows, for the verifier, the arena, the planner's graph and
//! the executor. It does not check anything (`verify` does).
//! Next: `verify/mod.rs`.

use crate::ids::{RopeId, StateId, ValueId, WeightId};
use crate::program::{DeltaNet, Item, MatMulPart, Op, OpKind, Program, View};

impl Program {
    /// The operators of one of its items.
    pub fn ops_of(&self, item: &Item) -> &[Op] {
        let first = item.first_op as usize;
        &self.ops[first..first + item.op_count as usize]
    }
}

/// Columns of a value that an operator touches: `groups` runs of `width` columns whose starts are `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The value.
    pub value: ValueId,
    /// First column of the first run.
    pub first_col: u32,
    /// Columns of a run.
    pub width: u32,
    /// Columns from one run's start to the next one's.
    pub stride: u32,
    /// Number of runs.
    pub groups: u32,
}

impl From<View> for Columns {
    fn from(view: View) -> Self {
        Columns { value: view.value, first_col: view.first_col, width: view.cols, stride: view.cols, groups: 1 }
    }
}

/// How an operator uses a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateAccess {
    /// Writes this round's rows.
    Write,
    /// Reads all rows, this round's included.
    Read,
    /// Reads the state and leaves the next one.
    Update,
}

/// One operand of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Reads columns of a value.
    Read(Columns),
    /// Writes columns of a value.
    Write(Columns),
    /// Reads a weight.
    Weight(WeightId),
    /// Uses a state.
    State(StateId, StateAccess),
    /// Uses a rotary table.
    Rope(RopeId),
}

impl OpKind {
    /// All operands, reads before writes.
    pub fn operands(&self) -> Vec<Operand> {
        let mut list = Operands(Vec::new());
        self.list_operands(&mut list);
        list.0.sort_by_key(|operand| matches!(operand, Operand::Write(_)));
        list.0
    }

    /// Columns read.
    pub fn reads(&self) -> impl Iterator<Item = Columns> {
        self.operands().into_iter().filter_map(|operand| match operand {
            Operand::Read(columns) => Some(columns),
            _ => None,
        })
    }

    /// Columns written.
    pub fn writes(&self) -> impl Iterator<Item = Columns> {
        self.operands().into_iter().filter_map(|operand| match operand {
            Operand::Write(columns) => Some(columns),
            _ => None,
        })
    }

    /// Weights read, in order of the operands; a weight that is read twice is listed twice.
    pub fn weights(&self) -> impl Iterator<Item = WeightId> {
        self.operands().into_iter().filter_map(|operand| match operand {
            Operand::Weight(weight) => Some(weight),
            _ => None,
        })
    }

    /// States used.
    pub fn states(&self) -> impl Iterator<Item = (StateId, StateAccess)> {
        self.operands().into_iter().filter_map(|operand| match operand {
            Operand::State(state, access) => Some((state, access)),
            _ => None,
        })
    }

    fn list_operands(&self, list: &mut Operands) {
        match self {
            OpKind::Embed { table, out, .. } => list.weight(*table).write(*out),
            OpKind::RmsNorm { x, weight, out, .. } => list.read(*x).weights(*weight).write(*out),
            OpKind::SelectOutputs { x, out }
            | OpKind::L2Norm { x, out, .. }
            | OpKind::PositionScale { x, out, .. }
            | OpKind::Softcap { x, out, .. } => list.read(*x).write(*out),
            OpKind::MatMul { x, parts } => list.read(*x).products(parts),
            OpKind::Add { a, b, out } => list.read(*a).read(*b).write(*out),
            OpKind::Glu { gate, up, out, .. } => list.read(*gate).read(*up).write(*out),
            OpKind::SigmoidGate { x, gate, out } => list.read(*x).read(*gate).write(*out),
            OpKind::CopyCols { x, x_stride, out, out_stride, width, groups } => {
                list.push(Operand::Read(runs(*x, *x_stride, *width, *groups)));
                list.push(Operand::Write(runs(*out, *out_stride, *width, *groups)))
            }
            OpKind::Rope { x, rope, out, .. } => list.read(*x).push(Operand::Rope(*rope)).write(*out),
            OpKind::StoreKv { k, v, cache } => {
                list.read(*k).reads(v.as_slice()).push(Operand::State(*cache, StateAccess::Write))
            }
            OpKind::Attention { q, cache, attention, out } => {
                list.read(*q).push(Operand::State(*cache, StateAccess::Read)).weights(attention.sinks).write(*out)
            }
            OpKind::Reduce { partials, out } => list.reads(partials).write(*out),
            OpKind::HeldIds { ids, out, .. } => list.read(*ids).write(*out),
            OpKind::HeadMatMul { x, weight, out, .. } => list.read(*x).weight(*weight).write(*out),
            OpKind::CausalConv { x, filter, state, out } => {
                list.read(*x).weight(*filter).push(Operand::State(*state, StateAccess::Update)).write(*out)
            }
            OpKind::DeltaNet { delta, out } => list.delta_net(delta).write(*out),
            OpKind::Router { .. }
            | OpKind::ExpertScale { .. }
            | OpKind::ExpertMatMul { .. }
            | OpKind::ExpertSum { .. }
            | OpKind::HeldSum { .. } => self.list_expert_operands(list),
        };
    }

    fn list_expert_operands<'a>(&self, list: &'a mut Operands) -> &'a mut Operands {
        match self {
            OpKind::Router { logits, select_bias, ids, weights, .. } => {
                list.read(*logits).weights(*select_bias).write(*ids).write(*weights)
            }
            OpKind::ExpertScale { x, weights, out } => list.read(*x).read(*weights).write(*out),
            OpKind::ExpertMatMul { x, ids, parts, .. } => list.read(*x).read(*ids).products(parts),
            OpKind::ExpertSum { x, weights, out, .. } => list.read(*x).reads(weights.as_slice()).write(*out),
            OpKind::HeldSum { x, weights, ids, out, .. } => {
                list.read(*x).reads(weights.as_slice()).read(*ids).write(*out)
            }
            _ => list,
        }
    }
}

fn runs(view: View, stride: u32, width: u32, groups: u32) -> Columns {
    Columns { value: view.value, first_col: view.first_col, width, stride, groups }
}

/// A list under construction; every method appends.
struct Operands(Vec<Operand>);

impl Operands {
    fn push(&mut self, operand: Operand) -> &mut Self {
        self.0.push(operand);
        self
    }

    fn read(&mut self, view: View) -> &mut Self {
        self.push(Operand::Read(view.into()))
    }

    fn reads(&mut self, views: &[View]) -> &mut Self {
        views.iter().fold(self, |list, view| list.read(*view))
    }

    fn write(&mut self, view: View) -> &mut Self {
        self.push(Operand::Write(view.into()))
    }

    fn weight(&mut self, weight: WeightId) -> &mut Self {
        self.push(Operand::Weight(weight))
    }

    fn weights(&mut self, weight: Option<WeightId>) -> &mut Self {
        weight.into_iter().fold(self, Operands::weight)
    }

    fn products(&mut self, parts: &[MatMulPart]) -> &mut Self {
        parts.iter().fold(self, |list, part| list.weight(part.weight).weights(part.bias).write(part.out))
    }

    fn delta_net(&mut self, delta: &DeltaNet) -> &mut Self {
        self.reads(&[delta.q, delta.k, delta.v, delta.b, delta.alpha])
            .weight(delta.a)
            .weight(delta.dt)
            .push(Operand::State(delta.state, StateAccess::Update))
    }
}

impl OpKind {
    /// Name of the operator in texts and traces.
    pub fn name(&self) -> &'static str {
        match self {
            OpKind::Embed { .. } => "embed",
            OpKind::SelectOutputs { .. } => "select_outputs",
            OpKind::RmsNorm { .. } => "rms_norm",
            OpKind::L2Norm { .. } => "l2_norm",
            OpKind::MatMul { .. } => "mat_mul",
            OpKind::Add { .. } => "add",
            OpKind::Glu { .. } => "glu",
            OpKind::SigmoidGate { .. } => "sigmoid_gate",
            OpKind::CopyCols { .. } => "copy_cols",
            OpKind::Rope { .. } => "rope",
            OpKind::PositionScale { .. } => "position_scale",
            OpKind::StoreKv { .. } => "store_kv",
            OpKind::Attention { .. } => "attention",
            OpKind::Softcap { .. } => "softcap",
            OpKind::Router { .. } => "router",
            OpKind::ExpertScale { .. } => "expert_scale",
            OpKind::ExpertMatMul { .. } => "expert_mat_mul",
            OpKind::ExpertSum { .. } => "expert_sum",
            OpKind::HeadMatMul { .. } => "head_mat_mul",
            OpKind::CausalConv { .. } => "causal_conv",
            OpKind::DeltaNet { .. } => "delta_net",
            OpKind::Reduce { .. } => "reduce",
            OpKind::HeldIds { .. } => "held_ids",
            OpKind::HeldSum { .. } => "held_sum",
        }
    }
}
