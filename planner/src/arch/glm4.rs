//! GLM-4-0414 and GLM-Z1: half of each head rotated, four norms a layer, gate and up in one tensor.
//! architectures, section 6.

use super::LowerError;
use super::common::{
    AttentionSpec, Bias, Factors, FfnSpec, GateUp, HeadNorms, Heads, Lowering, Scaling, Sinks, usual_scale,
};
use plan_format::program::{GluActivation, Mask, RopePairing, View};

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let heads = Heads::read(l)?;
    // The format's default would be the whole head, which is right for no model of this family.
    l.source.u32("rope.dimension_count", 2..=heads.k_cols.max(2))?;
    let n_rot = l.rotated_cols(heads.k_cols)?;
    if l.source.has_key("rope.dimension_sections") {
        return Err(l.source.refuse("rope.dimension_sections", "present", "no such key (a text model)"));
    }
    let attention = AttentionSpec {
        heads,
        norm: "attn_norm",
        qkv_bias: Bias::IfPresent,
        output_bias: Bias::IfPresent,
        head_norms: HeadNorms::Off,
        rope: Some(l.rope(RopePairing::Norm, n_rot, Scaling::Metadata, Factors::Never)?),
        position_scale: None,
        sinks: Sinks::Off,
        scale: usual_scale(&heads),
        mask: Mask::Causal,
        post_norm: Some("post_attention_norm"),
    };
    let ffn = FfnSpec {
        ff: l.feed_forward_length()?,
        norm: "ffn_norm",
        activation: GluActivation::Silu,
        gate_up: GateUp::InUp,
        post_norm: Some("post_ffw_norm"),
    };
    let mut x = l.embedding(1.0)?;
    for layer in 0..l.layers {
        x = l.attention_layer(layer, x, &attention)?;
        x = l.ffn_layer(layer, x, &ffn)?;
    }
    l.head(x)
}
