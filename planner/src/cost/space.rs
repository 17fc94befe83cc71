//! GPU memory beside weights, caches and the activation arena: what the runtime's kernels work in. An upper bound from
//! shapes alone, so that a plan that fits on paper fits the device. Next: `price.rs`.

use kernels::cpu::ops::kv::KV_BLOCK;
use kernels::cuda::attention::Partials;
use plan_format::StateId;
use plan_format::arena::RoundLimits;
use plan_format::artifact::KvType;
use plan_format::program::{Item, OpKind, Program, Rows, StateKind, View, WeightRole};
use plan_format::sizes::CacheSpan;

/// Alignment of everything that is placed.
const ALIGN_BYTES: u64 = 256;
/// Tokens up to which products read activations as bytes.
const BYTE_TOKENS: u64 = 32;
/// Tokens whose partial results of attention are kept at once, and most bytes of them.
const PARTIAL_TOKENS: u64 = 16;
const PARTIAL_BYTES: u64 = 64 << 20;
/// Tokens of the smallest tile of sorted experts.
const TILE_TOKENS: u64 = 64;
/// Different kinds of cache, each with an array of slots per round.
const CACHE_KINDS: u64 = 4;

/// Small weights as they are placed: each aligned.
pub(super) fn small_weight_bytes(program: &Program) -> u64 {
    let small = program.weights.iter().filter(|weight| weight.role == WeightRole::Small);
    let bytes = small.map(|weight| program.held_by(weight).dims.iter().product::<u64>() * 4);
    bytes.map(|bytes| bytes.next_multiple_of(ALIGN_BYTES)).sum()
}

/// States of an item as they are placed: caches in whole blocks, with position and sequence of each slot.
pub(super) fn state_bytes(program: &Program, item: &Item, span: CacheSpan, kv_type: KvType) -> u64 {
    item.states.iter().map(|&state| one_state_bytes(program, state, span, kv_type)).sum()
}

fn one_state_bytes(program: &Program, state: StateId, span: CacheSpan, kv_type: KvType) -> u64 {
    let aligned = |bytes: u64| bytes.next_multiple_of(ALIGN_BYTES);
    let StateKind::Kv { k_cols, v_cols, window_tokens } = program.states[state.index()].kind else {
        return aligned(program.state_bytes(state, span, kv_type));
    };
    let block = KV_BLOCK as u64;
    let whole = u64::from(span.context_tokens).div_ceil(block).max(1);
    let ring = |window: u32| (u64::from(window) + u64::from(span.ubatch_tokens)).div_ceil(block) + 1;
    let slots = window_tokens.map_or(whole, |window| ring(window).min(whole)) * block;
    let side = |cols: u32| aligned(slots * u64::from(cols) * kv_type.bytes());
    side(k_cols) + side(v_cols) + 2 * aligned(slots * 4)
}

/// What kernels work in for rounds up to `limits` over a context.
pub(super) fn work_bytes(program: &Program, limits: RoundLimits, context_tokens: u32) -> u64 {
    let tokens = u64::from(limits.ubatch_tokens);
    let forms: Vec<u64> = program.items.iter().map(|item| form_bytes(program, item, limits)).collect();
    // Forms live until their last reader; those of an item and of the next may be alive at once.
    let forms = (0..forms.len()).map(|i| forms[i] + forms.get(i + 1).copied().unwrap_or(0)).max().unwrap_or(0);
    let partials = program.ops.iter().map(|op| partial_bytes(&op.kind, tokens, context_tokens)).max().unwrap_or(0);
    let routing = program.ops.iter().map(|op| routing_bytes(&op.kind, program, tokens)).max().unwrap_or(0);
    let constants: u64 = program.ropes.iter().map(|rope| u64::from(rope.n_rot) * 4 + ALIGN_BYTES).sum();
    forms + partials + routing + constants
}

/// Inputs of a round and angles of its positions.
pub(super) fn input_bytes(program: &Program, limits: RoundLimits) -> u64 {
    let tokens = u64::from(limits.ubatch_tokens);
    let angles: u64 = program.ropes.iter().map(|rope| u64::from(rope.n_rot) * 4 * tokens + ALIGN_BYTES).sum();
    angles + 4 * (tokens * (3 + CACHE_KINDS) + u64::from(limits.output_tokens)) + (6 + CACHE_KINDS) * ALIGN_BYTES
}

/// Inputs of an item's products in the forms that kernels read: half precision with a scale per row, and bytes.
fn form_bytes(program: &Program, item: &Item, limits: RoundLimits) -> u64 {
    let mut views: Vec<View> = Vec::new();
    for op in program.ops_of(item) {
        if let OpKind::MatMul { x, .. } | OpKind::ExpertMatMul { x, .. } | OpKind::HeadMatMul { x, .. } = &op.kind
            && !views.contains(x)
        {
            views.push(*x);
        }
    }
    let bytes = |view: &View| {
        let rows = u64::from(match program.values[view.value.index()].rows {
            Rows::Tokens => limits.ubatch_tokens,
            Rows::Outputs => limits.output_tokens,
        });
        let (cols, few) = (u64::from(view.cols), rows.min(BYTE_TOKENS).next_multiple_of(4));
        rows * (2 * cols + 4) + few * cols * 5 / 4 + 5 * ALIGN_BYTES
    };
    views.iter().map(bytes).sum()
}

fn partial_bytes(kind: &OpKind, tokens: u64, context_tokens: u32) -> u64 {
    let OpKind::Attention { attention, .. } = kind else { return 0 };
    let block = KV_BLOCK as u32;
    let slots = context_tokens.saturating_add(tokens as u32).min(1 << 30).next_multiple_of(block) + block;
    let entries = u64::from(attention.q_heads) * u64::from(Partials::splits(slots));
    let sums = entries * u64::from(attention.v_head_cols) * 4;
    let room = (PARTIAL_BYTES / sums.max(1)).clamp(1, PARTIAL_TOKENS);
    room * (sums + entries * 8) + 2 * ALIGN_BYTES
}

/// Tokens sorted by expert, or by head where heads have matrices of their own.
fn routing_bytes(kind: &OpKind, program: &Program, tokens: u64) -> u64 {
    let (entries, stack) = match kind {
        OpKind::ExpertMatMul { chosen, parts, .. } => {
            let stack = parts.first().map_or(1, |part| program.held(part.weight).dims[2]);
            (tokens * u64::from(*chosen), stack)
        }
        OpKind::HeadMatMul { heads, .. } => (tokens * u64::from(*heads), u64::from(*heads)),
        _ => return 0,
    };
    4 * entries + 16 * (entries / TILE_TOKENS + stack + 1) + 4 * stack + 4 * ALIGN_BYTES
}
