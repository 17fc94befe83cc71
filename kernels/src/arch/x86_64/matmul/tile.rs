//! Block types: the inner loop over a tile of tokens, and the two ways to walk a matrix. Next: `plain.rs`.

use std::arch::asm;
use std::ops::Range;

use super::engine::Engine;
use super::packed::{Codes, GROUPS, Packed, Scales, raised};
use super::simd::{Simd, Span};
use crate::cpu::matmul::{ACT_BLOCK_BYTES, Product, Source};
use crate::quant::{CHUNK_COLS, PANEL_ROWS, SUB_COLS};

/// Sub-blocks of a whole chunk.
const CHUNK_SUBS: usize = CHUNK_COLS / SUB_COLS;

/// Chunks unpacked at a time for many tokens: 16 KiB of bytes, which the first cache keeps beside the activations.
const BLOCK_CHUNKS: usize = 4;

/// Tokens up to which one chunk is unpacked at a time, so that reading memory and computing take turns quickly.
const FEW_TOKENS: usize = 16;

/// Sub-blocks unpacked at a time.
const BLOCK_SUBS: usize = BLOCK_CHUNKS * CHUNK_SUBS;

/// Tokens for which an unpacked piece is used before the next one: their activations stay in the second cache.
pub(crate) const BLOCK_TOKENS: usize = 512;

/// How far ahead weights are prefetched: 2 KiB is too little, 4 to 8 KiB are equally good, more pushes data out of the
/// first cache.
const PREFETCH_BYTES: usize = 6 << 10;

/// A tile of a product: some tokens' activations, and where their results for the rows of a panel go.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    product: &'a Product<'a>,
    pub act: *const u8,
    pub act_stride_bytes: usize,
    out: *mut f32,
    panel: usize,
}

impl<'a> Tile<'a> {
    /// The tile at `token` for the rows of `panel`.
    ///
    /// # Safety
    /// Both exist in the product.
    #[inline(always)]
    pub(crate) unsafe fn new(product: &'a Product<'a>, panel: usize, token: usize) -> Tile<'a> {
        let act_stride_bytes = product.act_stride_bytes;
        // SAFETY: `Product::new` checked that both buffers hold every token.
        unsafe {
            let act = product.acts.as_ptr().add(token * act_stride_bytes);
            let out = product.out.start().add(token * product.out.stride() + panel * PANEL_ROWS);
            Tile { product, act, act_stride_bytes, out, panel }
        }
    }

    /// Rows of the panel that exist, of those from `lane` on, at most a vector.
    #[inline(always)]
    fn rows<S: Simd>(&self, lane: usize) -> usize {
        (self.product.weights.rows() - self.panel * PANEL_ROWS).saturating_sub(lane).min(S::LANES)
    }

    /// The sums that `store` left of `T` tokens in `P` vectors.
    ///
    /// # Safety
    /// The tile has `T` tokens, and its rows belong to the caller.
    #[inline(always)]
    pub(crate) unsafe fn load<S: Simd, const T: usize, const P: usize>(&self) -> [[S::Float; T]; P] {
        // SAFETY: only existing rows are read.
        unsafe {
            let mut acc = [[S::zero(); T]; P];
            for (part, acc) in acc.iter_mut().enumerate() {
                for (t, acc) in acc.iter_mut().enumerate() {
                    let at = self.out.wrapping_add(t * self.product.out.stride() + part * S::LANES);
                    *acc = S::load_rows(at, self.rows::<S>(part * S::LANES));
                }
            }
            acc
        }
    }

    /// Stores sums of `T` tokens; the bias is added if they are `finished`.
    ///
    /// # Safety
    /// As [`Tile::load`].
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd, const T: usize, const P: usize>(&self, acc: &[[S::Float; T]; P], state: Sums) {
        // SAFETY: only existing rows are written, and a bias has a value for each row.
        unsafe {
            for (part, acc) in acc.iter().enumerate() {
                let (lane, rows) = (part * S::LANES, self.rows::<S>(part * S::LANES));
                let bias = match (self.product.bias, state) {
                    (Some(bias), Sums::Finished) => {
                        Some(S::load_rows(bias.as_ptr().wrapping_add(self.panel * PANEL_ROWS + lane), rows))
                    }
                    _ => None,
                };
                for (t, acc) in acc.iter().enumerate() {
                    let sum = if let Some(bias) = bias { S::add(*acc, bias) } else { *acc };
                    S::store_rows(self.out.wrapping_add(t * self.product.out.stride() + lane), sum, rows);
                }
            }
        }
    }
}

/// Whether sums have all their columns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums {
    /// More columns follow.
    Partial,
    /// All columns are in.
    Finished,
}

impl Sums {
    /// The state after chunk `end - 1` of a matrix.
    #[inline(always)]
    pub(crate) fn after(end: usize, source: &Source) -> Sums {
        if end == source.chunks() { Sums::Finished } else { Sums::Partial }
    }
}

/// The current activations of each token of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Acts<const T: usize>(pub [*const u8; T]);

impl<const T: usize> Acts<T> {
    /// The activations at `offset_bytes` of each token's row.
    #[inline(always)]
    pub(crate) fn new(tile: &Tile, offset_bytes: usize) -> Acts<T> {
        let mut acts = [tile.act.wrapping_add(offset_bytes); T];
        for (t, act) in acts.iter_mut().enumerate() {
            *act = act.wrapping_add(t * tile.act_stride_bytes);
        }
        Acts(acts)
    }

    /// Goes on by `bytes`. Each token keeps a pointer in a register of its own: the compiler would rather add a common
    /// index to every address, and an instruction with an indexed operand takes two slots of the front end.
    #[inline(always)]
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "the block is empty: it follows no pointer")]
    pub(crate) fn advance(&mut self, bytes: usize) {
        for act in &mut self.0 {
            *act = act.wrapping_add(bytes);
            // SAFETY: no instruction; the compiler forgets how the pointer came about.
            unsafe { asm!("/* {0} */", inout(reg) * act, options(pure, nomem, nostack, preserves_flags)) };
        }
    }
}

/// Asks for `lines` lines from [`PREFETCH_BYTES`] after `at` on.
///
/// The hardware's own prefetcher stops at each page and runs too few lines ahead of code that computes between loads:
/// a plain read's rate is reached only with this (measured on Sapphire Rapids: Q4_0 0.58 of it without, 0.88 with).
///
/// # Safety
/// The machine has `S`; a prefetch of any address is harmless.
#[inline(always)]
pub(crate) unsafe fn prefetch<S: Simd>(at: *const u8, lines: usize) {
    for line in 0..lines {
        // SAFETY: see above.
        unsafe { S::prefetch(at.wrapping_add(PREFETCH_BYTES + 64 * line)) };
    }
}

/// Adds a sub-block to the sums of `T` tokens in the rows of one vector, in the order of operations of
/// `cpu/matmul/scalar.rs`.
///
/// # Safety
/// The machine has `S`, `acts` point to the sub-block's activations, and `lane` is a vector's first row.
#[inline(always)]
unsafe fn add_sub_block<S: Simd, C: Codes, const T: usize>(
    acc: &mut [S::Float; T],
    quants: &[S::Int; GROUPS],
    scales: &Scales,
    (sub, lane): (usize, usize),
    acts: &Acts<T>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if C::HALVES {
            return add_halves::<S, C, T>(acc, quants, scales, (sub, lane), acts);
        }
        let dots = S::dots::<C, T>(Span::Whole, quants, &acts.0);
        let scale = S::load_f32(scales.scale[sub].as_ptr().add(lane));
        for (t, act) in acts.0.into_iter().enumerate() {
            let dot = S::mul(S::to_float(dots[t]), scale);
            acc[t] = S::fma(dot, S::broadcast_f32(act.add(32)), acc[t]);
        }
        if C::MINS {
            let min = S::load_f32(scales.min[sub].as_ptr().add(lane));
            for (t, act) in acts.0.into_iter().enumerate() {
                acc[t] = S::fma(min, S::broadcast_f32(act.add(36)), acc[t]);
            }
        }
    }
}

/// [`add_sub_block`] for types with scales per 16 columns.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn add_halves<S: Simd, C: Codes, const T: usize>(
    acc: &mut [S::Float; T],
    quants: &[S::Int; GROUPS],
    scales: &Scales,
    (sub, lane): (usize, usize),
    acts: &Acts<T>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let low = S::dots::<C, T>(Span::Low, quants, &acts.0);
        let high = S::dots::<C, T>(Span::High, quants, &acts.0);
        let [scale_low, scale_high] = [0, 1].map(|half| scales.scale[2 * sub + half].as_ptr().add(lane));
        let [min_low, min_high] = [0, 1].map(|half| scales.min[2 * sub + half].as_ptr().add(lane));
        for (t, act) in acts.0.into_iter().enumerate() {
            let mut dot = S::mul(S::to_float(low[t]), S::load_f32(scale_low));
            dot = S::fma(S::to_float(high[t]), S::load_f32(scale_high), dot);
            if C::MINS {
                let (whole, low) = (S::broadcast32(act.add(40)), S::broadcast32(act.add(44)));
                dot = S::fma(S::load_f32(min_low), S::to_float(low), dot);
                dot = S::fma(S::load_f32(min_high), S::to_float(S::sub32(whole, low)), dot);
            }
            acc[t] = S::fma(dot, S::broadcast_f32(act.add(32)), acc[t]);
        }
    }
}

/// Computes the rows of `panels`. The entry of this file.
///
/// # Safety
/// As `matmul` of the engine's module.
pub(crate) unsafe fn run<E: Engine, W: Packed>(product: &Product, panels: Range<usize>) {
    // SAFETY: the caller's contract; tiles cover 0..n_tokens.
    unsafe {
        if product.n_tokens > E::DIRECT_TOKENS {
            return blocked::<E, W>(product, panels);
        }
        for panel in panels {
            let mut token = 0;
            while token < product.n_tokens {
                token += E::direct::<W>(product, panel, token);
            }
        }
    }
}

/// `T` tokens from `token` on, weights unpacked in registers, for the `P` vectors of a panel. Returns `T`.
///
/// # Safety
/// As [`run`]; `T` tokens exist from `token` on.
#[inline(always)]
pub(crate) unsafe fn direct<S: Simd, W: Packed, const T: usize, const P: usize>(
    product: &Product,
    panel: usize,
    token: usize,
) -> usize {
    let source = Source::new(&product.weights);
    let mut buffer = None;
    let mut scales = Scales::ZERO;
    // SAFETY: the caller's contract; chunks and sub-blocks are those of the matrix.
    unsafe {
        let tile = Tile::new(product, panel, token);
        let mut acc = [[S::zero(); T]; P];
        let mut acts = Acts::new(&tile, 0);
        for chunk in 0..source.chunks() {
            let subs = source.chunk_cols(chunk) / SUB_COLS;
            let chunk = source.chunk(panel, chunk, &mut buffer).as_ptr();
            for part in 0..P {
                W::scales::<S>(chunk, subs, part * S::LANES, &mut scales);
            }
            for sub in 0..subs {
                prefetch::<S>(chunk.wrapping_add(sub * W::SUB_BYTES), W::SUB_BYTES.div_ceil(64));
                for (part, acc) in acc.iter_mut().enumerate() {
                    let lane = part * S::LANES;
                    let codes = W::codes::<S>(chunk, subs, sub, lane);
                    add_sub_block::<S, W::Narrow, T>(acc, &codes, &scales, (sub, lane), &acts);
                }
                acts.advance(ACT_BLOCK_BYTES);
            }
        }
        tile.store::<S, T, P>(&acc, Sums::Finished);
    }
    T
}

/// Unpacked weights of some chunks of one panel, for `P` vectors of rows.
#[repr(C, align(64))]
pub(crate) struct Unpacked<S: Simd, const P: usize> {
    quants: [[[S::Int; GROUPS]; P]; BLOCK_SUBS],
    scales: [Scales; BLOCK_CHUNKS],
    subs: usize,
    /// Where the packed weights lie, and lines of a sub-block of them.
    packed: *const u8,
    sub_lines: usize,
}

impl<S: Simd, const P: usize> Unpacked<S, P> {
    /// # Safety
    /// The machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Unpacked<S, P> {
        // SAFETY: the caller's contract.
        let zero = unsafe { S::splat8(0) };
        Unpacked {
            quants: [[[zero; GROUPS]; P]; BLOCK_SUBS],
            scales: [const { Scales::ZERO }; BLOCK_CHUNKS],
            subs: 0,
            packed: std::ptr::null(),
            sub_lines: 0,
        }
    }

    /// # Safety
    /// As [`run`]; the chunks exist and are at most [`BLOCK_CHUNKS`].
    #[inline(always)]
    pub(crate) unsafe fn fill<W: Packed>(&mut self, source: &Source, panel: usize, chunks: Range<usize>) {
        let mut buffer = None;
        self.subs = 0;
        self.packed = source.chunk(panel, chunks.start, &mut buffer).as_ptr();
        self.sub_lines = W::SUB_BYTES.div_ceil(64);
        for (chunk, scales) in chunks.zip(&mut self.scales) {
            let subs = source.chunk_cols(chunk) / SUB_COLS;
            let chunk = source.chunk(panel, chunk, &mut buffer).as_ptr();
            // SAFETY: the chunk has `subs` sub-blocks.
            unsafe {
                for part in 0..P {
                    W::scales::<S>(chunk, subs, part * S::LANES, scales);
                }
                for sub in 0..subs {
                    for (part, out) in self.quants[self.subs].iter_mut().enumerate() {
                        *out = raised::<S, W>(chunk, subs, sub, part * S::LANES);
                    }
                    self.subs += 1;
                }
            }
        }
    }
}

/// Several tokens. Few: panel after panel, so that weights are read in order. Many: a piece of every panel, then the
/// next piece, so that the piece's activations stay in the second cache; in blocks of tokens.
///
/// # Safety
/// As [`run`].
unsafe fn blocked<E: Engine, W: Packed>(product: &Product, panels: Range<usize>) {
    // SAFETY: the caller's contract; blocks and ranges cover all tokens and panels.
    unsafe {
        let mut unpacked = E::unpacked();
        if product.n_tokens <= FEW_TOKENS {
            for panel in panels {
                block::<E, W>(product, panel..panel + 1, 0..product.n_tokens, 1, &mut unpacked);
            }
            return;
        }
        for first in (0..product.n_tokens).step_by(BLOCK_TOKENS) {
            let tokens = first..product.n_tokens.min(first + BLOCK_TOKENS);
            block::<E, W>(product, panels.clone(), tokens, BLOCK_CHUNKS, &mut unpacked);
        }
    }
}

/// A block of tokens: pieces of `piece` chunks, panels, tiles, from the outside in.
///
/// # Safety
/// As [`run`]; `piece` is at most [`BLOCK_CHUNKS`].
unsafe fn block<E: Engine, W: Packed>(
    product: &Product,
    panels: Range<usize>,
    tokens: Range<usize>,
    piece: usize,
    unpacked: &mut E::Unpacked,
) {
    let source = Source::new(&product.weights);
    for chunk in (0..source.chunks()).step_by(piece) {
        let chunks = chunk..source.chunks().min(chunk + piece);
        for panel in panels.clone() {
            // SAFETY: the caller's contract; tiles cover `tokens`.
            unsafe {
                E::fill::<W>(unpacked, &source, panel, chunks.clone());
                let mut token = tokens.start;
                while token < tokens.end {
                    token += E::tile::<W>(product, panel, token..tokens.end, unpacked, chunks.clone());
                }
            }
        }
    }
}

/// `T` tokens with unpacked weights; the sums so far wait in the output. Returns `T`.
///
/// # Safety
/// As [`run`]; `T` tokens exist from `token` on; `unpacked` holds `chunks` of `panel`.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, C: Codes, const T: usize, const P: usize>(
    product: &Product,
    panel: usize,
    token: usize,
    unpacked: &Unpacked<S, P>,
    chunks: Range<usize>,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let tile = Tile::new(product, panel, token);
        let mut acc = if chunks.start == 0 { [[S::zero(); T]; P] } else { tile.load::<S, T, P>() };
        let mut acts = Acts::new(&tile, chunks.start * CHUNK_SUBS * ACT_BLOCK_BYTES);
        for (i, quants) in unpacked.quants[..unpacked.subs].iter().enumerate() {
            let scales = &unpacked.scales[i / CHUNK_SUBS];
            if token == 0 {
                prefetch::<S>(unpacked.packed.wrapping_add(64 * i * unpacked.sub_lines), unpacked.sub_lines);
            }
            for (part, acc) in acc.iter_mut().enumerate() {
                let place = (i % CHUNK_SUBS, part * S::LANES);
                add_sub_block::<S, C, T>(acc, &quants[part], scales, place, &acts);
            }
            acts.advance(ACT_BLOCK_BYTES);
        }
        tile.store::<S, T, P>(&acc, Sums::after(chunks.end, &Source::new(&product.weights)));
    }
    T
}
