//! What an operator does in a round: bytes and tokens by kind of operator, from the program's shapes.
//! No times here; `price.rs` asks the profile.

use super::Demand;
use super::stored::{matrix_bytes, stored_bytes};
use crate::profile::Operator;
use gguf::GgmlType;
use plan_format::artifact::KvType;
use plan_format::operands::Columns;
use plan_format::program::{Attention, Mask, OpKind, Program, Rows, StateKind, WeightRole};
use plan_format::routing::LayerHits;
use plan_format::schedule::Phase;
use plan_format::sizes::{experts_in, experts_of};
use plan_format::{StateId, WeightId};

/// Sizes of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Tokens.
    pub tokens: u32,
    /// Tokens whose logits are wanted.
    pub outputs: u32,
    /// Cached tokens that the last token sees.
    pub context_tokens: u32,
    /// Element type of the caches.
    pub kv_type: KvType,
}

/// Work that has a rate in the profile.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    pub operator: Operator,
    pub weight_type: &'static str,
    pub rows: u64,
    pub columns: u64,
    pub bytes: f64,
    /// Matrices of this shape that are read.
    pub matrices: f64,
    pub tokens: f64,
}

impl Round {
    /// The round of a phase with a context bucket full.
    pub fn of(phase: Phase, context_tokens: u32, demand: &Demand) -> Round {
        let (tokens, outputs) = match phase {
            Phase::Decode => (1, 1),
            Phase::Verify { tokens } => (tokens, tokens),
            Phase::Prefill { ubatch_tokens } => (ubatch_tokens, 1),
        };
        Round { tokens, outputs, context_tokens: context_tokens.max(tokens), kv_type: demand.kv_type }
    }

    fn rows(&self, rows: Rows) -> u64 {
        u64::from(match rows {
            Rows::Tokens => self.tokens,
            Rows::Outputs => self.outputs,
        })
    }

    /// Bytes of columns of a value in this round.
    pub(super) fn column_bytes(&self, program: &Program, columns: &Columns) -> u64 {
        let rows = self.rows(program.values[columns.value.index()].rows);
        rows * u64::from(columns.width) * u64::from(columns.groups) * 4
    }
}

/// Experts that a round reads at least, so that figures per expert exist.
const NEXT_TO_NONE: f64 = 1e-6;

/// How many different experts `tokens` tokens choose on average when each chooses `chosen` of `experts` at random.
pub fn distinct_experts(experts: u64, chosen: u64, tokens: u32) -> f64 {
    let missed_by_one = 1.0 - chosen as f64 / experts as f64;
    experts as f64 * (1.0 - missed_by_one.powi(tokens.min(1 << 20) as i32))
}

/// The same as they were counted to be chosen in a layer, if they were.
fn distinct_of(experts: u64, chosen: u64, tokens: u32, hits: Option<&LayerHits>) -> f64 {
    match hits.filter(|hits| (hits.hits.len() as u64, u64::from(hits.chosen)) == (experts, chosen)) {
        // One token chooses as many as it does, without rounding.
        Some(hits) if tokens > 1 => hits.distinct(tokens),
        _ => distinct_experts(experts, chosen, tokens),
    }
}

/// Experts of a stack that a round reads, and the choices that they serve: of those that the weight holds.
fn touched(program: &Program, weight: WeightId, chosen: u32, tokens: u32, hits: Option<&LayerHits>) -> (f64, f64) {
    let weight = &program.weights[weight.index()];
    let all = program.tensors[weight.tensor.index()].dims[2].max(1);
    let chosen = u64::from(chosen).min(all);
    let Some(held) = weight.experts() else {
        return (distinct_of(all, chosen, tokens, hits), f64::from(tokens) * chosen as f64);
    };
    match hits.filter(|hits| (hits.hits.len() as u64, u64::from(hits.chosen)) == (all, chosen)) {
        Some(hits) => {
            let (distinct, choices) = hits.of(experts_in(held), tokens);
            // Equal for one token, but for rounding.
            (distinct, choices.max(distinct))
        }
        None => {
            let share = f64::from(experts_of(held)) / all as f64;
            (share * distinct_experts(all, chosen, tokens), share * f64::from(tokens) * chosen as f64)
        }
    }
}

/// Name of a weight's type.
fn type_name(program: &Program, weight: WeightId) -> &'static str {
    let tensor = &program.tensors[program.weights[weight.index()].tensor.index()];
    GgmlType::from_id(tensor.ggml_type).name()
}

/// The parts of an operator's work. `hits` are the counts of the operator's layer.
pub(super) fn works(program: &Program, kind: &OpKind, round: &Round, hits: Option<&LayerHits>) -> Vec<Work> {
    match kind {
        OpKind::MatMul { x, parts } => {
            let tokens = round.rows(program.values[x.value.index()].rows) as f64;
            parts.iter().map(|part| product(program, part.weight, tokens)).collect()
        }
        OpKind::ExpertMatMul { chosen, parts, .. } => {
            parts.iter().map(|part| experts(program, part.weight, *chosen, round, hits)).collect()
        }
        OpKind::HeadMatMul { weight, .. } => vec![product(program, *weight, f64::from(round.tokens))],
        OpKind::Attention { cache, attention, .. } => vec![attend(program, *cache, attention, round)],
        OpKind::DeltaNet { delta, .. } => vec![recur(program, delta.state, round)],
        other => vec![elementwise(program, other, round)],
    }
}

fn product(program: &Program, weight: WeightId, tokens: f64) -> Work {
    let tensor = &program.tensors[program.weights[weight.index()].tensor.index()];
    Work {
        operator: Operator::Matmul,
        weight_type: type_name(program, weight),
        rows: tensor.rows() * tensor.dims[2],
        columns: tensor.cols(),
        bytes: tensor.size_bytes as f64,
        matrices: 1.0,
        tokens,
    }
}

fn experts(program: &Program, weight: WeightId, chosen: u32, round: &Round, hits: Option<&LayerHits>) -> Work {
    let tensor = program.held(weight);
    let count = tensor.dims[2].max(1);
    let (distinct, choices) = touched(program, weight, chosen, round.tokens, hits);
    // Of experts that nobody chooses hardly anything is read.
    let distinct = distinct.max(NEXT_TO_NONE);
    Work {
        operator: Operator::ExpertMatmul,
        weight_type: type_name(program, weight),
        rows: tensor.rows(),
        columns: tensor.cols(),
        bytes: tensor.size_bytes as f64 / count as f64 * distinct,
        matrices: distinct,
        tokens: choices.max(NEXT_TO_NONE) / distinct,
    }
}

/// Cached tokens that an average token of the round sees.
fn visible_tokens(mask: Mask, round: &Round) -> f64 {
    let mean = f64::from(round.context_tokens) - f64::from(round.tokens - 1) / 2.0;
    match mask {
        Mask::Causal => mean,
        Mask::Window { tokens } => mean.min(f64::from(tokens)),
        Mask::Chunk { tokens } => mean.min(f64::from(tokens) / 2.0 + f64::from(round.tokens.min(tokens)) / 2.0),
    }
}

fn attend(program: &Program, cache: StateId, attention: &Attention, round: &Round) -> Work {
    let row_elements = match program.states[cache.index()].kind {
        StateKind::Kv { k_cols, v_cols, .. } => u64::from(k_cols) + u64::from(v_cols),
        _ => 0,
    };
    let group = f64::from(attention.q_heads) / f64::from(attention.kv_heads.max(1));
    Work {
        operator: Operator::Attention,
        weight_type: match round.kv_type {
            KvType::F16 => "F16",
            KvType::F32 => "F32",
        },
        rows: 0,
        columns: 0,
        bytes: visible_tokens(attention.mask, round) * (row_elements * round.kv_type.bytes()) as f64,
        matrices: 1.0,
        tokens: f64::from(round.tokens) * group,
    }
}

fn recur(program: &Program, state: StateId, round: &Round) -> Work {
    let elements = match program.states[state.index()].kind {
        StateKind::Recurrent { value_heads, head_cols } => {
            u64::from(value_heads) * u64::from(head_cols) * u64::from(head_cols)
        }
        _ => 0,
    };
    Work {
        operator: Operator::DeltaNet,
        weight_type: "F32",
        rows: 0,
        columns: 0,
        bytes: elements as f64 * 4.0,
        matrices: 1.0,
        tokens: f64::from(round.tokens),
    }
}

fn elementwise(program: &Program, kind: &OpKind, round: &Round) -> Work {
    let touched = kind.reads().chain(kind.writes());
    let bytes: u64 = touched.map(|columns| round.column_bytes(program, &columns)).sum();
    Work {
        operator: Operator::Elementwise,
        weight_type: "F32",
        rows: 0,
        columns: 0,
        bytes: bytes as f64,
        matrices: 1.0,
        tokens: 1.0,
    }
}

/// How an item's weights would be streamed in a round.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Streaming {
    /// Matrices, or whole stacks of them, that move on average, with the bytes of each.
    pub runs: Vec<(f64, u64)>,
    /// Bytes that a slot must hold at worst.
    pub slot_bytes: u64,
    /// Whether the router must have chosen first.
    pub needs_router: bool,
}

/// Share of the experts from which on all are streamed without waiting for the router.
const STREAM_ALL_SHARE: f64 = 0.85;

/// Streaming of an item with these weights, of which stacks of experts lose `chosen` to each token; `hits` are the
/// counts of the item's layer.
pub(super) fn streaming(
    program: &Program,
    weights: &[WeightId],
    chosen: Option<u32>,
    round: &Round,
    hits: Option<&LayerHits>,
) -> Streaming {
    let mut total = Streaming { runs: Vec::new(), slot_bytes: 0, needs_router: false };
    for &id in weights {
        let weight = &program.weights[id.index()];
        let tensor = program.held(id);
        let count = tensor.dims[2].max(1);
        let chosen = chosen.filter(|_| weight.role == WeightRole::Experts);
        let distinct = chosen.map_or(count as f64, |k| touched(program, id, k, round.tokens, hits).0);
        if distinct >= STREAM_ALL_SHARE * count as f64 {
            total.runs.push((1.0, tensor.size_bytes));
            total.slot_bytes += stored_bytes(&tensor);
        } else {
            let most = chosen.map_or(count, |k| count.min(u64::from(k) * u64::from(round.tokens)));
            total.runs.push((distinct, tensor.size_bytes / count));
            total.slot_bytes += matrix_bytes(&tensor) * most;
            total.needs_router = true;
        }
    }
    total
}
