//! Qwen3 (dense): llama with NEOX rope and norms of q's and k's heads before it. architectures, section 4.

use super::LowerError;
use super::common::{
    AttentionSpec, Bias, Factors, FfnSpec, GateUp, HeadNorms, Heads, Lowering, Scaling, Sinks, usual_scale,
};
use plan_format::program::{GluActivation, Mask, RopePairing, View};

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let attention = attention_spec(l)?;
    let ffn = FfnSpec {
        ff: l.feed_forward_length()?,
        norm: "ffn_norm",
        activation: GluActivation::Silu,
        gate_up: GateUp::Separate,
        post_norm: None,
    };
    let mut x = l.embedding(1.0)?;
    for layer in 0..l.layers {
        x = l.attention_layer(layer, x, &attention)?;
        x = l.ffn_layer(layer, x, &ffn)?;
    }
    l.head(x)
}

/// Attention of Qwen3, dense or mixture of experts.
pub fn attention_spec(l: &mut Lowering<'_>) -> Result<AttentionSpec, LowerError> {
    let heads = Heads::read(l)?;
    let n_rot = l.rotated_cols(heads.k_cols)?;
    Ok(AttentionSpec {
        heads,
        norm: "attn_norm",
        qkv_bias: Bias::IfPresent,
        output_bias: Bias::IfPresent,
        head_norms: HeadNorms::BeforeRope,
        rope: Some(l.rope(RopePairing::Neox, n_rot, Scaling::Metadata, Factors::Never)?),
        position_scale: None,
        sinks: Sinks::Off,
        scale: usual_scale(&heads),
        mask: Mask::Causal,
        post_norm: None,
    })
}
