//! DeepSeek-V2: attention through a low-rank cache (MLA), leading dense layers, shared experts.
//! architectures, section 11.
//!
//! Files of current converters hold the two halves of the up-projection per head (`attn_k_b`, `attn_v_b`): queries are
//! brought into the cache's space, one key/value head of `rank + n_rot` columns is cached, and results come back per
//! head. Older files hold `attn_kv_b`, from which plain keys and values are made and cached.

use super::LowerError;
use super::common::{
    Bias, Factors, FfnSpec, Lowering, MoeSpec, Scaling, SharedExperts, SharedGate, WeighedAt, blk, part_of,
};
use plan_format::RopeId;
use plan_format::program::{
    Attention, GluActivation, ItemKind, Mask, OpKind, RopePairing, RopeScaling, Router, RouterScore, RouterWeights,
    StateKind, View, WeightRole,
};

/// The file's `yarn_log_multiplier` is this times the figure in the formula.
const LOG_MULTIPLIER_UNIT: f32 = 0.1;

/// Sizes of the attention.
#[derive(Clone, Copy, Debug)]
struct Mla {
    heads: u32,
    /// Columns of a query head that are not rotated.
    nope: u32,
    /// Columns that are.
    rot: u32,
    /// Columns of a value head.
    v_cols: u32,
    /// Columns of the compressed keys and values.
    rank: u32,
    /// Columns of the compressed queries; 0 = they are not.
    q_rank: u32,
    rope: RopeId,
    scale: f32,
    /// Whether the up-projection is stored per head.
    absorbed: bool,
}

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    let mla = mla(l)?;
    let dense_layers = l.source.u32("leading_dense_block_count", 0..=l.layers)?;
    let ffn = FfnSpec::usual(l.feed_forward_length()?);
    let moe = moe_spec(l)?;
    let mut x = l.embedding(1.0)?;
    for layer in 0..l.layers {
        x = mla_layer(l, layer, x, &mla)?;
        x = match layer < dense_layers {
            true => l.ffn_layer(layer, x, &ffn)?,
            false => l.moe_layer(layer, x, &moe)?,
        };
    }
    l.head(x)
}

fn mla(l: &mut Lowering<'_>) -> Result<Mla, LowerError> {
    let heads = l.source.u32_of_all("attention.head_count", 1..=65536)?;
    let absorbed = l.source.has_key("attention.key_length_mla");
    let (key, value) = match absorbed {
        true => ("attention.key_length_mla", "attention.value_length_mla"),
        false => ("attention.key_length", "attention.value_length"),
    };
    let k_cols = l.source.u32(key, 3..=65536)?;
    let rot = l.source.u32("rope.dimension_count", 2..=k_cols - 1)?;
    if !rot.is_multiple_of(2) {
        return Err(l.source.refuse("rope.dimension_count", rot, "an even number"));
    }
    let rank = l.source.u32("attention.kv_lora_rank", 1..=65536)?;
    let v_cols = l.source.u32(value, 1..=65536)?;
    for each in [k_cols, v_cols, rank + rot] {
        l.cols(heads, each, key)?;
    }
    Ok(Mla {
        heads,
        nope: k_cols - rot,
        rot,
        v_cols,
        rank,
        q_rank: l.source.opt_u32("attention.q_lora_rank", 0..=65536)?.unwrap_or(0),
        rope: l.rope(RopePairing::Norm, rot, Scaling::MetadataUnitMagnitude, Factors::Never)?,
        scale: score_scale(l, k_cols)?,
        absorbed,
    })
}

/// `(1 + 0.1 a ln f)² / sqrt(columns of a key)`, with a = the file's multiplier / 0.1.
fn score_scale(l: &Lowering<'_>, k_cols: u32) -> Result<f32, LowerError> {
    let plain = 1.0 / (k_cols as f32).sqrt();
    let RopeScaling::Yarn { factor, .. } = l.rope_scaling()? else { return Ok(plain) };
    let multiplier = l.source.opt_f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0) / LOG_MULTIPLIER_UNIT;
    let magnitude = 1.0 + 0.1 * multiplier * factor.ln();
    Ok(magnitude * magnitude * plain)
}

fn moe_spec(l: &Lowering<'_>) -> Result<MoeSpec, LowerError> {
    let score = match l.source.opt_u32("expert_gating_func", 0..=2)? {
        // Files from before the key are of models with softmax.
        None | Some(0 | 1) => RouterScore::Softmax,
        Some(_) => RouterScore::Sigmoid,
    };
    let weights = match l.source.opt_bool("expert_weights_norm")? {
        Some(true) => RouterWeights::ScoreNormalised,
        Some(false) | None => RouterWeights::Score,
    };
    if let Some(groups) = l.source.opt_u32("expert_group_count", 0..=u32::MAX)?.filter(|&groups| groups > 1) {
        return Err(l.source.refuse("expert_group_count", groups, "0 or 1: experts are chosen from all"));
    }
    let scale = l.source.opt_f32("expert_weights_scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0);
    let ff = l.expert_length()?;
    let shared = l.source.opt_u32("expert_shared_count", 0..=1024)?.unwrap_or(0);
    let shared = match shared {
        0 => None,
        count => {
            let ff = l.cols(count, ff, "expert_feed_forward_length")?;
            Some(SharedExperts { ff, gate: SharedGate::Off })
        }
    };
    Ok(MoeSpec {
        norm: "ffn_norm",
        router: Router { scale, ..l.router(score, weights)? },
        ff,
        activation: GluActivation::Silu,
        bias: Bias::IfPresent,
        weighed_at: WeighedAt::Output,
        shared,
    })
}

fn mla_layer(l: &mut Lowering<'_>, layer: u32, x: View, mla: &Mla) -> Result<View, LowerError> {
    l.graph.item(ItemKind::MixerInput, blk(layer, "attn_in"), Some(layer));
    let normed = l.norm(&blk(layer, "attn_norm"), x, l.hidden)?;
    let q_cols = mla.heads * (mla.nope + mla.rot);
    let (q_name, first_cols) = if mla.q_rank > 0 { ("attn_q_a", mla.q_rank) } else { ("attn_q", q_cols) };
    let first = l.product(&blk(layer, q_name), normed.cols, first_cols, Bias::IfPresent)?;
    let kv_a = l.product(&blk(layer, "attn_kv_a_mqa"), normed.cols, mla.rank + mla.rot, Bias::IfPresent)?;
    l.graph.op(OpKind::MatMul { x: normed, parts: vec![first, kv_a] });
    let mut q = first.out;
    if mla.q_rank > 0 {
        l.graph.item(ItemKind::MixerInput, blk(layer, "attn_q_b"), Some(layer));
        let normed = l.norm(&blk(layer, "attn_q_a_norm"), q, mla.q_rank)?;
        q = l.mat_mul(&blk(layer, "attn_q_b"), normed, q_cols, Bias::IfPresent)?;
    }
    let mixed = match mla.absorbed {
        true => absorbed_attention(l, layer, q, kv_a.out, mla)?,
        false => expanded_attention(l, layer, q, kv_a.out, mla)?,
    };
    l.mixer_output(layer, "attn_output", x, mixed, Bias::IfPresent, None)
}

/// The rotated parts of all query heads, packed.
fn rotated_query(l: &mut Lowering<'_>, layer: u32, q: View, mla: &Mla) -> View {
    let stride = mla.nope + mla.rot;
    let packed = l.gather(blk(layer, "q_pe"), from_col(q, mla.nope), stride, mla.rot, mla.heads);
    l.rotate(blk(layer, "q_pe_rope"), packed, mla.heads, mla.rot, mla.rope)
}

/// Copies `width` columns of each head: from every `x_stride` of `x` to every `out_stride` of `out`.
fn copy_heads(l: &mut Lowering<'_>, heads: u32, width: u32, x: (View, u32), out: (View, u32)) {
    let ((x, x_stride), (out, out_stride)) = (x, out);
    l.graph.op(OpKind::CopyCols { x, x_stride, out, out_stride, width, groups: heads });
}

/// A view from column `first` to its end.
fn from_col(view: View, first: u32) -> View {
    part_of(view, first, view.cols - first)
}

fn absorbed_attention(l: &mut Lowering<'_>, layer: u32, q: View, kv_a: View, mla: &Mla) -> Result<View, LowerError> {
    let Mla { heads, nope, rot, v_cols, rank, .. } = *mla;
    let width = rank + rot;
    l.graph.item(ItemKind::Attention, blk(layer, "attn"), Some(layer));
    let key = l.graph.value(blk(layer, "k"), width);
    let norm = l.small(&blk(layer, "attn_kv_a_norm.weight"), &[rank])?;
    let (x, out) = (part_of(kv_a, 0, rank), part_of(key, 0, rank));
    l.graph.op(OpKind::RmsNorm { x, group: rank, weight: Some(norm), eps: l.eps, out });
    let (x, out) = (part_of(kv_a, rank, rot), part_of(key, rank, rot));
    l.graph.op(OpKind::Rope { x, heads: 1, head_cols: rot, rope: mla.rope, out });
    let q_nope = l.gather(blk(layer, "q_nope"), q, nope + rot, nope, heads);
    let q_rank = head_product(l, layer, "attn_k_b", q_nope, [nope, rank, heads])?;
    let q_pe = rotated_query(l, layer, q, mla);
    let query = l.graph.value(blk(layer, "q"), heads * width);
    copy_heads(l, heads, rank, (q_rank, rank), (query, width));
    copy_heads(l, heads, rot, (q_pe, rot), (from_col(query, rank), width));
    let kind = StateKind::Kv { k_cols: width, v_cols: 0, window_tokens: None };
    let cache = l.graph.state(blk(layer, "kv"), kind);
    l.graph.op(OpKind::StoreKv { k: key, v: None, cache });
    let attention = attention(mla, 1, width, rank);
    let out = l.graph.value(blk(layer, "attn"), heads * rank);
    l.graph.op(OpKind::Attention { q: query, cache, attention, out });
    head_product(l, layer, "attn_v_b", out, [rank, v_cols, heads])
}

fn head_product(l: &mut Lowering<'_>, layer: u32, name: &str, x: View, shape: [u32; 3]) -> Result<View, LowerError> {
    let [_, out_cols, heads] = shape;
    let weight = l.large(&blk(layer, &format!("{name}.weight")), &shape, WeightRole::Heads)?;
    let out = l.graph.value(blk(layer, name), out_cols * heads);
    l.graph.op(OpKind::HeadMatMul { x, heads, weight, out });
    Ok(out)
}

fn expanded_attention(l: &mut Lowering<'_>, layer: u32, q: View, kv_a: View, mla: &Mla) -> Result<View, LowerError> {
    let Mla { heads, nope, rot, v_cols, rank, .. } = *mla;
    let (k_cols, kv_cols) = (nope + rot, nope + v_cols);
    l.graph.item(ItemKind::MixerInput, blk(layer, "attn_kv_b"), Some(layer));
    let normed = l.norm(&blk(layer, "attn_kv_a_norm"), part_of(kv_a, 0, rank), rank)?;
    let all_cols = l.cols(heads, kv_cols, "attention.value_length")?;
    let kv = l.mat_mul(&blk(layer, "attn_kv_b"), normed, all_cols, Bias::IfPresent)?;
    l.graph.item(ItemKind::Attention, blk(layer, "attn"), Some(layer));
    let q_pe = rotated_query(l, layer, q, mla);
    let query = l.graph.value(blk(layer, "q"), heads * k_cols);
    copy_heads(l, heads, nope, (q, k_cols), (query, k_cols));
    copy_heads(l, heads, rot, (q_pe, rot), (from_col(query, nope), k_cols));
    let k_pe = l.rotate(blk(layer, "k_pe"), part_of(kv_a, rank, rot), 1, rot, mla.rope);
    let key = l.graph.value(blk(layer, "k"), heads * k_cols);
    copy_heads(l, heads, nope, (kv, kv_cols), (key, k_cols));
    // One rotated part for all heads: a stride of 0 reads it again for each.
    copy_heads(l, heads, rot, (k_pe, 0), (from_col(key, nope), k_cols));
    let value = l.gather(blk(layer, "v"), from_col(kv, nope), kv_cols, v_cols, heads);
    let kind = StateKind::Kv { k_cols: heads * k_cols, v_cols: heads * v_cols, window_tokens: None };
    let cache = l.graph.state(blk(layer, "kv"), kind);
    l.graph.op(OpKind::StoreKv { k: key, v: Some(value), cache });
    let out = l.graph.value(blk(layer, "attn"), heads * v_cols);
    l.graph.op(OpKind::Attention { q: query, cache, attention: attention(mla, heads, k_cols, v_cols), out });
    Ok(out)
}

fn attention(mla: &Mla, kv_heads: u32, k_head_cols: u32, v_head_cols: u32) -> Attention {
    Attention {
        q_heads: mla.heads,
        kv_heads,
        k_head_cols,
        v_head_cols,
        scale: mla.scale,
        mask: Mask::Causal,
        sinks: None,
    }
}
