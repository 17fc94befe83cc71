//! Qwen3 mixture of experts: Qwen3's attention, every layer with experts, none shared. architectures, section 4.

use super::LowerError;
use super::common::{Bias, Lowering, MoeSpec, WeighedAt};
use super::qwen3::attention_spec;
use plan_format::program::{GluActivation, RouterScore, RouterWeights, View};

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let attention = attention_spec(l)?;
    let moe = MoeSpec {
        norm: "ffn_norm",
        router: l.router(RouterScore::Softmax, RouterWeights::ScoreNormalised)?,
        ff: l.expert_length()?,
        activation: GluActivation::Silu,
        bias: Bias::IfPresent,
        weighed_at: WeighedAt::Output,
        shared: None,
    };
    let mut x = l.embedding(1.0)?;
    for layer in 0..l.layers {
        x = l.attention_layer(layer, x, &attention)?;
        x = l.moe_layer(layer, x, &moe)?;
    }
    l.head(x)
}
