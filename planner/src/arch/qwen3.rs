//! Qwen3 (dense): llama with NEOX rope and norms of q's and k's heads before it. architectures, section 4.

use super::LowerError;
use super::common::{AttentionSpec, Factors, FfnSpec, HeadNorms, Heads, Lowering, Scaling};
use plan_format::program::{RopePairing, View};

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let attention = attention_spec(l)?;
    let ffn = FfnSpec::usual(l.feed_forward_length()?);
    l.dense_stack(&attention, &ffn)
}

/// Attention of Qwen3, dense or mixture of experts.
pub fn attention_spec(l: &mut Lowering<'_>) -> Result<AttentionSpec, LowerError> {
    let heads = Heads::read(l)?;
    let n_rot = l.rotated_cols(heads.k_cols)?;
    let rope = l.rope(RopePairing::Neox, n_rot, Scaling::Metadata, Factors::Never)?;
    Ok(AttentionSpec { head_norms: HeadNorms::BeforeRope, ..AttentionSpec::usual(heads, rope) })
}
