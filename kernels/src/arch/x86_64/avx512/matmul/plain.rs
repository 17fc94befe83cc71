//! F32, F16 and BF16 weights with F32 activations: four interleaved chains a segment, see
//! `cpu/matmul/matrix.rs`.

use std::arch::x86_64::*;
use std::ops::Range;

use super::tile::{Lanes, Tile, prefetch};
use crate::cpu::matmul::{PLAIN_CHAINS, PLAIN_SEGMENT_COLS, Product, Source};
use crate::quant::{CHUNK_COLS, PANEL_ROWS};

const _: () = assert!(PLAIN_SEGMENT_COLS == CHUNK_COLS && PLAIN_CHAINS == 4);

/// Most tokens of a tile while weights are converted in registers: four chains each.
const DIRECT_TOKENS: usize = 4;

/// Tokens for which a converted segment is used before the next one.
const BLOCK_TOKENS: usize = 512;

/// How a number is read.
///
/// # Safety
/// `at` points to 16 readable numbers of the type; the machine has AVX-512 F and BW.
pub(super) trait Number {
    /// Bytes of a column of a panel.
    const COLUMN_BYTES: usize;
    unsafe fn load(at: *const u8) -> __m512;
}

pub(super) struct F32;

impl Number for F32 {
    const COLUMN_BYTES: usize = 4 * PANEL_ROWS;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_loadu_ps(at.cast()) }
    }
}

pub(super) struct F16;

impl Number for F16 {
    const COLUMN_BYTES: usize = 2 * PANEL_ROWS;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }
}

pub(super) struct Bf16;

impl Number for Bf16 {
    const COLUMN_BYTES: usize = 2 * PANEL_ROWS;
    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
}

/// Computes the rows of `panels`. The only entry of this file.
///
/// # Safety
/// As [`super::matmul`].
pub(super) unsafe fn run<N: Number>(product: &Product, panels: Range<usize>) {
    // SAFETY: the caller's contract; tiles cover 0..n_tokens.
    unsafe {
        if product.n_tokens > DIRECT_TOKENS {
            return blocked::<N>(product, panels);
        }
        for panel in panels {
            match product.n_tokens {
                0 => (),
                1 => direct::<N, 1>(product, panel),
                2 => direct::<N, 2>(product, panel),
                3 => direct::<N, 3>(product, panel),
                _ => direct::<N, 4>(product, panel),
            }
        }
    }
}

#[inline(always)]
unsafe fn broadcast(at: *const u8) -> __m512 {
    // SAFETY: the caller points to 4 readable bytes.
    unsafe { _mm512_set1_ps(at.cast::<f32>().read_unaligned()) }
}

/// The sum of a segment's chains.
#[inline(always)]
unsafe fn fold(chains: [__m512; PLAIN_CHAINS]) -> __m512 {
    // SAFETY: the caller has AVX-512 F.
    unsafe { _mm512_add_ps(_mm512_add_ps(chains[0], chains[1]), _mm512_add_ps(chains[2], chains[3])) }
}

/// All `T` tokens of the product, weights converted in registers.
///
/// # Safety
/// As [`super::matmul`]; the product has `T` tokens.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn direct<N: Number, const T: usize>(product: &Product, panel: usize) {
    let source = Source::new(&product.weights);
    let mut buffer = None;
    // SAFETY: the caller's contract; columns are those of the matrix.
    unsafe {
        let tile = Tile::new(product, panel, 0);
        let mut acc = [_mm512_setzero_ps(); T];
        for chunk in 0..source.chunks() {
            let act = tile.act.add(4 * chunk * CHUNK_COLS);
            let cols = source.chunk_cols(chunk);
            let weights = source.chunk(panel, chunk, &mut buffer).as_ptr();
            let mut chains = [[_mm512_setzero_ps(); PLAIN_CHAINS]; T];
            let whole = cols / PLAIN_CHAINS * PLAIN_CHAINS;
            for col in (0..whole).step_by(PLAIN_CHAINS) {
                prefetch(weights.wrapping_add(col * N::COLUMN_BYTES), PLAIN_CHAINS * N::COLUMN_BYTES);
                for i in 0..PLAIN_CHAINS {
                    add_column::<N, T>(&mut chains, i, weights, col + i, act, tile.act_stride_bytes);
                }
            }
            for col in whole..cols {
                add_column::<N, T>(&mut chains, col - whole, weights, col, act, tile.act_stride_bytes);
            }
            for (acc, chains) in acc.iter_mut().zip(chains) {
                *acc = _mm512_add_ps(*acc, fold(chains));
            }
        }
        Lanes::new(product, panel).finish(tile, &acc);
    }
}

/// Adds column `col` of a segment to chain `i` of each token.
#[inline(always)]
unsafe fn add_column<N: Number, const T: usize>(
    chains: &mut [[__m512; PLAIN_CHAINS]; T],
    i: usize,
    weights: *const u8,
    col: usize,
    act: *const u8,
    stride: usize,
) {
    // SAFETY: the column exists in the segment and in the activations of `T` tokens.
    unsafe {
        let weight = N::load(weights.add(col * N::COLUMN_BYTES));
        for (t, chains) in chains.iter_mut().enumerate() {
            chains[i] = _mm512_fmadd_ps(weight, broadcast(act.add(t * stride + 4 * col)), chains[i]);
        }
    }
}

/// A segment of one panel as F32.
#[repr(C, align(64))]
struct Segment {
    columns: [[f32; PANEL_ROWS]; PLAIN_SEGMENT_COLS],
    cols: usize,
}

impl Segment {
    /// # Safety
    /// As [`super::matmul`]; the chunk exists.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn fill<N: Number>(&mut self, source: &Source, panel: usize, chunk: usize) {
        let mut buffer = None;
        self.cols = source.chunk_cols(chunk);
        let weights = source.chunk(panel, chunk, &mut buffer).as_ptr();
        for (col, out) in self.columns[..self.cols].iter_mut().enumerate() {
            // SAFETY: the chunk has `cols` columns.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), N::load(weights.add(col * N::COLUMN_BYTES))) };
        }
    }
}

/// Many tokens: blocks of tokens, segments, panels, tiles, from the outside in.
///
/// # Safety
/// As [`super::matmul`].
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn blocked<N: Number>(product: &Product, panels: Range<usize>) {
    let source = Source::new(&product.weights);
    let mut segment = Segment { columns: [[0.0; PANEL_ROWS]; PLAIN_SEGMENT_COLS], cols: 0 };
    for first in (0..product.n_tokens).step_by(BLOCK_TOKENS) {
        let end = product.n_tokens.min(first + BLOCK_TOKENS);
        for chunk in 0..source.chunks() {
            for panel in panels.clone() {
                // SAFETY: the caller's contract; tiles cover first..end.
                unsafe {
                    segment.fill::<N>(&source, panel, chunk);
                    let mut token = first;
                    while token < end {
                        token += match end - token {
                            8.. => tile::<8>(product, panel, token, &segment, chunk),
                            4..8 => tile::<4>(product, panel, token, &segment, chunk),
                            2..4 => tile::<2>(product, panel, token, &segment, chunk),
                            _ => tile::<1>(product, panel, token, &segment, chunk),
                        };
                    }
                }
            }
        }
    }
}

/// `T` tokens with a converted segment; the sums so far wait in the output. Returns `T`.
///
/// # Safety
/// As [`super::matmul`]; `T` tokens exist from `token` on; `segment` holds `chunk` of `panel`.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn tile<const T: usize>(
    product: &Product,
    panel: usize,
    token: usize,
    segment: &Segment,
    chunk: usize,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let tile = Tile::new(product, panel, token);
        let lanes = Lanes::new(product, panel);
        let act = tile.act.add(4 * chunk * CHUNK_COLS);
        let mut acc = [_mm512_setzero_ps(); T];
        if chunk > 0 {
            acc = std::array::from_fn(|t| _mm512_maskz_loadu_ps(lanes.mask, tile.out.add(t * tile.out_stride)));
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| chain::<T>(segment, i, act, tile.act_stride_bytes));
        for (t, acc) in acc.iter_mut().enumerate() {
            *acc = _mm512_add_ps(*acc, fold([a[t], b[t], c[t], d[t]]));
        }
        let last = chunk + 1 == Source::new(&product.weights).chunks();
        let lanes = if last { lanes } else { Lanes { bias: None, ..lanes } };
        lanes.finish(tile, &acc);
    }
    T
}

/// Chain `i` of a segment for `T` tokens.
#[inline(always)]
unsafe fn chain<const T: usize>(segment: &Segment, i: usize, act: *const u8, stride: usize) -> [__m512; T] {
    // SAFETY: the columns exist in the activations of `T` tokens.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); T];
        for col in (i..segment.cols).step_by(PLAIN_CHAINS) {
            let weight = _mm512_load_ps(segment.columns[col].as_ptr());
            for (t, sum) in sums.iter_mut().enumerate() {
                *sum = _mm512_fmadd_ps(weight, broadcast(act.add(t * stride + 4 * col)), *sum);
            }
        }
        sums
    }
}
