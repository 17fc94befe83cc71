//! Matrix products: which kernel family takes a product, which form of the activations it reads, and its launches.
//!
//! | tokens | quantised weights | F16, BF16 | F32 |
//! |---|---|---|---|
//! | 1 | `gemv`, Q8 | `gemv_float`, F32 | `gemv_float`, F32 |
//! | 2 (Q8_0: to 4) | `gemv`, Q8 | `skinny`, F16 / BF16 | `gemv_float` |
//! | to 32 | `skinny`, F16 (MXFP4: BF16) | `skinny`, F16 / BF16 | `gemv_float` |
//! | more | `matmul`, F16 (MXFP4: BF16) | `matmul`, F16 / BF16 | `gemv_float` |
//!
//! F16 and BF16 rows that are no multiple of 32 columns always go to `gemv_float`. All sums are F32 and each output is
//! summed in one order that depends on the shape and the family, not on the device. `experts.rs` has the products by
//! expert id. Next: `experts.rs`.

use super::args::{FloatGemvArgs, GemvArgs, MatmulArgs, ProductPart, SkinnyArgs};
use super::{DevicePtr, GpuLayout, GpuMatrix, Launch, View};
use crate::KernelError;
use crate::quant::WeightType;

/// Most tokens of a dot-product kernel.
pub const GEMV_TOKENS_MAX: u32 = 4;
/// Most tokens of the kernels that decode weights in registers.
pub const SKINNY_TOKENS_MAX: u32 = 32;
/// Most matrices of one launch.
pub const PARTS_MAX: usize = 3;
/// Warps of a block in the dot-product kernels.
const GEMV_WARPS: u32 = 4;
/// Rows of a matrix below which several warps share a row: about the warps that a large GPU runs at once.
const WARPS_WANTED: u32 = 4096;

/// How activations are written for a product ([`super::Forms`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// The F32 row itself.
    F32,
    /// Bytes with scales per 32 columns.
    Q8,
    /// F16 with a power of two per row.
    F16,
    /// BF16.
    Bf16,
}

/// The activations of a product in the form that [`form`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activations {
    /// Which form.
    pub form: Form,
    /// Values; rows `stride` elements apart (forms other than F32: exactly as many as columns).
    pub data: DevicePtr,
    /// Q8: [`super::BlockScale`]s; F16: row scales; else null.
    pub scales: DevicePtr,
    /// Elements from one token's row to the next.
    pub stride: u32,
}

/// One matrix of a group with the same input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The weights.
    pub weight: GpuMatrix,
    /// F32 {rows}, or null.
    pub bias: DevicePtr,
    /// F32 \[tokens, rows\] added to the result, data null for none.
    pub residual: View,
    /// F32 \[tokens, rows\].
    pub out: View,
}

/// Kernel families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Gemv,
    Float,
    Skinny,
    Tile,
}

impl Family {
    pub(super) fn of(ty: WeightType, cols: u32, tokens: u32) -> Family {
        let ragged = ty.is_plain() && !cols.is_multiple_of(32);
        if ty == WeightType::F32 || ragged {
            return Family::Float;
        }
        match tokens {
            ..=1 if ty.is_plain() => return Family::Float,
            _ if !ty.is_plain() && tokens <= gemv_tokens_max(ty) => return Family::Gemv,
            _ => {}
        }
        if tokens <= SKINNY_TOKENS_MAX { Family::Skinny } else { Family::Tile }
    }
}

/// Most tokens of the dot-product kernel of a type. From 3 on the tensor-core kernel reads less: each lane takes the
/// activations of two rows' units for one token instead of all. Bytes need no decoding, which keeps Q8_0 ahead.
fn gemv_tokens_max(ty: WeightType) -> u32 {
    if ty == WeightType::Q8_0 { GEMV_TOKENS_MAX } else { 2 }
}

/// Which form of the activations a product reads.
pub fn form(ty: WeightType, cols: u32, tokens: u32) -> Form {
    match Family::of(ty, cols, tokens) {
        Family::Gemv => Form::Q8,
        Family::Float => Form::F32,
        Family::Skinny | Family::Tile => tensor_core_form(ty),
    }
}

/// The two-byte form of the tensor-core kernels.
pub(super) fn tensor_core_form(ty: WeightType) -> Form {
    if matches!(ty, WeightType::BF16 | WeightType::MXFP4) { Form::Bf16 } else { Form::F16 }
}

/// A module that does not exist.
const MISSING: &str = "missing";

/// Name of the module of a family for a type and layout.
pub(super) fn module(family: &str, ty: WeightType, layout: GpuLayout) -> &'static str {
    let tiled = layout == GpuLayout::Tiled && GpuLayout::Tiled.exists_for(ty);
    let name = format!("{family}_{}{}", ty.name().to_lowercase(), if tiled { "_tiled" } else { "" });
    super::modules().find(|module| *module == name).unwrap_or(MISSING)
}

/// Launches of a group of products with the same input, in order. Parts of one type, layout and column count that
/// stand together share a launch.
///
/// # Errors
/// Columns that are no whole number of blocks.
pub fn product(chip: Chip, parts: &[Part], x: &Activations, tokens: u32) -> Result<Vec<Launch>, KernelError> {
    let mut launches = Vec::new();
    let same = |a: &Part, b: &Part| {
        (a.weight.ty, a.weight.layout, a.weight.cols) == (b.weight.ty, b.weight.layout, b.weight.cols)
    };
    for group in parts.chunk_by(same).flat_map(|group| group.chunks(PARTS_MAX)) {
        let weight = group[0].weight;
        match Family::of(weight.ty, weight.cols, tokens) {
            Family::Gemv => launches.push(gemv(group, x, tokens)?),
            Family::Float => launches.push(gemv_float(group, x, tokens)?),
            Family::Skinny => launches.push(skinny(group, x, tokens)?),
            Family::Tile => {
                let tile = TokenTile::for_shape(chip, weight.ty, row_blocks(group, 128), tokens);
                launches.push(matmul(chip, group, x, tokens, tile)?);
            }
        }
    }
    Ok(launches)
}

pub(super) fn kernel_parts(parts: &[Part]) -> [ProductPart; PARTS_MAX] {
    let mut out = [ProductPart::default(); PARTS_MAX];
    for (out, part) in out.iter_mut().zip(parts) {
        *out = ProductPart {
            weight: part.weight.data,
            bias: part.bias,
            residual: part.residual.data,
            out: part.out.data,
            rows: part.weight.rows,
            out_stride: part.out.stride,
            residual_stride: part.residual.stride,
            reserved: 0,
        };
    }
    out
}

/// Warps that share a row: more where few rows would leave the device idle, but each with at least 32 units of work.
pub(super) fn split(rows: u32, units: u32) -> u32 {
    let wanted = WARPS_WANTED.div_ceil(rows.max(1));
    [4, 2].into_iter().find(|&s| s <= wanted.next_power_of_two() && units >= 32 * s).unwrap_or(1)
}

/// Blocks over all parts when one block takes `per_block` rows.
pub(super) fn row_blocks(parts: &[Part], per_block: u32) -> u32 {
    parts.iter().map(|part| part.weight.rows.div_ceil(per_block)).sum()
}

fn gemv(parts: &[Part], x: &Activations, tokens: u32) -> Result<Launch, KernelError> {
    let weight = parts[0].weight;
    let rows_per_warp = if tokens == 1 { 1 } else { 2 };
    let rows: u32 = parts.iter().map(|part| part.weight.rows).sum();
    let split = split(rows / rows_per_warp, weight.cols / 32);
    let args = GemvArgs {
        parts: kernel_parts(parts),
        x: x.data,
        x_scales: x.scales,
        row_bytes: weight.row_bytes()?,
        cols: weight.cols,
        tokens,
        n_parts: parts.len() as u32,
        split,
        x_stride: x.stride,
        ..GemvArgs::default()
    };
    let kernel = match tokens {
        1 => "gemv1",
        2 => "gemv2",
        _ => "gemv4",
    };
    let grid = [row_blocks(parts, GEMV_WARPS / split * rows_per_warp), 1, 1];
    Ok(Launch::new(module("gemv", weight.ty, weight.layout), kernel, grid, 32 * GEMV_WARPS, &args))
}

pub(super) fn float_module(ty: WeightType) -> &'static str {
    match ty {
        WeightType::F16 => "gemv_float_f16",
        WeightType::BF16 => "gemv_float_bf16",
        _ => "gemv_float_f32",
    }
}

fn gemv_float(parts: &[Part], x: &Activations, tokens: u32) -> Result<Launch, KernelError> {
    let weight = parts[0].weight;
    let rows: u32 = parts.iter().map(|part| part.weight.rows).sum();
    let groups = if tokens == 1 { 1 } else { tokens.div_ceil(4) };
    let split = split(rows.saturating_mul(groups), weight.cols / 8);
    let args = FloatGemvArgs {
        parts: kernel_parts(parts),
        x: x.data,
        row_bytes: weight.row_bytes()?,
        cols: weight.cols,
        tokens,
        n_parts: parts.len() as u32,
        split,
        x_stride: x.stride,
        ..FloatGemvArgs::default()
    };
    let kernel = if tokens == 1 { "gemv_float1" } else { "gemv_float4" };
    let grid = [row_blocks(parts, GEMV_WARPS / split), groups, 1];
    Ok(Launch::new(float_module(weight.ty), kernel, grid, 32 * GEMV_WARPS, &args))
}

fn skinny(parts: &[Part], x: &Activations, tokens: u32) -> Result<Launch, KernelError> {
    let weight = parts[0].weight;
    let args = SkinnyArgs {
        parts: kernel_parts(parts),
        x: x.data,
        row_scale: x.scales,
        row_bytes: weight.row_bytes()?,
        cols: weight.cols,
        tokens,
        n_parts: parts.len() as u32,
        x_stride: x.stride,
    };
    let kernel = match tokens.div_ceil(8) {
        0 | 1 => "skinny8",
        2 => "skinny16",
        _ => "skinny32",
    };
    let grid = [row_blocks(parts, 16), 1, 1];
    Ok(Launch::new(module("skinny", weight.ty, weight.layout), kernel, grid, 256, &args))
}

/// Which of the tensor-core matrix kernels a GPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Chip {
    /// `matmul.cu`: compute capability 8.0 and later.
    Portable,
    /// `matmul_sm90.cu` where it exists for a type: compute capability 9.0, whose own instructions no other has.
    Sm90,
}

impl Chip {
    /// By compute capability.
    pub fn of(capability: (u32, u32)) -> Chip {
        if capability == (9, 0) { Chip::Sm90 } else { Chip::Portable }
    }

    /// Module of the matrix kernels of a type and layout, and for which chip it is.
    pub(super) fn matmul_module(self, ty: WeightType, layout: GpuLayout) -> (Chip, &'static str) {
        match (self, module("matmul_sm90", ty, layout)) {
            (Chip::Portable, _) | (_, MISSING) => (Chip::Portable, module("matmul", ty, layout)),
            (Chip::Sm90, name) => (Chip::Sm90, name),
        }
    }
}

/// Multiprocessors of the GPUs of [`Chip::Sm90`].
const SM90_MULTIPROCESSORS: u64 = 132;

/// Tokens of one block of the tensor-core matrix kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenTile {
    /// Two blocks run on a multiprocessor at once.
    T64,
    /// Twice the tokens.
    T128,
    /// Between the two; [`Chip::Sm90`] only.
    T192,
    /// The fewest passes over weights and shared memory.
    T256,
}

impl TokenTile {
    /// All, smallest first.
    pub const ALL: [TokenTile; 4] = [TokenTile::T64, TokenTile::T128, TokenTile::T192, TokenTile::T256];

    /// Whether a chip's kernels have this tile.
    pub fn exists_on(self, chip: Chip) -> bool {
        chip == Chip::Sm90 || self != TokenTile::T192
    }

    /// The tile for products of so many blocks of 128 rows: the one whose waves over the multiprocessors take least.
    pub fn for_shape(chip: Chip, ty: WeightType, row_blocks: u32, tokens: u32) -> TokenTile {
        // In proportion to measured times of 5120 -> 17408 by 2048 tokens over their waves.
        let step_cycles: [u32; 4] = match (chip, ty) {
            (Chip::Portable, _) => return TokenTile::portable(row_blocks, tokens),
            (_, ty) if ty.is_plain() => [485, 855, 1282, 1614],
            (_, WeightType::Q4_K | WeightType::Q5_K) => [715, 1090, 1520, 1800],
            (_, WeightType::Q3_K) => [1140, 1900, 1450, 1800],
            (_, WeightType::Q6_K) => [795, 1310, 1500, 1880],
            _ => [730, 1030, 2010, 1770],
        };
        let cycles = |(tile, step_cycles): (TokenTile, u32)| {
            let blocks = u64::from(row_blocks) * u64::from(tokens.div_ceil(tile.tokens()));
            blocks.div_ceil(SM90_MULTIPROCESSORS) * u64::from(step_cycles)
        };
        let tiles = TokenTile::ALL.into_iter().zip(step_cycles);
        tiles.min_by_key(|&tile| cycles(tile)).map_or(TokenTile::T128, |(tile, _)| tile)
    }

    fn portable(row_blocks: u32, tokens: u32) -> TokenTile {
        match tokens {
            0..=64 => TokenTile::T64,
            65..=128 => TokenTile::T128,
            _ if row_blocks * tokens.div_ceil(256) >= 64 => TokenTile::T256,
            _ => TokenTile::T128,
        }
    }

    /// Tokens.
    pub fn tokens(self) -> u32 {
        match self {
            TokenTile::T64 => 64,
            TokenTile::T128 => 128,
            TokenTile::T192 => 192,
            TokenTile::T256 => 256,
        }
    }

    pub(super) fn kernel(self) -> &'static str {
        match self {
            TokenTile::T64 => "matmul64",
            TokenTile::T128 => "matmul128",
            TokenTile::T192 => "matmul192",
            TokenTile::T256 => "matmul256",
        }
    }

    /// Weight tiles of 128 rows and activation tiles, 128 bytes a row; on [`Chip::Sm90`] also the rows' numbers, and
    /// for large tiles of K-quants two superblocks of 128 rows in pieces of 16 bytes (`weights.cuh`).
    pub(super) fn shared_bytes(self, chip: Chip, ty: WeightType) -> u32 {
        let tokens = self.tokens();
        let pieces = match ty {
            WeightType::Q3_K | WeightType::Q4_K if tokens >= 192 => 9,
            WeightType::Q5_K if tokens >= 192 => 11,
            WeightType::Q6_K if tokens >= 192 => 14,
            _ => 0,
        };
        let (weight_tiles, token_tiles) = match (ty.is_plain(), self) {
            _ if chip == Chip::Portable => {
                return 128 * (2 * 128 + if self == TokenTile::T256 { 2 } else { 3 } * tokens);
            }
            (true, TokenTile::T128) => (6, 6),
            (true, TokenTile::T192) => (5, 5),
            (true, _) => (4, 4),
            (false, TokenTile::T64) => (3, 6),
            (false, TokenTile::T128) => (3, 4),
            (false, TokenTile::T192) => (3, if pieces > 0 { 5 } else { 6 }),
            (false, TokenTile::T256) => (
                3,
                if pieces > 11 {
                    3
                } else if pieces > 0 {
                    4
                } else {
                    5
                },
            ),
        };
        128 * (weight_tiles * 128 + token_tiles * tokens + 2 * 16 * pieces) + 4 * tokens
    }
}

/// A launch of the matrix kernels over so many token tiles; `args` lacks the parts.
pub(super) fn matmul_launch(
    chip: Chip,
    parts: &[Part],
    tile: TokenTile,
    token_tiles: u32,
    args: MatmulArgs,
) -> Result<Launch, KernelError> {
    let weight = parts[0].weight;
    let (chip, module) = chip.matmul_module(weight.ty, weight.layout);
    let args = MatmulArgs {
        parts: kernel_parts(parts),
        n_parts: parts.len() as u32,
        row_bytes: weight.row_bytes()?,
        cols: weight.cols,
        ..args
    };
    let grid = [token_tiles, row_blocks(parts, 128), 1];
    Ok(Launch::new(module, tile.kernel(), grid, 256, &args).with_shared(tile.shared_bytes(chip, weight.ty)))
}

/// The launch of up to [`PARTS_MAX`] products with a given token tile, which the chip must have for the weights' type.
/// The parts are of one type, layout and column count.
///
/// # Errors
/// Columns that are no whole number of blocks.
pub fn matmul(
    chip: Chip,
    parts: &[Part],
    x: &Activations,
    tokens: u32,
    tile: TokenTile,
) -> Result<Launch, KernelError> {
    let args = MatmulArgs { x: x.data, row_scale: x.scales, tokens, chosen: 1, ..MatmulArgs::default() };
    matmul_launch(chip, parts, tile, tokens.div_ceil(tile.tokens()), args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_module_for_every_type_and_layout() {
        for ty in WeightType::ALL.into_iter().filter(|&ty| ty != WeightType::F32) {
            for layout in [GpuLayout::Gguf, GpuLayout::Tiled] {
                for family in ["embed", "skinny", "matmul"] {
                    assert_ne!(module(family, ty, layout), "missing", "{family} {ty} {layout:?}");
                }
                assert!(ty.is_plain() || module("gemv", ty, layout) != "missing", "{ty} {layout:?}");
            }
        }
    }

    #[test]
    fn the_last_wave_of_blocks_is_not_wasted() {
        use TokenTile::{T64, T128, T192, T256};
        for (chip, ty, rows, tokens, expected) in [
            (Chip::Portable, WeightType::Q4_K, 17408, 512, T256),
            (Chip::Portable, WeightType::Q4_K, 1024, 512, T128),
            (Chip::Sm90, WeightType::Q4_K, 17408, 2048, T256),
            (Chip::Sm90, WeightType::Q4_K, 5120, 512, T192),
            (Chip::Sm90, WeightType::Q4_K, 1024, 2048, T128),
            (Chip::Sm90, WeightType::Q4_K, 5120, 40, T64),
            (Chip::Sm90, WeightType::F16, 17408, 512, T128),
            (Chip::Sm90, WeightType::Q6_K, 5120, 2048, T256),
        ] {
            assert_eq!(TokenTile::for_shape(chip, ty, rows / 128, tokens), expected, "{chip:?} {ty} {rows} x {tokens}");
        }
    }

    #[test]
    fn every_tile_fits_the_shared_memory_of_its_chip() {
        for ty in WeightType::ALL.into_iter().filter(|&ty| ty != WeightType::F32) {
            for (chip, most) in [(Chip::Portable, 99 << 10), (Chip::Sm90, 227 << 10)] {
                for tile in TokenTile::ALL.into_iter().filter(|tile| tile.exists_on(chip)) {
                    assert!(tile.shared_bytes(chip, ty) <= most, "{chip:?} {ty} {tile:?}");
                }
            }
        }
    }

    #[test]
    fn warps_share_rows_only_where_rows_are_few_and_long() {
        for (rows, cols, expected) in
            [(1024, 5120, 4), (1024, 1024, 1), (2048, 5120, 2), (17408, 5120, 1), (5120, 17408, 1), (128, 2048, 2)]
        {
            assert_eq!(split(rows, cols / 32), expected, "{rows} x {cols}");
        }
    }
}
