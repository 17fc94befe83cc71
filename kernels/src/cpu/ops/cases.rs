//! The case table of these operators: telling shapes, run over any backend against the oracle.
//!
//! A backend (the three instruction sets in `tests.rs`; CUDA and the simulated GPU in `device`) implements
//! [`OpBackend`] and calls [`check_ops`]. Tolerances are named constants. Operands are plain row-major matrices;
//! what they are stands beside each case. Not here: bit-equality of splits and instruction sets (`tests.rs`).

use super::attention::{AttentionShape, Mask};
use super::delta::{DeltaShape, HeadMap};
use super::elementwise::{ColGroups, Glu, Temperature};
use super::kv::KV_BLOCK;
use super::oracle::{self, DeltaOperands};
use super::rope::{RopePairing, RopeParams, RopeScaling};
use super::router::{Router, RouterScore, RouterWeights};
use crate::cases::Random;
use half::f16;

/// Copies and choices: no difference at all.
pub const EXACT: f64 = 0.0;
/// One to three operations per element, exp and its relatives included.
pub const ELEMENT: f64 = 1e-6;
/// A sum over a row.
pub const REDUCTION: f64 = 2e-6;
/// Attention with exactly converted keys and values, f32 sums.
pub const ATTENTION: f64 = 1e-5;
/// A state that goes through many tokens.
pub const RECURRENT: f64 = 2e-5;

/// One operator with its parameters and sizes.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "fields are the parameters of the operators, documented there")]
pub enum OpCase {
    /// f32: x \[rows, cols\], weight {group} (absent unless `weighted`).
    RmsNorm { rows: usize, cols: usize, group: usize, weighted: bool, eps: f32 },
    /// f32: x.
    L2Norm { rows: usize, cols: usize, group: usize, eps: f32, scale: f32 },
    /// f32: a, b.
    Add { rows: usize, cols: usize },
    /// f32: gate, up.
    Glu { rows: usize, cols: usize, activation: Glu },
    /// f32: x \[rows, cols\], gate \[rows, gate_cols\].
    SigmoidGate { rows: usize, cols: usize, gate_cols: usize },
    /// f32: x.
    Softcap { rows: usize, cols: usize, cap: f32 },
    /// f32: x; columns of the result that no group covers are 0.
    CopyCols { rows: usize, cols: usize, out_cols: usize, groups: ColGroups },
    /// f32: x; u32: positions.
    PositionScale { rows: usize, cols: usize, first: u32, temperature: Temperature },
    /// f32: x \[rows, heads · head_cols\], factors {n_rot/2} (absent unless `factors`); u32: positions.
    Rope { rows: usize, heads: usize, head_cols: usize, pairing: RopePairing, rope: RopeCase, first: u32 },
    /// f32: x.
    Softmax { rows: usize, cols: usize },
    /// f32: logits, selection bias {experts} (absent unless `biased`). Result: ids of all rows, then weights.
    Router {
        rows: usize,
        experts: usize,
        chosen: usize,
        score: RouterScore,
        weights: RouterWeights,
        biased: bool,
        scale: f32,
    },
    /// f32: x \[rows, cols\], weights \[rows, chosen\].
    ExpertScale { rows: usize, cols: usize, chosen: usize },
    /// f32: x \[rows, chosen · cols\], weights \[rows, chosen\] (absent unless `weighted`).
    ExpertSum { rows: usize, cols: usize, chosen: usize, weighted: bool },
    /// f32: x \[tokens, channels\], filter \[channels, taps\], state. Result: results, then the state.
    CausalConv { tokens: usize, channels: usize, taps: usize },
    /// f32: q, k, v, b, alpha, a, dt, state. Result: results, then the state.
    DeltaNet { tokens: usize, key_heads: usize, value_heads: usize, head_cols: usize, heads: HeadMap },
    /// f32: q, k by position, v by position (absent if `mla`), sinks (absent unless `sinks`); u32: positions, block
    /// table. Keys and values are representable in the cache's type.
    Attention { shape: AttentionShape, tokens: usize, first: u32, half: bool, mla: bool, sinks: bool },
}

/// Parameters of a rope case.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "as in RopeParams")]
pub struct RopeCase {
    pub n_rot: usize,
    pub base: f32,
    pub scaling: RopeScaling,
    pub magnitude: f32,
    pub factors: bool,
}

/// Inputs of a case, in the order that the case states.
#[derive(Clone, Debug, Default)]
pub struct Operands {
    /// Matrices and vectors of numbers.
    pub f32: Vec<Vec<f32>>,
    /// Positions and tables.
    pub u32: Vec<Vec<u32>>,
}

/// What computes operators.
pub trait OpBackend {
    /// Name for failures.
    fn name(&self) -> String;
    /// The case's result, or `None` for what this backend does not compute.
    fn run(&mut self, case: &OpCase, operands: &Operands) -> Option<Vec<f32>>;
    /// Error that it may make: [`OpCase::tolerance`], unless it computes in lower precision.
    fn tolerance(&self, case: &OpCase) -> f64 {
        case.tolerance()
    }
}

/// Runs every case; the error names the first that misses its tolerance.
///
/// # Errors
/// Text that names backend, case and error.
pub fn check_ops(backend: &mut dyn OpBackend) -> Result<(), String> {
    for case in op_cases() {
        let operands = case.operands();
        let Some(got) = backend.run(&case, &operands) else { continue };
        let (error, allowed) = (relative_error(&got, &case.expected(&operands)), backend.tolerance(&case));
        if error.is_nan() || error > allowed {
            return Err(format!("{}: {case:?}: error {error:e}, allowed {allowed:e}", backend.name()));
        }
    }
    Ok(())
}

/// Largest |got − want| / max(|want|, root mean square of all that is wanted); NaN if anything is or lengths differ.
pub fn relative_error(got: &[f32], want: &[f64]) -> f64 {
    if got.len() != want.len() {
        return f64::NAN;
    }
    let mean_square = want.iter().map(|w| w * w).sum::<f64>() / want.len().max(1) as f64;
    let floor = mean_square.sqrt().max(f64::MIN_POSITIVE);
    let errors = got.iter().zip(want).map(|(&g, &w)| (f64::from(g) - w).abs() / w.abs().max(floor));
    errors.fold(0.0, |max, e| if e > max || e.is_nan() { e } else { max })
}

impl OpCase {
    /// Error that an f32 backend may make.
    pub fn tolerance(&self) -> f64 {
        match self {
            Self::CopyCols { .. } => EXACT,
            Self::Add { .. } | Self::Glu { .. } | Self::SigmoidGate { .. } | Self::Softcap { .. } => ELEMENT,
            Self::PositionScale { .. } | Self::Rope { .. } | Self::ExpertScale { .. } => ELEMENT,
            Self::RmsNorm { .. } | Self::L2Norm { .. } | Self::Softmax { .. } | Self::Router { .. } => REDUCTION,
            Self::ExpertSum { .. } | Self::CausalConv { .. } => REDUCTION,
            Self::DeltaNet { .. } => RECURRENT,
            Self::Attention { .. } => ATTENTION,
        }
    }

    /// The case's inputs, always the same.
    pub fn operands(&self) -> Operands {
        let make = Maker { random: Random::new(7), operands: Operands::default() };
        match *self {
            Self::RmsNorm { rows, cols, group, weighted, .. } => {
                make.normal(rows * cols, 3.0).normal_if(weighted, group, 1.0)
            }
            Self::L2Norm { rows, cols, .. } | Self::Softcap { rows, cols, .. } | Self::CopyCols { rows, cols, .. } => {
                make.normal(rows * cols, 20.0)
            }
            Self::Softmax { rows, cols } => make.normal(rows * cols, 4.0),
            Self::Add { rows, cols } => make.normal(rows * cols, 1.0).normal(rows * cols, 1.0),
            Self::Glu { rows, cols, .. } => make.normal(rows * cols, 5.0).normal(rows * cols, 5.0),
            Self::SigmoidGate { rows, cols, gate_cols } => make.normal(rows * cols, 1.0).normal(rows * gate_cols, 4.0),
            Self::PositionScale { rows, cols, first, .. } => make.normal(rows * cols, 1.0).positions(first, rows),
            Self::Rope { rows, heads, head_cols, rope, first, .. } => {
                let make = make.normal(rows * heads * head_cols, 1.0).positions(first, rows);
                make.uniform_if(rope.factors, rope.n_rot / 2, 1.0, 8.0)
            }
            Self::Router { rows, experts, biased, .. } => {
                make.normal(rows * experts, 2.0).normal_if(biased, experts, 0.2)
            }
            Self::ExpertScale { rows, cols, chosen } => make.normal(rows * cols, 1.0).normal(rows * chosen, 1.0),
            Self::ExpertSum { rows, cols, chosen, weighted } => {
                make.normal(rows * chosen * cols, 1.0).normal_if(weighted, rows * chosen, 1.0)
            }
            Self::CausalConv { tokens, channels, taps } => {
                let make = make.normal(tokens * channels, 1.0).normal(channels * taps, 1.0);
                make.normal(channels * (taps - 1), 1.0)
            }
            Self::DeltaNet { tokens, key_heads, value_heads, head_cols, .. } => {
                let unit = 1.0 / (head_cols as f32).sqrt();
                let make = make.normal(tokens * key_heads * head_cols, unit);
                let make = make.normal(tokens * key_heads * head_cols, unit);
                let make = make.normal(tokens * value_heads * head_cols, 1.0).normal(tokens * value_heads, 1.0);
                let make = make.normal(tokens * value_heads, 1.0).uniform(value_heads, -4.0, -0.1);
                make.normal(value_heads, 1.0).normal(value_heads * head_cols * head_cols, 0.1)
            }
            Self::Attention { shape, tokens, first, half, mla, sinks } => {
                make.attention(&shape, tokens, first, half, mla).normal_if(sinks, shape.q_heads, 2.0)
            }
        }
        .operands
    }

    /// What is right.
    pub fn expected(&self, operands: &Operands) -> Vec<f64> {
        let f = |i: usize| operands.f32[i].as_slice();
        let optional = |i: usize| operands.f32.get(i).map(Vec::as_slice);
        let positions = operands.u32.first().map_or(&[][..], Vec::as_slice);
        match *self {
            Self::RmsNorm { group, eps, .. } => oracle::rms_norm(f(0), group, optional(1), eps),
            Self::L2Norm { group, eps, scale, .. } => oracle::l2_norm(f(0), group, eps, scale),
            Self::Add { .. } => oracle::add(f(0), f(1)),
            Self::Glu { activation, .. } => oracle::glu(activation, f(0), f(1)),
            Self::SigmoidGate { cols, .. } => oracle::sigmoid_gate(f(0), cols, f(1)),
            Self::Softcap { cap, .. } => oracle::softcap(f(0), cap),
            Self::CopyCols { cols, out_cols, groups, .. } => oracle::copy_cols(f(0), cols, out_cols, groups),
            Self::PositionScale { cols, temperature, .. } => oracle::position_scale(f(0), cols, positions, temperature),
            Self::Rope { heads, head_cols, pairing, rope, .. } => {
                let params = rope.params(optional(1));
                oracle::rope(f(0), heads * head_cols, head_cols, positions, pairing, &params)
            }
            Self::Softmax { cols, .. } => oracle::softmax_rows(f(0), cols),
            Self::Router { experts, .. } => {
                let (ids, weights) = oracle::router(f(0), experts, &self.router(operands));
                ids.into_iter().map(f64::from).chain(weights).collect()
            }
            Self::ExpertScale { cols, chosen, .. } => oracle::expert_scale(f(0), cols, f(1), chosen),
            Self::ExpertSum { cols, chosen, .. } => oracle::expert_sum(f(0), cols, chosen, optional(1)),
            Self::CausalConv { channels, .. } => {
                let (mut out, state) = oracle::causal_conv_silu(f(0), channels, f(1), f(2));
                out.extend(state.into_iter().map(f64::from));
                out
            }
            Self::DeltaNet { .. } => {
                let x = DeltaOperands { q: f(0), k: f(1), v: f(2), b: f(3), alpha: f(4) };
                let (mut out, state) = oracle::delta_net(&self.delta(operands), x, f(7));
                out.extend(state);
                out
            }
            Self::Attention { shape, mla, sinks, .. } => {
                let v = (!mla).then(|| f(2));
                let sinks = sinks.then(|| operands.f32.last().expect("sinks are the last operand").as_slice());
                oracle::attention(&shape, f(0), positions, f(1), v, sinks)
            }
        }
    }

    /// Parameters of a router case.
    ///
    /// # Panics
    /// For other cases.
    pub fn router<'a>(&self, operands: &'a Operands) -> Router<'a> {
        let Self::Router { chosen, score, weights, scale, .. } = *self else { panic!("{self:?} is no router") };
        Router { chosen, score, weights, scale, select_bias: operands.f32.get(1).map(Vec::as_slice) }
    }

    /// Parameters of a delta net case.
    ///
    /// # Panics
    /// For other cases.
    pub fn delta<'a>(&self, operands: &'a Operands) -> DeltaShape<'a> {
        let Self::DeltaNet { key_heads, value_heads, head_cols, heads, .. } = *self else {
            panic!("{self:?} is no delta net")
        };
        DeltaShape { key_heads, value_heads, head_cols, heads, a: &operands.f32[5], dt: &operands.f32[6] }
    }
}

impl RopeCase {
    /// The parameters, with the factors of the case's operands.
    pub fn params<'a>(&self, factors: Option<&'a [f32]>) -> RopeParams<'a> {
        let Self { n_rot, base, scaling, magnitude, .. } = *self;
        RopeParams { n_rot, base, scaling, magnitude, factors }
    }
}

/// Keys or values by position laid out in a cache of `blocks` physical blocks; slots of no position hold NaN, which
/// nothing may read.
pub fn paged(by_position: &[f32], cols: usize, block_table: &[u32], blocks: usize) -> Vec<f32> {
    let mut cache = vec![f32::NAN; blocks * KV_BLOCK * cols];
    for (position, row) in by_position.chunks(cols).enumerate() {
        let slot = super::kv::slot(block_table, position as u32) as usize;
        cache[slot * cols..][..cols].copy_from_slice(row);
    }
    cache
}

/// Fills operands one after the other.
struct Maker {
    random: Random,
    operands: Operands,
}

impl Maker {
    fn normal(mut self, count: usize, deviation: f32) -> Self {
        let values = (0..count).map(|_| self.random.normal() * deviation).collect();
        self.operands.f32.push(values);
        self
    }

    fn normal_if(self, wanted: bool, count: usize, deviation: f32) -> Self {
        if wanted { self.normal(count, deviation) } else { self }
    }

    fn uniform(mut self, count: usize, low: f32, high: f32) -> Self {
        let mut one = || low + (high - low) * (self.random.next() >> 40) as f32 / (1u32 << 24) as f32;
        let values = (0..count).map(|_| one()).collect();
        self.operands.f32.push(values);
        self
    }

    fn uniform_if(self, wanted: bool, count: usize, low: f32, high: f32) -> Self {
        if wanted { self.uniform(count, low, high) } else { self }
    }

    fn positions(mut self, first: u32, count: usize) -> Self {
        self.operands.u32.push((0..count as u32).map(|i| first + i).collect());
        self
    }

    /// Queries, keys and values by position, positions and a block table that reverses the blocks.
    fn attention(self, shape: &AttentionShape, tokens: usize, first: u32, half: bool, mla: bool) -> Self {
        let context = first as usize + tokens;
        let keys = context * shape.kv_heads * shape.k_head_cols;
        let values = context * shape.kv_heads * shape.v_head_cols;
        let mut make = self.normal(tokens * shape.q_heads * shape.k_head_cols, 1.0).normal(keys, 1.0);
        make = make.normal_if(!mla, values, 1.0).positions(first, tokens);
        if half {
            let round = |x: &mut f32| *x = f16::from_f32(*x).to_f32();
            make.operands.f32[1..].iter_mut().flatten().for_each(round);
        }
        let blocks = context.div_ceil(KV_BLOCK) as u32;
        make.operands.u32.push((0..blocks).rev().collect());
        make
    }
}

/// The table.
pub fn op_cases() -> Vec<OpCase> {
    let mut cases = element_cases();
    cases.extend(rope_cases());
    cases.extend(expert_cases());
    cases.extend(recurrent_cases());
    cases.extend(attention_cases());
    cases
}

fn element_cases() -> Vec<OpCase> {
    let mut cases = Vec::new();
    for (rows, cols) in [(1, 1), (3, 15), (2, 64), (4, 130), (2, 2880)] {
        let one_group = OpCase::RmsNorm { rows, cols, group: cols, weighted: true, eps: 1e-6 };
        cases.extend([one_group, OpCase::Add { rows, cols }, OpCase::Softmax { rows, cols }]);
        cases.push(OpCase::L2Norm { rows, cols, group: cols, eps: 1e-6, scale: 0.25 });
        cases.push(OpCase::Softcap { rows, cols, cap: 30.0 });
        cases.extend([cols, 1].map(|gate_cols| OpCase::SigmoidGate { rows, cols, gate_cols }));
        let swish = Glu::ClampedSwish { alpha: 1.702, limit: 7.0 };
        cases.extend([Glu::Silu, Glu::GeluTanh, swish].map(|activation| OpCase::Glu { rows, cols, activation }));
    }
    cases.push(OpCase::RmsNorm { rows: 3, cols: 4 * 80, group: 80, weighted: true, eps: 1e-5 });
    cases.push(OpCase::RmsNorm { rows: 3, cols: 4 * 128, group: 128, weighted: false, eps: 1e-5 });
    cases.push(OpCase::L2Norm { rows: 3, cols: 4 * 128, group: 128, eps: 1e-6, scale: 1.0 });
    let split_heads = ColGroups { x_stride: 96, out_stride: 48, width: 48, groups: 3 };
    cases.push(OpCase::CopyCols { rows: 2, cols: 3 * 96, out_cols: 3 * 48, groups: split_heads });
    let join_heads = ColGroups { x_stride: 5, out_stride: 9, width: 5, groups: 4 };
    cases.push(OpCase::CopyCols { rows: 2, cols: 20, out_cols: 36, groups: join_heads });
    let temperature = Temperature { period_tokens: 8192, factor: 0.1 };
    cases.extend([0, 8190, 999_999].map(|first| OpCase::PositionScale { rows: 4, cols: 70, first, temperature }));
    cases
}

fn rope_cases() -> Vec<OpCase> {
    let plain = RopeCase { n_rot: 64, base: 1e4, scaling: RopeScaling::None, magnitude: 1.0, factors: false };
    let yarn = RopeScaling::Yarn { factor: 32.0, original_context_tokens: 4096 };
    let ropes = [
        (plain, 64),
        (RopeCase { base: 1e6, n_rot: 128, ..plain }, 128),
        (RopeCase { n_rot: 32, ..plain }, 64),
        (RopeCase { n_rot: 20, ..plain }, 80),
        (RopeCase { factors: true, ..plain }, 64),
        (RopeCase { scaling: RopeScaling::Linear { factor: 8.0 }, ..plain }, 64),
        (RopeCase { scaling: yarn, magnitude: super::rope::yarn_magnitude(32.0), base: 1.5e5, ..plain }, 64),
    ];
    let mut cases = Vec::new();
    for (rope, head_cols) in ropes {
        for pairing in [RopePairing::Norm, RopePairing::Neox] {
            for first in [0, 4095, 999_990] {
                cases.push(OpCase::Rope { rows: 3, heads: 2, head_cols, pairing, rope, first });
            }
        }
    }
    cases
}

fn expert_cases() -> Vec<OpCase> {
    let mut cases = Vec::new();
    let rows = 5;
    use {RouterScore as S, RouterWeights as W};
    for (experts, chosen) in [(4, 2), (16, 1), (128, 8), (512, 10)] {
        let kinds = [
            (S::Softmax, W::ScoreNormalised, false, 1.0),
            (S::Softmax, W::Score, true, 2.5),
            (S::Sigmoid, W::ScoreNormalised, true, 2.5),
            (S::Sigmoid, W::Score, false, 1.0),
            (S::Logit, W::SoftmaxOfChosen, false, 1.0),
        ];
        let case =
            |(score, weights, biased, scale)| OpCase::Router { rows, experts, chosen, score, weights, biased, scale };
        cases.extend(kinds.map(case));
    }
    for (cols, chosen) in [(33, 1), (256, 8)] {
        cases.push(OpCase::ExpertScale { rows, cols, chosen });
        cases.extend([true, false].map(|weighted| OpCase::ExpertSum { rows, cols, chosen, weighted }));
    }
    cases
}

fn recurrent_cases() -> Vec<OpCase> {
    let mut cases = Vec::new();
    for tokens in [1, 3, 20] {
        cases.extend([(40, 4), (7, 2), (64, 1)].map(|(channels, taps)| OpCase::CausalConv { tokens, channels, taps }));
        for heads in [HeadMap::Grouped, HeadMap::Tiled] {
            for head_cols in [16, 24, 128] {
                cases.push(OpCase::DeltaNet { tokens, key_heads: 2, value_heads: 4, head_cols, heads });
            }
        }
    }
    cases
}

fn attention_cases() -> Vec<OpCase> {
    let mut cases = Vec::new();
    let shape = |q_heads, kv_heads, k_head_cols: usize, v_head_cols, mask| AttentionShape {
        q_heads,
        kv_heads,
        k_head_cols,
        v_head_cols,
        scale: 1.0 / (k_head_cols as f32).sqrt(),
        softcap: None,
        mask,
    };
    for (tokens, first) in [(1, 0), (3, 62), (1, 700), (33, 250), (70, 0)] {
        let case = |shape, half, sinks| OpCase::Attention { shape, tokens, first, half, mla: false, sinks };
        cases.push(case(shape(4, 2, 64, 64, Mask::Causal), true, false));
        cases.push(case(shape(5, 1, 48, 32, Mask::Causal), false, true));
        cases.push(case(shape(8, 1, 64, 64, Mask::Window { tokens: 8 }), true, true));
        cases.push(case(shape(2, 2, 80, 80, Mask::Window { tokens: 128 }), false, false));
        cases.push(case(shape(3, 1, 20, 9, Mask::Chunk { tokens: 192 }), true, false));
        cases.push(case(shape(7, 1, 16, 256, Mask::Causal), true, false));
        let capped = AttentionShape { softcap: Some(20.0), ..shape(2, 1, 32, 32, Mask::Causal) };
        cases.push(case(capped, false, false));
        let mla = shape(if tokens > 3 { 1 } else { 16 }, 1, 576, 512, Mask::Causal);
        cases.push(OpCase::Attention { shape: mla, tokens, first, half: true, mla: true, sinks: false });
    }
    cases
}
