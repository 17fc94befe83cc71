//! The maker's memory: constants, forms of activations, sorted routings, partial results of attention. Offsets follow
//! from program and sizes alone; those of the constants, which come first, from the program. Next: `acts.rs`.

use super::acts::Group;
use crate::Error;
use crate::hybrid::ops::Sizes;
use kernels::cpu::ops::kv::KV_BLOCK;
use kernels::cuda::attention::{Method, Partials};
use kernels::cuda::experts::Sorted;
use kernels::cuda::ops::CacheType;
use plan_format::program::{OpKind, Program};

/// Tokens that attention by splits takes at once where the tiled kernel takes the others.
const ROOM_TOKENS: u64 = 8;
/// The same for shapes that have no tiled kernel.
const ROOM_TOKENS_WITHOUT_TILES: u64 = 16;
/// Most bytes of partial results, as long as one token fits.
const PARTIAL_BYTES_MAX: u64 = 64 << 20;
const ALIGNMENT_BYTES: u64 = 256;

/// Offsets from the start of the scratch.
#[derive(Debug)]
pub struct Scratch {
    /// Products' inputs with the place of their forms.
    pub groups: Vec<Group>,
    /// I32 \[tokens · chosen\].
    pub order: u64,
    /// 16 bytes per tile of experts.
    pub tiles: u64,
    /// U32.
    pub n_tiles: u64,
    /// Partial results of attention.
    pub partial_sums: u64,
    /// Bytes of these.
    pub partial_sum_bytes: u64,
    /// Their maxima and sums.
    pub partial_scales: u64,
    /// F64 \[pairs\] of each rotary table.
    pub turns: Vec<u64>,
    /// I32 {0, 1, 2, …}: heads in order, as if they were chosen.
    pub head_ids: u64,
    /// How many.
    pub heads: u32,
    /// All of it.
    pub total_bytes: u64,
}

/// Takes bytes one after the other.
struct Bump(u64);

impl Bump {
    fn take(&mut self, bytes: u64) -> u64 {
        let at = self.0;
        self.0 = (at + bytes).next_multiple_of(ALIGNMENT_BYTES);
        at
    }
}

impl Scratch {
    /// Lays out the memory for rounds of a program.
    ///
    /// # Errors
    /// A weight of a type without kernels.
    pub fn new(program: &Program, sizes: &Sizes) -> Result<Scratch, Error> {
        let heads = program.ops.iter().map(|op| heads(&op.kind)).max().unwrap_or(0);
        let mut constants = Bump(0);
        let turns = program.ropes.iter().map(|rope| constants.take(u64::from(rope.n_rot) / 2 * 8)).collect();
        let head_ids = constants.take(4 * u64::from(heads));
        let mut groups = super::acts::groups(program, sizes)?;
        let mut bump = Bump(super::acts::place(&mut groups, constants.0));
        let tokens = sizes.limits.ubatch_tokens;
        let (mut entries, mut tiles) = (0, 0);
        let (mut sum_bytes, mut scale_bytes) = (0, 0);
        for op in &program.ops {
            match &op.kind {
                OpKind::ExpertMatMul { chosen, parts, .. } => {
                    let experts = parts.first().map_or(1, |part| stack(program, part.weight));
                    entries = entries.max(tokens * chosen);
                    tiles = tiles.max(tiles_max(tokens * chosen, experts));
                }
                OpKind::HeadMatMul { heads: count, .. } => {
                    entries = entries.max(tokens * count);
                    tiles = tiles.max(tiles_max(tokens * count, *count));
                }
                OpKind::Attention { attention, .. } => {
                    let shape = crate::exec::terms::attention_shape(attention);
                    let (sums, scales) = Partials::bytes_per_token(&shape, slots_max(sizes));
                    let cache = if sizes.kv_bytes == 2 { CacheType::F16 } else { CacheType::F32 };
                    let most = match Method::for_shape(&shape, cache, u32::MAX) {
                        Method::Split => ROOM_TOKENS_WITHOUT_TILES,
                        _ => ROOM_TOKENS,
                    };
                    let room = (PARTIAL_BYTES_MAX / sums.max(1)).clamp(1, most);
                    sum_bytes = sum_bytes.max(sums * room);
                    scale_bytes = scale_bytes.max(scales * room);
                }
                _ => {}
            }
        }
        Ok(Scratch {
            groups,
            order: bump.take(4 * u64::from(entries)),
            tiles: bump.take(16 * u64::from(tiles)),
            n_tiles: bump.take(4),
            partial_sums: bump.take(sum_bytes),
            partial_sum_bytes: sum_bytes,
            partial_scales: bump.take(scale_bytes),
            turns,
            head_ids,
            heads,
            total_bytes: bump.take(0),
        })
    }
}

/// Heads that have matrices of their own.
fn heads(kind: &OpKind) -> u32 {
    match kind {
        OpKind::HeadMatMul { heads, .. } => *heads,
        _ => 0,
    }
}

/// Slots that a cache may have: whole sequences, or rings that are shorter.
fn slots_max(sizes: &Sizes) -> u32 {
    let of_one =
        (sizes.context_tokens + sizes.limits.ubatch_tokens).next_multiple_of(KV_BLOCK as u32) + KV_BLOCK as u32;
    of_one.saturating_mul(sizes.sequences.max(1))
}

/// Tiles of a sorted routing in the tile that needs most.
fn tiles_max(entries: u32, experts: u32) -> u32 {
    Sorted::tiles_max(kernels::cuda::product::TokenTile::T64, entries, experts)
}

/// Matrices of a stack.
pub fn stack(program: &Program, weight: plan_format::WeightId) -> u32 {
    program.held(weight).dims[2] as u32
}
