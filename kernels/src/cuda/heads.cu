//! Kernels on groups of columns (heads): norms per group, rotary positions, position scale, and the cache write.
//! One warp per group or head of one token. Frequencies are computed on the CPU (scaling, factors, YaRN); angles once
//! per round, for all layers. Attention itself is in `attention.cu`. Next file: `elementwise.cu`.
#include "activation.cuh"

struct GroupNormArgs {
    View x;
    View out;
    const float *weight; // {group}, nullable
    u32 group;
    float eps;
    float inverse_count; // 1 / group for RMS, 1 for L2
    float scale;
};

/// Grid (divide_up(groups, warps), rows): y = scale * x / sqrt(sum(x^2) * inverse_count + eps) * weight.
extern "C" __global__ void BOUNDS(128, 8) group_norm(GroupNormArgs a) {
    u32 lane = threadIdx.x % 32, group = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (group * a.group >= a.x.cols) return;
    const float *x = a.x.data + (u64)blockIdx.y * a.x.stride + group * a.group;
    float *out = a.out.data + (u64)blockIdx.y * a.out.stride + group * a.group;
    float squares = 0.0f;
    for (u32 i = lane; i < a.group; i += 32) squares += x[i] * x[i];
    float factor = a.scale / sqrtf(warp_sum(squares) * a.inverse_count + a.eps);
    for (u32 i = lane; i < a.group; i += 32) out[i] = x[i] * factor * (a.weight ? a.weight[i] : 1.0f);
}
EXPORT(group_norm)

struct AnglesArgs {
    const double *turns;  // per pair: turns per position
    const i32 *positions; // per row
    float *trig;          // [rows, 2 * pairs]: cosines, then sines
    u32 pairs;
    float magnitude;
};

/// Grid (divide_up(pairs, 64), rows): once per round and table. Whole turns are taken off in F64: positions are large.
extern "C" __global__ void BOUNDS(64, 8) rope_angles(AnglesArgs a) {
    u32 pair = blockIdx.x * blockDim.x + threadIdx.x;
    if (pair >= a.pairs) return;
    double turns = a.turns[pair] * (double)a.positions[blockIdx.y];
    float half_turns = 2.0f * (float)(turns - floor(turns + 0.5));
    float *row = a.trig + (u64)blockIdx.y * 2 * a.pairs;
    row[pair] = a.magnitude * cospif(half_turns);
    row[pair + a.pairs] = a.magnitude * sinpif(half_turns);
}
EXPORT(rope_angles)

struct RopeArgs {
    View x;
    View out;
    const float *trig;        // [rows, n_rot] from rope_angles
    const float *norm_weight; // {head_cols}, nullable: weight of the norm
    u32 heads, head_cols, n_rot;
    u32 neox; // pairs (i, i + n_rot/2) instead of (2i, 2i + 1)
    u32 norm; // RMS norm of each head before the rotation
    float eps;
};

/// Grid (divide_up(heads, warps), rows). `out` may be `x`; dimensions from n_rot on pass through.
extern "C" __global__ void BOUNDS(128, 8) rope(RopeArgs a) {
    u32 lane = threadIdx.x % 32, head = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, row = blockIdx.y;
    if (head >= a.heads) return;
    const float *x = a.x.data + (u64)row * a.x.stride + head * a.head_cols;
    float *out = a.out.data + (u64)row * a.out.stride + head * a.head_cols;
    float factor = 1.0f;
    if (a.norm) {
        float squares = 0.0f;
        for (u32 i = lane; i < a.head_cols; i += 32) squares += x[i] * x[i];
        factor = 1.0f / sqrtf(warp_sum(squares) / (float)a.head_cols + a.eps);
    }
    u32 half = a.n_rot / 2;
    const float *trig = a.trig + (u64)row * a.n_rot;
    for (u32 i = lane; i < half; i += 32) {
        u32 first = a.neox ? i : 2 * i, second = a.neox ? i + half : 2 * i + 1;
        float c = trig[i], s = trig[i + half];
        float p = x[first] * factor * (a.norm_weight ? a.norm_weight[first] : 1.0f);
        float q = x[second] * factor * (a.norm_weight ? a.norm_weight[second] : 1.0f);
        out[first] = p * c - q * s;
        out[second] = p * s + q * c;
    }
    for (u32 i = a.n_rot + lane; i < a.head_cols; i += 32)
        out[i] = x[i] * factor * (a.norm_weight ? a.norm_weight[i] : 1.0f);
}
EXPORT(rope)

struct PositionScaleArgs {
    View x;
    View out;
    const i32 *positions;
    float period, factor;
};

/// Grid (column blocks, rows): out = x * (1 + factor * ln(floor((position + 1) / period) + 1)).
extern "C" __global__ void BOUNDS(256, 4) position_scale(PositionScaleArgs a) {
    u32 row = blockIdx.y;
    float scale = 1.0f + a.factor * logf(floorf((float)(a.positions[row] + 1) / a.period) + 1.0f);
    for (u32 col = blockIdx.x * blockDim.x + threadIdx.x; col < a.x.cols; col += gridDim.x * blockDim.x)
        a.out.data[(u64)row * a.out.stride + col] = a.x.data[(u64)row * a.x.stride + col] * scale;
}
EXPORT(position_scale)

struct StoreKvArgs {
    View k;
    View v;        // data null where values are the first columns of the keys
    void *k_cache; // [slots, k.cols] of F16 or F32
    void *v_cache; // [slots, v.cols]
    const i32 *slots, *positions, *sequences; // per row of this round; a negative slot is skipped
    i32 *slot_positions, *slot_sequences;     // per slot of the cache: what it holds
    u32 f32_cache;
    u32 reserved;
};

DEVICE void store_row(void *cache, u32 f32_cache, u64 slot, View x, u32 row, u32 col) {
    float v = x.data[(u64)row * x.stride + col];
    u64 at = slot * x.cols + col;
    if (f32_cache) ((float *)cache)[at] = v;
    else ((u16 *)cache)[at] = f32_to_f16(v); // infinite beyond the range, so that it shows
}

/// Grid (column blocks over k.cols + v.cols, rows).
extern "C" __global__ void BOUNDS(256, 4) store_kv(StoreKvArgs a) {
    u32 row = blockIdx.y;
    i32 slot = a.slots[row];
    if (slot < 0) return;
    u32 v_cols = a.v.data ? a.v.cols : 0, first = blockIdx.x * blockDim.x + threadIdx.x;
    for (u32 i = first; i < a.k.cols + v_cols; i += gridDim.x * blockDim.x) {
        if (i < a.k.cols) store_row(a.k_cache, a.f32_cache, (u64)slot, a.k, row, i);
        else store_row(a.v_cache, a.f32_cache, (u64)slot, a.v, row, i - a.k.cols);
    }
    if (first == 0) {
        a.slot_positions[slot] = a.positions[row];
        a.slot_sequences[slot] = a.sequences[row];
    }
}
EXPORT(store_kv)
