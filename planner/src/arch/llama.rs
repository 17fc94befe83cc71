//! Llama 2 and 3, Mistral, SmolLM2 and whatever else says `llama`. architectures, section 2.

use super::LowerError;
use super::common::{AttentionSpec, Factors, FfnSpec, Heads, Lowering, Scaling};
use plan_format::program::{RopePairing, View};

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
    let rope = l.rope(RopePairing::Norm, n_rot, Scaling::Metadata, Factors::IfPresent)?;
    let ffn = FfnSpec::usual(l.feed_forward_length()?);
    l.dense_stack(&AttentionSpec::usual(heads, rope), &ffn)
}
