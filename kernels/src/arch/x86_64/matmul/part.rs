//! The parts of a product that one pass computes: which rows and tokens, where their activations, sums and results lie.
//! Not here: the computing. Next: `tile.rs`.

use std::arch::asm;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::simd::Simd;
use crate::cpu::matmul::Product;
use crate::quant::PANEL_ROWS;

/// Most panels of a tile.
pub(crate) const PANELS_MAX: usize = 2;

/// Tokens for which an unpacked piece is used before the next one: their sums stay in the second cache.
pub(crate) const BLOCK_TOKENS: usize = 256;

/// Panels of a tile of so many vectors.
#[inline(always)]
pub(crate) const fn panels_of<S: Simd>(parts: usize) -> usize {
    let panels = (parts * S::LANES).div_ceil(PANEL_ROWS);
    assert!(panels >= 1 && panels <= PANELS_MAX, "a tile has one or two panels");
    panels
}

/// Where vector `part` of a tile begins: its panel, counted from the tile's first, and the row there.
#[inline(always)]
pub(crate) const fn place<S: Simd>(part: usize) -> (usize, usize) {
    (part * S::LANES / PANEL_ROWS, part * S::LANES % PANEL_ROWS)
}

/// The rows of a tile. Its vectors may reach beyond them: what they compute there is dropped.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    first_panel: usize,
    /// The first row that is not the caller's.
    end: usize,
}

impl Rows {
    /// The tiles of `panels`, `each` panels a tile.
    pub(crate) fn of(product: &Product, panels: Range<usize>, each: usize) -> impl Iterator<Item = Rows> + use<> {
        let end = product.weights.rows().min(panels.end * PANEL_ROWS);
        panels.step_by(each).map(move |first_panel| Rows { first_panel, end })
    }

    /// Panel `i` of the tile; the last one again instead of one beyond the rows.
    #[inline(always)]
    pub(crate) fn panel(&self, i: usize) -> usize {
        (self.first_panel + i).min((self.end - 1) / PANEL_ROWS)
    }
}

/// A tile of a product: some tokens' activations, and where their results for some rows go.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    product: &'a Product<'a>,
    pub act: *const u8,
    pub act_stride_bytes: usize,
    out: *mut f32,
    rows: Rows,
}

impl<'a> Tile<'a> {
    /// The tile at `token` for some rows.
    ///
    /// # Safety
    /// Both exist in the product.
    #[inline(always)]
    pub(crate) unsafe fn new(product: &'a Product<'a>, rows: Rows, token: usize) -> Tile<'a> {
        let act_stride_bytes = product.act_stride_bytes;
        // SAFETY: `Product::new` checked that both buffers hold every token.
        unsafe {
            let act = product.acts.as_ptr().add(token * act_stride_bytes);
            let out = product.out.start().add(token * product.out.stride() + rows.first_panel * PANEL_ROWS);
            Tile { product, act, act_stride_bytes, out, rows }
        }
    }

    /// How many lanes of vector `part` are rows of the tile.
    #[inline(always)]
    fn lanes<S: Simd>(&self, part: usize) -> usize {
        self.rows.end.saturating_sub(self.rows.first_panel * PANEL_ROWS + part * S::LANES).min(S::LANES)
    }

    /// Stores the sums of `T` tokens, with the bias added if there is one.
    ///
    /// # Safety
    /// The tile has `T` tokens, and its rows belong to the caller.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd, const T: usize, const P: usize>(&self, acc: &[[S::Float; T]; P]) {
        // SAFETY: only existing rows are written, and a bias has a value for each row.
        unsafe {
            for (part, acc) in acc.iter().enumerate() {
                let (lane, rows) = (part * S::LANES, self.lanes::<S>(part));
                let bias = self.product.bias.map(|bias| {
                    S::load_rows(bias.as_ptr().wrapping_add(self.rows.first_panel * PANEL_ROWS + lane), rows)
                });
                for (t, acc) in acc.iter().enumerate() {
                    let sum = if let Some(bias) = bias { S::add(*acc, bias) } else { *acc };
                    S::store_rows(self.out.wrapping_add(t * self.product.out.stride() + lane), sum, rows);
                }
            }
        }
    }
}

/// Sums of a block of tokens while columns are still to come. They do not wait in the output: its rows are far apart,
/// often by a power of 2, and would throw each other out of the caches.
#[repr(C, align(64))]
pub(crate) struct Sums(MaybeUninit<[[f32; PANELS_MAX * PANEL_ROWS]; BLOCK_TOKENS]>);

impl Sums {
    /// Where vector `part` of a token's sums lies.
    #[inline(always)]
    fn offset<S: Simd>(token: usize, part: usize) -> usize {
        token % BLOCK_TOKENS * (PANELS_MAX * PANEL_ROWS) + part * S::LANES
    }

    /// The sums of `T` tokens from `token` on in `P` vectors.
    ///
    /// # Safety
    /// The machine has `S`, and they were saved.
    #[inline(always)]
    pub(crate) unsafe fn load<S: Simd, const T: usize, const P: usize>(&self, token: usize) -> [[S::Float; T]; P] {
        // SAFETY: the caller's contract; a tile's vectors are those of two panels at most.
        unsafe {
            let mut acc = [[S::zero(); T]; P];
            for (part, acc) in acc.iter_mut().enumerate() {
                for (t, acc) in acc.iter_mut().enumerate() {
                    *acc = S::load_f32(self.0.as_ptr().cast::<f32>().add(Self::offset::<S>(token + t, part)));
                }
            }
            acc
        }
    }

    /// Saves the sums of `T` tokens from `token` on.
    ///
    /// # Safety
    /// The machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn save<S: Simd, const T: usize, const P: usize>(
        &mut self,
        token: usize,
        acc: &[[S::Float; T]; P],
    ) {
        // SAFETY: as in `load`.
        unsafe {
            for (part, acc) in acc.iter().enumerate() {
                for (t, acc) in acc.iter().enumerate() {
                    let at = self.0.as_mut_ptr().cast::<f32>().add(Self::offset::<S>(token + t, part));
                    S::store_f32(at, *acc);
                }
            }
        }
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
