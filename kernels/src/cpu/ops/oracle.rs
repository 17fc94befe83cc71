//! The operators as plainly as they can be written, in f64: what is right, for every backend, for ever.
//!
//! Not fast, not vectorised, no scratch, no splits: one function per operator over whole row-major matrices, after the
//! formulas and not after any kernel. Compared with the kernels by `cases.rs`.

use super::attention::AttentionShape;
use super::delta::{DeltaShape, HeadMap};
use super::elementwise::{ColGroups, Glu, Temperature};
use super::rope::{RopePairing, RopeParams, RopeScaling};
use super::router::{Router, RouterScore, RouterWeights};
use std::f64::consts::PI;

fn f64s(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x / sqrt(mean(x²) + eps) · weight, per group of columns.
pub fn rms_norm(x: &[f32], group: usize, weight: Option<&[f32]>, eps: f32) -> Vec<f64> {
    let normalise = |x: &[f32]| {
        let mean = f64s(x).iter().map(|x| x * x).sum::<f64>() / group as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        let weight = |i: usize| weight.map_or(1.0, |w| f64::from(w[i]));
        f64s(x).iter().enumerate().map(|(i, x)| x * scale * weight(i)).collect::<Vec<_>>()
    };
    x.chunks(group).flat_map(normalise).collect()
}

/// scale · x / sqrt(sum(x²) + eps), per group of columns.
pub fn l2_norm(x: &[f32], group: usize, eps: f32, scale: f32) -> Vec<f64> {
    let normalise = |x: &[f32]| {
        let sum = f64s(x).iter().map(|x| x * x).sum::<f64>();
        let scale = f64::from(scale) / (sum + f64::from(eps)).sqrt();
        f64s(x).iter().map(|x| x * scale).collect::<Vec<_>>()
    };
    x.chunks(group).flat_map(normalise).collect()
}

/// a + b.
pub fn add(a: &[f32], b: &[f32]) -> Vec<f64> {
    f64s(a).iter().zip(f64s(b)).map(|(a, b)| a + b).collect()
}

/// activation(gate, up).
pub fn glu(activation: Glu, gate: &[f32], up: &[f32]) -> Vec<f64> {
    let one = |(&gate, &up): (&f32, &f32)| glu_one(activation, f64::from(gate), f64::from(up));
    gate.iter().zip(up).map(one).collect()
}

fn glu_one(activation: Glu, gate: f64, up: f64) -> f64 {
    match activation {
        Glu::Silu => gate * sigmoid(gate) * up,
        Glu::GeluTanh => 0.5 * gate * (1.0 + ((2.0 / PI).sqrt() * (gate + 0.044715 * gate.powi(3))).tanh()) * up,
        Glu::ClampedSwish { alpha, limit } => {
            let limit = f64::from(limit);
            let (g, u) = (gate.min(limit), up.clamp(-limit, limit));
            g * sigmoid(f64::from(alpha) * g) * (u + 1.0)
        }
    }
}

/// x · sigmoid(gate); the gate has as many columns as x, or one.
pub fn sigmoid_gate(x: &[f32], cols: usize, gate: &[f32]) -> Vec<f64> {
    let gate_of = |i: usize| if gate.len() == x.len() { gate[i] } else { gate[i / cols] };
    x.iter().enumerate().map(|(i, &x)| f64::from(x) * sigmoid(f64::from(gate_of(i)))).collect()
}

/// cap · tanh(x / cap).
pub fn softcap(x: &[f32], cap: f32) -> Vec<f64> {
    f64s(x).iter().map(|x| f64::from(cap) * (x / f64::from(cap)).tanh()).collect()
}

/// Columns copied group by group; the others of the result are 0.
pub fn copy_cols(x: &[f32], cols: usize, out_cols: usize, groups: ColGroups) -> Vec<f64> {
    let rows = x.len() / cols;
    let mut out = vec![0.0; rows * out_cols];
    for r in 0..rows {
        for g in 0..groups.groups {
            for i in 0..groups.width {
                out[r * out_cols + g * groups.out_stride + i] = f64::from(x[r * cols + g * groups.x_stride + i]);
            }
        }
    }
    out
}

/// x · (1 + factor · ln(floor((position + 1) / period) + 1)).
pub fn position_scale(x: &[f32], cols: usize, positions: &[u32], temperature: Temperature) -> Vec<f64> {
    let scale = |position: u32| {
        let periods = ((f64::from(position) + 1.0) / f64::from(temperature.period_tokens)).floor();
        1.0 + f64::from(temperature.factor) * (periods + 1.0).ln()
    };
    x.iter().enumerate().map(|(i, &x)| f64::from(x) * scale(positions[i / cols])).collect()
}

/// Angle of a pair at a position.
pub fn rope_angle(params: &RopeParams, pair: usize, position: u32) -> f64 {
    let (n_rot, base) = (params.n_rot as f64, f64::from(params.base));
    let mut theta = f64::from(position) * base.powf(-2.0 * pair as f64 / n_rot);
    if let Some(factors) = params.factors {
        theta /= f64::from(factors[pair]);
    }
    match params.scaling {
        RopeScaling::None => theta,
        RopeScaling::Linear { factor } => theta / f64::from(factor),
        RopeScaling::Yarn { factor, original_context_tokens } => {
            let dim = |r: f64| n_rot * (f64::from(original_context_tokens) / (2.0 * PI * r)).ln() / (2.0 * base.ln());
            let low = dim(32.0).floor().max(0.0);
            let high = dim(1.0).ceil().min(n_rot - 1.0);
            let ramp = 1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            theta / f64::from(factor) * (1.0 - ramp) + theta * ramp
        }
    }
}

/// Rotates the first n_rot columns of each head.
pub fn rope(
    x: &[f32],
    cols: usize,
    head_cols: usize,
    positions: &[u32],
    pairing: RopePairing,
    params: &RopeParams,
) -> Vec<f64> {
    let mut out = f64s(x);
    for (head, values) in out.chunks_mut(head_cols).enumerate() {
        let position = positions[head * head_cols / cols];
        for pair in 0..params.n_rot / 2 {
            let (i, j) = match pairing {
                RopePairing::Norm => (2 * pair, 2 * pair + 1),
                RopePairing::Neox => (pair, pair + params.n_rot / 2),
            };
            let (sin, cos) = rope_angle(params, pair, position).sin_cos();
            let magnitude = f64::from(params.magnitude);
            let (a, b) = (values[i], values[j]);
            values[i] = (a * cos - b * sin) * magnitude;
            values[j] = (a * sin + b * cos) * magnitude;
        }
    }
    out
}

/// softmax(scale · q·K + mask) · V with sinks. `k` and `v` are by position: \[positions, kv_heads · cols\]; without `v`
/// the values are the first columns of each key head.
pub fn attention(
    shape: &AttentionShape,
    q: &[f32],
    positions: &[u32],
    k: &[f32],
    v: Option<&[f32]>,
    sinks: Option<&[f32]>,
) -> Vec<f64> {
    let mut out = Vec::new();
    for (query, &position) in q.chunks(shape.q_heads * shape.k_head_cols).zip(positions) {
        for (head, query) in query.chunks(shape.k_head_cols).enumerate() {
            let sink = sinks.map(|s| f64::from(s[head]));
            out.extend(attention_head(shape, head / shape.group(), query, position, (k, v), sink));
        }
    }
    out
}

fn attention_head(
    shape: &AttentionShape,
    kv_head: usize,
    query: &[f32],
    position: u32,
    (k, v): (&[f32], Option<&[f32]>),
    sink: Option<f64>,
) -> Vec<f64> {
    let key_cols = shape.kv_heads * shape.k_head_cols;
    let value_cols = shape.kv_heads * shape.v_head_cols;
    let seen: Vec<usize> = shape.mask.visible(position).collect();
    let score = |p: usize| {
        let key = &k[p * key_cols + kv_head * shape.k_head_cols..][..shape.k_head_cols];
        let product: f64 = f64s(query).iter().zip(f64s(key)).map(|(q, k)| q * k).sum();
        let score = product * f64::from(shape.scale);
        shape.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
    };
    let scores: Vec<f64> = seen.iter().map(|&p| score(p)).collect();
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let denominator: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
    let value = |p: usize, i: usize| match v {
        Some(v) => v[p * value_cols + kv_head * shape.v_head_cols + i],
        None => k[p * key_cols + kv_head * shape.k_head_cols + i],
    };
    let weighted = |i: usize| seen.iter().zip(&scores).map(|(&p, s)| (s - max).exp() * f64::from(value(p, i))).sum();
    (0..shape.v_head_cols).map(|i: usize| -> f64 { weighted(i) }).map(|sum: f64| sum / denominator).collect()
}

/// Ids and weights of the chosen experts, best first, of each row.
pub fn router(logits: &[f32], experts: usize, router: &Router) -> (Vec<i32>, Vec<f64>) {
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for logits in logits.chunks(experts) {
        let logits = f64s(logits);
        let scores = match router.score {
            RouterScore::Softmax => softmax(&logits),
            RouterScore::Sigmoid => logits.iter().map(|&x| sigmoid(x)).collect(),
            RouterScore::Logit => logits.clone(),
        };
        let ranked = |i: usize| scores[i] + router.select_bias.map_or(0.0, |b| f64::from(b[i]));
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|&i, &j| ranked(j).total_cmp(&ranked(i)));
        order.truncate(router.chosen);
        let chosen: Vec<f64> = order.iter().map(|&i| scores[i]).collect();
        let sum = chosen.iter().sum::<f64>().max(2f64.powi(-14));
        let weighed = match router.weights {
            RouterWeights::Score => chosen,
            RouterWeights::ScoreNormalised => chosen.iter().map(|w| w / sum).collect(),
            RouterWeights::SoftmaxOfChosen => softmax(&order.iter().map(|&i| logits[i]).collect::<Vec<_>>()),
        };
        ids.extend(order.iter().map(|&i| i as i32));
        weights.extend(weighed.iter().map(|w| w * f64::from(router.scale)));
    }
    (ids, weights)
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

/// softmax of each row.
pub fn softmax_rows(x: &[f32], cols: usize) -> Vec<f64> {
    x.chunks(cols).flat_map(|row| softmax(&f64s(row))).collect()
}

/// weights\[j\] · x for each chosen expert j.
pub fn expert_scale(x: &[f32], cols: usize, weights: &[f32], chosen: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for (x, weights) in x.chunks(cols).zip(weights.chunks(chosen)) {
        for &weight in weights {
            out.extend(f64s(x).iter().map(|x| x * f64::from(weight)));
        }
    }
    out
}

/// Σ_j weights\[j\] · x\[:, j\].
pub fn expert_sum(x: &[f32], cols: usize, chosen: usize, weights: Option<&[f32]>) -> Vec<f64> {
    let mut out = Vec::new();
    for (r, x) in x.chunks(cols * chosen).enumerate() {
        let weight = |j: usize| weights.map_or(1.0, |w| f64::from(w[r * chosen + j]));
        out.extend((0..cols).map(|i| (0..chosen).map(|j| weight(j) * f64::from(x[j * cols + i])).sum::<f64>()));
    }
    out
}

/// Convolution over the tokens of one sequence, then silu; returns the results and the state after the last token.
/// `filter` \[channels, taps\], `state` \[channels, taps − 1\].
pub fn causal_conv_silu(x: &[f32], channels: usize, filter: &[f32], state: &[f32]) -> (Vec<f64>, Vec<f32>) {
    let taps = filter.len() / channels;
    let tokens = x.len() / channels;
    let history = |c: usize| -> Vec<f32> {
        let old = state[c * (taps - 1)..][..taps - 1].iter().copied();
        old.chain((0..tokens).map(|t| x[t * channels + c])).collect()
    };
    let mut out = vec![0.0; x.len()];
    let mut after = Vec::new();
    for c in 0..channels {
        let history = history(c);
        for t in 0..tokens {
            let sum: f64 = (0..taps).map(|i| f64::from(history[t + i]) * f64::from(filter[c * taps + i])).sum();
            out[t * channels + c] = sum * sigmoid(sum);
        }
        after.extend(&history[tokens..]);
    }
    (out, after)
}

/// Inputs of [`delta_net`], whole matrices.
#[derive(Clone, Copy, Debug)]
pub struct DeltaOperands<'a> {
    /// \[tokens, key_heads · head_cols\].
    pub q: &'a [f32],
    /// \[tokens, key_heads · head_cols\].
    pub k: &'a [f32],
    /// \[tokens, value_heads · head_cols\].
    pub v: &'a [f32],
    /// \[tokens, value_heads\].
    pub b: &'a [f32],
    /// \[tokens, value_heads\].
    pub alpha: &'a [f32],
}

/// The gated delta net over the tokens of one sequence; returns the results and the state after the last token.
/// `state` is \[value_heads, head_cols (value), head_cols (key)\].
pub fn delta_net(shape: &DeltaShape, x: DeltaOperands, state: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let (s, kh, vh) = (shape.head_cols, shape.key_heads, shape.value_heads);
    let tokens = x.v.len() / (vh * s);
    let mut state = f64s(state);
    let mut out = vec![0.0; tokens * vh * s];
    for t in 0..tokens {
        for j in 0..vh {
            let key_head = match shape.heads {
                HeadMap::Grouped => j / (vh / kh),
                HeadMap::Tiled => j % kh,
            };
            let q = f64s(&x.q[(t * kh + key_head) * s..][..s]);
            let k = f64s(&x.k[(t * kh + key_head) * s..][..s]);
            let v = f64s(&x.v[(t * vh + j) * s..][..s]);
            let beta = sigmoid(f64::from(x.b[t * vh + j]));
            let softplus = (f64::from(x.alpha[t * vh + j]) + f64::from(shape.dt[j])).exp().ln_1p();
            let decay = (f64::from(shape.a[j]) * softplus).exp();
            for value in 0..s {
                let m = &mut state[(j * s + value) * s..][..s];
                m.iter_mut().for_each(|m| *m *= decay);
                let along: f64 = m.iter().zip(&k).map(|(m, k)| m * k).sum();
                let u = beta * (v[value] - along);
                m.iter_mut().zip(&k).for_each(|(m, k)| *m += u * k);
                out[(t * vh + j) * s + value] = m.iter().zip(&q).map(|(m, q)| m * q).sum();
            }
        }
    }
    (out, state)
}
