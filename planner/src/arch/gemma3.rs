//! Gemma 3: scaled embedding, four norms a layer, GeGLU, and layers that see a window only. architectures, section 7.

use super::LowerError;
use super::common::{AttentionSpec, Factors, FfnSpec, HeadNorms, Heads, Lowering, Scaling};
use super::source::all_but_last_of;
use plan_format::program::{GluActivation, Mask, RopePairing, View};

/// One layer of these many is global where the file does not say.
const PERIOD: u32 = 6;
/// Layers of the 27B, whose queries are scaled by hidden size over heads.
const LAYERS_27B: u32 = 62;

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let heads = Heads::read(l)?;
    let n_rot = l.rotated_cols(heads.k_cols)?;
    let window = l.source.u32("attention.sliding_window", 1..=u32::MAX)?;
    let pattern = l.source.pattern("attention.sliding_window_pattern", l.layers)?;
    let local_layers = pattern.unwrap_or_else(|| all_but_last_of(PERIOD, l.layers));
    let local_base = l.rope_base("rope.freq_base_swa")?;
    let rope = l.rope(RopePairing::Neox, n_rot, Scaling::Metadata, Factors::Never)?;
    let usual = AttentionSpec::usual(heads, rope);
    let global = AttentionSpec {
        head_norms: HeadNorms::BeforeRope,
        scale: match l.layers {
            LAYERS_27B => 1.0 / (l.hidden as f32 / heads.q as f32).sqrt(),
            _ => usual.scale,
        },
        post_norm: Some("post_attention_norm"),
        ..usual
    };
    let local_rope = l.rope_with_base(RopePairing::Neox, n_rot, local_base, Scaling::Off, Factors::Never)?;
    let local = AttentionSpec { rope: Some(local_rope), mask: Mask::Window { tokens: window }, ..global };
    let ffn = FfnSpec {
        activation: GluActivation::GeluTanh,
        post_norm: Some("post_ffw_norm"),
        ..FfnSpec::usual(l.feed_forward_length()?)
    };
    let mut x = l.embedding((l.hidden as f32).sqrt())?;
    for (layer, is_local) in (0..l.layers).zip(local_layers) {
        x = l.attention_layer(layer, x, if is_local { &local } else { &global })?;
        x = l.ffn_layer(layer, x, &ffn)?;
    }
    let logits = l.head(x)?;
    match l.source.opt_positive("final_logit_softcapping")? {
        Some(cap) => Ok(l.softcap(logits, cap)),
        None => Ok(logits),
    }
}
