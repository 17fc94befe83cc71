//! Launches of attention: which kernels take a case, and the memory that splits need. Next: `recurrent.rs`.

use super::args::{AttentionArgs, Forms, JoinArgs, View};
use super::ops::{CacheType, KvCache, RoundInputs};
use super::{DevicePtr, Launch};
use crate::cpu::ops::attention::{AttentionShape, Mask};

/// Slots of a split: the place of a token's partial results depends on nothing else.
pub const SPLIT_SLOTS: u32 = 128;
/// Columns of a chunk of keys or values in `attention_split`, and chunks that it keeps at once.
const CHUNK_COLS: u32 = 64;
const CHUNKS_MAX: u32 = 4;
/// Tokens up to which splits are used where the tiled kernel could take them too.
const SPLIT_TOKENS_MAX: u32 = 8;

/// Which kernels compute an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `attention`: any shape, slow.
    Plain,
    /// `attention_split` and `attention_join`: few tokens over a long cache.
    Split,
    /// `attention64`, `attention128`, `attention256`: many tokens.
    Tiled,
}

impl Method {
    /// The fastest method for a shape.
    pub fn for_shape(shape: &AttentionShape, cache: CacheType, tokens: u32) -> Method {
        let (k, v) = (shape.k_head_cols, shape.v_head_cols);
        let splits = cache == CacheType::F16 && k.is_multiple_of(32) && k <= 576 && v.is_multiple_of(64);
        let tiles = cache == CacheType::F16 && k == v && matches!(k, 64 | 128 | 256);
        match () {
            () if tiles && tokens > SPLIT_TOKENS_MAX => Method::Tiled,
            () if splits => Method::Split,
            () => Method::Plain,
        }
    }
}

/// Memory for the partial results of splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Partials {
    /// F32 \[rows, splits, v_head_cols\] with rows = tokens · q_heads.
    pub sums: DevicePtr,
    /// Two F32 \[rows, splits\].
    pub scales: DevicePtr,
    /// Slots that a row has room for, in whole splits: so many are attended to. The cache has at least as many.
    pub slots: u32,
}

impl Partials {
    /// Splits of a cache with so many slots.
    pub fn splits(slots: u32) -> u32 {
        slots.div_ceil(SPLIT_SLOTS).max(1)
    }

    /// Bytes of `sums` and `scales` for one token.
    pub fn bytes_per_token(shape: &AttentionShape, slots: u32) -> (u64, u64) {
        let entries = shape.q_heads as u64 * u64::from(Partials::splits(slots));
        (entries * shape.v_head_cols as u64 * 4, entries * 8)
    }
}

/// Operands of one attention.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// Heads, scale, mask.
    pub shape: &'a AttentionShape,
    /// \[tokens, q_heads · k_head_cols\].
    pub q: View,
    /// \[tokens, q_heads · v_head_cols\].
    pub out: View,
    /// The cache, this round's keys and values included.
    pub cache: &'a KvCache,
    /// Positions and sequences of the tokens.
    pub inputs: &'a RoundInputs,
    /// {q_heads} or null.
    pub sinks: DevicePtr,
    /// Room for [`Method::Split`]; all zero for other methods.
    pub partials: Partials,
}

impl Attend<'_> {
    /// Launches by a method that takes the shape, in order; the partials have room for all tokens.
    pub fn launches(&self, method: Method, tokens: u32) -> Vec<Launch> {
        let args = self.arguments(tokens);
        match method {
            Method::Plain => vec![Launch::new("attention", "attention", [args.q_heads, tokens, 1], 128, &args)],
            Method::Split => self.split(tokens, self.value()),
            Method::Tiled => {
                let (kernel, threads, rows, slots) = match args.k_head_cols {
                    64 => ("attention64", 256, 128, 64),
                    128 => ("attention128", 256, 128, 64),
                    _ => ("attention256", 128, 64, 32),
                };
                let grid = [(tokens * self.group()).div_ceil(rows), args.kv_heads, 1];
                let shared_bytes = 2 * args.k_head_cols * (rows + 4 * slots);
                vec![Launch::new("attention_prefill", kernel, grid, threads, &args).with_shared(shared_bytes)]
            }
        }
    }

    /// Query heads that share keys and values.
    fn group(&self) -> u32 {
        (self.shape.q_heads / self.shape.kv_heads.max(1)) as u32
    }

    /// The rows themselves and nothing else.
    pub fn value(&self) -> Forms {
        Forms { f32: self.out.data, f32_stride: self.out.stride, ..Forms::default() }
    }

    fn split(&self, tokens: u32, forms: Forms) -> Vec<Launch> {
        let attention = self.arguments(tokens);
        let AttentionArgs { q_heads, kv_heads, k_head_cols, v_head_cols, splits, .. } = attention;
        let key_chunks = k_head_cols.div_ceil(CHUNK_COLS);
        let chunks = (key_chunks + v_head_cols / CHUNK_COLS).min(CHUNKS_MAX);
        let shared_bytes = 2 * (chunks * CHUNK_COLS * SPLIT_SLOTS + 16 * (key_chunks * CHUNK_COLS + 8));
        let grid = [splits, kv_heads, (tokens * self.group()).div_ceil(16)];
        let split = Launch::new("attention_decode", "attention_split", grid, 256, &attention);
        let grid = [tokens * q_heads, v_head_cols / CHUNK_COLS, 1];
        let join = Launch::new("attention_decode", "attention_join", grid, 256, &JoinArgs { attention, forms });
        vec![split.with_shared(shared_bytes), join]
    }

    /// Launches by [`Method::Split`] in groups of tokens, where the partials have room for `room_tokens` only. Instead
    /// of `out` they write `forms` (no F16), for which `out` says how many columns a row has.
    pub fn launches_in_groups(&self, tokens: u32, room_tokens: u32, forms: Forms) -> Vec<Launch> {
        let room_tokens = room_tokens.max(1);
        let mut launches = Vec::new();
        for first in (0..tokens).step_by(room_tokens as usize) {
            let row = |view: View| {
                let bytes = u64::from(first) * u64::from(view.stride) * 4;
                View { data: view.data.offset(bytes), ..view }
            };
            let from = |array: DevicePtr| array.offset(u64::from(first) * 4);
            let (positions, sequences) = (from(self.inputs.positions), from(self.inputs.sequences));
            let inputs = RoundInputs { positions, sequences, ..*self.inputs };
            let group = Attend { q: row(self.q), inputs: &inputs, ..*self };
            let forms = forms.at_row(first, self.out.cols);
            launches.extend(group.split(room_tokens.min(tokens - first), forms));
        }
        launches
    }

    fn arguments(&self, tokens: u32) -> AttentionArgs {
        let Attend { shape, q, out, cache, inputs, sinks, partials } = *self;
        let shared = cache.values.is_null();
        let (mask, mask_tokens) = match shape.mask {
            Mask::Causal => (0, 0),
            Mask::Window { tokens } => (1, tokens),
            Mask::Chunk { tokens } => (2, tokens.max(1)),
        };
        AttentionArgs {
            q: q.data,
            k_cache: cache.keys,
            v_cache: if shared { cache.keys } else { cache.values },
            slot_positions: cache.slot_positions,
            slot_sequences: cache.slot_sequences,
            positions: inputs.positions,
            sequences: inputs.sequences,
            n_slots: inputs.n_slots,
            sinks,
            out: out.data,
            partial: partials.sums,
            partial_scale: partials.scales,
            tokens,
            q_heads: shape.q_heads as u32,
            kv_heads: shape.kv_heads as u32,
            k_head_cols: shape.k_head_cols as u32,
            v_head_cols: shape.v_head_cols as u32,
            q_stride: q.stride,
            out_stride: out.stride,
            k_slot_cols: cache.k_cols,
            v_slot_cols: if shared { cache.k_cols } else { cache.v_cols },
            mask,
            mask_tokens,
            splits: Partials::splits(partials.slots),
            f32_cache: u32::from(cache.ty == CacheType::F32),
            scale: shape.scale,
            softcap: shape.softcap.unwrap_or(0.0),
            slots: partials.slots,
        }
    }
}
