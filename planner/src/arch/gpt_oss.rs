//! GPT-OSS: sinks, windows on the even layers, YaRN, biases everywhere, clamped experts. architectures, section 5.

use super::LowerError;
use super::common::{AttentionSpec, Bias, Factors, Heads, Lowering, MoeSpec, Scaling, Sinks, WeighedAt};
use super::source::all_but_last_of;
use plan_format::program::{GluActivation, Mask, RopePairing, RouterScore, RouterWeights, View};

/// One layer of these many sees everything where the file does not say.
const PERIOD: u32 = 2;
/// Activation of the experts; fixed in the architecture.
const ACTIVATION: GluActivation = GluActivation::ClampedSwish { alpha: 1.702, limit: 7.0 };

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let heads = Heads::read(l)?;
    let n_rot = l.rotated_cols(heads.k_cols)?;
    if n_rot != heads.k_cols {
        return Err(l.source.refuse("rope.dimension_count", n_rot, format!("{}, the whole head", heads.k_cols)));
    }
    let window = l.source.u32("attention.sliding_window", 1..=u32::MAX)?;
    let pattern = l.source.pattern("attention.sliding_window_pattern", l.layers)?;
    let windowed_layers = pattern.unwrap_or_else(|| all_but_last_of(PERIOD, l.layers));
    let rope = l.rope(RopePairing::Neox, n_rot, Scaling::Metadata, Factors::Never)?;
    let full = AttentionSpec {
        qkv_bias: Bias::Required,
        output_bias: Bias::Required,
        sinks: Sinks::PerHead,
        ..AttentionSpec::usual(heads, rope)
    };
    let windowed = AttentionSpec { mask: Mask::Window { tokens: window }, ..full };
    let moe = MoeSpec {
        norm: "post_attention_norm",
        router: l.router(RouterScore::Logit, RouterWeights::SoftmaxOfChosen)?,
        ff: l.expert_length()?,
        activation: ACTIVATION,
        bias: Bias::Required,
        weighed_at: WeighedAt::Output,
        shared: None,
    };
    let mut x = l.embedding(1.0)?;
    for (layer, is_windowed) in (0..l.layers).zip(windowed_layers) {
        x = l.attention_layer(layer, x, if is_windowed { &windowed } else { &full })?;
        x = l.moe_layer(layer, x, &moe)?;
    }
    l.head(x)
}
