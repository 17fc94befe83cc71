//! Activations on their way into a matrix product: views, and the three forms that products read.
//!
//! - Q8: signed bytes with one scale per 32 columns and the sums of its two halves, for dot products on bytes;
//! - F16: two-byte floats with a power of two per row, so that no row leaves F16's range whatever its size;
//! - BF16: two-byte floats, whose range needs no scale (the row's factor is 1).
//! A producer (norm, gated unit, plain conversion) writes any subset of them and the F32 row. Next file: `rows.cu`.
#pragma once
#include "common.cuh"

/// `rows x cols` floats, `stride` apart.
struct View {
    float *data;
    u32 stride, cols;
};

/// One scale and the sums of columns 0..16 and 16..32 of a block's bytes.
struct alignas(8) BlockScale {
    float d;
    i16 sum0, sum1;
};

/// Where a producer writes; null pointers are left out. Rows of the forms are `cols` elements apart.
struct Forms {
    float *f32;       // row stride `f32_stride`
    i8 *q8;           // [rows, cols]
    BlockScale *q8_scales; // [rows, cols / 32]
    u16 *f16;         // [rows, cols]: F16 of x / row_scale
    u16 *bf16;        // [rows, cols]
    float *row_scale; // [rows]: for `f16`
    u32 f32_stride;
    u32 reserved;
};

DEVICE float max_abs4(float4 v) { return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))); }

DEVICE i32 quantised(float v, float inverse) { return max(-127, min(127, __float2int_rn(v * inverse))); }

/// Quantises four columns; the eight lanes that hold a block's 32 columns stand together. All lanes of a warp call it.
DEVICE void write_q8(const Forms &forms, u32 row, u32 col, u32 cols, float4 v, i32 active) {
    float top = max_abs4(v);
#pragma unroll
    for (int step = 4; step > 0; step >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    float d = top / 127.0f, inverse = top > 0.0f ? 127.0f / top : 0.0f;
    i32 q0 = quantised(v.x, inverse), q1 = quantised(v.y, inverse);
    i32 q2 = quantised(v.z, inverse), q3 = quantised(v.w, inverse);
    i32 sum = q0 + q1 + q2 + q3;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    i32 other = __shfl_xor_sync(0xffffffffu, sum, 4);
    if (!active) return;
    u32 packed = (q0 & 0xff) | (q1 & 0xff) << 8 | (q2 & 0xff) << 16 | (u32)(q3 & 0xff) << 24;
    *(u32 *)(forms.q8 + (u64)row * cols + col) = packed;
    if (col % 32 == 0) {
        BlockScale s;
        s.d = d, s.sum0 = (i16)sum, s.sum1 = (i16)other;
        forms.q8_scales[(u64)row * (cols / 32) + col / 32] = s;
    }
}

/// The power of two by which a row with this largest magnitude is divided: it lands in [2^13, 2^14].
DEVICE float row_scale_of(float top) {
    if (!(top > 0.0f) || top > 3.0e38f) return 1.0f;
    i32 exponent = (i32)(__float_as_uint(top) >> 23) - 127 - 13;
    return __uint_as_float((u32)max(1, min(254, exponent + 127)) << 23);
}

/// Writes those of four columns that are below `cols`.
DEVICE void write4(float *row, u32 col, u32 cols, float4 v) {
    if (col + 3 < cols && (u64)(row + col) % 16 == 0) {
        *(float4 *)(row + col) = v;
        return;
    }
    if (col < cols) row[col] = v.x;
    if (col + 1 < cols) row[col + 1] = v.y;
    if (col + 2 < cols) row[col + 2] = v.z;
    if (col + 3 < cols) row[col + 3] = v.w;
}

/// Writes four columns in all wanted forms. All lanes of a warp call it; `inverse` is 1 / row scale.
DEVICE void write_forms(const Forms &forms, u32 row, u32 col, u32 cols, float4 v, float inverse, i32 active) {
    if (forms.q8) write_q8(forms, row, col, cols, v, active);
    if (!active) return;
    if (forms.f32) {
        write4(forms.f32 + (u64)row * forms.f32_stride, col, cols, v);
    }
    if (forms.f16) {
        uint2 packed = make_uint2(pack_f16(v.x * inverse, v.y * inverse), pack_f16(v.z * inverse, v.w * inverse));
        *(uint2 *)(forms.f16 + (u64)row * cols + col) = packed;
    }
    if (forms.bf16) {
        uint2 packed = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
        *(uint2 *)(forms.bf16 + (u64)row * cols + col) = packed;
    }
}
