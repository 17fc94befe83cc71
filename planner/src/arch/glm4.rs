//! GLM-4-0414 and GLM-Z1: half of each head rotated, four norms a layer, gate and up in one tensor.
//! architectures, section 6.

use super::LowerError;
use super::common::{AttentionSpec, Factors, FfnSpec, GateUp, Heads, Lowering, Scaling};
use plan_format::program::{RopePairing, View};

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let heads = Heads::read(l)?;
    // The format's default would be the whole head, which is right for no model of this family.
    l.source.u32("rope.dimension_count", 2..=heads.k_cols.max(2))?;
    let n_rot = l.rotated_cols(heads.k_cols)?;
    if l.source.has_key("rope.dimension_sections") {
        return Err(l.source.refuse("rope.dimension_sections", "present", "no such key (a text model)"));
    }
    let rope = l.rope(RopePairing::Norm, n_rot, Scaling::Metadata, Factors::Never)?;
    let attention = AttentionSpec { post_norm: Some("post_attention_norm"), ..AttentionSpec::usual(heads, rope) };
    let ffn =
        FfnSpec { gate_up: GateUp::InUp, post_norm: Some("post_ffw_norm"), ..FfnSpec::usual(l.feed_forward_length()?) };
    l.dense_stack(&attention, &ffn)
}
