//! Block types: the inner loop over a tile of tokens, and the two ways to walk a matrix. Next: `plain.rs`.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::engine::Engine;
use super::packed::{Codes, GROUPS, Packed, Scales, raised};
use super::part::{Acts, BLOCK_TOKENS, PANELS_MAX, Rows, Sums, Tile, panels_of, place};
use super::simd::{PartCodes, Simd, scaled};
use crate::cpu::matmul::{ACT_BLOCK_BYTES, BASE, ChunkBuffer, Product, Source};
use crate::quant::{CHUNK_COLS, SUB_COLS};

/// Sub-blocks of a whole chunk.
const CHUNK_SUBS: usize = CHUNK_COLS / SUB_COLS;

/// Chunks of panels unpacked at a time for many tokens: 16 KiB of bytes, which the first cache keeps beside the
/// activations. A tile of two panels takes half as many of each.
const BLOCK_CHUNKS: usize = 4;

/// Tokens up to which one chunk is unpacked at a time, so that reading memory and computing take turns quickly.
const FEW_TOKENS: usize = 16;

/// Sub-blocks unpacked at a time.
const BLOCK_SUBS: usize = BLOCK_CHUNKS * CHUNK_SUBS;

/// How far ahead weights are brought into the second cache, and from there into the first.
const FAR_BYTES: usize = 8 << 10;
const NEAR_BYTES: usize = 1 << 10;

/// Asks for `lines` lines from [`FAR_BYTES`] and from [`NEAR_BYTES`] after `at` on.
///
/// The hardware's own prefetcher stops at each page and runs too few lines ahead of code that computes between loads.
/// In two steps, since a line on its way from memory to the first cache holds one of its few buffers all the time. Of a
/// plain read beside it, 16 threads on Emerald Rapids, one token (Q4_K, Q6_K, F16): none 0.73, 0.69, 0.83; 6 KiB into
/// the first cache 1.09, 1.21, 1.25; 8 KiB into the second 1.06, 1.11, 1.26; both steps 1.15, 1.27, 1.30.
///
/// # Safety
/// The machine has `S`; a prefetch of any address is harmless.
#[inline(always)]
pub(crate) unsafe fn prefetch<S: Simd>(at: *const u8, lines: usize) {
    // SAFETY: see above.
    unsafe { prefetch_from::<S>(at.wrapping_add(FAR_BYTES), at.wrapping_add(NEAR_BYTES), lines) };
}

/// The same from `far` and from `near` on.
///
/// # Safety
/// As [`prefetch`].
#[inline(always)]
unsafe fn prefetch_from<S: Simd>(far: *const u8, near: *const u8, lines: usize) {
    for line in 0..lines {
        // SAFETY: see above.
        unsafe {
            S::prefetch_far(far.wrapping_add(64 * line));
            S::prefetch(near.wrapping_add(64 * line));
        }
    }
}

/// Adds a sub-block to the sums of `T` tokens in the rows of `P` vectors, in the order of operations of
/// `cpu/matmul/scalar.rs`. `scales` are those of the tile's panels.
///
/// # Safety
/// The machine has `S`, and `acts` point to the activations of sub-block `sub` of a chunk.
#[inline(always)]
unsafe fn add_sub_block<S: Simd, C: Codes, const T: usize, const P: usize>(
    acc: &mut [[S::Float; T]; P],
    codes: &impl PartCodes<S>,
    scales: &[Scales; PANELS_MAX],
    sub: usize,
    acts: &Acts<T>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if C::HALVES {
            return add_halves::<S, C, T, P>(acc, codes, scales, sub, acts);
        }
        let dots = S::dots::<C, T, P>(codes, &acts.0);
        let scale = scale_vectors::<S, P>(scales, sub);
        let excess = excess::<S, P>(&scale);
        for (t, act) in acts.0.into_iter().enumerate() {
            let act_scale = S::broadcast_f32(act.add(32));
            for (part, acc) in acc.iter_mut().enumerate() {
                let dot = scaled::<S, C>(dots[part][t], scale[part], excess[part]);
                acc[t] = S::fma(dot, act_scale, acc[t]);
            }
        }
        if C::MINS {
            let mut min = [S::zero(); P];
            for (part, min) in min.iter_mut().enumerate() {
                let (panel, lane) = place::<S>(part);
                *min = scales[panel].min::<S>(sub, lane);
            }
            for (t, act) in acts.0.into_iter().enumerate() {
                let act_sum = S::broadcast_f32(act.add(36));
                for (part, acc) in acc.iter_mut().enumerate() {
                    acc[t] = S::fma(min[part], act_sum, acc[t]);
                }
            }
        }
    }
}

/// Scales `i` of the panels as the vectors of a tile.
///
/// # Safety
/// The machine has `S`, and the scales were written.
#[inline(always)]
unsafe fn scale_vectors<S: Simd, const P: usize>(scales: &[Scales; PANELS_MAX], i: usize) -> [S::Float; P] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut vectors = [S::zero(); P];
        for (part, vector) in vectors.iter_mut().enumerate() {
            let (panel, lane) = place::<S>(part);
            *vector = scales[panel].scale::<S>(i, lane);
        }
        vectors
    }
}

/// What dot products that are [`BASE`] too large have too much once they are multiplied, negated.
#[inline(always)]
unsafe fn excess<S: Simd, const P: usize>(scale: &[S::Float; P]) -> [S::Float; P] {
    // SAFETY: the caller has `S`.
    scale.map(|scale| unsafe { S::mul(scale, S::splat_f32(-BASE)) })
}

/// [`add_sub_block`] for types with scales per 16 columns.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn add_halves<S: Simd, C: Codes, const T: usize, const P: usize>(
    acc: &mut [[S::Float; T]; P],
    codes: &impl PartCodes<S>,
    scales: &[Scales; PANELS_MAX],
    sub: usize,
    acts: &Acts<T>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let [low, high] = S::half_dots::<C, T, P>(codes, &acts.0);
        let scale_low = scale_vectors::<S, P>(scales, 2 * sub);
        let scale_high = scale_vectors::<S, P>(scales, 2 * sub + 1);
        let excess = excess::<S, P>(&scale_low);
        for (t, act) in acts.0.into_iter().enumerate() {
            let act_scale = S::broadcast_f32(act.add(32));
            for (part, acc) in acc.iter_mut().enumerate() {
                let mut dot = scaled::<S, C>(low[part][t], scale_low[part], excess[part]);
                dot = S::fma(S::to_float(high[part][t]), scale_high[part], dot);
                if C::MINS {
                    dot = add_half_mins::<S>(dot, scales, (sub, part), act);
                }
                acc[t] = S::fma(dot, act_scale, acc[t]);
            }
        }
    }
}

/// The mins of both halves times the halves' sums, added to `dot`.
///
/// # Safety
/// As [`add_sub_block`].
#[inline(always)]
unsafe fn add_half_mins<S: Simd>(
    dot: S::Float,
    scales: &[Scales; PANELS_MAX],
    (sub, part): (usize, usize),
    act: *const u8,
) -> S::Float {
    // SAFETY: the caller's contract.
    unsafe {
        let (panel, lane) = place::<S>(part);
        let (whole, low) = (S::broadcast32(act.add(40)), S::broadcast32(act.add(44)));
        let low_sum = S::add(S::float_bits(low), S::splat_f32(-BASE));
        let dot = S::fma(scales[panel].min::<S>(2 * sub, lane), low_sum, dot);
        S::fma(scales[panel].min::<S>(2 * sub + 1, lane), S::to_float(S::sub32(whole, low)), dot)
    }
}

/// Computes the rows of `panels`. The entry of this file.
///
/// # Safety
/// As `matmul` of the engine's module.
pub(crate) unsafe fn run<E: Engine, W: Packed>(product: &Product, panels: Range<usize>) {
    // SAFETY: the caller's contract; tiles cover 0..n_tokens.
    unsafe {
        if product.n_tokens > E::DIRECT_TOKENS || !Source::new(&product.weights).is_packed() {
            return blocked::<E, W>(product, panels);
        }
        let is_alone = match product.n_tokens {
            tokens if tokens >= 8 => W::EIGHT_ALONE,
            tokens => tokens <= W::ALONE_TOKENS.min(E::ALONE_TOKENS),
        };
        for rows in Rows::of(product, panels, if is_alone { 1 } else { E::DIRECT_PANELS }) {
            let mut token = 0;
            while token < product.n_tokens {
                token += match is_alone {
                    true => E::alone::<W>(product, rows, token),
                    false => E::direct::<W>(product, rows, token),
                };
            }
        }
    }
}

/// `T` tokens from `token` on, weights unpacked in registers, for the `P` vectors of a tile. Returns `T`.
///
/// # Safety
/// As [`run`]; `T` tokens exist from `token` on; panels lie in memory as they are. (Without a call in its loop, sums
/// stay in registers.)
#[inline(always)]
pub(crate) unsafe fn direct<S: Simd, W: Packed, const T: usize, const P: usize>(
    product: &Product,
    rows: Rows,
    token: usize,
) -> usize {
    let source = Source::new(&product.weights);
    let mut scales = [Scales::new(), Scales::new()];
    // SAFETY: the caller's contract; chunks and sub-blocks are those of the matrix.
    unsafe {
        let tile = Tile::new(product, rows, token);
        let mut acc = [[S::zero(); T]; P];
        let mut acts = Acts::new(&tile, 0);
        let ahead = Ahead::new::<W, S, P>(&source, rows);
        for chunk in 0..source.chunks() {
            let subs = source.chunk_cols(chunk) / SUB_COLS;
            let panels = std::array::from_fn(|i| source.packed_chunk(rows.panel(i), chunk));
            for part in 0..P {
                let (panel, lane) = place::<S>(part);
                W::scales::<S>(panels[panel], subs, lane, &mut scales[panel]);
            }
            let step = DirectStep { panels, ahead, subs, scales: &scales };
            for sub in 0..subs {
                step.run::<S, W, T, P>(&mut acc, &mut acts, sub);
            }
        }
        tile.store::<S, T, P>(&acc);
    }
    T
}

/// Where prefetching goes on at the end of a tile's panels.
#[derive(Clone, Copy)]
struct Ahead {
    /// The end of each panel.
    ends: [*const u8; PANELS_MAX],
    /// Bytes of the tile's other panels, which lie between a panel and the one after the tile.
    skip_bytes: usize,
}

impl Ahead {
    #[inline(always)]
    fn new<W: Packed, S: Simd, const P: usize>(source: &Source, rows: Rows) -> Ahead {
        let others = panels_of::<S>(P) - 1;
        let ends = std::array::from_fn(|i| source.panel_end(rows.panel(i)));
        Ahead { ends, skip_bytes: others * source.panel_bytes() }
    }

    /// Prefetches for a sub-block of panel `i` of the tile at `at`.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(&self, i: usize, at: *const u8, lines: usize) {
        let place = |bytes: usize| {
            let place = at.wrapping_add(bytes);
            if place < self.ends[i] { place } else { place.wrapping_add(self.skip_bytes) }
        };
        // SAFETY: the caller has `S`.
        unsafe { prefetch_from::<S>(place(FAR_BYTES), place(NEAR_BYTES), lines) };
    }
}

/// A chunk of the panels of a tile, to be unpacked in registers.
struct DirectStep<'a> {
    panels: [*const u8; PANELS_MAX],
    ahead: Ahead,
    subs: usize,
    scales: &'a [Scales; PANELS_MAX],
}

/// Codes of a sub-block that are unpacked where they are needed.
struct InRegisters<W> {
    panels: [*const u8; PANELS_MAX],
    subs: usize,
    sub: usize,
    ty: PhantomData<W>,
}

impl<S: Simd, W: Packed> PartCodes<S> for InRegisters<W> {
    #[inline(always)]
    unsafe fn vector(&self, part: usize, g: usize) -> S::Int {
        let (panel, lane) = place::<S>(part);
        // SAFETY: the trait's contract; the panels' chunks have this sub-block.
        unsafe { W::code::<S>(self.panels[panel], self.subs, (self.sub, g), lane) }
    }
}

impl DirectStep<'_> {
    /// Adds sub-block `sub`.
    ///
    /// # Safety
    /// The machine has `S`, the chunk has that sub-block, and `acts` are its activations.
    #[inline(always)]
    unsafe fn run<S: Simd, W: Packed, const T: usize, const P: usize>(
        &self,
        acc: &mut [[S::Float; T]; P],
        acts: &mut Acts<T>,
        sub: usize,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            for (i, panel) in self.panels[..panels_of::<S>(P)].iter().enumerate() {
                self.ahead.prefetch::<S>(i, panel.wrapping_add(sub * W::SUB_BYTES), W::SUB_BYTES.div_ceil(64));
            }
            let codes = InRegisters::<W> { panels: self.panels, subs: self.subs, sub, ty: PhantomData };
            add_sub_block::<S, W::Narrow, T, P>(acc, &codes, self.scales, sub, acts);
            acts.advance(ACT_BLOCK_BYTES);
        }
    }
}

/// Where a chunk of each panel of a tile lies, packed into the buffers first if need be.
#[inline(always)]
pub(crate) fn chunk_pointers(
    source: &Source,
    rows: Rows,
    panels: usize,
    chunk: usize,
    buffers: &mut MaybeUninit<[ChunkBuffer; PANELS_MAX]>,
) -> [*const u8; PANELS_MAX] {
    // SAFETY: a buffer holds nothing of its own until something is packed into it.
    let buffers = unsafe { buffers.assume_init_mut() };
    let mut pointers = [std::ptr::null(); PANELS_MAX];
    for (i, (pointer, buffer)) in pointers.iter_mut().zip(buffers).enumerate().take(panels) {
        *pointer = source.chunk(rows.panel(i), chunk, buffer).as_ptr();
    }
    pointers
}

/// Unpacked weights of some chunks of the panels of a tile, for `P` vectors of rows.
#[repr(C, align(64))]
pub(crate) struct Unpacked<S: Simd, const P: usize> {
    quants: MaybeUninit<[[[S::Int; GROUPS]; P]; BLOCK_SUBS]>,
    scales: [[Scales; PANELS_MAX]; BLOCK_CHUNKS],
    sums: Sums,
    /// How many sub-blocks are there.
    subs: usize,
    /// Where the packed weights of each panel lie, and lines of a sub-block of them.
    packed: [*const u8; PANELS_MAX],
    sub_lines: usize,
}

impl<S: Simd, const P: usize> Unpacked<S, P> {
    /// Nothing yet, in the caller's memory: filling 48 KiB with zeros would cost more than a small product.
    #[inline(always)]
    pub(crate) fn empty(memory: &mut MaybeUninit<Unpacked<S, P>>) -> &mut Unpacked<S, P> {
        let at = memory.as_mut_ptr();
        // SAFETY: the fields lie in `memory`; all others need no value.
        unsafe {
            (&raw mut (*at).subs).write(0);
            (&raw mut (*at).packed).write([std::ptr::null(); PANELS_MAX]);
            (&raw mut (*at).sub_lines).write(0);
            memory.assume_init_mut()
        }
    }

    /// # Safety
    /// As [`run`]; the chunks exist and are at most [`BLOCK_CHUNKS`].
    #[inline(always)]
    pub(crate) unsafe fn fill<W: Packed>(&mut self, source: &Source, rows: Rows, chunks: Range<usize>) {
        let mut buffers = MaybeUninit::uninit();
        self.subs = 0;
        self.sub_lines = W::SUB_BYTES.div_ceil(64);
        self.packed = chunk_pointers(source, rows, panels_of::<S>(P), chunks.start, &mut buffers);
        for (chunk, scales) in chunks.zip(&mut self.scales) {
            let subs = source.chunk_cols(chunk) / SUB_COLS;
            let panels = chunk_pointers(source, rows, panels_of::<S>(P), chunk, &mut buffers);
            // SAFETY: the chunk has `subs` sub-blocks.
            unsafe {
                for part in 0..P {
                    let (panel, lane) = place::<S>(part);
                    W::scales::<S>(panels[panel], subs, lane, &mut scales[panel]);
                }
                for sub in 0..subs {
                    let mut codes = [[S::splat8(0); GROUPS]; P];
                    for (part, codes) in codes.iter_mut().enumerate() {
                        let (panel, lane) = place::<S>(part);
                        for (g, code) in codes.iter_mut().enumerate() {
                            *code = raised::<S, W>(panels[panel], subs, (sub, g), lane);
                        }
                    }
                    self.quants.as_mut_ptr().cast::<[[S::Int; GROUPS]; P]>().add(self.subs).write(codes);
                    self.subs += 1;
                }
            }
        }
    }
}

/// Several tokens: blocks of tokens, tiles of panels, pieces of columns, tiles of tokens, from the outside in. With few
/// tokens pieces are short.
///
/// # Safety
/// As [`run`].
unsafe fn blocked<E: Engine, W: Packed>(product: &Product, panels: Range<usize>) {
    let source = Source::new(&product.weights);
    let piece = if product.n_tokens <= FEW_TOKENS { 1 } else { BLOCK_CHUNKS / E::PANELS };
    // SAFETY: the caller's contract; blocks, pieces and tiles cover all tokens and columns.
    unsafe {
        let mut memory = MaybeUninit::uninit();
        let unpacked = E::unpacked(&mut memory);
        for first in (0..product.n_tokens).step_by(BLOCK_TOKENS) {
            let end = product.n_tokens.min(first + BLOCK_TOKENS);
            for rows in Rows::of(product, panels.clone(), E::PANELS) {
                for chunk in (0..source.chunks()).step_by(piece) {
                    let chunks = chunk..source.chunks().min(chunk + piece);
                    E::fill::<W>(unpacked, &source, rows, chunks.clone());
                    let mut token = first;
                    while token < end {
                        token += E::tile::<W>(product, rows, token..end, unpacked, chunks.clone());
                    }
                }
            }
        }
    }
}

/// `T` tokens with unpacked weights. Returns `T`.
///
/// # Safety
/// As [`run`]; `T` tokens exist from `token` on; `unpacked` holds `chunks` of the rows' panels.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, C: Codes, const T: usize, const P: usize>(
    product: &Product,
    rows: Rows,
    token: usize,
    unpacked: &mut Unpacked<S, P>,
    chunks: Range<usize>,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let tile = Tile::new(product, rows, token);
        let start = [[S::zero(); T]; P];
        let mut acc = if chunks.start == 0 { start } else { unpacked.sums.load::<S, T, P>(token) };
        let mut acts = Acts::new(&tile, chunks.start * CHUNK_SUBS * ACT_BLOCK_BYTES);
        let quants =
            std::slice::from_raw_parts(unpacked.quants.as_ptr().cast::<[[S::Int; GROUPS]; P]>(), unpacked.subs);
        for (i, quants) in quants.iter().enumerate() {
            if token == 0 {
                for packed in &unpacked.packed[..panels_of::<S>(P)] {
                    prefetch::<S>(packed.wrapping_add(64 * i * unpacked.sub_lines), unpacked.sub_lines);
                }
            }
            let scales = &unpacked.scales[i / CHUNK_SUBS];
            add_sub_block::<S, C, T, P>(&mut acc, quants, scales, i % CHUNK_SUBS, &acts);
            acts.advance(ACT_BLOCK_BYTES);
        }
        if chunks.end == Source::new(&product.weights).chunks() {
            tile.store::<S, T, P>(&acc);
        } else {
            unpacked.sums.save::<S, T, P>(token, &acc);
        }
    }
    T
}
