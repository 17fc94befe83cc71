//! A small matrix product in registers, C = A · B or C += A · B, of operands that lie in L1 or L2: A \[rows, depth\],
//! B \[depth, cols\].
//!
//! Each element of C is one chain of fused multiply-adds over rising depth from its first value, however rows and
//! columns are grouped in registers: its bits depend on its row of A and column of B alone. Rows of A are read as
//! scalars, columns of B and C as vectors. AVX-512 keeps 6 × 4 vectors of C, AVX2 6 × 1 (two registers each).

use crate::cpu::ops::simd::{LANES, Simd};
use std::ops::Range;

/// A matrix in a slice: where it starts and how far its rows are apart.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    pub data: &'a [f32],
    pub stride: usize,
}

/// The result's matrix.
pub(super) struct Target<'a> {
    pub data: &'a mut [f32],
    pub stride: usize,
}

/// What C holds before the first product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// Nothing: C = A · B.
    Zero,
    /// A value: C += A · B.
    Kept,
}

/// Which part of the operands to multiply.
#[derive(Clone)]
pub(super) struct Extent {
    pub rows: Range<usize>,
    /// A multiple of [`LANES`], from column 0.
    pub cols: usize,
    pub depth: Range<usize>,
}

/// C \[rows, cols\] (+)= A \[rows, depth\] · B \[depth, cols\].
///
/// # Panics
/// When the extent does not lie in the operands.
#[inline(always)]
pub(super) fn multiply<V: Simd>(a: Operand, b: Operand, c: Target, start: Start, extent: Extent) {
    let Extent { rows, cols, depth } = extent;
    if rows.is_empty() || depth.is_empty() {
        return;
    }
    assert!(cols.is_multiple_of(LANES) && cols <= b.stride && cols <= c.stride);
    assert!((rows.end - 1) * a.stride + depth.end <= a.data.len(), "A holds its rows");
    assert!((depth.end - 1) * b.stride + cols <= b.data.len(), "B holds its rows");
    assert!((rows.end - 1) * c.stride + cols <= c.data.len(), "C holds its rows");
    let wide = V::GEMM_VECTORS * LANES;
    let mut row = rows.start;
    while row < rows.end {
        let count = rows_together::<V>(rows.end - row);
        let mut col = 0;
        while col < cols {
            let block = Block {
                a: a.data[row * a.stride + depth.start..].as_ptr(),
                a_stride: a.stride,
                b: b.data[depth.start * b.stride + col..].as_ptr(),
                b_stride: b.stride,
                c: c.data[row * c.stride + col..].as_mut_ptr(),
                c_stride: c.stride,
                depth: depth.len(),
                start,
            };
            let vectors = if cols - col >= wide { V::GEMM_VECTORS } else { 1 };
            // SAFETY: the assertions above hold for all of the extent, of which this block is a part.
            unsafe { block.run::<V>(count, vectors) };
            col += vectors * LANES;
        }
        row += count;
    }
}

/// How many of the rows that are left go together: up to six, without a lonely last one.
#[inline(always)]
pub(super) fn rows_together<V: Simd>(left: usize) -> usize {
    if V::GEMM_ROWS < 6 {
        return left.min(V::GEMM_ROWS);
    }
    match left {
        0..=6 => left,
        7 | 8 => 4,
        9 => 5,
        _ => 6,
    }
}

/// Some rows and vectors of C.
struct Block {
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    depth: usize,
    start: Start,
}

impl Block {
    /// # Safety
    /// - `rows` rows of `depth` elements are readable at `a`, `depth` rows of `vectors` · 16 at `b`;
    /// - `rows` rows of `vectors` · 16 elements are readable and writable at `c`, and nobody else uses them.
    #[inline(always)]
    unsafe fn run<V: Simd>(&self, rows: usize, vectors: usize) {
        // SAFETY: passed on.
        unsafe {
            match (rows, vectors) {
                (1, 1) => self.fixed::<V, 1, 1>(),
                (2, 1) => self.fixed::<V, 2, 1>(),
                (3, 1) => self.fixed::<V, 3, 1>(),
                (4, 1) => self.fixed::<V, 4, 1>(),
                (5, 1) => self.fixed::<V, 5, 1>(),
                (6, 1) => self.fixed::<V, 6, 1>(),
                (1, 4) => self.fixed::<V, 1, 4>(),
                (2, 4) => self.fixed::<V, 2, 4>(),
                (3, 4) => self.fixed::<V, 3, 4>(),
                (4, 4) => self.fixed::<V, 4, 4>(),
                (5, 4) => self.fixed::<V, 5, 4>(),
                (6, 4) => self.fixed::<V, 6, 4>(),
                _ => unreachable!("`rows_together` and GEMM_VECTORS give no other counts"),
            }
        }
    }

    /// # Safety
    /// As [`Block::run`], with R rows and N vectors.
    #[expect(clippy::needless_range_loop, reason = "indices are counts of registers, all loops unroll")]
    #[inline(always)]
    unsafe fn fixed<V: Simd, const R: usize, const N: usize>(&self) {
        let mut sums = [[V::zero(); N]; R];
        // SAFETY: the caller vouches for R rows of N vectors at `c`, exclusively, `depth` rows of N vectors at `b` and
        // R rows of `depth` elements at `a`; no index below exceeds these.
        unsafe {
            if self.start == Start::Kept {
                for r in 0..R {
                    for n in 0..N {
                        sums[r][n] = V::load(&*self.c.add(r * self.c_stride + n * LANES).cast());
                    }
                }
            }
            for k in 0..self.depth {
                let mut b = [V::zero(); N];
                for n in 0..N {
                    b[n] = V::load(&*self.b.add(k * self.b_stride + n * LANES).cast());
                }
                for r in 0..R {
                    let a = V::splat(*self.a.add(r * self.a_stride + k));
                    for n in 0..N {
                        sums[r][n] = a.mul_add(b[n], sums[r][n]);
                    }
                }
            }
            for r in 0..R {
                for n in 0..N {
                    sums[r][n].store(&mut *self.c.add(r * self.c_stride + n * LANES).cast());
                }
            }
        }
    }
}
