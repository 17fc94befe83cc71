//! Block types: the inner loop over a tile of tokens, and the two ways to walk a matrix. Next: `plain.rs`.

use std::arch::x86_64::*;
use std::ops::Range;

use super::weights::{GROUPS, Packed, Scales};
use crate::cpu::matmul::{ACT_BLOCK_BYTES, Product, Source};
use crate::quant::{CHUNK_COLS, PANEL_ROWS, SUB_COLS};

/// Sub-blocks of a whole chunk.
const CHUNK_SUBS: usize = CHUNK_COLS / SUB_COLS;

/// Most tokens of a tile.
const TILE_TOKENS: usize = 8;

/// Chunks unpacked at a time for many tokens: 16 KiB of bytes, which the first cache keeps beside the activations.
const BLOCK_CHUNKS: usize = 4;

/// Tokens for which an unpacked piece is used before the next one: their activations stay in the second cache.
const BLOCK_TOKENS: usize = 512;

/// How far ahead weights are prefetched: 2 KiB is too little, 4 to 8 KiB are equally good, more pushes data out of the
/// first cache.
const PREFETCH_BYTES: usize = 6 << 10;

/// A tile's operands: activations of its first token, and the first token's result for the first row of a panel.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub act: *const u8,
    pub act_stride_bytes: usize,
    pub out: *mut f32,
    pub out_stride: usize,
}

impl Tile {
    /// The tile at `token` of a product, for the rows of `panel`.
    ///
    /// # Safety
    /// Both exist in the product.
    #[inline(always)]
    pub(super) unsafe fn new(product: &Product, panel: usize, token: usize) -> Tile {
        let (act_stride_bytes, out_stride) = (product.act_stride_bytes, product.out.stride());
        // SAFETY: `Product::new` checked that both buffers hold every token.
        unsafe {
            Tile {
                act: product.acts.as_ptr().add(token * act_stride_bytes),
                act_stride_bytes,
                out: product.out.start().add(token * out_stride + panel * PANEL_ROWS),
                out_stride,
            }
        }
    }
}

/// The rows of a panel that exist, as a mask of lanes, and their bias.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub mask: __mmask16,
    pub bias: Option<__m512>,
}

impl Lanes {
    /// # Safety
    /// The machine has AVX-512 F; the panel exists.
    #[inline(always)]
    pub(super) unsafe fn new(product: &Product, panel: usize) -> Lanes {
        let rows = (product.weights.rows() - panel * PANEL_ROWS).min(PANEL_ROWS);
        let mask = (0xFFFF_u32 >> (PANEL_ROWS - rows)) as __mmask16;
        // SAFETY: only lanes of existing rows are read, and a bias has a value for each row.
        let bias =
            product.bias.map(|bias| unsafe { _mm512_maskz_loadu_ps(mask, bias.as_ptr().add(panel * PANEL_ROWS)) });
        Lanes { mask, bias }
    }

    /// Stores finished sums of `T` tokens, the bias added.
    ///
    /// # Safety
    /// `tile` has `T` tokens, and its rows belong to the caller.
    #[inline(always)]
    pub(super) unsafe fn finish<const T: usize>(&self, tile: Tile, acc: &[__m512; T]) {
        for (t, acc) in acc.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let sum = self.bias.map_or(*acc, |bias| _mm512_add_ps(*acc, bias));
                _mm512_mask_storeu_ps(tile.out.add(t * tile.out_stride), self.mask, sum);
            }
        }
    }
}

#[inline(always)]
unsafe fn broadcast_i32(at: *const u8) -> __m512i {
    // SAFETY: the caller points to 4 readable bytes.
    unsafe { _mm512_set1_epi32(at.cast::<i32>().read_unaligned()) }
}

#[inline(always)]
unsafe fn broadcast_f32(at: *const u8) -> __m512 {
    // SAFETY: the caller points to 4 readable bytes.
    unsafe { _mm512_set1_ps(at.cast::<f32>().read_unaligned()) }
}

/// The current block of activations of each token of a tile.
#[derive(Clone, Copy)]
struct Acts<const T: usize>([*const u8; T]);

impl<const T: usize> Acts<T> {
    /// The blocks of sub-block `sub`.
    #[inline(always)]
    fn new(tile: &Tile, sub: usize) -> Acts<T> {
        let mut acts = [tile.act.wrapping_add(sub * ACT_BLOCK_BYTES); T];
        for (t, act) in acts.iter_mut().enumerate() {
            *act = act.wrapping_add(t * tile.act_stride_bytes);
        }
        Acts(acts)
    }

    /// Goes on to the next block. Each token keeps a pointer in a register of its own: the compiler would rather add
    /// a common index to every address, and an instruction with an indexed operand takes two slots of the front end.
    #[inline(always)]
    fn advance(&mut self) {
        for act in &mut self.0 {
            *act = act.wrapping_add(ACT_BLOCK_BYTES);
            // SAFETY: no instruction; the compiler forgets how the pointer came about.
            unsafe { std::arch::asm!("/* {0} */", inout(reg) * act, options(pure, nomem, nostack, preserves_flags)) };
        }
    }
}

/// Integer dot products of vectors `FROM..TO` with `T` tokens; `start` is where each token's start value lies.
#[inline(always)]
unsafe fn dots<W: Packed, const T: usize, const FROM: usize, const TO: usize>(
    quants: &[__m512i; GROUPS],
    acts: &Acts<T>,
    start: impl Fn(*const u8) -> __m512i,
) -> [__m512i; T] {
    // SAFETY: `acts` point to the blocks of `T` tokens.
    unsafe {
        let mut dots = [_mm512_setzero_si512(); T];
        if W::BIASED {
            for (dot, act) in dots.iter_mut().zip(acts.0) {
                *dot = start(act);
            }
        }
        for g in FROM..TO {
            for (dot, act) in dots.iter_mut().zip(acts.0) {
                *dot = _mm512_dpbusd_epi32(*dot, quants[g], broadcast_i32(act.add(4 * g)));
            }
        }
        dots
    }
}

/// Asks for the lines of the `bytes` bytes that lie [`PREFETCH_BYTES`] ahead of `at`.
///
/// The hardware's own prefetcher stops at each page and runs too few lines ahead of code that computes between loads:
/// a plain read's rate is reached only with this (measured on Sapphire Rapids: Q4_0 0.58 of it without, 0.88 with).
///
/// # Safety
/// None but the features: a prefetch of any address is harmless.
#[inline(always)]
pub(super) unsafe fn prefetch(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: see above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES + line).cast()) };
    }
}

/// Adds a sub-block to the sums of `T` tokens, in the order of operations of `cpu/matmul/scalar.rs`.
///
/// # Safety
/// `acts` point to the sub-block's activations; the machine has the features of AVX-512 here.
#[inline(always)]
unsafe fn add_sub_block<W: Packed, const T: usize>(
    acc: &mut [__m512; T],
    quants: &[__m512i; GROUPS],
    scales: &Scales,
    sub: usize,
    acts: &Acts<T>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if W::HALVES {
            return add_halves::<W, T>(acc, quants, scales, sub, acts);
        }
        let dots = dots::<W, T, 0, GROUPS>(quants, acts, |act| broadcast_i32(act.add(40)));
        let scale = _mm512_load_ps(scales.scale[sub].as_ptr());
        let min = _mm512_load_ps(scales.min[sub].as_ptr());
        for (t, act) in acts.0.into_iter().enumerate() {
            let dot = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[t]), scale);
            acc[t] = _mm512_fmadd_ps(dot, broadcast_f32(act.add(32)), acc[t]);
            if W::MINS {
                acc[t] = _mm512_fmadd_ps(min, broadcast_f32(act.add(36)), acc[t]);
            }
        }
    }
}

/// [`add_sub_block`] for types with scales per 16 columns.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn add_halves<W: Packed, const T: usize>(
    acc: &mut [__m512; T],
    quants: &[__m512i; GROUPS],
    scales: &Scales,
    sub: usize,
    acts: &Acts<T>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let sum_low = |act: *const u8| broadcast_i32(act.add(44));
        let sum_high = |act: *const u8| _mm512_sub_epi32(broadcast_i32(act.add(40)), broadcast_i32(act.add(44)));
        let low = dots::<W, T, 0, { GROUPS / 2 }>(quants, acts, sum_low);
        let high = dots::<W, T, { GROUPS / 2 }, GROUPS>(quants, acts, sum_high);
        let half = |table: &[[f32; 16]; 16], half: usize| _mm512_load_ps(table[2 * sub + half].as_ptr());
        for (t, act) in acts.0.into_iter().enumerate() {
            let mut dot = _mm512_mul_ps(_mm512_cvtepi32_ps(low[t]), half(&scales.scale, 0));
            dot = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[t]), half(&scales.scale, 1), dot);
            if W::MINS {
                dot = _mm512_fmadd_ps(half(&scales.min, 0), _mm512_cvtepi32_ps(sum_low(act)), dot);
                dot = _mm512_fmadd_ps(half(&scales.min, 1), _mm512_cvtepi32_ps(sum_high(act)), dot);
            }
            acc[t] = _mm512_fmadd_ps(dot, broadcast_f32(act.add(32)), acc[t]);
        }
    }
}

/// Computes the rows of `panels`. The only entry of this file.
///
/// # Safety
/// As [`super::matmul`].
pub(super) unsafe fn run<W: Packed>(product: &Product, panels: Range<usize>) {
    // SAFETY: the caller's contract.
    unsafe {
        if product.n_tokens > TILE_TOKENS {
            return blocked::<W>(product, panels);
        }
        for panel in panels {
            direct_tokens::<W>(product, panel);
        }
    }
}

/// All tokens of a small batch for one panel.
#[inline(always)]
unsafe fn direct_tokens<W: Packed>(product: &Product, panel: usize) {
    // SAFETY: the caller's contract; tiles cover 0..n_tokens.
    unsafe {
        let mut token = 0;
        while token < product.n_tokens {
            token += match product.n_tokens - token {
                8.. => direct::<W, 8>(product, panel, token),
                4..8 => direct::<W, 4>(product, panel, token),
                3 => direct::<W, 3>(product, panel, token),
                2 => direct::<W, 2>(product, panel, token),
                _ => direct::<W, 1>(product, panel, token),
            };
        }
    }
}

/// `T` tokens from `token` on, weights unpacked in registers. Returns `T`.
///
/// # Safety
/// As [`super::matmul`]; `T` tokens exist from `token` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")]
unsafe fn direct<W: Packed, const T: usize>(product: &Product, panel: usize, token: usize) -> usize {
    let source = Source::new(&product.weights);
    let mut buffer = None;
    let mut scales = Scales::ZERO;
    // SAFETY: the caller's contract; chunks and sub-blocks are those of the matrix.
    unsafe {
        let tile = Tile::new(product, panel, token);
        let mut acc = [_mm512_setzero_ps(); T];
        let mut acts = Acts::new(&tile, 0);
        for chunk in 0..source.chunks() {
            let subs = source.chunk_cols(chunk) / SUB_COLS;
            let chunk = source.chunk(panel, chunk, &mut buffer).as_ptr();
            W::scales(chunk, subs, &mut scales);
            for sub in 0..subs {
                prefetch(chunk.wrapping_add(sub * W::SUB_BYTES), W::SUB_BYTES);
                let quants = W::quants(chunk, subs, sub);
                add_sub_block::<W, T>(&mut acc, &quants, &scales, sub, &acts);
                acts.advance();
            }
        }
        Lanes::new(product, panel).finish(tile, &acc);
    }
    T
}

/// Unpacked weights of some chunks of one panel.
#[repr(C, align(64))]
struct Unpacked {
    quants: [[__m512i; GROUPS]; BLOCK_CHUNKS * CHUNK_SUBS],
    scales: [Scales; BLOCK_CHUNKS],
    subs: usize,
}

impl Unpacked {
    /// # Safety
    /// The machine has AVX-512 F.
    #[target_feature(enable = "avx512f")]
    fn new() -> Unpacked {
        Unpacked {
            quants: [[_mm512_setzero_si512(); GROUPS]; BLOCK_CHUNKS * CHUNK_SUBS],
            scales: [const { Scales::ZERO }; BLOCK_CHUNKS],
            subs: 0,
        }
    }

    /// # Safety
    /// As [`super::matmul`]; the chunks exist.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    unsafe fn fill<W: Packed>(&mut self, source: &Source, panel: usize, chunks: Range<usize>) {
        let mut buffer = None;
        self.subs = 0;
        for (chunk, scales) in chunks.zip(&mut self.scales) {
            let subs = source.chunk_cols(chunk) / SUB_COLS;
            let chunk = source.chunk(panel, chunk, &mut buffer).as_ptr();
            // SAFETY: the chunk has `subs` sub-blocks.
            unsafe {
                W::scales(chunk, subs, scales);
                for sub in 0..subs {
                    self.quants[self.subs] = W::quants(chunk, subs, sub);
                    self.subs += 1;
                }
            }
        }
    }
}

/// Many tokens: blocks of tokens, of columns, panels, tiles, from the outside in.
///
/// # Safety
/// As [`super::matmul`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")]
unsafe fn blocked<W: Packed>(product: &Product, panels: Range<usize>) {
    let source = Source::new(&product.weights);
    let mut unpacked = Unpacked::new();
    for first in (0..product.n_tokens).step_by(BLOCK_TOKENS) {
        let tokens = first..product.n_tokens.min(first + BLOCK_TOKENS);
        for chunk in (0..source.chunks()).step_by(BLOCK_CHUNKS) {
            let chunks = chunk..source.chunks().min(chunk + BLOCK_CHUNKS);
            for panel in panels.clone() {
                // SAFETY: the caller's contract.
                unsafe {
                    unpacked.fill::<W>(&source, panel, chunks.clone());
                    block_tokens::<W>(product, panel, tokens.clone(), &unpacked, chunks.clone());
                }
            }
        }
    }
}

/// All tiles of a block of tokens.
#[inline(always)]
unsafe fn block_tokens<W: Packed>(
    product: &Product,
    panel: usize,
    tokens: Range<usize>,
    unpacked: &Unpacked,
    chunks: Range<usize>,
) {
    let mut token = tokens.start;
    // SAFETY: the caller's contract; tiles cover `tokens`.
    unsafe {
        while token < tokens.end {
            token += match tokens.end - token {
                8.. => tile::<W, 8>(product, panel, token, unpacked, chunks.clone()),
                4..8 => tile::<W, 4>(product, panel, token, unpacked, chunks.clone()),
                2..4 => tile::<W, 2>(product, panel, token, unpacked, chunks.clone()),
                _ => tile::<W, 1>(product, panel, token, unpacked, chunks.clone()),
            };
        }
    }
}

/// `T` tokens with unpacked weights; the sums so far wait in the output. Returns `T`.
///
/// # Safety
/// As [`super::matmul`]; `T` tokens exist from `token` on; `unpacked` holds `chunks` of `panel`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")]
unsafe fn tile<W: Packed, const T: usize>(
    product: &Product,
    panel: usize,
    token: usize,
    unpacked: &Unpacked,
    chunks: Range<usize>,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let tile = Tile::new(product, panel, token);
        let lanes = Lanes::new(product, panel);
        let mut acc: [__m512; T] = [_mm512_setzero_ps(); T];
        if chunks.start > 0 {
            acc = std::array::from_fn(|t| _mm512_maskz_loadu_ps(lanes.mask, tile.out.add(t * tile.out_stride)));
        }
        let mut acts = Acts::new(&tile, chunks.start * CHUNK_SUBS);
        for (i, quants) in unpacked.quants[..unpacked.subs].iter().enumerate() {
            let scales = &unpacked.scales[i / CHUNK_SUBS];
            add_sub_block::<W, T>(&mut acc, quants, scales, i % CHUNK_SUBS, &acts);
            acts.advance();
        }
        let last = chunks.end == Source::new(&product.weights).chunks();
        let lanes = if last { lanes } else { Lanes { bias: None, ..lanes } };
        lanes.finish(tile, &acc);
    }
    T
}
