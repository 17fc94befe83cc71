//! F32, F16 and BF16 weights with F32 activations: four interleaved chains a segment, see `cpu/matmul/matrix.rs`.
//! Next: `engine.rs`.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::engine::Engine;
use super::part::{Acts, BLOCK_TOKENS, PANELS_MAX, Rows, Sums, Tile, panels_of, place};
use super::simd::Simd;
use super::tile::{chunk_pointers, prefetch};
use crate::cpu::matmul::{ChunkBuffer, PLAIN_CHAINS, PLAIN_SEGMENT_COLS, Product, Source};
use crate::quant::{CHUNK_COLS, PANEL_ROWS};

const _: () = assert!(PLAIN_SEGMENT_COLS == CHUNK_COLS && PLAIN_CHAINS == 4);

/// Most tokens for which numbers are converted in registers: two or three tiles, all but the first from the cache.
const DIRECT_TOKENS: usize = 8;

/// How a number is read.
///
/// # Safety
/// The machine has `S`; `at` points to `S::LANES` readable numbers of the type.
pub(crate) trait Number {
    /// Bytes of a number.
    const BYTES: usize;
    unsafe fn load<S: Simd>(at: *const u8) -> S::Float;
}

macro_rules! number {
    ($name:ident $bytes:literal, |$at:ident| $load:expr) => {
        pub(crate) struct $name;
        impl Number for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>($at: *const u8) -> S::Float {
                // SAFETY: the trait's contract.
                unsafe { $load }
            }
        }
    };
}

number!(F32 4, |at| S::load_f32(at.cast()));
number!(F16 2, |at| S::load_f16(at));
number!(Bf16 2, |at| S::float_bits(S::load_high_u16(at)));

/// Computes the rows of `panels`. The entry of this file.
///
/// # Safety
/// As `matmul` of the engine's module.
pub(crate) unsafe fn run<E: Engine, N: Number>(product: &Product, panels: Range<usize>) {
    // SAFETY: the caller's contract; tiles cover 0..n_tokens.
    unsafe {
        if product.n_tokens > DIRECT_TOKENS {
            return blocked::<E, N>(product, panels);
        }
        for rows in Rows::of(product, panels, 1) {
            let mut token = 0;
            while token < product.n_tokens {
                token += E::plain_direct::<N>(product, rows, token);
            }
        }
    }
}

/// `T` tokens from `token` on, weights converted in registers, for the `P` vectors of a panel. Returns `T`.
///
/// # Safety
/// As [`run`]; `T` tokens exist from `token` on.
#[inline(always)]
pub(crate) unsafe fn direct<S: Simd, N: Number, const T: usize, const P: usize>(
    product: &Product,
    rows: Rows,
    token: usize,
) -> usize {
    let source = Source::new(&product.weights);
    let mut buffer = ChunkBuffer::new();
    // SAFETY: the caller's contract; columns are those of the matrix.
    unsafe {
        let tile = Tile::new(product, rows, token);
        let mut acc = [[S::zero(); T]; P];
        for chunk in 0..source.chunks() {
            let cols = source.chunk_cols(chunk);
            let weights = source.chunk(rows.panel(0), chunk, &mut buffer).as_ptr();
            let acts = Acts::new(&tile, 4 * chunk * CHUNK_COLS);
            if PLAIN_CHAINS * T * P < S::REGISTERS {
                add_sums::<S, T, P>(&mut acc, &segment::<S, N, T, P>(weights, cols, acts));
                continue;
            }
            // All chains at once do not fit the registers.
            for (part, acc) in acc.iter_mut().enumerate() {
                let weights = weights.wrapping_add(part * S::LANES * N::BYTES);
                add_sums::<S, T, 1>(std::array::from_mut(acc), &segment::<S, N, T, 1>(weights, cols, acts));
            }
        }
        tile.store::<S, T, P>(&acc);
    }
    T
}

/// Adds a segment's sums.
#[inline(always)]
unsafe fn add_sums<S: Simd, const T: usize, const P: usize>(acc: &mut [[S::Float; T]; P], sums: &[[S::Float; T]; P]) {
    for (acc, sum) in acc.iter_mut().flatten().zip(sums.iter().flatten()) {
        // SAFETY: the caller has `S`.
        *acc = unsafe { S::add(*acc, *sum) };
    }
}

/// A segment's sums for `T` tokens.
#[inline(always)]
unsafe fn segment<S: Simd, N: Number, const T: usize, const P: usize>(
    weights: *const u8,
    cols: usize,
    mut acts: Acts<T>,
) -> [[S::Float; T]; P] {
    // SAFETY: the columns exist in the segment and in the activations of `T` tokens.
    unsafe {
        let mut chains = [[[S::zero(); T]; P]; PLAIN_CHAINS];
        let column = |col: usize| weights.wrapping_add(col * N::BYTES * PANEL_ROWS);
        for first in (0..cols / PLAIN_CHAINS * PLAIN_CHAINS).step_by(PLAIN_CHAINS) {
            prefetch::<S>(column(first), PLAIN_CHAINS * N::BYTES * PANEL_ROWS / 64);
            for (i, chain) in chains.iter_mut().enumerate() {
                add_column::<S, N, T, P>(chain, column(first + i), &acts, i);
            }
            acts.advance(4 * PLAIN_CHAINS);
        }
        for (i, chain) in chains.iter_mut().enumerate().take(cols % PLAIN_CHAINS) {
            add_column::<S, N, T, P>(chain, column(cols / PLAIN_CHAINS * PLAIN_CHAINS + i), &acts, i);
        }
        let mut sums = [[S::zero(); T]; P];
        for (part, sums) in sums.iter_mut().enumerate() {
            for (t, sum) in sums.iter_mut().enumerate() {
                let low = S::add(chains[0][part][t], chains[1][part][t]);
                *sum = S::add(low, S::add(chains[2][part][t], chains[3][part][t]));
            }
        }
        sums
    }
}

/// Adds a column to one chain of each token; `i` is the column's place after `acts`.
#[inline(always)]
unsafe fn add_column<S: Simd, N: Number, const T: usize, const P: usize>(
    chain: &mut [[S::Float; T]; P],
    column: *const u8,
    acts: &Acts<T>,
    i: usize,
) {
    // SAFETY: the column exists in the segment and in the activations of `T` tokens.
    unsafe {
        for (part, chain) in chain.iter_mut().enumerate() {
            let weight = N::load::<S>(column.add(part * S::LANES * N::BYTES));
            for (sum, act) in chain.iter_mut().zip(acts.0) {
                *sum = S::fma(weight, S::broadcast_f32(act.add(4 * i)), *sum);
            }
        }
    }
}

/// A column of a segment for the panels of a tile.
type Column = [[f32; PANEL_ROWS]; PANELS_MAX];

/// A segment of the panels of a tile as F32.
#[repr(C, align(64))]
pub(crate) struct Segment {
    columns: MaybeUninit<[Column; PLAIN_SEGMENT_COLS]>,
    sums: Sums,
    /// How many columns are there.
    cols: usize,
}

impl Segment {
    /// Nothing yet, in the caller's memory.
    fn empty(memory: &mut MaybeUninit<Segment>) -> &mut Segment {
        // SAFETY: the field lies in `memory`; the others need no value.
        unsafe {
            (&raw mut (*memory.as_mut_ptr()).cols).write(0);
            memory.assume_init_mut()
        }
    }

    /// # Safety
    /// As [`run`]; the chunk exists.
    #[inline(always)]
    pub(crate) unsafe fn fill<S: Simd, N: Number, const P: usize>(
        &mut self,
        source: &Source,
        rows: Rows,
        chunk: usize,
    ) {
        let mut buffers = MaybeUninit::uninit();
        self.cols = source.chunk_cols(chunk);
        let panels = chunk_pointers(source, rows, panels_of::<S>(P), chunk, &mut buffers);
        for col in 0..self.cols {
            for part in 0..P {
                let (panel, lane) = place::<S>(part);
                // SAFETY: the chunk has `cols` columns of 16 rows, at most as many as a segment.
                unsafe {
                    let value = N::load::<S>(panels[panel].add((col * PANEL_ROWS + lane) * N::BYTES));
                    let column = self.columns.as_mut_ptr().cast::<Column>().add(col);
                    S::store_f32(column.cast::<f32>().add(panel * PANEL_ROWS + lane), value);
                }
            }
        }
    }
}

/// Many tokens: blocks of tokens, tiles of panels, segments, tiles of tokens, from the outside in.
///
/// # Safety
/// As [`run`].
unsafe fn blocked<E: Engine, N: Number>(product: &Product, panels: Range<usize>) {
    let source = Source::new(&product.weights);
    let mut memory = MaybeUninit::uninit();
    let segment = Segment::empty(&mut memory);
    for first in (0..product.n_tokens).step_by(BLOCK_TOKENS) {
        let tokens = first..product.n_tokens.min(first + BLOCK_TOKENS);
        for rows in Rows::of(product, panels.clone(), E::PANELS) {
            for chunk in 0..source.chunks() {
                // SAFETY: the caller's contract; tiles cover `tokens`.
                unsafe {
                    E::plain_fill::<N>(segment, &source, rows, chunk);
                    let mut token = tokens.start;
                    while token < tokens.end {
                        token += E::plain_tile(product, rows, token..tokens.end, segment, chunk);
                    }
                }
            }
        }
    }
}

/// `T` tokens with a converted segment. Returns `T`.
///
/// # Safety
/// As [`run`]; `T` tokens exist from `token` on; `segment` holds `chunk` of the rows' panels.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, const T: usize, const P: usize>(
    product: &Product,
    rows: Rows,
    token: usize,
    segment: &mut Segment,
    chunk: usize,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let tile = Tile::new(product, rows, token);
        let acts = |first: usize| Acts::new(&tile, 4 * (chunk * CHUNK_COLS + first));
        let low = chain_pair::<S, T, P>(segment, 0, acts(0));
        let high = chain_pair::<S, T, P>(segment, 2, acts(2));
        let mut acc = if chunk == 0 { [[S::zero(); T]; P] } else { segment.sums.load::<S, T, P>(token) };
        for (part, acc) in acc.iter_mut().enumerate() {
            for (t, acc) in acc.iter_mut().enumerate() {
                *acc = S::add(*acc, S::add(low[part][t], high[part][t]));
            }
        }
        if chunk + 1 == Source::new(&product.weights).chunks() {
            tile.store::<S, T, P>(&acc);
        } else {
            segment.sums.save::<S, T, P>(token, &acc);
        }
    }
    T
}

/// The sum of chains `first` and `first + 1` of a segment for `T` tokens, whose activations for column `first` are
/// `acts`. Two chains a token hide the latency of their additions.
#[inline(always)]
unsafe fn chain_pair<S: Simd, const T: usize, const P: usize>(
    segment: &Segment,
    first: usize,
    mut acts: Acts<T>,
) -> [[S::Float; T]; P] {
    // SAFETY: the columns exist in the activations of `T` tokens.
    unsafe {
        let mut pair = [[[S::zero(); T]; P]; 2];
        let columns = std::slice::from_raw_parts(segment.columns.as_ptr().cast::<Column>(), segment.cols);
        let (rounds, rest) = columns.as_chunks::<PLAIN_CHAINS>();
        for round in rounds {
            for (i, sums) in pair.iter_mut().enumerate() {
                add_to_pair::<S, T, P>(sums, &round[first + i], &acts, i);
            }
            acts.advance(4 * PLAIN_CHAINS);
        }
        for (i, column) in rest.iter().skip(first).take(2).enumerate() {
            add_to_pair::<S, T, P>(&mut pair[i], column, &acts, i);
        }
        let mut sums = [[S::zero(); T]; P];
        for (part, sums) in sums.iter_mut().enumerate() {
            for (t, sum) in sums.iter_mut().enumerate() {
                *sum = S::add(pair[0][part][t], pair[1][part][t]);
            }
        }
        sums
    }
}

/// Adds a converted column to a chain of each token, whose activation is loaded once for all vectors.
#[inline(always)]
unsafe fn add_to_pair<S: Simd, const T: usize, const P: usize>(
    chain: &mut [[S::Float; T]; P],
    column: &Column,
    acts: &Acts<T>,
    i: usize,
) {
    // SAFETY: the column exists in the activations of `T` tokens; a vector lies within its panel.
    unsafe {
        let mut weights = [S::zero(); P];
        for (part, weight) in weights.iter_mut().enumerate() {
            let (panel, lane) = place::<S>(part);
            *weight = S::load_f32(column[panel].as_ptr().add(lane));
        }
        for (t, act) in acts.0.into_iter().enumerate() {
            let act = S::broadcast_f32(act.add(4 * i));
            for (chain, weight) in chain.iter_mut().zip(weights) {
                chain[t] = S::fma(weight, act, chain[t]);
            }
        }
    }
}
