//! Mixtures of experts: router, shared experts, routed gate and up, routed down. architectures: MoE.
//!
//! Shared experts add to the residual stream before the routed ones do, so that one stream passes through all items.

use super::{Bias, Lowering, blk, part_of};
use crate::arch::LowerError;
use plan_format::program::{
    Elem, ExpertInput, GluActivation, ItemKind, MatMulPart, OpKind, Router, RouterScore, RouterWeights, Rows, Value,
    View, WeightRole,
};

/// What varies between families.
#[derive(Clone, Copy, Debug)]
pub struct MoeSpec {
    /// Name of the norm before it.
    pub norm: &'static str,
    /// How experts are chosen and weighed.
    pub router: Router,
    /// Columns between gate and down of an expert.
    pub ff: u32,
    /// The activation.
    pub activation: GluActivation,
    /// Whether router and experts must have biases.
    pub bias: Bias,
    /// Where the router's weights go.
    pub weighed_at: WeighedAt,
    /// Experts that every token uses.
    pub shared: Option<SharedExperts>,
}

/// What the router's weight of an expert multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeighedAt {
    /// Its output.
    Output,
    /// Its input (llama4).
    Input,
}

/// Experts that every token uses, stored as one feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExperts {
    /// Columns between gate and down.
    pub ff: u32,
    /// What multiplies their output.
    pub gate: SharedGate,
}

/// What multiplies the shared experts' output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedGate {
    /// Nothing.
    Off,
    /// sigmoid of one number per token, `ffn_gate_inp_shexp`.
    Sigmoid,
}

/// The router's choice.
#[derive(Clone, Copy, Debug)]
struct Choice {
    ids: View,
    weights: View,
}

impl Lowering<'_> {
    /// `A.expert_{count, used_count}` with the rules that the family fixes.
    pub fn router(&self, score: RouterScore, weights: RouterWeights) -> Result<Router, LowerError> {
        let experts = self.source.u32("expert_count", 1..=65536)?;
        let chosen = self.source.u32("expert_used_count", 1..=experts)?;
        Ok(Router { experts, chosen, score, weights, scale: 1.0 })
    }

    /// `A.expert_feed_forward_length`.
    pub fn expert_length(&self) -> Result<u32, LowerError> {
        self.source.u32("expert_feed_forward_length", 1..=1 << 22)
    }

    /// A layer's mixture of experts with its residual sum.
    pub fn moe_layer(&mut self, layer: u32, x: View, spec: &MoeSpec) -> Result<View, LowerError> {
        self.graph.item(ItemKind::Router, blk(layer, "router"), Some(layer));
        let normed = self.norm(&blk(layer, spec.norm), x, self.hidden)?;
        let choice = self.choose(layer, normed, spec)?;
        let x = match &spec.shared {
            Some(shared) => self.shared_experts(layer, x, normed, shared, spec.activation)?,
            None => x,
        };
        self.graph.item(ItemKind::ExpertsInput, blk(layer, "experts_gate_up"), Some(layer));
        let (gate, up) = self.experts_input(layer, normed, choice, spec)?;
        self.graph.item(ItemKind::ExpertsOutput, blk(layer, "experts_down"), Some(layer));
        let hidden = self.glu(blk(layer, "experts_glu"), gate, up, spec.activation);
        let mixed = self.experts_output(layer, hidden, choice, spec)?;
        self.add_to_residual(blk(layer, "ffn_residual"), x, mixed, None)
    }

    fn choose(&mut self, layer: u32, normed: View, spec: &MoeSpec) -> Result<Choice, LowerError> {
        let Router { experts, chosen, .. } = spec.router;
        let logits = self.mat_mul(&blk(layer, "ffn_gate_inp"), normed, experts, spec.bias)?;
        let select_bias = self.opt_small(&blk(layer, "exp_probs_b.bias"), &[experts])?;
        let name = blk(layer, "expert_ids");
        let ids = self.graph.value_of(Value { name, rows: Rows::Tokens, cols: chosen, elem: Elem::I32 });
        let weights = self.graph.value(blk(layer, "expert_weights"), chosen);
        self.graph.op(OpKind::Router { logits, select_bias, router: spec.router, ids, weights });
        Ok(Choice { ids, weights })
    }

    /// `x + (gated) S(normed)`.
    fn shared_experts(
        &mut self,
        layer: u32,
        x: View,
        normed: View,
        shared: &SharedExperts,
        activation: GluActivation,
    ) -> Result<View, LowerError> {
        self.graph.item(ItemKind::SharedExperts, blk(layer, "shared_experts"), Some(layer));
        let gate = self.product(&blk(layer, "ffn_gate_shexp"), normed.cols, shared.ff, Bias::IfPresent)?;
        let up = self.product(&blk(layer, "ffn_up_shexp"), normed.cols, shared.ff, Bias::IfPresent)?;
        let mut parts = vec![gate, up];
        let factor = match shared.gate {
            SharedGate::Off => None,
            SharedGate::Sigmoid => {
                let factor = self.product(&blk(layer, "ffn_gate_inp_shexp"), normed.cols, 1, Bias::IfPresent)?;
                parts.push(factor);
                Some(factor.out)
            }
        };
        self.graph.op(OpKind::MatMul { x: normed, parts });
        let hidden = self.glu(blk(layer, "shared_glu"), gate.out, up.out, activation);
        let mut out = self.mat_mul(&blk(layer, "ffn_down_shexp"), hidden, self.hidden, Bias::IfPresent)?;
        if let Some(gate) = factor {
            out = self.sigmoid_gate(blk(layer, "shared_gated"), out, gate);
        }
        self.add_to_residual(blk(layer, "shared_residual"), x, out, None)
    }

    /// `x · sigmoid(gate)`.
    pub fn sigmoid_gate(&mut self, name: String, x: View, gate: View) -> View {
        let out = self.graph.value(name, x.cols);
        self.graph.op(OpKind::SigmoidGate { x, gate, out });
        out
    }

    /// Gate and up of the chosen experts, `[T, chosen × ff]` each; a fused tensor stands for both where there is one.
    fn experts_input(
        &mut self,
        layer: u32,
        normed: View,
        choice: Choice,
        spec: &MoeSpec,
    ) -> Result<(View, View), LowerError> {
        let chosen = spec.router.chosen;
        let (x, input) = match spec.weighed_at {
            WeighedAt::Output => (normed, ExpertInput::Shared),
            WeighedAt::Input => {
                let cols = self.cols(chosen, normed.cols, "embedding_length")?;
                let out = self.graph.value(blk(layer, "experts_input"), cols);
                self.graph.op(OpKind::ExpertScale { x: normed, weights: choice.weights, out });
                (out, ExpertInput::PerExpert)
            }
        };
        let fused = blk(layer, "ffn_gate_up_exps");
        if self.source.has(&format!("{fused}.weight")) {
            let both_cols = self.cols(2, spec.ff, "expert_feed_forward_length")?;
            let both = self.expert_product(&fused, normed.cols, both_cols, spec)?;
            self.graph.op(OpKind::ExpertMatMul { x, input, chosen, ids: choice.ids, parts: vec![both] });
            let up = part_of(both.out, spec.ff, both.out.cols - spec.ff);
            let gate = self.gather(blk(layer, "experts_gate"), both.out, both_cols, spec.ff, chosen);
            return Ok((gate, self.gather(blk(layer, "experts_up"), up, both_cols, spec.ff, chosen)));
        }
        let (first, gate) = (blk(layer, "ffn_gate.0.weight"), blk(layer, "ffn_gate_exps"));
        if self.source.has(&first) {
            return Err(LowerError::OldExperts { tensor: first, expected: format!("{gate}.weight") });
        }
        let gate = self.expert_product(&gate, normed.cols, spec.ff, spec)?;
        let up = self.expert_product(&blk(layer, "ffn_up_exps"), normed.cols, spec.ff, spec)?;
        self.graph.op(OpKind::ExpertMatMul { x, input, chosen, ids: choice.ids, parts: vec![gate, up] });
        Ok((gate.out, up.out))
    }

    fn experts_output(&mut self, layer: u32, hidden: View, choice: Choice, spec: &MoeSpec) -> Result<View, LowerError> {
        let chosen = spec.router.chosen;
        let down = self.expert_product(&blk(layer, "ffn_down_exps"), spec.ff, self.hidden, spec)?;
        let input = ExpertInput::PerExpert;
        self.graph.op(OpKind::ExpertMatMul { x: hidden, input, chosen, ids: choice.ids, parts: vec![down] });
        let weights = match spec.weighed_at {
            WeighedAt::Output => Some(choice.weights),
            WeighedAt::Input => None,
        };
        let out = self.graph.value(blk(layer, "experts_sum"), self.hidden);
        self.graph.op(OpKind::ExpertSum { x: down.out, chosen, weights, out });
        Ok(out)
    }

    /// One product of a stack of experts: `name.weight` {in, out, experts}, perhaps `name.bias` {out, experts}.
    fn expert_product(
        &mut self,
        name: &str,
        in_cols: u32,
        out_cols: u32,
        spec: &MoeSpec,
    ) -> Result<MatMulPart, LowerError> {
        let Router { experts, chosen, .. } = spec.router;
        let shape = [in_cols, out_cols, experts];
        let weight = self.large(&format!("{name}.weight"), &shape, WeightRole::Experts)?;
        let bias_name = format!("{name}.bias");
        let bias = match spec.bias {
            Bias::Required => Some(self.small(&bias_name, &[out_cols, experts])?),
            Bias::IfPresent => self.opt_small(&bias_name, &[out_cols, experts])?,
        };
        let cols = self.cols(chosen, out_cols, "expert_feed_forward_length")?;
        Ok(MatMulPart { weight, bias, out: self.graph.value(name.to_owned(), cols) })
    }
}
