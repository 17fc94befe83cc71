//! One operator as a line: `out = name(inputs) figures`. A view of all columns is the value's name, others show which.

use crate::ids::{RopeId, StateId, WeightId};
use crate::program::{
    Attention, DeltaNet, ExpertInput, Mask, MatMulPart, OpKind, Program, Rope, RopeScaling, Router, Rows, State,
    Tensor, Value, View, Weight,
};

/// The tables that an operator's ids index.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// Tensors.
    pub tensors: &'a [Tensor],
    /// Weights.
    pub weights: &'a [Weight],
    /// Values.
    pub values: &'a [Value],
    /// States.
    pub states: &'a [State],
    /// Rotary tables.
    pub ropes: &'a [Rope],
}

impl<'a> Tables<'a> {
    /// The tables of a program.
    pub fn of(program: &'a Program) -> Self {
        Tables {
            tensors: &program.tensors,
            weights: &program.weights,
            values: &program.values,
            states: &program.states,
            ropes: &program.ropes,
        }
    }

    /// An operator; ids that are out of range are shown as numbers.
    pub fn op(&self, op: &OpKind) -> String {
        let name = op.name();
        match op {
            OpKind::Embed { table, scale, out } => {
                format!("{} = {name}({}) scale={scale}", self.out(*out), self.weight(*table))
            }
            OpKind::SelectOutputs { x, out } => format!("{} = {name}({})", self.out(*out), self.view(*x)),
            OpKind::RmsNorm { x, group, weight, eps, out } => {
                let weight = weight.map_or(String::new(), |w| format!(", {}", self.weight(w)));
                format!("{} = {name}({}{weight}) group={group} eps={eps:e}", self.out(*out), self.view(*x))
            }
            OpKind::L2Norm { x, group, eps, scale, out } => {
                format!("{} = {name}({}) group={group} eps={eps:e} scale={scale}", self.out(*out), self.view(*x))
            }
            OpKind::MatMul { x, parts } => {
                format!("{} = {name}({}, {})", self.outs(parts), self.view(*x), self.products(parts))
            }
            OpKind::Add { a, b, out } => format!("{} = {name}({}, {})", self.out(*out), self.view(*a), self.view(*b)),
            OpKind::Glu { gate, up, activation, out } => {
                format!("{} = {name}({}, {}) {activation:?}", self.out(*out), self.view(*gate), self.view(*up))
            }
            OpKind::SigmoidGate { x, gate, out } => {
                format!("{} = {name}({}, {})", self.out(*out), self.view(*x), self.view(*gate))
            }
            OpKind::CopyCols { x, x_stride, out, out_stride, width, groups } => {
                let strides = format!("width={width} groups={groups} strides={x_stride}->{out_stride}");
                format!("{} = {name}({}) {strides}", self.out(*out), self.view(*x))
            }
            OpKind::Rope { x, heads, head_cols, rope, out } => {
                let RopeId(rope) = rope;
                format!("{} = {name}({}) heads={heads}x{head_cols} rope={rope}", self.out(*out), self.view(*x))
            }
            OpKind::PositionScale { x, period_tokens, factor, out } => {
                format!("{} = {name}({}) period={period_tokens} factor={factor}", self.out(*out), self.view(*x))
            }
            OpKind::StoreKv { k, v, cache } => {
                let v = v.map_or(String::new(), |v| format!(", {}", self.view(v)));
                format!("{} = {name}({}{v})", self.state(*cache), self.view(*k))
            }
            OpKind::Attention { q, cache, attention, out } => {
                let inputs = format!("{}, {}", self.view(*q), self.state(*cache));
                format!("{} = {name}({inputs}) {}", self.out(*out), self.attention(attention))
            }
            OpKind::Softcap { x, cap, out } => format!("{} = {name}({}) cap={cap}", self.out(*out), self.view(*x)),
            _ => self.rare_op(op),
        }
    }

    /// Operators of mixtures of experts, MLA and delta nets.
    fn rare_op(&self, op: &OpKind) -> String {
        let name = op.name();
        match op {
            OpKind::Router { logits, select_bias, router, ids, weights } => {
                let bias = select_bias.map_or(String::new(), |w| format!(", {}", self.weight(w)));
                let outs = format!("{}, {}", self.out(*ids), self.out(*weights));
                format!("{outs} = {name}({}{bias}) {}", self.view(*logits), router_text(router))
            }
            OpKind::ExpertScale { x, weights, out } => {
                format!("{} = {name}({}, {})", self.out(*out), self.view(*x), self.view(*weights))
            }
            OpKind::ExpertMatMul { x, input, chosen, ids, parts } => {
                let input = match input {
                    ExpertInput::Shared => "shared",
                    ExpertInput::PerExpert => "per_expert",
                };
                let inputs = format!("{}, {}, {}", self.view(*x), self.view(*ids), self.products(parts));
                format!("{} = {name}({inputs}) chosen={chosen} input={input}", self.outs(parts))
            }
            OpKind::ExpertSum { x, chosen, weights, out } => {
                let weights = weights.map_or(String::new(), |w| format!(", {}", self.view(w)));
                format!("{} = {name}({}{weights}) chosen={chosen}", self.out(*out), self.view(*x))
            }
            OpKind::HeldIds { ids, held, out } => {
                format!("{} = {name}({}) held={}", self.out(*out), self.view(*ids), super::parts_text(held))
            }
            OpKind::HeldSum { x, chosen, weights, ids, out } => {
                let weights = weights.map_or(String::new(), |w| format!(", {}", self.view(w)));
                let inputs = format!("{}{weights}, {}", self.view(*x), self.view(*ids));
                format!("{} = {name}({inputs}) chosen={chosen}", self.out(*out))
            }
            OpKind::HeadMatMul { x, heads, weight, out } => {
                format!("{} = {name}({}, {}) heads={heads}", self.out(*out), self.view(*x), self.weight(*weight))
            }
            OpKind::CausalConv { x, filter, state, out } => {
                let inputs = format!("{}, {}, {}", self.view(*x), self.weight(*filter), self.state(*state));
                format!("{} = {name}({inputs})", self.out(*out))
            }
            OpKind::DeltaNet { delta, out } => format!("{} = {name}{}", self.out(*out), self.delta_net(delta)),
            OpKind::Reduce { partials, out } => {
                let partials: Vec<String> = partials.iter().map(|&view| self.view(view)).collect();
                format!("{} = {name}({})", self.out(*out), partials.join(", "))
            }
            _ => name.to_owned(),
        }
    }

    /// A rotary table.
    pub fn rope(&self, rope: &Rope) -> String {
        let scaling = match rope.scaling {
            RopeScaling::None => String::new(),
            RopeScaling::Linear { factor } => format!(" linear={factor}"),
            RopeScaling::Yarn { factor, original_context_tokens } => {
                format!(" yarn={factor} from={original_context_tokens}")
            }
        };
        let factors = rope.factors.map_or(String::new(), |w| format!(" factors={}", self.weight(w)));
        let magnitude = if rope.magnitude == 1.0 { String::new() } else { format!(" magnitude={}", rope.magnitude) };
        format!("{:?} n_rot={} base={}{scaling}{magnitude}{factors}", rope.pairing, rope.n_rot, rope.base)
    }

    fn view(&self, view: View) -> String {
        let View { value, first_col, cols } = view;
        match self.values.get(value.index()) {
            Some(v) if first_col == 0 && cols == v.cols => v.name.clone(),
            Some(v) => format!("{}[{first_col}..{}]", v.name, u64::from(first_col) + u64::from(cols)),
            None => format!("value {}", value.0),
        }
    }

    /// A view that is written: with its shape.
    fn out(&self, view: View) -> String {
        let rows = match self.values.get(view.value.index()).map(|v| v.rows) {
            Some(Rows::Tokens) => "T",
            Some(Rows::Outputs) => "O",
            None => "?",
        };
        format!("{}:{rows}x{}", self.view(view), view.cols)
    }

    fn outs(&self, parts: &[MatMulPart]) -> String {
        parts.iter().map(|part| self.out(part.out)).collect::<Vec<_>>().join(", ")
    }

    fn weight(&self, id: WeightId) -> String {
        let tensor = self.weights.get(id.index()).and_then(|w| self.tensors.get(w.tensor.index()));
        tensor.map_or_else(|| format!("weight {}", id.0), |tensor| tensor.name.clone())
    }

    fn state(&self, id: StateId) -> String {
        self.states.get(id.index()).map_or_else(|| format!("state {}", id.0), |state| state.name.clone())
    }

    fn products(&self, parts: &[MatMulPart]) -> String {
        let product = |part: &MatMulPart| {
            let bias = part.bias.map_or(String::new(), |bias| format!("+{}", self.weight(bias)));
            format!("{}{bias}", self.weight(part.weight))
        };
        parts.iter().map(product).collect::<Vec<_>>().join(", ")
    }

    fn attention(&self, a: &Attention) -> String {
        let mask = match a.mask {
            Mask::Causal => "causal".to_owned(),
            Mask::Window { tokens } => format!("window={tokens}"),
            Mask::Chunk { tokens } => format!("chunk={tokens}"),
        };
        let sinks = a.sinks.map_or(String::new(), |w| format!(" sinks={}", self.weight(w)));
        let heads = format!("heads={}/{} k={} v={}", a.q_heads, a.kv_heads, a.k_head_cols, a.v_head_cols);
        format!("{heads} scale={} {mask}{sinks}", a.scale)
    }

    fn delta_net(&self, d: &DeltaNet) -> String {
        let views: Vec<String> = [d.q, d.k, d.v, d.b, d.alpha].iter().map(|&view| self.view(view)).collect();
        let weights = format!("{}, {}, {}", self.weight(d.a), self.weight(d.dt), self.state(d.state));
        let heads = format!("heads={}/{}x{} {:?}", d.value_heads, d.key_heads, d.head_cols, d.heads);
        format!("({}, {weights}) {heads}", views.join(", "))
    }
}

fn router_text(r: &Router) -> String {
    let scale = if r.scale == 1.0 { String::new() } else { format!(" scale={}", r.scale) };
    format!("chosen={}/{} {:?} {:?}{scale}", r.chosen, r.experts, r.score, r.weights)
}
