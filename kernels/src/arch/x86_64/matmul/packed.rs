//! What products need of a block type: its codes as bytes, and its scales as F32, chunk by chunk.
//! Next: `formats.rs`, which unpacks each type.

use std::mem::MaybeUninit;

use super::simd::{Simd, offset};
use crate::quant::{PANEL_ROWS, SUB_COLS, WeightType};

/// Vectors of 4 columns in a sub-block of 32.
pub(crate) const GROUPS: usize = 8;

/// Scales of 16 rows, of which only those are written and read that a type has.
type PanelScales = MaybeUninit<[[f32; PANEL_ROWS]; 16]>;

/// Scales and mins of a chunk of 8 sub-blocks, 16 rows each: entry `s` for sub-block s, or `2s + half` for types
/// whose halves have their own.
#[repr(C, align(64))]
pub(crate) struct Scales {
    scale: PanelScales,
    min: PanelScales,
}

impl Scales {
    /// Nothing written yet.
    #[inline(always)]
    pub(crate) fn new() -> Scales {
        Scales { scale: MaybeUninit::uninit(), min: MaybeUninit::uninit() }
    }

    /// The scales of a vector of rows.
    ///
    /// # Safety
    /// The machine has `S`, and they were written.
    #[inline(always)]
    pub(crate) unsafe fn scale<S: Simd>(&self, i: usize, lane: usize) -> S::Float {
        // SAFETY: the caller has the instruction set; the lanes are initialised; `i < 16`, `lane + S::LANES <= 16`.
        unsafe { S::load_f32(self.scale.as_ptr().cast::<f32>().add(PANEL_ROWS * i + lane)) }
    }

    /// The mins of a vector of rows.
    ///
    /// # Safety
    /// As [`Scales::scale`].
    #[inline(always)]
    pub(crate) unsafe fn min<S: Simd>(&self, i: usize, lane: usize) -> S::Float {
        // SAFETY: as in `scale`.
        unsafe { S::load_f32(self.min.as_ptr().cast::<f32>().add(PANEL_ROWS * i + lane)) }
    }

    /// Writes the scales of a vector of rows.
    ///
    /// # Safety
    /// The machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn set_scale<S: Simd>(&mut self, i: usize, lane: usize, value: S::Float) {
        // SAFETY: the caller has the instruction set; `i < 16`, `lane + S::LANES <= 16`.
        unsafe { S::store_f32(self.scale.as_mut_ptr().cast::<f32>().add(PANEL_ROWS * i + lane), value) }
    }

    /// Writes the mins of a vector of rows.
    ///
    /// # Safety
    /// The machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn set_min<S: Simd>(&mut self, i: usize, lane: usize, value: S::Float) {
        // SAFETY: as in `set_scale`.
        unsafe { S::store_f32(self.min.as_mut_ptr().cast::<f32>().add(PANEL_ROWS * i + lane), value) }
    }
}

/// What the dot products and sums of a type depend on; types that agree in it share their code.
pub(crate) trait Codes {
    /// Whether the two halves of a sub-block have scales (and mins) of their own.
    const HALVES: bool;
    /// Whether values have a min. Mins of halves are divided by -128, as the sums that they meet are -128 times.
    const MINS: bool;
    /// Codes are unsigned and this much larger than values; 0 or a power of 2.
    const OFFSET: u8;
    /// The same if the vectors raise ([`Simd::RAISES`]).
    const RAISED_OFFSET: u8;
    /// Codes are signed bytes, unless the vectors multiply any bytes.
    const SIGNED: bool = Self::OFFSET == 0 && Self::RAISED_OFFSET == 128;
    /// Vectors of codes whose products with activations can be summed in 16 bits: the largest power of 2 up to 8
    /// with `2 * 127 * (largest code) * vectors < 2^15`.
    const WORD_GROUPS: usize;
}

/// [`Codes`] by numbers.
pub(crate) struct Form<
    const HALVES: bool,
    const MINS: bool,
    const OFFSET: u8,
    const RAISED_OFFSET: u8,
    const WORD_GROUPS: usize,
>;

impl<const HALVES: bool, const MINS: bool, const OFFSET: u8, const RAISED_OFFSET: u8, const WORD_GROUPS: usize> Codes
    for Form<HALVES, MINS, OFFSET, RAISED_OFFSET, WORD_GROUPS>
{
    const HALVES: bool = HALVES;
    const MINS: bool = MINS;
    const OFFSET: u8 = OFFSET;
    const RAISED_OFFSET: u8 = RAISED_OFFSET;
    const WORD_GROUPS: usize = WORD_GROUPS;
}

/// Codes as the type has them: as small as they can be.
pub(crate) type Narrow<const OFFSET: u8, const RAISED_OFFSET: u8, const WORD_GROUPS: usize> =
    Form<false, false, OFFSET, RAISED_OFFSET, WORD_GROUPS>;
/// As [`Narrow`], for types with a min.
pub(crate) type NarrowMin<const WORD_GROUPS: usize> = Form<false, true, 0, 0, WORD_GROUPS>;
/// Codes with an offset of 128, of any byte: no operation is needed for a dot product's start value.
pub(crate) type Raised = Form<false, false, 128, 128, 0>;
/// As [`Raised`], for types with a min, which have no offset.
pub(crate) type RaisedMin = Form<false, true, 0, 0, 0>;

/// How one type's chunks are unpacked.
///
/// # Safety
/// Of all functions: the machine has `S`, `chunk` points to a whole packed chunk of `subs` sub-blocks of this type,
/// and `lane` is the first row of a vector.
pub(crate) trait Packed {
    /// The type.
    const TYPE: WeightType;
    /// Bytes of a sub-block of 16 rows, its share of the scales included.
    const SUB_BYTES: usize = PANEL_ROWS * Self::TYPE.block().1 * SUB_COLS / Self::TYPE.block().0;
    /// Most tokens for which panels are read one after the other. Two at once share the activations' loads, but memory
    /// delivers two streams more slowly; what counts is how much there is to compute for each byte.
    const ALONE_TOKENS: usize = if Self::SUB_BYTES > 25 * PANEL_ROWS { 4 } else { 3 };
    /// Whether 8 tokens are taken panel by panel too: sums and dot products of one panel fit the registers, those of
    /// two do not (IQ4_XS 0.56 of the multiply peak against 0.45). Where unpacking or scaling takes long, two at once
    /// are as fast or faster (Q4_K 0.51 against 0.53) and hide more of the memory's latency.
    const EIGHT_ALONE: bool = !Self::Narrow::HALVES && !(Self::Narrow::MINS && Self::TYPE.block().0 > SUB_COLS);
    /// The form of `code`.
    type Narrow: Codes;
    /// The form of [`raised`] codes, for vectors that multiply any bytes.
    type Raised: Codes;
    /// Writes the scales and mins of all sub-blocks for a vector of rows.
    unsafe fn scales<S: Simd>(chunk: *const u8, subs: usize, lane: usize, out: &mut Scales);
    /// Vector g of the codes of sub-block `sub < subs`, `at` = (sub, g): columns 4g..4g+4 of the rows.
    unsafe fn code<S: Simd>(chunk: *const u8, subs: usize, at: (usize, usize), lane: usize) -> S::Int;
}

/// [`Packed::code`] in the form [`Packed::Raised`] if the vectors multiply any bytes. Pays where codes are used more
/// than once.
///
/// # Safety
/// As [`Packed`].
#[inline(always)]
pub(crate) unsafe fn raised<S: Simd, W: Packed>(
    chunk: *const u8,
    subs: usize,
    at: (usize, usize),
    lane: usize,
) -> S::Int {
    // SAFETY: the caller's contract.
    unsafe {
        let code = W::code::<S>(chunk, subs, at, lane);
        let offset = const { offset::<S, W::Narrow>() };
        let must_rise = S::ANY_BYTES && offset > 0 && offset < 128;
        if must_rise { S::add8(code, S::splat8((128 - offset) as i8)) } else { code }
    }
}
