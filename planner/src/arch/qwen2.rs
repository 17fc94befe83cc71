//! Qwen2, Qwen2.5 and their distillations: llama with NEOX rope and biases on q, k, v. architectures, section 3.

use super::LowerError;
use super::common::{AttentionSpec, Bias, Factors, FfnSpec, Heads, Lowering, Scaling};
use plan_format::program::{RopePairing, View};

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let heads = Heads::read(l)?;
    let n_rot = l.rotated_cols(heads.k_cols)?;
    let rope = l.rope(RopePairing::Neox, n_rot, Scaling::Metadata, Factors::Never)?;
    let attention = AttentionSpec { qkv_bias: Bias::Required, ..AttentionSpec::usual(heads, rope) };
    let ffn = FfnSpec::usual(l.feed_forward_length()?);
    l.dense_stack(&attention, &ffn)
}
