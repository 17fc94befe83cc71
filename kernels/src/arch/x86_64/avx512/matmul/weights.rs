//! Unpacks a chunk of each type to unsigned bytes and F32 scales. The meanings are those of `quant/block.rs`, the
//! places those of `quant/panel.rs`. Next: `tile.rs`.

use std::arch::x86_64::*;

use crate::quant::{IQ4_VALUES, MXFP4_VALUES, PANEL_ROWS, SUB_COLS, WeightType, head_bytes};

/// Vectors of 4 columns in a sub-block of 32.
pub(super) const GROUPS: usize = 8;

/// Scales and mins of a chunk of 8 sub-blocks, 16 rows each: entry `s` for sub-block s, or `2s + half` for types
/// whose halves have their own.
#[repr(C, align(64))]
pub(super) struct Scales {
    pub scale: [[f32; 16]; 16],
    pub min: [[f32; 16]; 16],
}

impl Scales {
    pub(super) const ZERO: Scales = Scales { scale: [[0.0; 16]; 16], min: [[0.0; 16]; 16] };

    #[inline(always)]
    unsafe fn set_scale(&mut self, i: usize, value: __m512) {
        // SAFETY: a row of the table is 64 bytes, aligned to 64.
        unsafe { _mm512_store_ps(self.scale[i].as_mut_ptr(), value) }
    }

    #[inline(always)]
    unsafe fn set_min(&mut self, i: usize, value: __m512) {
        // SAFETY: as in `set_scale`.
        unsafe { _mm512_store_ps(self.min[i].as_mut_ptr(), value) }
    }
}

/// How one type's chunks are unpacked.
///
/// # Safety
/// For all functions: the machine has the features of AVX-512 here, and `chunk` points to a whole packed chunk of
/// `subs` sub-blocks of this type.
pub(super) trait Packed {
    /// The type.
    const TYPE: WeightType;
    /// Bytes of a sub-block of 16 rows, its share of the scales included.
    const SUB_BYTES: usize = PANEL_ROWS * Self::TYPE.block().1 * SUB_COLS / Self::TYPE.block().0;
    /// Whether the two halves of a sub-block have scales (and mins) of their own.
    const HALVES: bool = false;
    /// Whether values have a min. Mins of halves are divided by -128, as the sums that they meet are -128 times.
    const MINS: bool = false;
    /// Whether `quants` are 128 too large, so that signed values are unsigned bytes.
    const BIASED: bool = false;
    /// Writes the scales and mins of all sub-blocks.
    unsafe fn scales(chunk: *const u8, subs: usize, out: &mut Scales);
    /// The values of sub-block `sub < subs`: vector g has columns 4g..4g+4 of the 16 rows.
    unsafe fn quants(chunk: *const u8, subs: usize, sub: usize) -> [__m512i; GROUPS];
}

#[inline(always)]
unsafe fn load(at: *const u8) -> __m512i {
    // SAFETY: the caller points to 64 readable bytes.
    unsafe { _mm512_loadu_si512(at.cast()) }
}

/// 16 half-precision numbers.
#[inline(always)]
unsafe fn load_f16(at: *const u8) -> __m512 {
    // SAFETY: the caller points to 32 readable bytes.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
}

/// 16 bytes, as unsigned 32-bit numbers.
#[inline(always)]
unsafe fn load_u8(at: *const u8) -> __m512i {
    // SAFETY: the caller points to 16 readable bytes.
    unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())) }
}

/// Bytes `(v >> shift) & mask`, with `shift` in every 16-bit lane.
#[inline(always)]
unsafe fn bits(v: __m512i, shift: __m512i, mask: i8) -> __m512i {
    // SAFETY: the caller has AVX-512 BW.
    unsafe { _mm512_and_si512(_mm512_srlv_epi16(v, shift), _mm512_set1_epi8(mask)) }
}

/// `low | (bits of v at `shift`, moved to the place of `mask`)`.
#[inline(always)]
unsafe fn or_bits(low: __m512i, v: __m512i, rotate: __m512i, mask: i8) -> __m512i {
    // SAFETY: the caller has AVX-512 F. 0xF8 is a | (b & c).
    unsafe { _mm512_ternarylogic_epi32::<0xF8>(low, _mm512_rolv_epi32(v, rotate), _mm512_set1_epi8(mask)) }
}

/// A table of 16 signed values, 128 added, in every 128-bit lane.
#[inline(always)]
unsafe fn biased_table(values: &[i8; 16]) -> __m512i {
    // SAFETY: `values` is 16 readable bytes; the caller has AVX-512 BW.
    unsafe {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast()));
        _mm512_xor_si512(table, _mm512_set1_epi8(-128))
    }
}

/// The 4-bit codes of a sub-block of 16 bytes a row: low nibbles are columns 0..16, high ones 16..32.
#[inline(always)]
unsafe fn nibbles(body: *const u8) -> [__m512i; GROUPS] {
    // SAFETY: the caller points to 256 readable bytes.
    unsafe {
        let mask = _mm512_set1_epi8(15);
        let mut out = [mask; GROUPS];
        for i in 0..4 {
            let v = load(body.add(64 * i));
            out[i] = _mm512_and_si512(v, mask);
            out[i + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask);
        }
        out
    }
}

/// Start of sub-block `sub` of a type with blocks of 32 columns, of which `bytes` a row are codes.
#[inline(always)]
unsafe fn body_of(ty: WeightType, chunk: *const u8, subs: usize, sub: usize, bytes: usize) -> *const u8 {
    // SAFETY: within the chunk, by the layout of `quant/panel.rs`.
    unsafe { chunk.add(16 * (subs * head_bytes(ty) + sub * bytes)) }
}

/// Scales of types with one f16 a block; the block's min, if any, is a second field.
#[inline(always)]
unsafe fn f16_scales(chunk: *const u8, subs: usize, out: &mut Scales, mins: Option<()>) {
    for sub in 0..subs {
        // SAFETY: the head of a chunk begins with 16 f16 for each sub-block, then as many mins.
        unsafe {
            out.set_scale(sub, load_f16(chunk.add(32 * sub)));
            if mins.is_some() {
                out.set_min(sub, load_f16(chunk.add(32 * (subs + sub))));
            }
        }
    }
}

macro_rules! impl_packed {
    ($(#[$doc:meta])* $name:ident $ty:ident { $($consts:tt)* } scales($c:ident, $n:ident, $out:ident) $scales:block
     quants($c2:ident, $n2:ident, $s:ident) $quants:block) => {
        $(#[$doc])*
        pub(super) struct $name;
        impl Packed for $name {
            const TYPE: WeightType = WeightType::$ty;
            $($consts)*
            #[inline(always)]
            unsafe fn scales($c: *const u8, $n: usize, $out: &mut Scales) {
                // SAFETY: the trait's contract; offsets are those of `quant/panel.rs`.
                unsafe { $scales }
            }
            #[inline(always)]
            unsafe fn quants($c2: *const u8, $n2: usize, $s: usize) -> [__m512i; GROUPS] {
                // SAFETY: the trait's contract; offsets are those of `quant/panel.rs`.
                unsafe { $quants }
            }
        }
    };
}

impl_packed! {
    /// f16 scale; code - 8.
    Q4_0 Q4_0 { const BIASED: bool = true; }
    scales(chunk, subs, out) { f16_scales(chunk, subs, out, None) }
    quants(chunk, subs, sub) {
        nibbles(body_of(Self::TYPE, chunk, subs, sub, 16)).map(|q| _mm512_add_epi8(q, _mm512_set1_epi8(120)))
    }
}

impl_packed! {
    /// f16 scale and min.
    Q4_1 Q4_1 { const MINS: bool = true; }
    scales(chunk, subs, out) { f16_scales(chunk, subs, out, Some(())) }
    quants(chunk, subs, sub) { nibbles(body_of(Self::TYPE, chunk, subs, sub, 16)) }
}

/// Codes of Q5_0 and Q5_1: 4 bytes of transposed fifth bits, then nibbles.
#[inline(always)]
unsafe fn five_bits(body: *const u8) -> [__m512i; GROUPS] {
    // SAFETY: the caller points to 64 + 256 readable bytes.
    unsafe {
        let high = load(body);
        let mut out = nibbles(body.add(64));
        for (g, q) in out.iter_mut().enumerate() {
            *q = or_bits(*q, high, _mm512_set1_epi32((32 + 4 - g as i32) % 32), 16);
        }
        out
    }
}

impl_packed! {
    /// f16 scale; code - 16.
    Q5_0 Q5_0 { const BIASED: bool = true; }
    scales(chunk, subs, out) { f16_scales(chunk, subs, out, None) }
    quants(chunk, subs, sub) {
        five_bits(body_of(Self::TYPE, chunk, subs, sub, 20)).map(|q| _mm512_add_epi8(q, _mm512_set1_epi8(112)))
    }
}

impl_packed! {
    /// f16 scale and min.
    Q5_1 Q5_1 { const MINS: bool = true; }
    scales(chunk, subs, out) { f16_scales(chunk, subs, out, Some(())) }
    quants(chunk, subs, sub) { five_bits(body_of(Self::TYPE, chunk, subs, sub, 20)) }
}

impl_packed! {
    /// f16 scale, signed bytes.
    Q8_0 Q8_0 { const BIASED: bool = true; }
    scales(chunk, subs, out) { f16_scales(chunk, subs, out, None) }
    quants(chunk, subs, sub) {
        let body = body_of(Self::TYPE, chunk, subs, sub, 32);
        std::array::from_fn(|g| _mm512_xor_si512(load(body.add(64 * g)), _mm512_set1_epi8(-128)))
    }
}

impl_packed! {
    /// f16 scale, codes of a table.
    Iq4Nl IQ4_NL { const BIASED: bool = true; }
    scales(chunk, subs, out) { f16_scales(chunk, subs, out, None) }
    quants(chunk, subs, sub) {
        let table = biased_table(&IQ4_VALUES);
        nibbles(body_of(Self::TYPE, chunk, subs, sub, 16)).map(|q| _mm512_shuffle_epi8(table, q))
    }
}

impl_packed! {
    /// Exponent byte, codes of a table.
    Mxfp4 MXFP4 { const BIASED: bool = true; }
    scales(chunk, subs, out) {
        for sub in 0..subs {
            let exponent = load_u8(chunk.add(16 * sub));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponent, _mm512_set1_epi32(1)));
            let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponent);
            let tiny = _mm512_cmplt_epi32_mask(exponent, _mm512_set1_epi32(2));
            out.set_scale(sub, _mm512_castsi512_ps(_mm512_mask_blend_epi32(tiny, normal, subnormal)));
        }
    }
    quants(chunk, subs, sub) {
        let table = biased_table(&MXFP4_VALUES);
        nibbles(body_of(Self::TYPE, chunk, subs, sub, 16)).map(|q| _mm512_shuffle_epi8(table, q))
    }
}

/// A vector of one shift count in every 16-bit lane.
#[inline(always)]
unsafe fn shift16(count: usize) -> __m512i {
    // SAFETY: the caller has AVX-512 BW.
    unsafe { _mm512_set1_epi16(count as i16) }
}

/// A vector of one rotation to the left in every 32-bit lane: moves bit `from` of a byte to bit `to`.
#[inline(always)]
unsafe fn rotate32(from: usize, to: usize) -> __m512i {
    // SAFETY: the caller has AVX-512 F.
    unsafe { _mm512_set1_epi32(((32 + to - from) % 32) as i32) }
}

impl_packed! {
    /// 4-bit scales and mins of 16 columns, 2-bit codes. Head: d, dmin, 16 bytes; body: 64 bytes.
    Q2K Q2_K { const HALVES: bool = true; const MINS: bool = true; }
    scales(chunk, _subs, out) {
        let (d, dmin) = (load_f16(chunk), load_f16(chunk.add(32)));
        let dmin = _mm512_mul_ps(dmin, _mm512_set1_ps(1.0 / 128.0));
        for i in 0..16 {
            let byte = load_u8(chunk.add(64 + 16 * i));
            let scale = _mm512_cvtepi32_ps(_mm512_and_si512(byte, _mm512_set1_epi32(15)));
            out.set_scale(i, _mm512_mul_ps(d, scale));
            out.set_min(i, _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(byte))));
        }
    }
    quants(chunk, _subs, sub) {
        let codes = chunk.add(320 + 512 * (sub / 4));
        let shift = shift16(2 * (sub % 4));
        std::array::from_fn(|g| bits(load(codes.add(64 * g)), shift, 3))
    }
}

impl_packed! {
    /// 6-bit scales of 16 columns, 3-bit codes. Head: d, 12 bytes; body: 32 bytes of third bits, 64 bytes.
    Q3K Q3_K { const HALVES: bool = true; const BIASED: bool = true; }
    scales(chunk, _subs, out) {
        let (d, bytes) = (load_f16(chunk), chunk.add(32));
        for i in 0..16 {
            let low = load_u8(bytes.add(16 * (i % 8)));
            let low = if i < 8 { _mm512_and_si512(low, _mm512_set1_epi32(15)) } else { _mm512_srli_epi32::<4>(low) };
            let high = load_u8(bytes.add(16 * (8 + i % 4)));
            let high = _mm512_srlv_epi32(high, _mm512_set1_epi32(2 * (i / 4) as i32));
            let high = _mm512_and_si512(high, _mm512_set1_epi32(3));
            let scale = _mm512_or_si512(low, _mm512_slli_epi32::<4>(high));
            let scale = _mm512_cvtepi32_ps(_mm512_sub_epi32(scale, _mm512_set1_epi32(32)));
            out.set_scale(i, _mm512_mul_ps(d, scale));
        }
    }
    quants(chunk, _subs, sub) {
        let high = chunk.add(224);
        let low = chunk.add(224 + 512 + 512 * (sub / 4));
        let (shift, rotate) = (shift16(2 * (sub % 4)), rotate32(sub, 2));
        std::array::from_fn(|g| {
            let q = or_bits(bits(load(low.add(64 * g)), shift, 3), load(high.add(64 * g)), rotate, 4);
            _mm512_add_epi8(q, _mm512_set1_epi8(124))
        })
    }
}

/// Scales and mins of Q4_K and Q5_K. Head: d, dmin, then 12 bytes of 6-bit numbers, of which a load takes 4.
#[inline(always)]
unsafe fn k4_scales(chunk: *const u8, out: &mut Scales) {
    #[repr(C, align(64))]
    struct Bytes([[u8; 64]; 4]);
    let mut bytes = Bytes([[0; 64]; 4]);
    // SAFETY: the caller points to a whole chunk, whose head has 64 + 192 bytes; `bytes` has 256.
    unsafe {
        let [a, b, c] = [0, 1, 2].map(|i| load(chunk.add(64 + 64 * i)));
        let (low6, low4, high2) = (_mm512_set1_epi8(63), _mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
        let top = |v| _mm512_and_si512(_mm512_srli_epi16::<2>(v), high2);
        let scale_high = _mm512_or_si512(_mm512_and_si512(c, low4), top(a));
        let min_high = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16::<4>(c), low4), top(b));
        let all = [_mm512_and_si512(a, low6), scale_high, _mm512_and_si512(b, low6), min_high];
        for (to, from) in bytes.0.iter_mut().zip(all) {
            _mm512_store_si512(to.as_mut_ptr().cast(), from);
        }
        let (d, dmin) = (load_f16(chunk), load_f16(chunk.add(32)));
        let dmin = _mm512_xor_ps(dmin, _mm512_set1_ps(-0.0));
        for sub in 0..8 {
            let number = |at: usize| _mm512_cvtepi32_ps(load_u8(bytes.0.as_ptr().cast::<u8>().add(at)));
            out.set_scale(sub, _mm512_mul_ps(d, number(16 * sub)));
            out.set_min(sub, _mm512_mul_ps(dmin, number(128 + 16 * sub)));
        }
    }
}

impl_packed! {
    /// 6-bit scales and mins, 4-bit codes. Body: 128 bytes.
    Q4K Q4_K { const MINS: bool = true; }
    scales(chunk, _subs, out) { k4_scales(chunk, out) }
    quants(chunk, _subs, sub) {
        let codes = chunk.add(256 + 512 * (sub / 2));
        let shift = shift16(4 * (sub % 2));
        std::array::from_fn(|g| bits(load(codes.add(64 * g)), shift, 15))
    }
}

impl_packed! {
    /// As Q4_K with fifth bits. Body: 32 bytes of them, 128 bytes.
    Q5K Q5_K { const MINS: bool = true; }
    scales(chunk, _subs, out) { k4_scales(chunk, out) }
    quants(chunk, _subs, sub) {
        let high = chunk.add(256);
        let low = chunk.add(256 + 512 + 512 * (sub / 2));
        let (shift, rotate) = (shift16(4 * (sub % 2)), rotate32(sub, 4));
        std::array::from_fn(|g| {
            or_bits(bits(load(low.add(64 * g)), shift, 15), load(high.add(64 * g)), rotate, 16)
        })
    }
}

impl_packed! {
    /// Signed byte scales of 16 columns, 6-bit codes - 32. Head: d, 16 bytes; body: 128 bytes, 64 bytes.
    Q6K Q6_K { const HALVES: bool = true; const BIASED: bool = true; }
    scales(chunk, _subs, out) {
        let d = load_f16(chunk);
        for i in 0..16 {
            let scale = _mm512_cvtepi8_epi32(_mm_loadu_si128(chunk.add(32 + 16 * i).cast()));
            out.set_scale(i, _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)));
        }
    }
    quants(chunk, _subs, sub) {
        let (half, quarter) = (sub / 4, sub % 4);
        let low = chunk.add(288 + 1024 * half + 512 * (quarter % 2));
        let high = chunk.add(288 + 2048 + 512 * half);
        let (shift, rotate) = (shift16(4 * (quarter / 2)), rotate32(2 * quarter, 4));
        std::array::from_fn(|g| {
            let q = or_bits(bits(load(low.add(64 * g)), shift, 15), load(high.add(64 * g)), rotate, 48);
            _mm512_add_epi8(q, _mm512_set1_epi8(96))
        })
    }
}

impl_packed! {
    /// 6-bit scales, codes of a table. Head: d, 2 bytes of high bits, 4 bytes of low ones; body: 128 bytes.
    Iq4Xs IQ4_XS { const BIASED: bool = true; }
    scales(chunk, _subs, out) {
        let (d, high, low) = (load_f16(chunk), chunk.add(32), chunk.add(64));
        for sub in 0..8 {
            let low = _mm512_srlv_epi32(load_u8(low.add(16 * (sub / 2))), _mm512_set1_epi32(4 * (sub % 2) as i32));
            let high = _mm512_srlv_epi32(load_u8(high.add(16 * (sub / 4))), _mm512_set1_epi32(2 * (sub % 4) as i32));
            let low = _mm512_and_si512(low, _mm512_set1_epi32(15));
            let high = _mm512_slli_epi32::<4>(_mm512_and_si512(high, _mm512_set1_epi32(3)));
            let scale = _mm512_sub_epi32(_mm512_or_si512(low, high), _mm512_set1_epi32(32));
            out.set_scale(sub, _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)));
        }
    }
    quants(chunk, _subs, sub) {
        let table = biased_table(&IQ4_VALUES);
        nibbles(chunk.add(128 + 256 * sub)).map(|q| _mm512_shuffle_epi8(table, q))
    }
}
