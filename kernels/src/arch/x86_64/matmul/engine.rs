//! Instantiates the products for one instruction set: the `#[target_feature]` functions into which everything else is
//! inlined, and the choice of a tile's size.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::packed::Packed;
use super::part::Rows;
use super::plain::{Number, Segment};
use crate::cpu::matmul::{Product, Source};

/// The compiled pieces of the walks in `tile.rs` and `plain.rs`.
///
/// # Safety
/// As the functions of the same names there; functions that return a number of tokens take as many of the remaining
/// ones as they have a tile for.
pub(crate) trait Engine {
    /// Buffer of unpacked weights.
    type Unpacked;
    /// Panels of a tile.
    const PANELS: usize;
    /// Most tokens for which weights are unpacked in registers, ...
    const DIRECT_TOKENS: usize;
    /// ... panels of a tile for that, ...
    const DIRECT_PANELS: usize;
    /// ... and most tokens for which it can be done panel by panel.
    const ALONE_TOKENS: usize;
    /// An empty buffer in `memory`.
    fn unpacked(memory: &mut MaybeUninit<Self::Unpacked>) -> &mut Self::Unpacked;
    unsafe fn direct<W: Packed>(product: &Product, rows: Rows, token: usize) -> usize;
    unsafe fn alone<W: Packed>(product: &Product, rows: Rows, token: usize) -> usize;
    unsafe fn fill<W: Packed>(unpacked: &mut Self::Unpacked, source: &Source, rows: Rows, chunks: Range<usize>);
    unsafe fn tile<W: Packed>(
        product: &Product,
        rows: Rows,
        tokens: Range<usize>,
        unpacked: &mut Self::Unpacked,
        chunks: Range<usize>,
    ) -> usize;
    unsafe fn plain_direct<N: Number>(product: &Product, rows: Rows, token: usize) -> usize;
    unsafe fn plain_fill<N: Number>(segment: &mut Segment, source: &Source, rows: Rows, chunk: usize);
    unsafe fn plain_tile(
        product: &Product,
        rows: Rows,
        tokens: Range<usize>,
        segment: &mut Segment,
        chunk: usize,
    ) -> usize;
}

/// Makes `$engine` an [`Engine`] over the operations `$simd`, compiled with `$features`, `$parts` vectors a tile.
/// Weights are unpacked in registers for up to `$d_tokens` tokens, by tiles of `$d_parts` vectors, or of `$a_parts` or
/// `$pd_parts`, one panel. `unpacked` is the form of codes in buffers. Lists of tile sizes fall and end with 1.
macro_rules! engine {
    ($engine:ident, $simd:ty, $features:literal, parts: $parts:literal, unpacked: $form:ident,
     alone: $a_parts:literal [$($a:literal)*], direct: $d_parts:literal to $d_tokens:literal [$($d:literal)*],
     tile: [$($t:literal)*],
     plain_direct: $pd_parts:literal [$($pd:literal)*], plain_tile: [$($pt:literal)*]) => {
        struct $engine;

        const _: () = {
            use std::mem::MaybeUninit;
            use std::ops::Range;
            use $crate::arch::x86_64::matmul::engine::{Engine, first, tile_tokens};
            use $crate::arch::x86_64::matmul::packed::{Codes, Packed};
            use $crate::arch::x86_64::matmul::plain::{self, Number, Segment};
            use $crate::arch::x86_64::matmul::part::{self, Rows};
            use $crate::arch::x86_64::matmul::tile::{self, Unpacked};
            use $crate::cpu::matmul::{Product, Source};

            #[target_feature(enable = $features)]
            unsafe fn direct<W: Packed, const T: usize, const P: usize>(
                product: &Product,
                rows: Rows,
                token: usize,
            ) -> usize {
                // SAFETY: the trait's contract.
                unsafe { tile::direct::<$simd, W, T, P>(product, rows, token) }
            }

            #[target_feature(enable = $features)]
            unsafe fn fill<W: Packed>(
                unpacked: &mut Unpacked<$simd, $parts>,
                source: &Source,
                rows: Rows,
                chunks: Range<usize>,
            ) {
                // SAFETY: the trait's contract.
                unsafe { unpacked.fill::<W>(source, rows, chunks) }
            }

            #[target_feature(enable = $features)]
            unsafe fn tile<C: Codes, const T: usize>(
                product: &Product,
                rows: Rows,
                token: usize,
                unpacked: &mut Unpacked<$simd, $parts>,
                chunks: Range<usize>,
            ) -> usize {
                // SAFETY: the trait's contract.
                unsafe { tile::tile::<$simd, C, T, $parts>(product, rows, token, unpacked, chunks) }
            }

            #[target_feature(enable = $features)]
            unsafe fn plain_direct<N: Number, const T: usize>(product: &Product, rows: Rows, token: usize) -> usize {
                // SAFETY: the trait's contract.
                unsafe { plain::direct::<$simd, N, T, $pd_parts>(product, rows, token) }
            }

            #[target_feature(enable = $features)]
            unsafe fn plain_fill<N: Number>(segment: &mut Segment, source: &Source, rows: Rows, chunk: usize) {
                // SAFETY: the trait's contract.
                unsafe { segment.fill::<$simd, N, $parts>(source, rows, chunk) }
            }

            #[target_feature(enable = $features)]
            unsafe fn plain_tile<const T: usize>(
                product: &Product,
                rows: Rows,
                token: usize,
                segment: &mut Segment,
                chunk: usize,
            ) -> usize {
                // SAFETY: the trait's contract.
                unsafe { plain::tile::<$simd, T, $parts>(product, rows, token, segment, chunk) }
            }

            impl Engine for $engine {
                type Unpacked = Unpacked<$simd, $parts>;
                const PANELS: usize = part::panels_of::<$simd>($parts);
                const DIRECT_TOKENS: usize = $d_tokens;
                const ALONE_TOKENS: usize = first(&[$($a),*]);
                const DIRECT_PANELS: usize = part::panels_of::<$simd>($d_parts);

                fn unpacked(memory: &mut MaybeUninit<Self::Unpacked>) -> &mut Self::Unpacked {
                    Unpacked::empty(memory)
                }

                unsafe fn direct<W: Packed>(product: &Product, rows: Rows, token: usize) -> usize {
                    // SAFETY: the trait's contract; a tile has no more tokens than remain.
                    unsafe {
                        match product.n_tokens - token {
                            $(n if n >= $d => direct::<W, $d, $d_parts>(product, rows, token),)*
                            _ => 0,
                        }
                    }
                }

                unsafe fn alone<W: Packed>(product: &Product, rows: Rows, token: usize) -> usize {
                    // SAFETY: the trait's contract; a tile has no more tokens than remain.
                    unsafe {
                        match product.n_tokens - token {
                            $(n if n >= $a => direct::<W, $a, $a_parts>(product, rows, token),)*
                            _ => 0,
                        }
                    }
                }

                unsafe fn fill<W: Packed>(
                    unpacked: &mut Self::Unpacked,
                    source: &Source,
                    rows: Rows,
                    chunks: Range<usize>,
                ) {
                    // SAFETY: the trait's contract.
                    unsafe { fill::<W>(unpacked, source, rows, chunks) }
                }

                unsafe fn tile<W: Packed>(
                    product: &Product,
                    rows: Rows,
                    tokens: Range<usize>,
                    unpacked: &mut Self::Unpacked,
                    chunks: Range<usize>,
                ) -> usize {
                    // SAFETY: the trait's contract; a tile has no more tokens than remain.
                    unsafe {
                        match tile_tokens(tokens.len(), first(&[$($t),*])) {
                            $(n if n >= $t => tile::<W::$form, $t>(product, rows, tokens.start, unpacked, chunks),)*
                            _ => 0,
                        }
                    }
                }

                unsafe fn plain_direct<N: Number>(product: &Product, rows: Rows, token: usize) -> usize {
                    // SAFETY: the trait's contract; a tile has no more tokens than remain.
                    unsafe {
                        match product.n_tokens - token {
                            $(n if n >= $pd => plain_direct::<N, $pd>(product, rows, token),)*
                            _ => 0,
                        }
                    }
                }

                unsafe fn plain_fill<N: Number>(segment: &mut Segment, source: &Source, rows: Rows, chunk: usize) {
                    // SAFETY: the trait's contract.
                    unsafe { plain_fill::<N>(segment, source, rows, chunk) }
                }

                unsafe fn plain_tile(
                    product: &Product,
                    rows: Rows,
                    tokens: Range<usize>,
                    segment: &mut Segment,
                    chunk: usize,
                ) -> usize {
                    // SAFETY: the trait's contract; a tile has no more tokens than remain.
                    unsafe {
                        match tile_tokens(tokens.len(), first(&[$($pt),*])) {
                            $(n if n >= $pt => plain_tile::<$pt>(product, rows, tokens.start, segment, chunk),)*
                            _ => 0,
                        }
                    }
                }
            }
        };
    };
}
pub(crate) use engine;

/// The largest tile of a falling list, which must end with 1 so that every number of tokens can be made up.
pub(crate) const fn first(tiles: &[usize]) -> usize {
    assert!(tiles[tiles.len() - 1] == 1, "a tile of one token is always needed");
    tiles[0]
}

/// Tokens of the next tile: as many as the `largest` has, but so that no small tile is left at the end of a few.
pub(crate) const fn tile_tokens(left: usize, largest: usize) -> usize {
    match (left, largest) {
        (7 | 8, 6) => 4,
        (5, 6) => 3,
        _ => left,
    }
}

/// Computes the rows of `panels` of a product, whatever its type.
///
/// # Safety
/// The machine has the engine's instruction set, `panels` are panels of the matrix, and nothing else accesses their
/// rows in the output meanwhile.
pub(crate) unsafe fn matmul<E: Engine>(product: &Product, panels: Range<usize>) {
    use super::{formats, plain, tile};
    use crate::quant::WeightType;
    // SAFETY: as this function's own contract.
    unsafe {
        match product.weights.ty() {
            WeightType::F32 => plain::run::<E, plain::F32>(product, panels),
            WeightType::F16 => plain::run::<E, plain::F16>(product, panels),
            WeightType::BF16 => plain::run::<E, plain::Bf16>(product, panels),
            WeightType::Q4_0 => tile::run::<E, formats::Q4_0>(product, panels),
            WeightType::Q4_1 => tile::run::<E, formats::Q4_1>(product, panels),
            WeightType::Q5_0 => tile::run::<E, formats::Q5_0>(product, panels),
            WeightType::Q5_1 => tile::run::<E, formats::Q5_1>(product, panels),
            WeightType::Q8_0 => tile::run::<E, formats::Q8_0>(product, panels),
            WeightType::Q2_K => tile::run::<E, formats::Q2K>(product, panels),
            WeightType::Q3_K => tile::run::<E, formats::Q3K>(product, panels),
            WeightType::Q4_K => tile::run::<E, formats::Q4K>(product, panels),
            WeightType::Q5_K => tile::run::<E, formats::Q5K>(product, panels),
            WeightType::Q6_K => tile::run::<E, formats::Q6K>(product, panels),
            WeightType::IQ4_NL => tile::run::<E, formats::Iq4Nl>(product, panels),
            WeightType::IQ4_XS => tile::run::<E, formats::Iq4Xs>(product, panels),
            WeightType::MXFP4 => tile::run::<E, formats::Mxfp4>(product, panels),
        }
    }
}
