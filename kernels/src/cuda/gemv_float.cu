//! Matrix times vectors with floating-point weights and F32 activations, any number of tokens in groups of four.
//! One module per type: macro FLOAT_BITS 32 (F32), 16 (F16) or 116 (BF16). Exact products, F32 sums in a fixed order.
//! Serves routers and other F32 matrices in every phase, and F16/BF16 matrices for one token.
//! Next file: `skinny.cu`.
#include "activation.cuh"
#include "weights.cuh"

struct FloatPart {
    const u8 *weight;
    const float *bias;
    const float *residual;
    float *out;
    u32 rows;
    u32 out_stride, residual_stride;
    u32 reserved;
};

struct FloatGemvArgs {
    FloatPart parts[3];
    const float *x;
    const i32 *ids, *places; // as in gemv.cu
    u64 row_bytes, matrix_bytes;
    u32 cols, tokens, n_parts, split;
    u32 x_stride, x_slot_stride;
    u32 slots, ids_stride, matrices; // slots = 0: plain
    u32 reserved;
};

static constexpr u32 WARPS = 4;
/// Weights of one 16-byte load.
static constexpr u32 CHUNK = FLOAT_BITS == 32 ? 4 : 8;

struct Weights {
    float w[CHUNK];
};

DEVICE Weights load_weights(const u8 *row, u32 chunk) {
    uint4 v = load_once16(row + 16 * chunk);
    u32 words[4] = {v.x, v.y, v.z, v.w};
    Weights out;
#pragma unroll
    for (u32 i = 0; i < CHUNK; i++) {
        if (FLOAT_BITS == 32) out.w[i] = __uint_as_float(words[i % 4]);
        else if (FLOAT_BITS == 16) out.w[i] = f16_to_f32((u16)(words[i / 2] >> (16 * (i % 2))));
        else out.w[i] = bf16_to_f32((u16)(words[i / 2] >> (16 * (i % 2))));
    }
    return out;
}

/// The columns that no whole chunk covers, one per lane.
DEVICE float tail_weight(const u8 *row, u32 col) {
    if (FLOAT_BITS == 32) return ((const float *)row)[col];
    u16 h = ((const u16 *)row)[col];
    return FLOAT_BITS == 16 ? f16_to_f32(h) : bf16_to_f32(h);
}

template <int T> DEVICE void accumulate(float *sum, const u8 *row, const float *x, u32 x_stride, u32 tokens, u32 cols,
                                        u32 first, u32 step) {
    // Rows whose length is no multiple of a chunk are not aligned for 16-byte loads either.
    u32 aligned = ((u64)row | (u64)x | 4 * x_stride) % 16 == 0;
    u32 chunks = cols % CHUNK == 0 && aligned ? cols / CHUNK : 0;
#pragma unroll(T == 1 ? 4 : 1)
    for (u32 chunk = first; chunk < chunks; chunk += step) {
        Weights weights = load_weights(row, chunk);
#pragma unroll
        for (u32 t = 0; t < T; t++) {
            if (t >= tokens) break;
            const float *xt = x + (u64)t * x_stride + chunk * CHUNK;
#pragma unroll
            for (u32 i = 0; i < CHUNK; i += 4) {
                uint4 v = load16(xt + i);
                sum[t] = fmaf(weights.w[i], __uint_as_float(v.x), sum[t]);
                sum[t] = fmaf(weights.w[i + 1], __uint_as_float(v.y), sum[t]);
                sum[t] = fmaf(weights.w[i + 2], __uint_as_float(v.z), sum[t]);
                sum[t] = fmaf(weights.w[i + 3], __uint_as_float(v.w), sum[t]);
            }
        }
    }
    for (u32 col = chunks * CHUNK + first; col < cols; col += step) {
        float w = tail_weight(row, col);
#pragma unroll
        for (u32 t = 0; t < T; t++)
            if (t < tokens) sum[t] = fmaf(w, x[(u64)t * x_stride + col], sum[t]);
    }
}

template <int T> DEVICE void gemv(const FloatGemvArgs &a) {
    __shared__ float shares[WARPS][T];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows_per_block = WARPS / a.split, block = blockIdx.x, p = 0;
    while (p + 1 < a.n_parts && block >= divide_up(a.parts[p].rows, rows_per_block)) {
        block -= divide_up(a.parts[p].rows, rows_per_block);
        p++;
    }
    const FloatPart &part = a.parts[p];
    u32 row = block * rows_per_block + warp / a.split;
    u32 token = a.slots ? blockIdx.y / a.slots : blockIdx.y * T, slot = a.slots ? blockIdx.y % a.slots : 0;
    u32 matrix = a.slots ? (a.ids ? (u32)a.ids[(u64)token * a.ids_stride + slot] : slot) : 0;
    u32 inside = !a.slots || matrix < a.matrices, tokens = a.slots ? 1 : min((u32)T, a.tokens - token);
    u64 place = inside ? (a.places ? (u32)max(a.places[matrix], 0) : matrix) : 0;
    const u8 *w = part.weight + place * a.matrix_bytes + (u64)min(row, part.rows - 1) * a.row_bytes;
    const float *x = a.x + (u64)token * a.x_stride + slot * a.x_slot_stride;
    float sum[T] = {};
    accumulate<T>(sum, w, x, a.x_stride, tokens, a.cols, lane + 32 * (warp % a.split), 32 * a.split);
#pragma unroll
    for (u32 t = 0; t < T; t++) {
        sum[t] = warp_sum(sum[t]);
        if (lane == 0) shares[warp][t] = sum[t];
    }
    if (a.split > 1) __syncthreads();
    if (lane != 0 || warp % a.split != 0 || row >= part.rows) return;
    float bias = part.bias && inside ? part.bias[(u64)matrix * part.rows + row] : 0.0f;
#pragma unroll
    for (u32 t = 0; t < T; t++) {
        if (t >= tokens) break;
        float total = sum[t];
        for (u32 s = 1; s < a.split; s++) total += shares[warp + s][t];
        float extra = part.residual ? part.residual[(u64)(token + t) * part.residual_stride + row] : 0.0f;
        part.out[(u64)(token + t) * part.out_stride + slot * part.rows + row] = inside ? total + bias + extra : 0.0f;
    }
}

/// Grid (row blocks of all parts, tokens, or tokens * slots).
extern "C" __global__ void BOUNDS(128, 8) gemv_float1(FloatGemvArgs a) { gemv<1>(a); }
EXPORT(gemv_float1)
/// Grid (row blocks of all parts, divide_up(tokens, 4)); no slots.
extern "C" __global__ void BOUNDS(128, 6) gemv_float4(FloatGemvArgs a) { gemv<4>(a); }
EXPORT(gemv_float4)
