//! Products with a stack of matrices: routed experts by id, heads in order. Also routing, sorting, and who is where.
//!
//! Few tokens: every (token, slot) pair is a vector-matrix product of its own ([`slots`]). Many: entries are sorted by
//! expert ([`sort`]) and each expert multiplies its entries with the tensor-core kernel ([`grouped`]). Next: `ops.rs`.

use super::args::{FloatGemvArgs, GemvArgs, HeldArgs, MatmulArgs, RouterArgs, SortArgs};
use super::product::{
    Activations, Chip, Family, Part, TokenTile, float_module, kernel_parts, matmul_launch, module, row_blocks, split,
};
use super::{DevicePtr, Launch, View};
use crate::KernelError;
use crate::cpu::ops::router::{RouterScore, RouterWeights};
use crate::quant::WeightType;

/// Most experts of a layer.
pub const EXPERTS_MAX: u32 = 512;

/// Which matrix each slot of a token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// I32 \[tokens, slots\]; data null: slot j uses matrix j.
    pub ids: View,
    /// Slots of a token.
    pub slots: u32,
    /// Matrices of the stack.
    pub matrices: u32,
    /// Columns from one slot's input to the next: 0 when all slots of a token read the same row.
    pub input_stride: u32,
    /// I32 \[matrices\]: where each matrix lies in the stack; null: matrix j at place j.
    pub places: DevicePtr,
    /// Bytes from one place of the stack to the next.
    pub matrix_bytes: u64,
}

/// out\[token, slot · rows ..\] = W\[id\] · x\[token, slot · input_stride ..\] (+ bias\[id\]) for each part.
/// The activations are Q8, or F32 for plain types.
///
/// # Errors
/// Columns that are no whole number of blocks.
pub fn slots(parts: &[Part], x: &Activations, tokens: u32, slots: &Slots) -> Result<Launch, KernelError> {
    let weight = parts[0].weight;
    let pairs = tokens * slots.slots;
    let rows: u32 = parts.iter().map(|part| part.weight.rows).sum::<u32>().saturating_mul(pairs);
    if weight.ty.is_plain() {
        let split = split(rows, weight.cols / 8);
        let args = FloatGemvArgs {
            parts: kernel_parts(parts),
            x: x.data,
            ids: slots.ids.data,
            places: slots.places,
            row_bytes: weight.row_bytes()?,
            matrix_bytes: slots.matrix_bytes,
            cols: weight.cols,
            tokens,
            n_parts: parts.len() as u32,
            split,
            x_stride: x.stride,
            x_slot_stride: slots.input_stride,
            slots: slots.slots,
            ids_stride: slots.ids.stride,
            matrices: slots.matrices,
            reserved: 0,
        };
        let grid = [row_blocks(parts, 4 / split), pairs, 1];
        return Ok(Launch::new(float_module(weight.ty), "gemv_float1", grid, 128, &args));
    }
    let split = split(rows, weight.cols / 32);
    let args = GemvArgs {
        parts: kernel_parts(parts),
        x: x.data,
        x_scales: x.scales,
        ids: slots.ids.data,
        places: slots.places,
        row_bytes: weight.row_bytes()?,
        matrix_bytes: slots.matrix_bytes,
        cols: weight.cols,
        tokens,
        n_parts: parts.len() as u32,
        split,
        x_stride: x.stride,
        x_slot_stride: slots.input_stride,
        slots: slots.slots,
        ids_stride: slots.ids.stride,
        matrices: slots.matrices,
        reserved: 0,
    };
    let grid = [row_blocks(parts, 4 / split), pairs, 1];
    Ok(Launch::new(module("gemv", weight.ty, weight.layout), "gemv_slots", grid, 128, &args))
}

/// Whether a stack's type has a grouped kernel; else [`slots`] takes any number of tokens.
pub fn has_grouped(part: &Part) -> bool {
    has_grouped_type(part.weight.ty, part.weight.cols)
}

/// The same by type and columns.
pub fn has_grouped_type(ty: WeightType, cols: u32) -> bool {
    Family::of(ty, cols, u32::MAX) == Family::Tile
}

/// Memory of a sorted routing for one token tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sorted {
    /// I32 \[tokens · chosen\].
    pub order: DevicePtr,
    /// 16 bytes per tile, [`Sorted::tiles_max`] of them.
    pub tiles: DevicePtr,
    /// U32.
    pub n_tiles: DevicePtr,
    /// Entries of a tile.
    pub tile: TokenTile,
}

impl Sorted {
    /// Most tiles of so many entries over so many experts.
    pub fn tiles_max(tile: TokenTile, entries: u32, experts: u32) -> u32 {
        entries / tile.tokens() + experts.min(entries)
    }

    /// The tile for so many entries over so many experts.
    pub fn tile_for(entries: u32, experts: u32) -> TokenTile {
        match entries / experts.max(1) {
            0..96 => TokenTile::T64,
            96..192 => TokenTile::T128,
            _ => TokenTile::T256,
        }
    }
}

/// Sorts the entries (token · chosen + j) of a routing by expert.
pub fn sort(ids: View, tokens: u32, chosen: u32, experts: u32, to: &Sorted) -> Launch {
    let args = SortArgs {
        ids,
        order: to.order,
        tiles: to.tiles,
        n_tiles: to.n_tiles,
        rows: tokens,
        chosen,
        experts,
        tile: to.tile.tokens(),
        max_tiles: Sorted::tiles_max(to.tile, tokens * chosen, experts),
        reserved: 0,
    };
    Launch::new("router", "sort_by_expert", [1, 1, 1], EXPERTS_MAX, &args)
}

/// Whether the activations have a row per token or a row per entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRows {
    /// All chosen experts of a token read its row.
    PerToken,
    /// `[tokens · chosen]` rows: entry e reads row e.
    PerEntry,
}

/// The product of every entry with its expert, sorted, for up to three stacks of one type, layout and column
/// count with the same bytes from matrix to matrix.
///
/// # Errors
/// Columns that are no whole number of blocks.
pub fn grouped(
    chip: Chip,
    parts: &[Part],
    x: &Activations,
    tokens: u32,
    slots: &Slots,
    input: InputRows,
    sorted: &Sorted,
) -> Result<Launch, KernelError> {
    let args = MatmulArgs {
        x: x.data,
        row_scale: x.scales,
        order: sorted.order,
        tiles: sorted.tiles,
        n_tiles: sorted.n_tiles,
        places: slots.places,
        matrix_bytes: slots.matrix_bytes,
        tokens,
        chosen: slots.slots,
        x_per_entry: u32::from(input == InputRows::PerEntry),
        ..MatmulArgs::default()
    };
    let tiles = Sorted::tiles_max(sorted.tile, tokens * slots.slots, slots.matrices);
    matmul_launch(chip, parts, sorted.tile, tiles, args)
}

/// The place of each chosen expert among the `held` ones, which ascend, −1 for one that is not among them: `ids` and
/// `out` I32 \[tokens, chosen\]. Experts from [`EXPERTS_MAX`] on are held by nobody.
pub fn held_ids(ids: View, held: impl Iterator<Item = u32>, out: View, tokens: u32) -> Launch {
    let count = tokens * ids.cols;
    let mut args = HeldArgs { ids, out, count, ..HeldArgs::default() };
    for expert in held {
        if let Some(word) = args.held.get_mut(expert as usize / 32) {
            *word |= 1 << (expert % 32);
        }
    }
    Launch::new("router", "held_ids", [count.div_ceil(256), 1, 1], 256, &args)
}

/// Parameters of a routing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Experts, at most [`EXPERTS_MAX`].
    pub experts: u32,
    /// Chosen per token.
    pub chosen: u32,
    /// What is ranked.
    pub score: RouterScore,
    /// Weights of the chosen.
    pub weights: RouterWeights,
    /// Multiplies the weights.
    pub scale: f32,
}

/// Chooses the experts of each token: `ids` I32 and `weights` F32, both \[tokens, chosen\], best first.
pub fn route(routing: &Routing, logits: View, bias: DevicePtr, ids: View, weights: View, tokens: u32) -> Launch {
    let args = RouterArgs {
        logits,
        bias,
        ids,
        weights,
        experts: routing.experts,
        chosen: routing.chosen,
        score: match routing.score {
            RouterScore::Softmax => 0,
            RouterScore::Sigmoid => 1,
            RouterScore::Logit => 2,
        },
        weighting: match routing.weights {
            RouterWeights::Score => 0,
            RouterWeights::ScoreNormalised => 1,
            RouterWeights::SoftmaxOfChosen => 2,
        },
        scale: routing.scale,
        reserved: 0,
    };
    Launch::new("router", "router", [tokens, 1, 1], 32, &args)
}
