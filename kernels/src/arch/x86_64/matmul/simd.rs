//! The vector operations that products are made of. Next: `packed.rs`.

use super::packed::{Codes, GROUPS};
use crate::cpu::matmul::{BASE, BASE_BITS};

/// Which columns of a sub-block an integer dot product takes; the start value that undoes a bias depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    /// All 32.
    Whole,
    /// 0..16.
    Low,
    /// 16..32.
    High,
}

impl Span {
    /// Vectors of 4 columns.
    #[inline(always)]
    pub(crate) const fn groups(self) -> std::ops::Range<usize> {
        match self {
            Span::Whole => 0..GROUPS,
            Span::Low => 0..GROUPS / 2,
            Span::High => GROUPS / 2..GROUPS,
        }
    }
}

/// The codes of a sub-block for the vectors of a tile.
pub(crate) trait PartCodes<S: Simd> {
    /// Vector `g` of the codes of vector `part` of rows.
    ///
    /// # Safety
    /// The machine has `S`, and there are such vectors.
    unsafe fn vector(&self, part: usize, g: usize) -> S::Int;
}

impl<S: Simd, const P: usize> PartCodes<S> for [[S::Int; GROUPS]; P] {
    #[inline(always)]
    unsafe fn vector(&self, part: usize, g: usize) -> S::Int {
        self[part][g]
    }
}

/// Vectors of one instruction set; a lane is 32 bits and belongs to one row.
///
/// # Safety
/// Of all functions: the machine has the instruction set, and pointers reach as far as each function says. Functions
/// are `#[inline(always)]` and must end up in one with the right `#[target_feature]`.
pub(crate) trait Simd: Copy {
    /// Integers: 4 bytes, 2 words or one number a lane.
    type Int: Copy;
    /// One number a lane.
    type Float: Copy;
    /// Rows of a vector.
    const LANES: usize;
    /// Vector registers.
    const REGISTERS: usize;
    /// Whether [`Simd::dots`] multiplies any unsigned bytes, not only those whose sums fit 16 bits. Signed codes then
    /// come with 128 added.
    const ANY_BYTES: bool;
    /// Whether the operations that unpack codes can add to them at no cost; implies `ANY_BYTES`.
    const RAISES: bool;

    /// `LANES * 4` bytes.
    unsafe fn load(at: *const u8) -> Self::Int;
    unsafe fn splat8(value: i8) -> Self::Int;
    unsafe fn add8(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn splat32(value: i32) -> Self::Int;
    /// 16 bytes, repeated.
    unsafe fn table(values: &[i8; 16]) -> Self::Int;
    unsafe fn and(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn or(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn xor(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn add32(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn sub32(a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lanes shifted right, zeros from the left.
    unsafe fn shr(v: Self::Int, count: usize) -> Self::Int;
    /// Lanes shifted right, the sign from the left.
    unsafe fn shr_signed(v: Self::Int, count: usize) -> Self::Int;
    /// Lanes shifted left.
    unsafe fn shl(v: Self::Int, count: usize) -> Self::Int;
    /// The field of each byte that begins at bit `from`, moved to bit `to`, where `mask` says which bits it has. Which
    /// field it is may be known only at run time.
    unsafe fn field(v: Self::Int, from: usize, to: usize, mask: u8) -> Self::Int;
    /// Bits `from` and `from + 1` of each byte as the top ones of a code of 6 bits, the others 0. If the vectors raise,
    /// with 96 added: the upper one is inverted and copied to bit 6, and stands as it is in bit 7.
    unsafe fn top_bits(v: Self::Int, from: usize) -> Self::Int;
    /// Each byte replaced by the table's value for its low 4 bits.
    unsafe fn look_up(table: Self::Int, bytes: Self::Int) -> Self::Int;
    /// Lanes of `a` where `v < bound`, else of `b`.
    unsafe fn select_less(v: Self::Int, bound: i32, a: Self::Int, b: Self::Int) -> Self::Int;
    /// The broadcast of 4 bytes.
    unsafe fn broadcast32(at: *const u8) -> Self::Int;
    /// `LANES` unsigned bytes, one a lane.
    unsafe fn load_u8(at: *const u8) -> Self::Int;
    /// `LANES` signed bytes, one a lane.
    unsafe fn load_i8(at: *const u8) -> Self::Int;
    /// `LANES` 16-bit numbers, one in the upper half of each lane.
    unsafe fn load_high_u16(at: *const u8) -> Self::Int;

    unsafe fn to_float(v: Self::Int) -> Self::Float;
    unsafe fn float_bits(v: Self::Int) -> Self::Float;
    unsafe fn zero() -> Self::Float;
    /// `LANES` half-precision numbers.
    unsafe fn load_f16(at: *const u8) -> Self::Float;
    /// `LANES` numbers.
    unsafe fn load_f32(at: *const f32) -> Self::Float;
    /// `LANES` numbers.
    unsafe fn store_f32(at: *mut f32, v: Self::Float);
    /// The first `rows` numbers, 0 in the other lanes; nothing beyond them is read.
    unsafe fn load_rows(at: *const f32, rows: usize) -> Self::Float;
    /// The first `rows` lanes; nothing beyond them is written.
    unsafe fn store_rows(at: *mut f32, v: Self::Float, rows: usize);
    /// The broadcast of one number.
    unsafe fn broadcast_f32(at: *const u8) -> Self::Float;
    unsafe fn splat_f32(value: f32) -> Self::Float;
    unsafe fn add(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    /// Asks for a line of memory in the first cache, ...
    unsafe fn prefetch(at: *const u8);
    /// ... in the second.
    unsafe fn prefetch_far(at: *const u8);

    /// Exact dot products of a sub-block's values, `P` vectors of rows, with `T` tokens' activations (see
    /// `cpu/matmul/act.rs`), with `BASE_BITS` if [`is_based`]. Each vector of codes is asked for once, where it is
    /// needed.
    unsafe fn dots<C: Codes, const T: usize, const P: usize>(
        codes: &impl PartCodes<Self>,
        acts: &[*const u8; T],
    ) -> [[Self::Int; T]; P];

    /// The same, apart for columns 0..16 and 16..32, which never have `BASE_BITS`.
    unsafe fn half_dots<C: Codes, const T: usize, const P: usize>(
        codes: &impl PartCodes<Self>,
        acts: &[*const u8; T],
    ) -> [[[Self::Int; T]; P]; 2];
}

/// How much larger codes of form `C` are than their values.
pub(crate) const fn offset<S: Simd, C: Codes>() -> u8 {
    if S::RAISES || S::ANY_BYTES && C::SIGNED { C::RAISED_OFFSET } else { C::OFFSET }
}

/// Whether dot products of a whole sub-block or of its low half come with [`BASE`] added: `BASE + dot` is then read as
/// F32 without a conversion. Vectors with few registers take what activations bring; others add it to every sum.
pub(crate) const fn is_based<S: Simd, C: Codes>() -> bool {
    S::REGISTERS > 16 || offset::<S, C>() == 128
}

/// A dot product times its scale, rounded once; `excess` is `-BASE * scale`. `BASE * scale` is exact, since scales have
/// 19 bits at most: the bits are those of a product, unless the scale is not finite or 2^104 and more.
///
/// # Safety
/// The machine has `S`.
#[inline(always)]
pub(crate) unsafe fn scaled<S: Simd, C: Codes>(dot: S::Int, scale: S::Float, excess: S::Float) -> S::Float {
    // SAFETY: the caller has `S`.
    unsafe {
        match const { (is_based::<S, C>(), S::REGISTERS > 16) } {
            (true, true) => S::fma(S::float_bits(dot), scale, excess),
            (true, false) => S::mul(S::add(S::float_bits(dot), S::splat_f32(-BASE)), scale),
            (false, _) => S::mul(S::to_float(dot), scale),
        }
    }
}

/// What a dot product with codes of form `C` starts from: minus their offset times the sum of the span's activations,
/// and the bits of [`BASE`] where sums have it.
///
/// # Safety
/// The machine has `S`; `act` points to a block of activations.
#[inline(always)]
pub(crate) unsafe fn start_value<S: Simd, C: Codes>(span: Span, act: *const u8) -> S::Int {
    let (offset, has_base) = (const { offset::<S, C>() }, span != Span::High && const { is_based::<S, C>() });
    // SAFETY: the caller has `S`; the block has `BASE_BITS` less 128 times the sum of all and of the first half.
    unsafe {
        let (base, field) = (S::splat32(BASE_BITS), |at: usize| S::broadcast32(act.add(at)));
        if offset == 0 {
            return if has_base { base } else { S::splat32(0) };
        }
        if offset == 128 && has_base {
            return field(if span == Span::Whole { 40 } else { 44 });
        }
        let sum = match span {
            Span::Whole => S::sub32(field(40), base),
            Span::Low => S::sub32(field(44), base),
            Span::High => S::sub32(field(40), field(44)),
        };
        let start = if offset == 128 { sum } else { S::shr_signed(sum, 7 - offset.trailing_zeros() as usize) };
        if has_base { S::add32(start, base) } else { start }
    }
}
