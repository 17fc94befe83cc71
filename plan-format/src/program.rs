//! The op program: what one round computes, as flat tables.
//!
//! One program serves all phases: shapes are symbolic in the number of tokens of the round (T) and the number of
//! tokens whose logits are wanted (O). A round is one ubatch of prefill or one decode step. Inputs of a round are four
//! arrays of length T (token ids, positions, sequence ids, cache slots) and one of length O (which of the T tokens are
//! wanted as outputs).
//!
//! Values are in single-assignment form: every column of a value is written by exactly one operator, before any
//! operator reads it. Operators stand in execution order, and the operators of an item are contiguous.
//!
//! It is not a graph (the planner's `graph` is; this is what it flattens to) and says nothing of where things run
//! (`schedule.rs`). Shapes are in ggml's order: a weight `{in, out}` holds `out` rows of `in` contiguous elements.

use crate::ids::{ItemId, RopeId, StateId, TensorId, ValueId, WeightId};
use serde::{Deserialize, Serialize};

/// One model's operators with everything they refer to. Checked by `verify::verify_program`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// `general.architecture` of the model, for people; no code depends on it.
    pub architecture: String,
    /// Rows of the token embedding table = length of a logits row.
    pub vocab: u32,
    /// Longest position that the model was made for, in tokens.
    pub context_tokens: u32,
    /// Tensors of the model file that the program uses.
    pub tensors: Vec<Tensor>,
    /// Operands made of tensors, possibly divided in parts.
    pub weights: Vec<Weight>,
    /// Activations.
    pub values: Vec<Value>,
    /// Caches and recurrent states, alive between rounds.
    pub states: Vec<State>,
    /// Rotary tables, computed once at load.
    pub ropes: Vec<Rope>,
    /// Operators in execution order.
    pub ops: Vec<Op>,
    /// Units of placement, in execution order; their op ranges cover `ops` without gap or overlap.
    pub items: Vec<Item>,
    /// The value [O, vocab] that holds the logits.
    pub logits: ValueId,
}

/// A tensor as it lies in the model's file(s).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Name in the GGUF tensor table.
    pub name: String,
    /// Which shard (0-based).
    pub file: u16,
    /// Absolute byte offset in that shard.
    pub offset_bytes: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// ggml type id, as in the GGUF tensor table.
    pub ggml_type: u32,
    /// ggml order, unused dimensions are 1: `{in, out, experts, 1}` for a matrix.
    pub dims: [u64; 4],
}

/// An operand made of one tensor, or (reserved) of a tensor divided along one axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    /// Where its data are.
    pub tensor: TensorId,
    /// What reads it.
    pub role: WeightRole,
    /// Along which axis parts divide the tensor.
    pub axis: PartAxis,
    /// The parts in order of the axis. Rows and columns are covered without gap or overlap, and one part that is
    /// everything is the case of whole-tensor placement. Of experts, those that the weight holds.
    pub parts: Vec<Part>,
}

/// What kind of operator reads a weight; decides which layouts it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WeightRole {
    /// Rows are looked up by token id.
    EmbeddingRows,
    /// Rows are looked up by token id and all of it is multiplied as the head (tied): stored and counted once.
    TiedHead,
    /// A dense matrix `{in, out}`.
    Matrix,
    /// A stack of expert matrices `{in, out, experts}` of which a token uses a few.
    Experts,
    /// A stack of per-head matrices `{in, out, heads}`, all used (MLA).
    Heads,
    /// Small vectors and filters (norms, biases, sinks, convolutions, rope factors), F32 at run time, on every device.
    Small,
}

/// Axis of a division in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartAxis {
    /// Output rows (`dims[1]`): results of the parts stand side by side.
    Rows,
    /// Input columns (`dims[0]`): results of the parts are summed by [`OpKind::Reduce`].
    Cols,
    /// Whole experts (matrices of a stack, rows of their biases): the weight holds those of its parts alone, ascending,
    /// and other weights of the same tensor hold the others. Sums of the weights' results are added by
    /// [`OpKind::Reduce`].
    Experts,
}

/// A contiguous range of a weight along its axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// First row or column.
    pub begin: u32,
    /// One past the last row or column.
    pub end: u32,
}

/// How many rows a value has in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Rows {
    /// T: one per token of the round.
    Tokens,
    /// O: one per token whose logits are wanted.
    Outputs,
}

/// Element type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Elem {
    /// 32-bit float.
    F32,
    /// 32-bit signed integer (expert ids).
    I32,
}

/// An activation, row-major `[rows, cols]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// For people: `blk.3.ffn_gate`.
    pub name: String,
    /// Rows of the value.
    pub rows: Rows,
    /// Elements of a row.
    pub cols: u32,
    /// Element type.
    pub elem: Elem,
}

/// A column range of a value; row stride is the value's `cols`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    /// The value looked at.
    pub value: ValueId,
    /// First column.
    pub first_col: u32,
    /// Number of columns.
    pub cols: u32,
}

/// A memory that lives between rounds, one per sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// For people: `blk.3.kv`.
    pub name: String,
    /// What it holds.
    pub kind: StateKind,
}

/// Kinds of state with their sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateKind {
    /// Keys and values per cached token; `v_cols` = 0 when values are the first columns of the keys (MLA).
    Kv {
        /// Key elements per token (kv heads × head size).
        k_cols: u32,
        /// Value elements per token.
        v_cols: u32,
        /// How many positions back a token may look, which bounds the slots needed; `None` = the whole context.
        window_tokens: Option<u32>,
    },
    /// The last `taps − 1` inputs of a causal convolution, F32 `[channels, taps − 1]`, oldest first.
    Conv {
        /// Channels.
        channels: u32,
        /// Filter length.
        taps: u32,
    },
    /// The matrices of a gated delta net, F32 `[value_heads, head_cols (value), head_cols (key)]`.
    Recurrent {
        /// Value heads.
        value_heads: u32,
        /// Size of a key head and of a value head.
        head_cols: u32,
    },
}

/// A rotary table: `theta_i = position · inverse frequency_i`, i = 0..n_rot/2. architectures: RoPE, YaRN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Which dimensions rotate together.
    pub pairing: RopePairing,
    /// Rotated dimensions of each head; the rest passes through.
    pub n_rot: u32,
    /// `A.rope.freq_base`.
    pub base: f32,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
    /// cos and sin are multiplied by this (1 except for YaRN).
    pub magnitude: f32,
    /// `rope_freqs.weight`: divides each frequency.
    pub factors: Option<WeightId>,
}

/// Which dimensions rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RopePairing {
    /// (2i, 2i + 1).
    Norm,
    /// (i, i + n_rot/2).
    Neox,
}

/// `A.rope.scaling.*`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// Frequencies as they are.
    None,
    /// Frequencies divided by `factor`.
    Linear {
        /// `A.rope.scaling.factor`.
        factor: f32,
    },
    /// YaRN with beta_fast 32 and beta_slow 1.
    Yarn {
        /// `A.rope.scaling.factor`.
        factor: f32,
        /// `A.rope.scaling.original_context_length`.
        original_context_tokens: u32,
    },
}

/// One operator and the item that it belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Op {
    /// The item.
    pub item: ItemId,
    /// What it computes.
    pub kind: OpKind,
}

/// One product of a fused group: `out = x · weightᵀ (+ bias)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatMulPart {
    /// `{in, out}`, or a stack of them for experts.
    pub weight: WeightId,
    /// `{out}`, or `{out, experts}`.
    pub bias: Option<WeightId>,
    /// `[rows, out]`, for experts `[rows, chosen × out]`.
    pub out: View,
}

/// The operators. `x`, `out` and the like are views of activations; column counts are checked by the verifier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each variant's line names and shapes its operands")]
pub enum OpKind {
    /// out = scale · table\[token\], exactly dequantised.
    Embed { table: WeightId, scale: f32, out: View },
    /// out\[o\] = x\[output row o\]: from T rows to O rows.
    SelectOutputs { x: View, out: View },
    /// Per group of `group` columns: out = x / sqrt(mean(x²) + eps) · weight; all groups share `weight` {group}.
    RmsNorm { x: View, group: u32, weight: Option<WeightId>, eps: f32, out: View },
    /// Per group: out = scale · x / sqrt(sum(x²) + eps).
    L2Norm { x: View, group: u32, eps: f32, scale: f32, out: View },
    /// One or several products with the same input (QKV, gate + up): the input is quantised once.
    MatMul { x: View, parts: Vec<MatMulPart> },
    /// out = a + b.
    Add { a: View, b: View, out: View },
    /// out = activation(gate, up), elementwise.
    Glu { gate: View, up: View, activation: GluActivation, out: View },
    /// out = x · sigmoid(gate); `gate` has as many columns as `x`, or one.
    SigmoidGate { x: View, gate: View, out: View },
    /// out\[g · out_stride + i\] = x\[g · x_stride + i\] for g < groups, i < width, from the views' first columns.
    CopyCols { x: View, x_stride: u32, out: View, out_stride: u32, width: u32, groups: u32 },
    /// Rotates each of `heads` groups of `head_cols` columns.
    Rope { x: View, heads: u32, head_cols: u32, rope: RopeId, out: View },
    /// out = x · (1 + factor · ln(floor((position + 1) / period) + 1)) (llama4).
    PositionScale { x: View, period_tokens: u32, factor: f32, out: View },
    /// Writes this round's keys and values (F32 in, cache type in memory) into the tokens' cache slots.
    StoreKv { k: View, v: Option<View>, cache: StateId },
    /// out = softmax(scale · q·K + mask) · V over the cache, `StoreKv` of this round included.
    Attention { q: View, cache: StateId, attention: Attention, out: View },
    /// out = cap · tanh(x / cap).
    Softcap { x: View, cap: f32, out: View },
    /// Chooses experts: `ids` I32 \[rows, chosen\], `weights` F32 \[rows, chosen\], best first.
    Router { logits: View, select_bias: Option<WeightId>, router: Router, ids: View, weights: View },
    /// out\[:, j\] = weights\[j\] · x for each chosen expert j: `[rows, chosen × x.cols]` (llama4 weighs the input).
    ExpertScale { x: View, weights: View, out: View },
    /// For each chosen expert j: out\[:, j\] = W\[ids\[j\]\] · x (+ bias\[ids\[j\]\]); undefined for ids of −1.
    ExpertMatMul { x: View, input: ExpertInput, chosen: u32, ids: View, parts: Vec<MatMulPart> },
    /// out = Σ_j weights\[j\] · x\[:, j\]; without weights a plain sum.
    ExpertSum { x: View, chosen: u32, weights: Option<View>, out: View },
    /// out\[:, h\] = W_h · x\[:, h\] with a stack of `heads` matrices.
    HeadMatMul { x: View, heads: u32, weight: WeightId, out: View },
    /// Depthwise causal convolution over `taps` tokens, then silu; tap `taps − 1` is the current token.
    CausalConv { x: View, filter: WeightId, state: StateId, out: View },
    /// Gated delta net; q and k are normalised already. architectures, section 8.
    DeltaNet { delta: DeltaNet, out: View },
    /// Sum of partial results, in order: of experts in several places, or of a weight divided along its input columns.
    Reduce { partials: Vec<View>, out: View },
    /// out\[:, j\] = the place of expert ids\[j\] among those of the ranges `held`, −1 where they do not hold it. For
    /// [`OpKind::ExpertMatMul`] with divided weights, which writes nothing for −1.
    HeldIds { ids: View, held: Vec<Part>, out: View },
    /// out = Σ_j weights\[j\] · x\[:, j\] over the j with ids\[j\] ≥ 0; without weights a plain sum, without any j 0.
    HeldSum { x: View, chosen: u32, weights: Option<View>, ids: View, out: View },
}

/// Gated linear units.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum GluActivation {
    /// silu(gate) · up.
    Silu,
    /// gelu_tanh(gate) · up.
    GeluTanh,
    /// g = min(gate, limit), u = clamp(up, ±limit): g · sigmoid(alpha · g) · (u + 1) (gpt-oss).
    ClampedSwish {
        /// 1.702.
        alpha: f32,
        /// 7.
        limit: f32,
    },
}

/// Parameters of an attention operator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Query heads.
    pub q_heads: u32,
    /// Key/value heads; query head h reads kv head h / (q_heads / kv_heads).
    pub kv_heads: u32,
    /// Columns of a query or key head.
    pub k_head_cols: u32,
    /// Columns of a value head; with `v_cols` = 0 in the cache, the first columns of the key head.
    pub v_head_cols: u32,
    /// Multiplies q·k.
    pub scale: f32,
    /// Which positions a token sees.
    pub mask: Mask,
    /// {q_heads}: one extra logit per head that joins the softmax and contributes no value.
    pub sinks: Option<WeightId>,
}

/// Which positions p0 a token at p1 sees, besides p0 ≤ p1 and the same sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mask {
    /// All.
    Causal,
    /// p1 − p0 < tokens.
    Window {
        /// Positions seen, the own included.
        tokens: u32,
    },
    /// p0 ≥ floor(p1 / tokens) · tokens.
    Chunk {
        /// Positions of a chunk.
        tokens: u32,
    },
}

/// How experts are chosen and weighed. architectures, MoE.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Router {
    /// Experts of the layer.
    pub experts: u32,
    /// Chosen per token.
    pub chosen: u32,
    /// What is ranked.
    pub score: RouterScore,
    /// Weights of the chosen, from the scores without selection bias.
    pub weights: RouterWeights,
    /// Multiplies the weights (1 = nothing).
    pub scale: f32,
}

/// Router scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RouterScore {
    /// softmax over all experts.
    Softmax,
    /// sigmoid of each logit.
    Sigmoid,
    /// The logit itself.
    Logit,
}

/// Weights of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RouterWeights {
    /// The scores.
    Score,
    /// The scores divided by their sum, which is clamped to ≥ 2⁻¹⁴.
    ScoreNormalised,
    /// softmax over the chosen logits.
    SoftmaxOfChosen,
}

/// What each chosen expert multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExpertInput {
    /// The token's row, the same for all its experts.
    Shared,
    /// Its own group of columns: `x` is `[rows, chosen × in]`.
    PerExpert,
}

/// Parameters of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaNet {
    /// `[rows, key_heads × head_cols]`, L2-normalised and scaled.
    pub q: View,
    /// `[rows, key_heads × head_cols]`, L2-normalised.
    pub k: View,
    /// `[rows, value_heads × head_cols]`.
    pub v: View,
    /// `[rows, value_heads]`; beta = sigmoid(b).
    pub b: View,
    /// `[rows, value_heads]`; log decay = a · softplus(alpha + dt).
    pub alpha: View,
    /// `ssm_a` {value_heads}, negative.
    pub a: WeightId,
    /// `ssm_dt.bias` {value_heads}.
    pub dt: WeightId,
    /// Key heads.
    pub key_heads: u32,
    /// Value heads.
    pub value_heads: u32,
    /// Columns of a key and of a value head.
    pub head_cols: u32,
    /// Which key head a value head uses.
    pub heads: HeadMap,
    /// The matrices.
    pub state: StateId,
}

/// Key head of value head j, with r = value_heads / key_heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeadMap {
    /// j / r (qwen3next).
    Grouped,
    /// j % key_heads (qwen35moe).
    Tiled,
}

/// A unit of placement: a weight matrix (or fusion group) with its operators and the cheap ones since the previous
/// matrix's output; attention with its cache; a recurrent mixer with its states. DESIGN: graph, program, items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// For people: `blk.3.ffn_gate_up`.
    pub name: String,
    /// What it is.
    pub kind: ItemKind,
    /// Layer (block) index; `None` for embedding and head.
    pub layer: Option<u32>,
    /// Its operators: `first_op .. first_op + op_count`.
    pub first_op: u32,
    /// Number of its operators, ≥ 1.
    pub op_count: u32,
    /// Large weights that it places (embedding, matrices, experts, heads); small ones are on every device.
    pub weights: Vec<WeightId>,
    /// States that live with it.
    pub states: Vec<StateId>,
}

/// What an item is; placement policies speak of kinds, never of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ItemKind {
    /// Token embedding look-up (on the CPU unless tied and resident).
    Embedding,
    /// QKV or other projections into a mixer.
    MixerInput,
    /// Attention itself, with RoPE, q/k norm and the KV cache.
    Attention,
    /// Convolution and delta net with their states.
    Recurrent,
    /// The mixer's output projection and residual add.
    MixerOutput,
    /// Dense gate + up.
    FfnInput,
    /// Dense down, its activation and the residual add.
    FfnOutput,
    /// Router of a mixture of experts.
    Router,
    /// Routed gate + up experts.
    ExpertsInput,
    /// Routed down experts, weighted sum.
    ExpertsOutput,
    /// Shared experts.
    SharedExperts,
    /// Final norm and logits.
    Head,
    /// The sum of a layer's routed experts in two places, and the residual add.
    ExpertsJoin,
}
