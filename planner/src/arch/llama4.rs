//! Llama 4: three of four layers rotate and see chunks of 8192, the fourth sees everything without positions; experts
//! weigh their input. architectures, section 10.

use super::LowerError;
use super::common::{
    AttentionSpec, Bias, Factors, FfnSpec, HeadNorms, Heads, Lowering, MoeSpec, PositionScale, Scaling, SharedExperts,
    SharedGate, WeighedAt,
};
use plan_format::program::{GluActivation, Mask, RopePairing, RouterScore, RouterWeights, View};

/// One layer of these many has no rotation.
const PERIOD: u32 = 4;
/// Positions of a chunk, and of a step of the temperature; fixed in the architecture.
const CHUNK_TOKENS: u32 = 8192;
/// Height of the temperature's first step.
const TEMPERATURE_FACTOR: f32 = 0.1;
/// Experts of the model that has no norms of q and k.
const EXPERTS_WITHOUT_HEAD_NORMS: u32 = 128;

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let router = l.router(RouterScore::Sigmoid, RouterWeights::Score)?;
    let (local, global) = attention_specs(l, router.experts)?;
    let ff = l.expert_length()?;
    let moe = MoeSpec {
        norm: "ffn_norm",
        router,
        ff,
        activation: GluActivation::Silu,
        bias: Bias::IfPresent,
        weighed_at: WeighedAt::Input,
        shared: Some(SharedExperts { ff, gate: SharedGate::Off }),
    };
    let ffn = FfnSpec::usual(l.feed_forward_length()?);
    let moe_step = l.source.u32("interleave_moe_layer_step", 1..=u32::MAX)?;
    let mut x = l.embedding(1.0)?;
    for layer in 0..l.layers {
        let is_global = (layer + 1).is_multiple_of(PERIOD);
        x = l.attention_layer(layer, x, if is_global { &global } else { &local })?;
        x = match (layer + 1).is_multiple_of(moe_step) {
            true => l.moe_layer(layer, x, &moe)?,
            false => l.ffn_layer(layer, x, &ffn)?,
        };
    }
    l.head(x)
}

/// Attention of the layers with rotation and of those without.
fn attention_specs(l: &mut Lowering<'_>, experts: u32) -> Result<(AttentionSpec, AttentionSpec), LowerError> {
    let heads = Heads::read(l)?;
    let n_rot = l.rotated_cols(heads.k_cols)?;
    // 0 means neither chunks nor temperature (MobileLLM); any other value says nothing, by the reference's rule.
    let chunked = l.source.opt_u32("attention.sliding_window", 0..=u32::MAX)? != Some(0);
    let temperature = PositionScale { period_tokens: CHUNK_TOKENS, factor: TEMPERATURE_FACTOR };
    let rope = l.rope(RopePairing::Norm, n_rot, Scaling::Metadata, Factors::IfPresent)?;
    let local = AttentionSpec {
        head_norms: match experts {
            EXPERTS_WITHOUT_HEAD_NORMS => HeadNorms::Off,
            _ => HeadNorms::AfterRopeUnweighted,
        },
        mask: if chunked { Mask::Chunk { tokens: CHUNK_TOKENS } } else { Mask::Causal },
        ..AttentionSpec::usual(heads, rope)
    };
    let global = AttentionSpec {
        head_norms: HeadNorms::Off,
        rope: None,
        position_scale: chunked.then_some(temperature),
        mask: Mask::Causal,
        ..local
    };
    Ok((local, global))
}
