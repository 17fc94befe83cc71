//! Attention in three items: projections in, attention itself with its cache, projection out.

use super::{Bias, Heads, Lowering, blk, part_of};
use crate::arch::LowerError;
use plan_format::RopeId;
use plan_format::program::{Attention, ItemKind, Mask, OpKind, StateKind, View};

/// What varies between families and layers.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSpec {
    /// Heads.
    pub heads: Heads,
    /// Name of the norm before the mixer.
    pub norm: &'static str,
    /// Whether q, k and v must have biases.
    pub qkv_bias: Bias,
    /// Whether the output must have one.
    pub output_bias: Bias,
    /// Norms of the heads of q and k.
    pub head_norms: HeadNorms,
    /// Rotation of q and k; `None` = no positions.
    pub rope: Option<RopeId>,
    /// Multiplies q, by its position (llama4).
    pub position_scale: Option<PositionScale>,
    /// Whether heads have a sink, `attn_sinks`.
    pub sinks: Sinks,
    /// Multiplies q·k.
    pub scale: f32,
    /// What a token sees.
    pub mask: Mask,
    /// Norm of the output before the residual sum.
    pub post_norm: Option<&'static str>,
}

impl AttentionSpec {
    /// What most families have: causal, rotated, biases where the file has them, no other norms. Families state what
    /// differs.
    pub fn usual(heads: Heads, rope: RopeId) -> Self {
        AttentionSpec {
            heads,
            norm: "attn_norm",
            qkv_bias: Bias::IfPresent,
            output_bias: Bias::IfPresent,
            head_norms: HeadNorms::Off,
            rope: Some(rope),
            position_scale: None,
            sinks: Sinks::Off,
            scale: 1.0 / (heads.k_cols as f32).sqrt(),
            mask: Mask::Causal,
            post_norm: None,
        }
    }
}

/// Norms over each head of q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorms {
    /// None.
    Off,
    /// `attn_q_norm`, `attn_k_norm` before the rotation.
    BeforeRope,
    /// Without weights, after the rotation.
    AfterRopeUnweighted,
}

/// Whether each query head has an extra logit that joins the softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sinks {
    /// No.
    Off,
    /// `attn_sinks` {heads}.
    PerHead,
}

/// `q · (1 + factor · ln(floor((position + 1) / period) + 1))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    /// Positions of a step.
    pub period_tokens: u32,
    /// Height of the first step.
    pub factor: f32,
}

/// Queries, keys and values of the round.
#[derive(Clone, Copy, Debug)]
pub struct Qkv {
    /// `[T, heads × key columns]`.
    pub q: View,
    /// `[T, kv heads × key columns]`.
    pub k: View,
    /// `[T, kv heads × value columns]`.
    pub v: View,
}

impl Lowering<'_> {
    /// The whole mixer of a layer: `x + output(attention(norm(x)))`.
    pub fn attention_layer(&mut self, layer: u32, x: View, spec: &AttentionSpec) -> Result<View, LowerError> {
        let qkv = self.qkv(layer, x, spec, spec.heads.q_all)?;
        self.graph.item(ItemKind::Attention, blk(layer, "attn"), Some(layer));
        let mixed = self.attend(layer, qkv, spec)?;
        self.mixer_output(layer, "attn_output", x, mixed, spec.output_bias, spec.post_norm)
    }

    /// Norm and projections; a fused `attn_qkv` stands for the three where the file has it. `q_cols` are those of q,
    /// which may hold more than queries.
    pub fn qkv(&mut self, layer: u32, x: View, spec: &AttentionSpec, q_cols: u32) -> Result<Qkv, LowerError> {
        self.graph.item(ItemKind::MixerInput, blk(layer, "attn_qkv"), Some(layer));
        let normed = self.norm(&blk(layer, spec.norm), x, self.hidden)?;
        let Heads { k_all, v_all, .. } = spec.heads;
        let fused = blk(layer, "attn_qkv");
        if self.source.has(&format!("{fused}.weight")) {
            let cols = self.cols(1, q_cols.saturating_add(k_all).saturating_add(v_all), "attention.head_count")?;
            let all = self.mat_mul(&fused, normed, cols, spec.qkv_bias)?;
            let q = part_of(all, 0, q_cols);
            return Ok(Qkv { q, k: part_of(all, q_cols, k_all), v: part_of(all, q_cols + k_all, v_all) });
        }
        let mut part = |name, cols| self.product(&blk(layer, name), normed.cols, cols, spec.qkv_bias);
        let parts = vec![part("attn_q", q_cols)?, part("attn_k", k_all)?, part("attn_v", v_all)?];
        let [q, k, v] = [parts[0].out, parts[1].out, parts[2].out];
        self.graph.op(OpKind::MatMul { x: normed, parts });
        Ok(Qkv { q, k, v })
    }

    /// Head norms, rotation, cache and attention, in the current item.
    pub fn attend(&mut self, layer: u32, qkv: Qkv, spec: &AttentionSpec) -> Result<View, LowerError> {
        let Heads { q: q_heads, kv, k_cols, .. } = spec.heads;
        let (mut q, mut k) = (qkv.q, qkv.k);
        if spec.head_norms == HeadNorms::BeforeRope {
            q = self.norm(&blk(layer, "attn_q_norm"), q, k_cols)?;
            k = self.norm(&blk(layer, "attn_k_norm"), k, k_cols)?;
        }
        if let Some(rope) = spec.rope {
            q = self.rotate(blk(layer, "q_rope"), q, q_heads, k_cols, rope);
            k = self.rotate(blk(layer, "k_rope"), k, kv, k_cols, rope);
        }
        if spec.head_norms == HeadNorms::AfterRopeUnweighted {
            q = self.norm_unweighted(blk(layer, "q_norm"), q, k_cols);
            k = self.norm_unweighted(blk(layer, "k_norm"), k, k_cols);
        }
        if let Some(PositionScale { period_tokens, factor }) = spec.position_scale {
            let out = self.graph.value(blk(layer, "q_scaled"), q.cols);
            self.graph.op(OpKind::PositionScale { x: q, period_tokens, factor, out });
            q = out;
        }
        self.attend_cached(layer, Qkv { q, k, v: qkv.v }, spec)
    }

    /// Rotates each head.
    pub fn rotate(&mut self, name: String, x: View, heads: u32, head_cols: u32, rope: RopeId) -> View {
        let out = self.graph.value(name, x.cols);
        self.graph.op(OpKind::Rope { x, heads, head_cols, rope, out });
        out
    }

    /// Stores keys and values and attends over the cache.
    fn attend_cached(&mut self, layer: u32, qkv: Qkv, spec: &AttentionSpec) -> Result<View, LowerError> {
        let Heads { q, kv, k_cols, v_cols, k_all, v_all, out_all, .. } = spec.heads;
        let window_tokens = match spec.mask {
            Mask::Causal => None,
            Mask::Window { tokens } | Mask::Chunk { tokens } => Some(tokens),
        };
        let kind = StateKind::Kv { k_cols: k_all, v_cols: v_all, window_tokens };
        let cache = self.graph.state(blk(layer, "kv"), kind);
        self.graph.op(OpKind::StoreKv { k: qkv.k, v: Some(qkv.v), cache });
        let sinks = match spec.sinks {
            Sinks::PerHead => Some(self.small(&blk(layer, "attn_sinks.weight"), &[q])?),
            Sinks::Off => None,
        };
        let attention = Attention {
            q_heads: q,
            kv_heads: kv,
            k_head_cols: k_cols,
            v_head_cols: v_cols,
            scale: spec.scale,
            mask: spec.mask,
            sinks,
        };
        let out = self.graph.value(blk(layer, "attn"), out_all);
        self.graph.op(OpKind::Attention { q: qkv.q, cache, attention, out });
        Ok(out)
    }

    /// The mixer's output projection `tensor`, perhaps a norm, and the residual sum.
    pub fn mixer_output(
        &mut self,
        layer: u32,
        tensor: &str,
        residual: View,
        mixed: View,
        bias: Bias,
        post_norm: Option<&str>,
    ) -> Result<View, LowerError> {
        self.graph.item(ItemKind::MixerOutput, blk(layer, tensor), Some(layer));
        let out = self.mat_mul(&blk(layer, tensor), mixed, self.hidden, bias)?;
        self.add_to_residual(blk(layer, "mixer_residual"), residual, out, post_norm.map(|norm| blk(layer, norm)))
    }
}
