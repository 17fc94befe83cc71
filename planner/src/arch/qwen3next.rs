//! Qwen3-Next: three layers of gated delta net to one of gated attention, experts with a gated shared one.
//! architectures, section 8. `qwen35moe.rs` differs in how the delta net's inputs are stored.

use super::LowerError;
use super::common::{
    AttentionSpec, Bias, DeltaSpec, Factors, Gates, HeadNorms, Heads, Lowering, MoeSpec, Qkv, Scaling, SharedExperts,
    SharedGate, WeighedAt, blk, part_of,
};
use super::source::all_but_last_of;
use plan_format::program::{GluActivation, ItemKind, RopePairing, RouterScore, RouterWeights, View};

/// One layer of these many has full attention where the file does not say.
const PERIOD: u32 = 4;

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    lower_with(l, Gates::GroupedInOne)
}

/// Lowers the whole model, with the delta net's inputs stored as `gates` says.
pub fn lower_with(l: &mut Lowering<'_>, gates: Gates) -> Result<View, LowerError> {
    let linear_layers = match l.source.flags("attention.recurrent_layers", l.layers)? {
        Some(flags) => flags,
        None => {
            let period = l.source.opt_u32("full_attention_interval", 1..=u32::MAX)?.unwrap_or(PERIOD);
            all_but_last_of(period, l.layers)
        }
    };
    let attention = attention_spec(l)?;
    let delta = DeltaSpec::read(l, gates)?;
    let moe = MoeSpec {
        norm: "post_attention_norm",
        router: l.router(RouterScore::Softmax, RouterWeights::ScoreNormalised)?,
        ff: l.expert_length()?,
        activation: GluActivation::Silu,
        bias: Bias::IfPresent,
        weighed_at: WeighedAt::Output,
        shared: Some(SharedExperts {
            ff: l.source.u32("expert_shared_feed_forward_length", 1..=1 << 22)?,
            gate: SharedGate::Sigmoid,
        }),
    };
    let mut x = l.embedding(1.0)?;
    for (layer, is_linear) in (0..l.layers).zip(linear_layers) {
        x = match is_linear {
            true => l.delta_layer(layer, x, "attn_norm", &delta)?,
            false => gated_attention_layer(l, layer, x, &attention)?,
        };
        x = l.moe_layer(layer, x, &moe)?;
    }
    l.head(x)
}

fn attention_spec(l: &mut Lowering<'_>) -> Result<AttentionSpec, LowerError> {
    let heads = Heads::read(l)?;
    if heads.v_cols != heads.k_cols {
        let accepted = format!("{}, as attention.key_length", heads.k_cols);
        return Err(l.source.refuse("attention.value_length", heads.v_cols, accepted));
    }
    let n_rot = l.rotated_cols(heads.k_cols)?;
    let rope = l.rope(RopePairing::Neox, n_rot, Scaling::Metadata, Factors::Never)?;
    Ok(AttentionSpec { head_norms: HeadNorms::BeforeRope, ..AttentionSpec::usual(heads, rope) })
}

/// Attention whose `attn_q` holds, per head, the query and then a gate for the output.
fn gated_attention_layer(l: &mut Lowering<'_>, layer: u32, x: View, spec: &AttentionSpec) -> Result<View, LowerError> {
    let Heads { q: heads, k_cols: head, q_all, .. } = spec.heads;
    let both = l.cols(2, q_all, "attention.key_length")?;
    let qkv = l.qkv(layer, x, spec, both)?;
    l.graph.item(ItemKind::Attention, blk(layer, "attn"), Some(layer));
    let q = l.gather(blk(layer, "q"), qkv.q, 2 * head, head, heads);
    let gates = part_of(qkv.q, head, both - head);
    let gate = l.gather(blk(layer, "q_gate"), gates, 2 * head, head, heads);
    let mixed = l.attend(layer, Qkv { q, ..qkv }, spec)?;
    let gated = l.sigmoid_gate(blk(layer, "attn_gated"), mixed, gate);
    l.mixer_output(layer, "attn_output", x, gated, spec.output_bias, spec.post_norm)
}
