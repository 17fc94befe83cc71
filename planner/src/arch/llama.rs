//! Llama 2 and 3, Mistral, SmolLM2 and whatever else says `llama`. architectures, section 2.

use super::LowerError;
use super::common::{
    AttentionSpec, Bias, Factors, FfnSpec, GateUp, HeadNorms, Heads, Lowering, Scaling, Sinks, usual_scale,
};
use plan_format::program::{GluActivation, Mask, RopePairing, View};

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let heads = Heads::read(l)?;
    let n_rot = l.rotated_cols(heads.k_cols)?;
    if n_rot != heads.k_cols {
        return Err(l.source.refuse("rope.dimension_count", n_rot, format!("{}, the whole head", heads.k_cols)));
    }
    // A mixture of experts under this name (Mixtral) is other mathematics.
    if let Some(experts) = l.source.opt_u32("expert_count", 0..=u32::MAX)?.filter(|&experts| experts > 0) {
        return Err(l.source.refuse("expert_count", experts, "0, or no such key"));
    }
    let attention = AttentionSpec {
        heads,
        norm: "attn_norm",
        qkv_bias: Bias::IfPresent,
        output_bias: Bias::IfPresent,
        head_norms: HeadNorms::Off,
        rope: Some(l.rope(RopePairing::Norm, n_rot, Scaling::Metadata, Factors::IfPresent)?),
        position_scale: None,
        sinks: Sinks::Off,
        scale: usual_scale(&heads),
        mask: Mask::Causal,
        post_norm: None,
    };
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
