//! How a chunk of each block type is unpacked. The meanings are those of `quant/block.rs`, the places those of
//! `quant/panel.rs`. Next: `tile.rs`.

use super::packed::{Codes, Form, Narrow, NarrowMin, Packed, Raised, RaisedMin, Scales};
use super::simd::Simd;
use crate::quant::{IQ4_VALUES, MXFP4_VALUES, PANEL_ROWS, WeightType, head_bytes};

/// Values of the codes of Q4_0.
const LESS_8: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];

/// Bytes from one vector of 4 columns of a panel to the next.
const GROUP_BYTES: usize = 4 * PANEL_ROWS;

/// Vector `group` of a field of codes.
#[inline(always)]
unsafe fn vector<S: Simd>(field: *const u8, group: usize, lane: usize) -> S::Int {
    // SAFETY: the caller's field has this vector.
    unsafe { S::load(field.add(GROUP_BYTES * group + 4 * lane)) }
}

/// Bytes `(v >> shift) & mask`.
#[inline(always)]
unsafe fn bits<S: Simd>(v: S::Int, shift: usize, mask: i8) -> S::Int {
    // SAFETY: the caller has `S`.
    unsafe { S::and(S::shr(v, shift), S::splat8(mask)) }
}

/// `low | (v with bit `from` of each byte moved to bit `to`, & mask)`.
#[inline(always)]
unsafe fn or_bits<S: Simd>(low: S::Int, v: S::Int, from: usize, to: usize, mask: u8) -> S::Int {
    // SAFETY: the caller has `S`.
    unsafe { S::or(low, S::field(v, from, to, mask)) }
}

/// Vector `g` of the 4-bit codes of a sub-block of 16 bytes a row: low nibbles are columns 0..16, high ones 16..32.
#[inline(always)]
unsafe fn nibble<S: Simd>(body: *const u8, g: usize, lane: usize) -> S::Int {
    // SAFETY: the caller's field has 4 vectors.
    unsafe { bits::<S>(vector::<S>(body, g % 4, lane), 4 * (g / 4), 15) }
}

/// Signed bytes as [`Codes::SIGNED`](super::packed::Codes::SIGNED) says.
#[inline(always)]
unsafe fn flip_signs<S: Simd>(v: S::Int) -> S::Int {
    // SAFETY: the caller has `S`.
    if S::ANY_BYTES { unsafe { S::xor(v, S::splat8(-128)) } } else { v }
}

/// A [`nibble`] that is the code of a table. What stands above it in its byte does not matter.
#[inline(always)]
unsafe fn table_nibble<S: Simd>(values: &[i8; 16], body: *const u8, g: usize, lane: usize) -> S::Int {
    // SAFETY: as for `nibble`.
    unsafe {
        let codes = S::shr(vector::<S>(body, g % 4, lane), 4 * (g / 4));
        S::look_up(flip_signs::<S>(S::table(values)), codes)
    }
}

/// A [`nibble`] after a field of 4 bytes of transposed fifth bits (Q5_0, Q5_1).
#[inline(always)]
unsafe fn five_bits<S: Simd>(body: *const u8, g: usize, lane: usize) -> S::Int {
    // SAFETY: the caller's body has 1 + 4 vectors.
    unsafe {
        let low = nibble::<S>(body.add(GROUP_BYTES), g, lane);
        or_bits::<S>(low, vector::<S>(body, 0, lane), g, 4, 16)
    }
}

/// Vector `g` of codes of which `mask` bits stand at `shift` of the bytes of a field.
#[inline(always)]
unsafe fn shifted<S: Simd>(field: *const u8, g: usize, lane: usize, shift: usize, mask: u8) -> S::Int {
    // SAFETY: the caller's field has 8 vectors.
    unsafe { S::field(vector::<S>(field, g, lane), shift, 0, mask) }
}

/// Start of sub-block `sub` of a type with blocks of 32 columns.
#[inline(always)]
unsafe fn body_of<W: Packed>(chunk: *const u8, subs: usize, sub: usize) -> *const u8 {
    let head = const { head_bytes(W::TYPE) };
    let body = const { W::TYPE.block().1 - head_bytes(W::TYPE) };
    // SAFETY: within the chunk, by the layout of `quant/panel.rs`.
    unsafe { chunk.add(PANEL_ROWS * (subs * head + sub * body)) }
}

/// Scales, and mins if the type has them, that are one f16 a block of 32 columns.
#[inline(always)]
unsafe fn f16_scales<S: Simd, W: Packed>(chunk: *const u8, subs: usize, lane: usize, out: &mut Scales) {
    for sub in 0..subs {
        // SAFETY: the head of a chunk begins with 16 f16 for each sub-block, then as many mins.
        unsafe {
            out.set_scale::<S>(sub, lane, S::load_f16(chunk.add(2 * (PANEL_ROWS * sub + lane))));
            if W::Narrow::MINS {
                out.set_min::<S>(sub, lane, S::load_f16(chunk.add(2 * (PANEL_ROWS * (subs + sub) + lane))));
            }
        }
    }
}

/// One number of 8 bits a row, from the field of bytes at `bytes`.
#[inline(always)]
unsafe fn byte<S: Simd>(bytes: *const u8, i: usize, lane: usize) -> S::Int {
    // SAFETY: the caller's field has byte `i` of 16 rows.
    unsafe { S::load_u8(bytes.add(PANEL_ROWS * i + lane)) }
}

/// `(v >> shift) & mask` of whole lanes.
#[inline(always)]
unsafe fn lane_bits<S: Simd>(v: S::Int, shift: usize, mask: i32) -> S::Int {
    // SAFETY: the caller has `S`.
    unsafe { S::and(S::shr(v, shift), S::splat32(mask)) }
}

/// `d * (low | high << 4 - 32)`: a 6-bit scale in two pieces.
#[inline(always)]
unsafe fn six_bit_scale<S: Simd>(d: S::Float, low: S::Int, high: S::Int) -> S::Float {
    // SAFETY: the caller has `S`.
    unsafe { S::mul(d, S::to_float(S::sub32(S::or(low, S::shl(high, 4)), S::splat32(32)))) }
}

/// Scales and mins of Q4_K and Q5_K, scales of odd sub-blocks times `odd_factor`. Head: d, dmin, then 12 bytes of
/// 6-bit numbers: of sub-block s < 4 the scale is 6 bits of byte s and the min 6 bits of byte s + 4; of s + 4 both are
/// 4 bits of byte s + 8 and the top 2 bits of these.
#[inline(always)]
unsafe fn k4_scales<S: Simd>(chunk: *const u8, lane: usize, out: &mut Scales, odd_factor: f32) {
    // SAFETY: the head of the caller's chunk has 2 f16 and 12 bytes of 16 rows.
    unsafe {
        let d = S::load_f16(chunk.add(2 * lane));
        let d = [d, S::mul(d, S::splat_f32(odd_factor))];
        let dmin = S::mul(S::load_f16(chunk.add(2 * (PANEL_ROWS + lane))), S::splat_f32(-1.0));
        let bytes = chunk.add(4 * PANEL_ROWS);
        for sub in 0..4 {
            let (a, b) = (byte::<S>(bytes, sub, lane), byte::<S>(bytes, sub + 4, lane));
            let c = byte::<S>(bytes, sub + 8, lane);
            let scale_high = S::or(lane_bits::<S>(c, 0, 15), lane_bits::<S>(a, 2, 48));
            let min_high = S::or(lane_bits::<S>(c, 4, 15), lane_bits::<S>(b, 2, 48));
            out.set_scale::<S>(sub, lane, S::mul(d[sub % 2], S::to_float(lane_bits::<S>(a, 0, 63))));
            out.set_min::<S>(sub, lane, S::mul(dmin, S::to_float(lane_bits::<S>(b, 0, 63))));
            out.set_scale::<S>(sub + 4, lane, S::mul(d[sub % 2], S::to_float(scale_high)));
            out.set_min::<S>(sub + 4, lane, S::mul(dmin, S::to_float(min_high)));
        }
    }
}

/// Implements [`Packed`]: `Name TYPE, narrow: form, raised: form,` then the bodies of its two functions,
/// `scales: |chunk, subs, lane, out| _, code: |chunk, subs, (sub, g), lane| _`.
macro_rules! packed {
    ($(#[$doc:meta])* $name:ident $ty:ident, narrow: $narrow:ty, raised: $raised:ty,
     scales: |$c:ident, $n:ident, $l:ident, $out:ident| $scales:expr,
     code: |$c2:ident, $n2:ident, ($s:ident, $g:ident), $l2:ident| $code:expr) => {
        $(#[$doc])*
        pub(crate) struct $name;
        impl Packed for $name {
            const TYPE: WeightType = WeightType::$ty;
            type Narrow = $narrow;
            type Raised = $raised;
            #[inline(always)]
            unsafe fn scales<S: Simd>($c: *const u8, $n: usize, $l: usize, $out: &mut Scales) {
                // SAFETY: the trait's contract; offsets are those of `quant/panel.rs`.
                unsafe { $scales }
            }
            #[inline(always)]
            unsafe fn code<S: Simd>($c2: *const u8, $n2: usize, ($s, $g): (usize, usize), $l2: usize) -> S::Int {
                // SAFETY: the trait's contract; offsets are those of `quant/panel.rs`.
                unsafe { $code }
            }
        }
    };
}

packed! {
    /// f16 scale; 4-bit codes. Vectors that raise look them up.
    Q4_0 Q4_0, narrow: Narrow<8, 128, 8>, raised: Raised,
    scales: |chunk, subs, lane, out| f16_scales::<S, Self>(chunk, subs, lane, out),
    code: |chunk, subs, (sub, g), lane| {
        let body = body_of::<Self>(chunk, subs, sub);
        if S::RAISES { table_nibble::<S>(&LESS_8, body, g, lane) } else { nibble::<S>(body, g, lane) }
    }
}

packed! {
    /// f16 scale and min; 4-bit codes.
    Q4_1 Q4_1, narrow: NarrowMin<8>, raised: RaisedMin,
    scales: |chunk, subs, lane, out| f16_scales::<S, Self>(chunk, subs, lane, out),
    code: |chunk, subs, (sub, g), lane| nibble::<S>(body_of::<Self>(chunk, subs, sub), g, lane)
}

packed! {
    /// f16 scale; 5-bit codes.
    Q5_0 Q5_0, narrow: Narrow<16, 16, 4>, raised: Raised,
    scales: |chunk, subs, lane, out| f16_scales::<S, Self>(chunk, subs, lane, out),
    code: |chunk, subs, (sub, g), lane| five_bits::<S>(body_of::<Self>(chunk, subs, sub), g, lane)
}

packed! {
    /// f16 scale and min; 5-bit codes.
    Q5_1 Q5_1, narrow: NarrowMin<4>, raised: RaisedMin,
    scales: |chunk, subs, lane, out| f16_scales::<S, Self>(chunk, subs, lane, out),
    code: |chunk, subs, (sub, g), lane| five_bits::<S>(body_of::<Self>(chunk, subs, sub), g, lane)
}

packed! {
    /// f16 scale; signed bytes.
    Q8_0 Q8_0, narrow: Narrow<0, 128, 1>, raised: Raised,
    scales: |chunk, subs, lane, out| f16_scales::<S, Self>(chunk, subs, lane, out),
    code: |chunk, subs, (sub, g), lane| {
        flip_signs::<S>(vector::<S>(body_of::<Self>(chunk, subs, sub), g, lane))
    }
}

packed! {
    /// f16 scale; 4-bit codes of a table.
    Iq4Nl IQ4_NL, narrow: Narrow<0, 128, 1>, raised: Raised,
    scales: |chunk, subs, lane, out| f16_scales::<S, Self>(chunk, subs, lane, out),
    code: |chunk, subs, (sub, g), lane| {
        table_nibble::<S>(&IQ4_VALUES, body_of::<Self>(chunk, subs, sub), g, lane)
    }
}

packed! {
    /// Exponent byte; 4-bit codes of a table of values up to 12.
    Mxfp4 MXFP4, narrow: Narrow<0, 128, 8>, raised: Raised,
    scales: |chunk, subs, lane, out| {
        for sub in 0..subs {
            let exponent = byte::<S>(chunk, sub, lane);
            let normal = S::shl(S::sub32(exponent, S::splat32(1)), 23);
            let subnormal = S::select_less(exponent, 1, S::splat32(0x0020_0000), S::splat32(0x0040_0000));
            let half_scale = S::select_less(exponent, 2, subnormal, normal);
            out.set_scale::<S>(sub, lane, S::float_bits(half_scale));
        }
    },
    code: |chunk, subs, (sub, g), lane| {
        table_nibble::<S>(&MXFP4_VALUES, body_of::<Self>(chunk, subs, sub), g, lane)
    }
}

packed! {
    /// 4-bit scales and mins of 16 columns, 2-bit codes. Head: d, dmin, 16 bytes; body: 64 bytes.
    Q2K Q2_K, narrow: Form<true, true, 0, 0, 8>, raised: Form<true, true, 0, 0, 0>,
    scales: |chunk, _subs, lane, out| {
        let d = S::load_f16(chunk.add(2 * lane));
        let dmin = S::mul(S::load_f16(chunk.add(2 * (PANEL_ROWS + lane))), S::splat_f32(1.0 / 128.0));
        for i in 0..16 {
            let both = byte::<S>(chunk.add(4 * PANEL_ROWS), i, lane);
            out.set_scale::<S>(i, lane, S::mul(d, S::to_float(lane_bits::<S>(both, 0, 15))));
            out.set_min::<S>(i, lane, S::mul(dmin, S::to_float(lane_bits::<S>(both, 4, 15))));
        }
    },
    code: |chunk, _subs, (sub, g), lane| {
        shifted::<S>(chunk.add(PANEL_ROWS * (20 + 32 * (sub / 4))), g, lane, 2 * (sub % 4), 3)
    }
}

packed! {
    /// 6-bit scales of 16 columns, 3-bit codes. Head: d, 12 bytes; body: 32 bytes of third bits, 64 bytes.
    Q3K Q3_K, narrow: Form<true, false, 4, 4, 8>, raised: Form<true, false, 128, 128, 0>,
    scales: |chunk, _subs, lane, out| {
        let (d, bytes) = (S::load_f16(chunk.add(2 * lane)), chunk.add(2 * PANEL_ROWS));
        for i in 0..16 {
            let low = lane_bits::<S>(byte::<S>(bytes, i % 8, lane), 4 * (i / 8), 15);
            let high = lane_bits::<S>(byte::<S>(bytes, 8 + i % 4, lane), 2 * (i / 4), 3);
            out.set_scale::<S>(i, lane, six_bit_scale::<S>(d, low, high));
        }
    },
    code: |chunk, _subs, (sub, g), lane| {
        let high = chunk.add(PANEL_ROWS * 14);
        let low = shifted::<S>(high.add(PANEL_ROWS * (32 + 32 * (sub / 4))), g, lane, 2 * (sub % 4), 3);
        or_bits::<S>(low, vector::<S>(high, g, lane), sub, 2, 4)
    }
}

packed! {
    /// 6-bit scales and mins, 4-bit codes. Body: 128 bytes. Where any bytes can be multiplied, codes of high nibbles
    /// stay where they are: 16 times as large, their scales a sixteenth, which is exact.
    Q4K Q4_K, narrow: NarrowMin<8>, raised: RaisedMin,
    scales: |chunk, _subs, lane, out| {
        k4_scales::<S>(chunk, lane, out, if S::ANY_BYTES { 1.0 / 16.0 } else { 1.0 })
    },
    code: |chunk, _subs, (sub, g), lane| {
        let field = chunk.add(PANEL_ROWS * (16 + 32 * (sub / 2)));
        if S::ANY_BYTES {
            S::and(vector::<S>(field, g, lane), S::splat8(if sub.is_multiple_of(2) { 15 } else { -16 }))
        } else {
            shifted::<S>(field, g, lane, 4 * (sub % 2), 15)
        }
    }
}

packed! {
    /// As Q4_K with fifth bits. Body: 32 bytes of them, 128 bytes.
    Q5K Q5_K, narrow: NarrowMin<4>, raised: RaisedMin,
    scales: |chunk, _subs, lane, out| k4_scales::<S>(chunk, lane, out, 1.0),
    code: |chunk, _subs, (sub, g), lane| {
        let high = chunk.add(PANEL_ROWS * 16);
        let low = shifted::<S>(high.add(PANEL_ROWS * (32 + 32 * (sub / 2))), g, lane, 4 * (sub % 2), 15);
        or_bits::<S>(low, vector::<S>(high, g, lane), sub, 4, 16)
    }
}

packed! {
    /// Signed byte scales of 16 columns, 6-bit codes. Head: d, 16 bytes; body: 128 bytes, 64 bytes. Vectors
    /// that raise do so with the operation that moves the top bits.
    Q6K Q6_K, narrow: Form<true, false, 32, 128, 2>, raised: Form<true, false, 128, 128, 0>,
    scales: |chunk, _subs, lane, out| {
        let (d, bytes) = (S::load_f16(chunk.add(2 * lane)), chunk.add(2 * PANEL_ROWS + lane));
        for i in 0..16 {
            let scale = S::load_i8(bytes.add(PANEL_ROWS * i));
            out.set_scale::<S>(i, lane, S::mul(d, S::to_float(scale)));
        }
    },
    code: |chunk, _subs, (sub, g), lane| {
        let (half, quarter) = (sub / 4, sub % 4);
        let low = chunk.add(PANEL_ROWS * (18 + 64 * half + 32 * (quarter % 2)));
        let high = chunk.add(PANEL_ROWS * (18 + 128 + 32 * half));
        let low = shifted::<S>(low, g, lane, 4 * (quarter / 2), 15);
        S::or(low, S::top_bits(vector::<S>(high, g, lane), 2 * quarter))
    }
}

packed! {
    /// 6-bit scales, 4-bit codes of a table. Head: d, 2 bytes of high bits, 4 bytes of low ones; body: 128 bytes.
    Iq4Xs IQ4_XS, narrow: Narrow<0, 128, 1>, raised: Raised,
    scales: |chunk, _subs, lane, out| {
        let (d, bytes) = (S::load_f16(chunk.add(2 * lane)), chunk.add(2 * PANEL_ROWS));
        for sub in 0..8 {
            let low = lane_bits::<S>(byte::<S>(bytes, 2 + sub / 2, lane), 4 * (sub % 2), 15);
            let high = lane_bits::<S>(byte::<S>(bytes, sub / 4, lane), 2 * (sub % 4), 3);
            out.set_scale::<S>(sub, lane, six_bit_scale::<S>(d, low, high));
        }
    },
    code: |chunk, _subs, (sub, g), lane| {
        table_nibble::<S>(&IQ4_VALUES, chunk.add(PANEL_ROWS * (8 + 16 * sub)), g, lane)
    }
}

#[cfg(test)]
mod tests {
    use super::super::packed::GROUPS;
    use super::*;

    fn check<W: Packed>(largest_code: usize) {
        let groups = W::Narrow::WORD_GROUPS;
        let fits = |groups: usize| 2 * 127 * largest_code * groups < 1 << 15;
        assert!(fits(groups) && (groups == GROUPS || !fits(2 * groups)), "{}", W::TYPE);
    }

    #[test]
    fn sums_of_words_cannot_overflow() {
        check::<Q4_0>(15);
        check::<Q4_1>(15);
        check::<Q5_0>(31);
        check::<Q5_1>(31);
        check::<Q8_0>(128);
        check::<Iq4Nl>(127);
        check::<Mxfp4>(12);
        check::<Q2K>(3);
        check::<Q3K>(7);
        check::<Q4K>(15);
        check::<Q5K>(31);
        check::<Q6K>(63);
        check::<Iq4Xs>(127);
    }
}
