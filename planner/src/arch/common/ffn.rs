//! The dense feed-forward network: norm, gate and up; activation, down, residual.

use super::{Bias, Lowering, blk, part_of};
use crate::arch::LowerError;
use plan_format::program::{GluActivation, ItemKind, OpKind, View};

/// What varies between families.
#[derive(Clone, Copy, Debug)]
pub struct FfnSpec {
    /// Columns between gate and down (`A.feed_forward_length`).
    pub ff: u32,
    /// Name of the norm before it.
    pub norm: &'static str,
    /// The activation.
    pub activation: GluActivation,
    /// How gate and up are stored.
    pub gate_up: GateUp,
    /// Norm of the output before the residual sum.
    pub post_norm: Option<&'static str>,
}

impl FfnSpec {
    /// What most families have. Families state what differs.
    pub fn usual(ff: u32) -> Self {
        FfnSpec { ff, norm: "ffn_norm", activation: GluActivation::Silu, gate_up: GateUp::Separate, post_norm: None }
    }
}

/// How gate and up are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUp {
    /// `ffn_gate` and `ffn_up` {hidden, ff}.
    Separate,
    /// `ffn_up` {hidden, 2 ff}: rows of the gate, then of up.
    InUp,
}

impl Lowering<'_> {
    /// `A.feed_forward_length`, one for all layers.
    pub fn feed_forward_length(&self) -> Result<u32, LowerError> {
        self.source.u32_of_all("feed_forward_length", 1..=1 << 22)
    }

    /// A layer's dense feed-forward network: `x + down(glu(gate(norm(x)), up(norm(x))))`.
    pub fn ffn_layer(&mut self, layer: u32, x: View, spec: &FfnSpec) -> Result<View, LowerError> {
        self.graph.item(ItemKind::FfnInput, blk(layer, "ffn_gate_up"), Some(layer));
        let normed = self.norm(&blk(layer, spec.norm), x, self.hidden)?;
        let (gate, up) = match spec.gate_up {
            GateUp::Separate => {
                let gate = self.product(&blk(layer, "ffn_gate"), normed.cols, spec.ff, Bias::IfPresent)?;
                let up = self.product(&blk(layer, "ffn_up"), normed.cols, spec.ff, Bias::IfPresent)?;
                self.graph.op(OpKind::MatMul { x: normed, parts: vec![gate, up] });
                (gate.out, up.out)
            }
            GateUp::InUp => {
                let cols = self.cols(2, spec.ff, "feed_forward_length")?;
                let both = self.mat_mul(&blk(layer, "ffn_up"), normed, cols, Bias::IfPresent)?;
                (part_of(both, 0, spec.ff), part_of(both, spec.ff, spec.ff))
            }
        };
        self.graph.item(ItemKind::FfnOutput, blk(layer, "ffn_down"), Some(layer));
        let hidden = self.glu(blk(layer, "ffn_glu"), gate, up, spec.activation);
        let down = self.mat_mul(&blk(layer, "ffn_down"), hidden, self.hidden, Bias::IfPresent)?;
        self.add_to_residual(blk(layer, "ffn_residual"), x, down, spec.post_norm.map(|norm| blk(layer, norm)))
    }

    /// A gated linear unit.
    pub fn glu(&mut self, name: String, gate: View, up: View, activation: GluActivation) -> View {
        let out = self.graph.value(name, gate.cols);
        self.graph.op(OpKind::Glu { gate, up, activation, out });
        out
    }
}
