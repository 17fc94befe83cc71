//! What the bytes of a weight row mean: sixteen types, the block formats as in the file or their fields in planes.
//!
//! A *unit* is 32 weights that one lane decodes from 16 (or 32) adjacent code bytes. They are two groups of 16
//! neighbours, which for K-quants lie apart (the low and the high nibbles of the same bytes). Every type says
//! - `load(row, unit, units)`: the unit's bytes in registers,
//! - `expand(raw, out)`: unsigned codes q and per group a scale and an offset with w = scale * (q - ZERO) + offset,
//! - `column(unit, group)`: the first of the group's 16 columns,
//! - OFFSET: whether the offsets are anything but 0,
//! - SPAN: how far group 1 lies behind group 0 (16 in formats of 32, 32 or 64 in K-quants),
//! - BRAIN: whether matrix kernels compute in BF16 (scales beyond F16's range) rather than in F16,
//! - PIECES: how many 16-byte pieces hold a superblock of a row, 0 where it cannot be taken so; then also
//!   `piece(row, block, blocks, index)`: where a piece lies, and `staged(pieces, unit, blocks)`: what `load` gives,
//!   from the pieces side by side in shared memory.
//! Layouts: `Gguf` as in the file, `GpuTiled` each field of a row's blocks contiguous, each plane padded to 16 bytes
//! (kernels::cuda::layout has the table and the reference conversion). Only types whose blocks are badly aligned have
//! the second. Floating-point types are at the end. Next file: `gemv.cu`.
#pragma once
#include "common.cuh"

struct Codes {
    u32 q[8]; // group 0 in q[0..4], group 1 in q[4..8]
    float scale[2], offset[2];
};

DEVICE u32 padded16(u32 bytes) { return (bytes + 15) & ~15u; }

/// N words from an address with any alignment; reads no word that holds none of the wanted bytes.
template <int N> DEVICE void load_unaligned(u32 *out, const u8 *p) {
    const u8 *base = p - ((u64)p & 3);
    u32 bits = 8 * (u32)((u64)p & 3);
    u32 words[N + 1];
#pragma unroll
    for (int i = 0; i < N; i++) words[i] = load4(base + 4 * i);
    words[N] = bits ? load4(base + 4 * N) : 0;
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = funnel(words[i], words[i + 1], bits);
}

/// N words (4 or 8) from an address with the alignment ALIGN.
template <int N, int ALIGN> DEVICE void load_words(u32 *out, const u8 *p) {
    if constexpr (ALIGN >= 16) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            uint4 v = load_once16(p + 4 * i);
            out[i] = v.x, out[i + 1] = v.y, out[i + 2] = v.z, out[i + 3] = v.w;
        }
    } else if constexpr (ALIGN == 8) {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            uint2 v = load_once8(p + 4 * i);
            out[i] = v.x, out[i + 1] = v.y;
        }
    } else if constexpr (ALIGN == 4) {
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = load4(p + 4 * i);
    } else {
        load_unaligned<N>(out, p);
    }
}

/// Four words of shared memory.
DEVICE void read16(u32 *out, const u8 *p) {
    uint4 v = *(const uint4 *)p;
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}

/// Low nibbles to group 0, high nibbles to group 1.
DEVICE void split_nibbles(u32 *q, const u32 *words) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[i] = words[i] & 0x0f0f0f0f;
        q[4 + i] = (words[i] >> 4) & 0x0f0f0f0f;
    }
}

/// Replaces the nibbles of four words by entries of a 16-byte table (words t0, t1 hold entries 0..7; t2, t3 the rest);
/// low nibbles to group 0, high nibbles to group 1.
DEVICE void look_up_nibbles(u32 *q, const u32 *words, u32 t0, u32 t1, u32 t2, u32 t3) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 w = words[i], low3 = w & 0x77777777, choice = 0x32103210 + ((w & 0x88888888) >> 1);
        u32 first = bytes4(bytes4(t0, t1, low3), bytes4(t2, t3, low3), choice);
        low3 >>= 16, choice >>= 16;
        u32 second = bytes4(bytes4(t0, t1, low3), bytes4(t2, t3, low3), choice);
        q[i] = bytes4(first, second, 0x6420);
        q[4 + i] = bytes4(first, second, 0x7531);
    }
}

/// Bit `first + i` of the word becomes 0x10 of byte i.
DEVICE u32 fifth_bits(u32 word, u32 first) { return (((word >> first) & 15) * 0x02040810) & 0x10101010; }

/// The whole of a format of 32 elements: element i in code byte i % 16, low nibble first.
struct Block32 {
    static constexpr u32 SPAN = 16, PIECES = 0;
    static constexpr bool BRAIN = false, EXACT = false, OFFSET = false;
    DEVICE u32 column(u32 unit, u32 group) { return 32 * unit + 16 * group; }
};

/// A superblock of 256: eight units in four pairs of 64 columns; a pair's groups lie 32 apart.
struct Super64 {
    static constexpr u32 SPAN = 32, PIECES = 0;
    static constexpr bool BRAIN = false, EXACT = false, OFFSET = false;
    DEVICE u32 column(u32 unit, u32 group) { return unit / 2 * 64 + unit % 2 * 16 + 32 * group; }
};

template <bool TILED> struct Q4_0 : Block32 {
    static constexpr i32 ZERO = 8;
    struct Raw { u32 q[4]; u16 d; };
    DEVICE Raw load(const u8 *row, u32 unit, u32 units) {
        Raw raw;
        load_words<4, TILED ? 16 : 2>(raw.q, TILED ? row + 16 * unit : row + 18 * unit + 2);
        raw.d = load2(TILED ? row + 16 * units + 2 * unit : row + 18 * unit);
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
        split_nibbles(c.q, raw.q);
        c.scale[0] = c.scale[1] = f16_to_f32(raw.d);
        c.offset[0] = c.offset[1] = 0.0f;
    }
};

template <bool TILED> struct Q4_1 : Block32 {
    static constexpr i32 ZERO = 0;
    static constexpr bool OFFSET = true;
    struct Raw { u32 q[4]; u32 dm; };
    DEVICE Raw load(const u8 *row, u32 unit, u32) {
        Raw raw;
        load_words<4, 4>(raw.q, row + 20 * unit + 4);
        raw.dm = load4(row + 20 * unit);
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
        split_nibbles(c.q, raw.q);
        c.scale[0] = c.scale[1] = f16_to_f32((u16)raw.dm);
        c.offset[0] = c.offset[1] = f16_to_f32((u16)(raw.dm >> 16));
    }
};

template <bool TILED> struct Q5_0 : Block32 {
    static constexpr i32 ZERO = 16;
    struct Raw { u32 q[4]; u32 high; u16 d; };
    DEVICE Raw load(const u8 *row, u32 unit, u32 units) {
        Raw raw;
        if constexpr (TILED) {
            load_words<4, 16>(raw.q, row + 16 * unit);
            raw.high = load4(row + 16 * units + 4 * unit);
            raw.d = load2(row + 16 * units + padded16(4 * units) + 2 * unit);
        } else {
            const u8 *block = row + 22 * unit;
            load_words<4, 2>(raw.q, block + 6);
            raw.high = load2(block + 2) | (u32)load2(block + 4) << 16;
            raw.d = load2(block);
        }
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
        split_nibbles(c.q, raw.q);
#pragma unroll
        for (int i = 0; i < 8; i++) c.q[i] |= fifth_bits(raw.high, 4 * i);
        c.scale[0] = c.scale[1] = f16_to_f32(raw.d);
        c.offset[0] = c.offset[1] = 0.0f;
    }
};

template <bool TILED> struct Q5_1 : Block32 {
    static constexpr i32 ZERO = 0;
    static constexpr bool OFFSET = true;
    struct Raw { u32 q[4]; u32 dm, high; };
    DEVICE Raw load(const u8 *row, u32 unit, u32) {
        Raw raw;
        uint2 head = load8(row + 24 * unit);
        load_words<4, 8>(raw.q, row + 24 * unit + 8);
        raw.dm = head.x, raw.high = head.y;
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
        split_nibbles(c.q, raw.q);
#pragma unroll
        for (int i = 0; i < 8; i++) c.q[i] |= fifth_bits(raw.high, 4 * i);
        c.scale[0] = c.scale[1] = f16_to_f32((u16)raw.dm);
        c.offset[0] = c.offset[1] = f16_to_f32((u16)(raw.dm >> 16));
    }
};

template <bool TILED> struct Q8_0 : Block32 {
    static constexpr i32 ZERO = 128;
    struct Raw { u32 q[8]; u16 d; };
    DEVICE Raw load(const u8 *row, u32 unit, u32 units) {
        Raw raw;
        load_words<8, TILED ? 16 : 2>(raw.q, TILED ? row + 32 * unit : row + 34 * unit + 2);
        raw.d = load2(TILED ? row + 32 * units + 2 * unit : row + 34 * unit);
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
#pragma unroll
        for (int i = 0; i < 8; i++) c.q[i] = raw.q[i] ^ 0x80808080;
        c.scale[0] = c.scale[1] = f16_to_f32(raw.d);
        c.offset[0] = c.offset[1] = 0.0f;
    }
};

/// Sixteen values of the 4-bit non-linear types, each plus 128:
/// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113.
DEVICE void look_up_nonlinear(u32 *q, const u32 *words) {
    look_up_nibbles(q, words, 0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5);
}

template <bool TILED> struct IQ4_NL : Block32 {
    static constexpr i32 ZERO = 128;
    typedef typename Q4_0<TILED>::Raw Raw;
    DEVICE Raw load(const u8 *row, u32 unit, u32 units) { return Q4_0<TILED>::load(row, unit, units); }
    DEVICE void expand(const Raw &raw, Codes &c) {
        look_up_nonlinear(c.q, raw.q);
        c.scale[0] = c.scale[1] = f16_to_f32(raw.d);
        c.offset[0] = c.offset[1] = 0.0f;
    }
};

/// Values 0 1 2 3 4 6 8 12 (half units) and their negatives, plus 16; the block's scale is 2^(e - 128).
template <bool TILED> struct MXFP4 : Block32 {
    static constexpr i32 ZERO = 16;
    static constexpr bool BRAIN = true;
    struct Raw { u32 q[4]; u8 e; };
    DEVICE Raw load(const u8 *row, u32 unit, u32 units) {
        Raw raw;
        load_words<4, TILED ? 16 : 1>(raw.q, TILED ? row + 16 * unit : row + 17 * unit + 1);
        raw.e = load1(TILED ? row + 16 * units + unit : row + 17 * unit);
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
        look_up_nibbles(c.q, raw.q, 0x13121110, 0x1c181614, 0x0d0e0f10, 0x04080a0c);
        // 2^(e - 128): below the normal range the two smallest are subnormal numbers.
        u32 bits = raw.e < 2 ? 0x00200000u << raw.e : (u32)(raw.e - 1) << 23;
        c.scale[0] = c.scale[1] = __uint_as_float(bits);
        c.offset[0] = c.offset[1] = 0.0f;
    }
};

/// The two 6-bit scales and minima of pair p from the twelve packed bytes, in the low bytes of a 16-bit number each.
/// Without a branch: asynchronous products (wgmma.cuh) do not run across one.
DEVICE void scales_k4(u32 s0, u32 s1, u32 s2, u32 pair, u32 &scales, u32 &minima) {
    u32 shift = 16 * (pair & 1), upper = 0u - (pair >> 1);
    u32 a = s0 >> shift, b = s1 >> shift, c = s2 >> shift;
    u32 scales_above = (c & 0x0f0f) | ((a & 0xc0c0) >> 2), minima_above = ((c >> 4) & 0x0f0f) | ((b & 0xc0c0) >> 2);
    scales = (scales_above & upper) | (a & 0x3f3f & ~upper);
    minima = (minima_above & upper) | (b & 0x3f3f & ~upper);
}

DEVICE void scale_k4(const uint4 &head, u32 pair, Codes &c) {
    u32 scales, minima;
    scales_k4(head.y, head.z, head.w, pair, scales, minima);
    float d = f16_to_f32((u16)head.x), dmin = f16_to_f32((u16)(head.x >> 16));
    c.scale[0] = d * (float)(scales & 0xff), c.scale[1] = d * (float)(scales >> 8 & 0xff);
    c.offset[0] = -dmin * (float)(minima & 0xff), c.offset[1] = -dmin * (float)(minima >> 8 & 0xff);
}

template <bool TILED> struct Q4_K : Super64 {
    static constexpr i32 ZERO = 0;
    static constexpr bool OFFSET = true;
    static constexpr u32 PIECES = 9;
    struct Raw { u32 q[4]; uint4 head; u32 pair; };
    DEVICE const u8 *piece(const u8 *row, u32 block, u32, u32 index) { return row + 144 * block + 16 * index; }
    DEVICE Raw staged(const u8 *pieces, u32 unit, u32) {
        Raw raw;
        read16(raw.q, pieces + 16 + unit % 8 * 16);
        raw.head = *(const uint4 *)pieces;
        raw.pair = unit % 8 / 2;
        return raw;
    }
    DEVICE Raw load(const u8 *row, u32 unit, u32) {
        const u8 *block = row + unit / 8 * 144;
        Raw raw;
        load_words<4, 16>(raw.q, block + 16 + unit % 8 * 16);
        raw.head = load16(block);
        raw.pair = unit % 8 / 2;
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
        split_nibbles(c.q, raw.q);
        scale_k4(raw.head, raw.pair, c);
    }
};

template <bool TILED> struct Q5_K : Super64 {
    static constexpr i32 ZERO = 0;
    static constexpr bool OFFSET = true;
    static constexpr u32 PIECES = 11;
    struct Raw { u32 q[4], high[4]; uint4 head; u32 pair; };
    DEVICE const u8 *piece(const u8 *row, u32 block, u32, u32 index) { return row + 176 * block + 16 * index; }
    DEVICE Raw staged(const u8 *pieces, u32 unit, u32) {
        Raw raw;
        read16(raw.q, pieces + 48 + unit % 8 * 16);
        read16(raw.high, pieces + 16 + unit % 2 * 16);
        raw.head = *(const uint4 *)pieces;
        raw.pair = unit % 8 / 2;
        return raw;
    }
    DEVICE Raw load(const u8 *row, u32 unit, u32) {
        const u8 *block = row + unit / 8 * 176;
        Raw raw;
        load_words<4, 16>(raw.q, block + 48 + unit % 8 * 16);
        uint4 high = load16(block + 16 + unit % 2 * 16);
        raw.high[0] = high.x, raw.high[1] = high.y, raw.high[2] = high.z, raw.high[3] = high.w;
        raw.head = load16(block);
        raw.pair = unit % 8 / 2;
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
        split_nibbles(c.q, raw.q);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 bits = raw.high[i] >> (2 * raw.pair);
            c.q[i] |= (bits << 4) & 0x10101010;
            c.q[4 + i] |= (bits << 3) & 0x10101010;
        }
        scale_k4(raw.head, raw.pair, c);
    }
};

/// Halves of 128 columns; unit u of a half: bytes 16u of the low bits, groups 64 apart.
template <bool TILED> struct Q6_K {
    static constexpr u32 SPAN = 64, PIECES = TILED ? 14 : 0;
    static constexpr bool BRAIN = false, EXACT = false, OFFSET = false;
    static constexpr i32 ZERO = 32;
    struct Raw { u32 q[4], high[4]; u16 d; u32 s0, s1, shift, pick; }; // scales: the low bytes after `pick` bits
    DEVICE u32 column(u32 unit, u32 group) { return unit / 4 * 128 + unit % 4 * 16 + 64 * group; }
    /// Tiled: eight of low bits, four of high bits, the scales, and the 16 bytes that hold d.
    DEVICE const u8 *piece(const u8 *row, u32 block, u32 blocks, u32 index) {
        if (index < 8) return row + 128 * block + 16 * index;
        if (index < 12) return row + 128 * blocks + 64 * block + 16 * (index - 8);
        return index == 12 ? row + 192 * blocks + 16 * block : row + 208 * blocks + 2 * block / 16 * 16;
    }
    DEVICE Raw staged(const u8 *pieces, u32 unit, u32) {
        u32 half = unit / 4 % 2, u = unit % 4;
        Raw raw;
        read16(raw.q, pieces + 64 * half + 16 * u);
        read16(raw.high, pieces + 128 + 32 * half + 16 * (u % 2));
        uint2 both = *(const uint2 *)(pieces + 192 + 8 * half);
        raw.s0 = both.x, raw.s1 = both.y;
        raw.d = *(const u16 *)(pieces + 208 + 2 * (unit / 8) % 16);
        raw.shift = u / 2 * 2, raw.pick = 8 * u;
        return raw;
    }
    DEVICE Raw load(const u8 *row, u32 unit, u32 units) {
        u32 block = unit / 8, half = unit / 4 % 2, u = unit % 4, blocks = units / 8;
        const u8 *low = TILED ? row + 128 * block : row + 210 * block;
        const u8 *high = TILED ? row + 128 * blocks + 64 * block : low + 128;
        const u8 *scales = TILED ? row + 192 * blocks + 16 * block : low + 192;
        const u8 *d = TILED ? row + 208 * blocks + 2 * block : low + 208;
        Raw raw;
        load_words<4, TILED ? 16 : 2>(raw.q, low + 64 * half + 16 * u);
        if constexpr (TILED) {
            uint4 v = load16(high + 32 * half + 16 * (u % 2));
            raw.high[0] = v.x, raw.high[1] = v.y, raw.high[2] = v.z, raw.high[3] = v.w;
        } else {
            load_words<4, 2>(raw.high, high + 32 * half + 16 * (u % 2));
        }
        if constexpr (TILED) {
            uint2 both = load8(scales + 8 * half);
            raw.s0 = both.x, raw.s1 = both.y;
        } else {
            raw.s0 = load1(scales + 8 * half + u);
            raw.s1 = load1(scales + 8 * half + u + 4);
        }
        raw.d = load2(d);
        raw.shift = u / 2 * 2, raw.pick = TILED ? 8 * u : 0;
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
        split_nibbles(c.q, raw.q);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 bits = raw.high[i] >> raw.shift;
            c.q[i] |= (bits << 4) & 0x30303030;
            c.q[4 + i] |= bits & 0x30303030;
        }
        float d = f16_to_f32(raw.d);
        c.scale[0] = d * (float)(i8)(raw.s0 >> raw.pick), c.scale[1] = d * (float)(i8)(raw.s1 >> raw.pick);
        c.offset[0] = c.offset[1] = 0.0f;
    }
};

/// Units of the 2- and 3-bit types: in a half of 128 columns, 16 bytes hold four groups 32 apart; a unit takes two.
struct Super128 {
    static constexpr u32 SPAN = 32, PIECES = 0;
    static constexpr bool BRAIN = false, EXACT = false, OFFSET = false;
    DEVICE u32 column(u32 unit, u32 group) { return unit / 2 * 64 + unit % 2 * 16 + 32 * group; }
};

template <bool TILED> struct Q2_K : Super128 {
    static constexpr i32 ZERO = 0;
    static constexpr bool OFFSET = true;
    struct Raw { u32 q[4]; u32 dm; u8 s0, s1; u32 shift; };
    DEVICE Raw load(const u8 *row, u32 unit, u32) {
        const u8 *block = row + unit / 8 * 84;
        u32 half = unit / 4 % 2, upper = unit / 2 % 2, h = unit % 2;
        Raw raw;
        load_words<4, 4>(raw.q, block + 16 + 32 * half + 16 * h);
        raw.dm = load4(block + 80);
        raw.s0 = load1(block + 8 * half + 4 * upper + h);
        raw.s1 = load1(block + 8 * half + 4 * upper + h + 2);
        raw.shift = 4 * upper;
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 bits = raw.q[i] >> raw.shift;
            c.q[i] = bits & 0x03030303;
            c.q[4 + i] = (bits >> 2) & 0x03030303;
        }
        float d = f16_to_f32((u16)raw.dm), dmin = f16_to_f32((u16)(raw.dm >> 16));
        c.scale[0] = d * (float)(raw.s0 & 15), c.scale[1] = d * (float)(raw.s1 & 15);
        c.offset[0] = -dmin * (float)(raw.s0 >> 4), c.offset[1] = -dmin * (float)(raw.s1 >> 4);
    }
};

/// Scale j of the sixteen packed 6-bit scales: four low bits in byte j % 8, two high bits in byte 8 + j % 4.
DEVICE float scale_q3(u32 low_byte, u32 high_byte, u32 j) {
    u32 low = low_byte >> (j / 8 * 4) & 15, high = high_byte >> (j / 4 * 2) & 3;
    return (float)((i32)(low | high << 4) - 32);
}

template <bool TILED> struct Q3_K : Super128 {
    static constexpr i32 ZERO = 4;
    static constexpr u32 PIECES = TILED ? 9 : 0;
    struct Raw { u32 q[4], mask[4]; float s0, s1; u16 d; u32 shift, bit; };
    DEVICE Raw load(const u8 *row, u32 unit, u32 units) {
        u32 index = unit / 8, blocks = units / 8;
        u32 half = unit / 4 % 2, upper = unit / 2 % 2, h = unit % 2;
        const u8 *block = row + 110 * index;
        const u8 *q = TILED ? row + 64 * index : block + 32;
        const u8 *mask = TILED ? row + 64 * blocks + 32 * index : block;
        const u8 *scales = TILED ? row + 96 * blocks + 12 * index : block + 96;
        const u8 *d = TILED ? row + 96 * blocks + padded16(12 * blocks) + 2 * index : block + 108;
        Raw raw;
        load_words<4, TILED ? 16 : 2>(raw.q, q + 32 * half + 16 * h);
        load_words<4, TILED ? 16 : 2>(raw.mask, mask + 16 * h);
        u32 j = 8 * half + 4 * upper + h;
        raw.s0 = scale_q3(load1(scales + j % 8), load1(scales + 8 + j % 4), j);
        raw.s1 = scale_q3(load1(scales + (j + 2) % 8), load1(scales + 8 + (j + 2) % 4), j + 2);
        raw.d = load2(d);
        raw.shift = 4 * upper;
        raw.bit = 4 * half + 2 * upper;
        return raw;
    }
    /// Tiled: four of low bits, two of the third bits, the 32 bytes around the scales, and the 16 that hold d.
    DEVICE const u8 *piece(const u8 *row, u32 block, u32 blocks, u32 index) {
        u32 scale_bytes = padded16(12 * blocks), in_scales = 12 * block / 16 * 16 + (index == 7 ? 16 : 0);
        u32 bits = index < 4 ? 64 * block + 16 * index : 64 * blocks + 32 * block + 16 * index - 64;
        u32 rest = 96 * blocks + (index < 8 ? min(in_scales, scale_bytes - 16) : scale_bytes + 2 * block / 16 * 16);
        return row + (index < 6 ? bits : rest);
    }
    DEVICE Raw staged(const u8 *pieces, u32 unit, u32) {
        u32 index = unit / 8, half = unit / 4 % 2, upper = unit / 2 % 2, h = unit % 2, j = 8 * half + 4 * upper + h;
        const u8 *scales = pieces + 96 + 12 * index % 16;
        Raw raw;
        read16(raw.q, pieces + 32 * half + 16 * h);
        read16(raw.mask, pieces + 64 + 16 * h);
        raw.s0 = scale_q3(scales[j % 8], scales[8 + j % 4], j);
        raw.s1 = scale_q3(scales[(j + 2) % 8], scales[8 + (j + 2) % 4], j + 2);
        raw.d = *(const u16 *)(pieces + 128 + 2 * index % 16);
        raw.shift = 4 * upper;
        raw.bit = 4 * half + 2 * upper;
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 bits = raw.q[i] >> raw.shift, mask = raw.mask[i] >> raw.bit;
            c.q[i] = (bits & 0x03030303) | ((mask << 2) & 0x04040404);
            c.q[4 + i] = ((bits >> 2) & 0x03030303) | ((mask << 1) & 0x04040404);
        }
        float d = f16_to_f32(raw.d);
        c.scale[0] = d * raw.s0, c.scale[1] = d * raw.s1;
        c.offset[0] = c.offset[1] = 0.0f;
    }
};

template <bool TILED> struct IQ4_XS : Block32 {
    static constexpr i32 ZERO = 128;
    struct Raw { u32 q[4]; uint2 head; u32 sub; };
    DEVICE Raw load(const u8 *row, u32 unit, u32) {
        const u8 *block = row + unit / 8 * 136;
        Raw raw;
        load_words<4, 8>(raw.q, block + 8 + unit % 8 * 16);
        raw.head = load8(block);
        raw.sub = unit % 8;
        return raw;
    }
    DEVICE void expand(const Raw &raw, Codes &c) {
        look_up_nonlinear(c.q, raw.q);
        u32 low = raw.head.y >> (4 * raw.sub) & 15, high = raw.head.x >> (16 + 2 * raw.sub) & 3;
        c.scale[0] = c.scale[1] = f16_to_f32((u16)raw.head.x) * (float)((i32)(low | high << 4) - 32);
        c.offset[0] = c.offset[1] = 0.0f;
    }
};

// ---- expansion to two-byte floats for tensor cores ----

/// F16 weights are taken 16 times as large, to keep small scales out of F16's subnormal range; the epilogue undoes it.
template <class W> constexpr float gain() { return W::BRAIN || W::EXACT ? 1.0f : 16.0f; }

/// 16 weights of a group from codes: 1024 + q is exact in F16 and 128 + q in BF16 (q < 128), so is the subtraction.
template <class W> DEVICE void expand_group(const u32 *q, float scale, float offset, u32 *h) {
    u32 s, o;
    if constexpr (W::BRAIN) {
        s = pack_bf16(scale, scale), o = pack_bf16(offset, offset);
    } else {
        s = pack_f16(scale * gain<W>(), scale * gain<W>()), o = pack_f16(offset * gain<W>(), offset * gain<W>());
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 pick = i % 2 ? 0x4342 : 0x4140;
        if constexpr (W::BRAIN) {
            const u32 minus = pack_bf16(-(128.0f + W::ZERO), -(128.0f + W::ZERO));
            h[i] = bf16x2_fma(bf16x2_fma(bytes4(q[i / 2], 0x43434343, pick), 0x3f803f80, minus), s, o);
        } else {
            const u32 zero = 0x64006400u + W::ZERO * 0x00010001u;
            u32 exact = f16x2_sub(bytes4(q[i / 2], 0x64646464, pick), zero);
            h[i] = W::OFFSET ? f16x2_fma(exact, s, o) : f16x2_mul(exact, s);
        }
    }
}

/// The unit's 32 weights, times the gain, as 16 pairs in order of columns: group 0 in h[0..8], group 1 in h[8..16].
template <class W> DEVICE void pairs(const typename W::Raw &raw, u32 *h) {
    if constexpr (W::EXACT) {
#pragma unroll
        for (int i = 0; i < 16; i++) h[i] = raw.q[i];
    } else {
        Codes c;
        W::expand(raw, c);
        expand_group<W>(c.q, c.scale[0], c.offset[0], h);
        expand_group<W>(c.q + 4, c.scale[1], c.offset[1], h + 8);
    }
}

/// Two-byte floats need no decoding: a unit is 32 neighbours.
template <bool IS_BRAIN> struct Float16 {
    static constexpr u32 SPAN = 16, PIECES = 0;
    static constexpr bool BRAIN = IS_BRAIN, EXACT = true, OFFSET = false;
    static constexpr i32 ZERO = 0;
    struct Raw { u32 q[16]; };
    DEVICE u32 column(u32 unit, u32 group) { return 32 * unit + 16 * group; }
    DEVICE Raw load(const u8 *row, u32 unit, u32) {
        Raw raw;
        load_words<16, 16>(raw.q, row + 64 * unit);
        return raw;
    }
};
template <bool TILED> struct F16 : Float16<false> {};
template <bool TILED> struct BF16 : Float16<true> {};

template <class W> DEVICE void mma(float *c, const u32 *a, const u32 *b) {
    if constexpr (W::BRAIN) mma_bf16(c, a, b);
    else mma_f16(c, a, b);
}
