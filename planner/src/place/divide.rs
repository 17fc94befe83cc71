//! Dividing layers' routed experts in two places: a pure transformation of a program, verified.
//!
//! A divided layer's stacks become two weights each, the hot experts and the others, and its two items become five:
//! gate and up of the hot ones, their down with its sum, the same of the others, and a join that adds both sums, hot
//! first, and the residual. The router's item says which choices are whose. So a result depends on which experts are
//! hot, never on who is faster. Not here: which experts are hot (`hot.rs`), where the items live (`search.rs`).

use plan_format::program::{
    Elem, Item, ItemKind, MatMulPart, Op, OpKind, Part, PartAxis, Program, Rows, Value, View, Weight,
};
use plan_format::verify::verify_program;
use plan_format::{ItemId, ValueId, WeightId};
use std::collections::BTreeMap;

/// A layer whose experts are to lie in two places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// The layer.
    pub layer: u32,
    /// Its hot experts.
    pub hot: Vec<u32>,
}

/// Why a program is not divided.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DivideError {
    /// The layer has no routed experts in two items, or operators among them that have no parts.
    #[error("the experts of layer {0} cannot be divided")]
    Layer(u32),
    /// No expert, all of them, or one that the layer does not have.
    #[error("layer {layer} has {experts} experts; {hot} of them cannot be its hot ones")]
    Hot {
        /// The layer.
        layer: u32,
        /// Its experts.
        experts: u32,
        /// Hot ones.
        hot: usize,
    },
    /// The result breaks an invariant.
    #[error("dividing made a wrong program, please report this: {0}")]
    Program(#[from] plan_format::Error),
}

/// Where a layer's choice of experts and its two items are.
struct Layer {
    router: usize,
    input: usize,
    output: usize,
    ids: View,
    experts: u32,
}

/// The program with the experts of some layers divided.
///
/// # Errors
/// A layer that has no experts to divide, or not these.
pub fn divide(program: &Program, divisions: &[Division]) -> Result<Program, DivideError> {
    let mut writer = Writer { from: program, to: Program { items: Vec::new(), ops: Vec::new(), ..program.clone() } };
    let mut layers = BTreeMap::new();
    for division in divisions {
        let layer = Layer::find(program, division.layer).ok_or(DivideError::Layer(division.layer))?;
        let (hot, cold) = ranges(division, layer.experts)?;
        layers.insert(layer.router, (layer, [hot, cold], [None; 2]));
    }
    for (index, item) in program.items.iter().enumerate() {
        if let Some((layer, held, ids)) = layers.get_mut(&index) {
            *ids = writer.router(item, layer, held).map(Some);
        } else if let Some((layer, held, ids)) = layers.values().find(|(layer, ..)| layer.output == index) {
            let ids = ids.map(|ids| ids.unwrap_or(layer.ids));
            writer.experts(layer, held, ids).ok_or(DivideError::Layer(item.layer.unwrap_or_default()))?;
        } else if !layers.values().any(|(layer, ..)| layer.input == index) {
            let ops = writer.ops_of(item);
            writer.item(item.clone(), ops);
        }
    }
    verify_program(&writer.to)?;
    Ok(writer.to)
}

/// The hot experts and the others, as ascending ranges.
fn ranges(division: &Division, experts: u32) -> Result<(Vec<Part>, Vec<Part>), DivideError> {
    let Division { layer, hot } = division;
    let mut is_hot = vec![false; experts as usize];
    let wrong = || DivideError::Hot { layer: *layer, experts, hot: hot.len() };
    for &expert in hot {
        *is_hot.get_mut(expert as usize).ok_or_else(wrong)? = true;
    }
    let runs = |wanted: bool| {
        let mut parts: Vec<Part> = Vec::new();
        for expert in (0..experts).filter(|&expert| is_hot[expert as usize] == wanted) {
            match parts.last_mut().filter(|part| part.end == expert) {
                Some(part) => part.end = expert + 1,
                None => parts.push(Part { begin: expert, end: expert + 1 }),
            }
        }
        parts
    };
    let (hot, cold) = (runs(true), runs(false));
    if hot.is_empty() || cold.is_empty() { Err(wrong()) } else { Ok((hot, cold)) }
}

impl Layer {
    fn find(program: &Program, layer: u32) -> Option<Layer> {
        let find =
            |kind: ItemKind| program.items.iter().position(|item| (item.kind, item.layer) == (kind, Some(layer)));
        let (router, input) = (find(ItemKind::Router)?, find(ItemKind::ExpertsInput)?);
        let output = find(ItemKind::ExpertsOutput).filter(|&output| output == input + 1 && router < input)?;
        let (ids, experts) = program.ops_of(&program.items[router]).iter().find_map(|op| match &op.kind {
            OpKind::Router { ids, router, .. } => Some((*ids, router.experts)),
            _ => None,
        })?;
        Some(Layer { router, input, output, ids, experts })
    }
}

struct Writer<'a> {
    from: &'a Program,
    to: Program,
}

/// Values and weights of a part of the experts, in place of the whole ones'.
struct Renamed {
    ids: (View, View),
    values: BTreeMap<ValueId, ValueId>,
    weights: BTreeMap<WeightId, WeightId>,
}

impl Writer<'_> {
    fn ops_of(&self, item: &Item) -> Vec<OpKind> {
        self.from.ops_of(item).iter().map(|op| op.kind.clone()).collect()
    }

    /// Appends an item with these operators.
    fn item(&mut self, item: Item, ops: Vec<OpKind>) {
        let id = ItemId(self.to.items.len() as u32);
        let (first_op, op_count) = (self.to.ops.len() as u32, ops.len() as u32);
        self.to.items.push(Item { first_op, op_count, ..item });
        self.to.ops.extend(ops.into_iter().map(|kind| Op { item: id, kind }));
    }

    fn value(&mut self, value: Value) -> ValueId {
        self.to.values.push(value);
        ValueId(self.to.values.len() as u32 - 1)
    }

    /// The router's item, which tells both parts their choices.
    fn router(&mut self, item: &Item, layer: &Layer, held: &[Vec<Part>; 2]) -> [View; 2] {
        let mut ops = self.ops_of(item);
        let names = ["hot", "cold"];
        let ids = [0, 1].map(|part| {
            let name = format!("{}.{}", self.from.values[layer.ids.value.index()].name, names[part]);
            let cols = layer.ids.cols;
            let value = self.value(Value { name, rows: Rows::Tokens, cols, elem: Elem::I32 });
            View { value, first_col: 0, cols }
        });
        for (held, out) in held.iter().zip(ids) {
            ops.push(OpKind::HeldIds { ids: layer.ids, held: held.clone(), out });
        }
        self.item(item.clone(), ops);
        ids
    }

    /// The two items of the experts as five. `None` if they have operators that have no parts.
    fn experts(&mut self, layer: &Layer, held: &[Vec<Part>; 2], ids: [View; 2]) -> Option<()> {
        let (input, output) = (&self.from.items[layer.input], &self.from.items[layer.output]);
        let (input_ops, mut output_ops) = (self.ops_of(input), self.ops_of(output));
        let sum = output_ops.iter().position(|kind| matches!(kind, OpKind::ExpertSum { .. }))?;
        let rest = output_ops.split_off(sum + 1);
        let OpKind::ExpertSum { out: whole, .. } = output_ops[sum] else { return None };
        let mut sums = Vec::new();
        for (part, name) in ["hot", "cold"].into_iter().enumerate() {
            let written = input_ops.iter().chain(&output_ops).flat_map(OpKind::writes).map(|columns| columns.value);
            let mut written: Vec<ValueId> = written.collect();
            written.sort_unstable();
            written.dedup();
            // The hot part keeps the values, but not the sum.
            written.retain(|value| part == 1 || *value == whole.value);
            let mut values = BTreeMap::new();
            for value in written {
                let like = &self.from.values[value.index()];
                let own = self.value(Value { name: format!("{}.{name}", like.name), ..like.clone() });
                values.insert(value, own);
            }
            let weights = self.weights(&[&input_ops[..], &output_ops].concat(), &held[part], part == 0);
            let renamed = Renamed { ids: (layer.ids, ids[part]), values, weights };
            sums.push(renamed.view(whole));
            for (item, ops) in [(input, &input_ops), (output, &output_ops)] {
                let ops = ops.iter().map(|kind| renamed.op(kind)).collect::<Option<Vec<_>>>()?;
                let weights = item.weights.iter().map(|weight| renamed.weights[weight]).collect();
                self.item(Item { name: format!("{}.{name}", item.name), weights, ..item.clone() }, ops);
            }
        }
        let mut join = vec![OpKind::Reduce { partials: sums, out: whole }];
        join.extend(rest);
        let name = format!("{}.join", output.name);
        self.item(Item { name, kind: ItemKind::ExpertsJoin, weights: Vec::new(), ..output.clone() }, join);
        Some(())
    }

    /// The weights of a part: the hot one changes the whole ones, the other adds its own.
    fn weights(&mut self, ops: &[OpKind], held: &[Part], is_hot: bool) -> BTreeMap<WeightId, WeightId> {
        let mut own = BTreeMap::new();
        for weight in ops.iter().flat_map(OpKind::weights) {
            if own.contains_key(&weight) {
                continue;
            }
            let (axis, parts) = (PartAxis::Experts, held.to_vec());
            let divided = Weight { axis, parts, ..self.from.weights[weight.index()].clone() };
            let id = if is_hot { weight } else { WeightId(self.to.weights.len() as u32) };
            match is_hot {
                true => self.to.weights[id.index()] = divided,
                false => self.to.weights.push(divided),
            }
            own.insert(weight, id);
        }
        own
    }
}

impl Renamed {
    fn view(&self, view: View) -> View {
        let value = self.values.get(&view.value).copied().unwrap_or(view.value);
        View { value, ..view }
    }

    fn ids(&self, ids: View) -> Option<View> {
        (ids == self.ids.0).then_some(self.ids.1)
    }

    fn product(&self, part: &MatMulPart) -> Option<MatMulPart> {
        let own = |weight: WeightId| self.weights.get(&weight).copied();
        let bias = match part.bias {
            Some(bias) => Some(own(bias)?),
            None => None,
        };
        Some(MatMulPart { weight: own(part.weight)?, bias, out: self.view(part.out) })
    }

    /// An operator of the part. `None` for kinds that have no parts.
    fn op(&self, kind: &OpKind) -> Option<OpKind> {
        Some(match kind {
            OpKind::ExpertScale { x, weights, out } => {
                OpKind::ExpertScale { x: self.view(*x), weights: self.view(*weights), out: self.view(*out) }
            }
            OpKind::ExpertMatMul { x, input, chosen, ids, parts } => {
                let parts = parts.iter().map(|part| self.product(part)).collect::<Option<Vec<_>>>()?;
                OpKind::ExpertMatMul { x: self.view(*x), input: *input, chosen: *chosen, ids: self.ids(*ids)?, parts }
            }
            OpKind::Glu { gate, up, activation, out } => {
                let (gate, up, out) = (self.view(*gate), self.view(*up), self.view(*out));
                OpKind::Glu { gate, up, activation: *activation, out }
            }
            OpKind::CopyCols { x, x_stride, out, out_stride, width, groups } => {
                let (x, x_stride, out_stride, width, groups) = (self.view(*x), *x_stride, *out_stride, *width, *groups);
                OpKind::CopyCols { x, x_stride, out: self.view(*out), out_stride, width, groups }
            }
            OpKind::ExpertSum { x, chosen, weights, out } => {
                let (x, weights, out) = (self.view(*x), weights.map(|weights| self.view(weights)), self.view(*out));
                OpKind::HeldSum { x, chosen: *chosen, weights, ids: self.ids.1, out }
            }
            _ => return None,
        })
    }
}
