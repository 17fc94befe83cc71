//! The key/value cache as the operators see it, and the operator that writes into it.
//!
//! A cache is one matrix `[slot, cols]` for keys and one for values, f16 or f32. Slots come in physical blocks of
//! [`KV_BLOCK`]; a sequence's block table says in which physical block each of its logical ones lies, which serves
//! paging and, with entries that repeat, rings. Not here: who owns slots (runtime). Next: `attention/mod.rs`.

use super::simd::{Kernel, LANES, Simd, dispatch};
use super::view::{View, ViewMut};
use crate::cpu::Isa;
use half::f16;
use std::ops::Range;

/// Positions of a cache block. Logical block b of a sequence holds its positions 64·b .. 64·b + 64.
pub const KV_BLOCK: usize = 64;

/// Keys or values in their cache, `[slots, cols]`.
#[derive(Clone, Copy, Debug)]
pub enum KvView<'a> {
    /// Half precision.
    F16(View<'a, f16>),
    /// Single precision.
    F32(View<'a, f32>),
}

/// Keys or values to be written, `[slots, cols]`.
#[derive(Debug)]
pub enum KvViewMut<'a> {
    /// Half precision.
    F16(ViewMut<'a, f16>),
    /// Single precision.
    F32(ViewMut<'a, f32>),
}

impl KvView<'_> {
    /// Slots.
    pub fn rows(&self) -> usize {
        match self {
            Self::F16(view) => view.rows(),
            Self::F32(view) => view.rows(),
        }
    }

    /// Columns of a slot.
    pub fn cols(&self) -> usize {
        match self {
            Self::F16(view) => view.cols(),
            Self::F32(view) => view.cols(),
        }
    }
}

impl<'a> KvViewMut<'a> {
    /// The columns `cols` of every slot.
    pub fn col_range(self, cols: Range<usize>) -> KvViewMut<'a> {
        match self {
            Self::F16(view) => Self::F16(view.col_range(cols)),
            Self::F32(view) => Self::F32(view.col_range(cols)),
        }
    }
}

/// Slot of `position` in a sequence with this block table.
///
/// # Panics
/// When the table has no entry for the position.
pub fn slot(block_table: &[u32], position: u32) -> u32 {
    let block = block_table[position as usize / KV_BLOCK];
    block * KV_BLOCK as u32 + position % KV_BLOCK as u32
}

/// Writes row r of `x` into slot `slots[r]`. Half precision rounds to nearest even and is infinite beyond ±65504, so
/// that an overflow shows in the logits rather than pass as a large number.
///
/// May be split by rows and by columns (both views alike), as long as no two threads write the same slot and column.
///
/// # Panics
/// When shapes differ or there is no such slot.
pub fn store_kv(isa: Isa, x: View, slots: &[u32], cache: KvViewMut) {
    assert_eq!(x.rows(), slots.len(), "one slot per row");
    match cache {
        KvViewMut::F32(mut cache) => {
            for (r, &slot) in slots.iter().enumerate() {
                cache.row_mut(slot as usize).copy_from_slice(x.row(r));
            }
        }
        KvViewMut::F16(cache) => {
            assert_eq!(x.cols(), cache.cols(), "columns of the cache");
            dispatch(isa, StoreF16 { x, slots, cache });
        }
    }
}

struct StoreF16<'a> {
    x: View<'a>,
    slots: &'a [u32],
    cache: ViewMut<'a, f16>,
}

impl Kernel for StoreF16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        for (r, &slot) in self.slots.iter().enumerate() {
            let (from, from_rest) = self.x.row(r).as_chunks::<LANES>();
            let (to, to_rest) = self.cache.row_mut(slot as usize).as_chunks_mut::<LANES>();
            for (from, to) in from.iter().zip(to) {
                V::load(from).store_f16(to);
            }
            let mut last = [f16::ZERO; LANES];
            V::load_part(from_rest).store_f16(&mut last);
            to_rest.copy_from_slice(&last[..to_rest.len()]);
        }
    }
}
