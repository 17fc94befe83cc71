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

/// Pairs of columns that a lane has at once.
static constexpr u32 PAIRS = 2;

struct Pairs {
    float first[PAIRS], second[PAIRS], first_weight[PAIRS], second_weight[PAIRS], cosine[PAIRS], sine[PAIRS];
};

/// Columns of pair i.
DEVICE uint2 columns_of(const RopeArgs &a, u32 i) {
    return a.neox ? make_uint2(i, i + a.n_rot / 2) : make_uint2(2 * i, 2 * i + 1);
}

/// Pairs base + lane, 32 apart, zeros beyond the last: everything is loaded before anything waits.
DEVICE void load_pairs(const RopeArgs &a, const float *x, const float *trig, u32 base, Pairs &pairs) {
    u32 lane = threadIdx.x % 32, half = a.n_rot / 2;
#pragma unroll
    for (u32 k = 0; k < PAIRS; k++) {
        u32 i = base + lane + 32 * k, inside = i < half;
        uint2 at = columns_of(a, i);
        u32 has_weight = inside && a.norm_weight;
        pairs.first[k] = inside ? x[at.x] : 0.0f, pairs.second[k] = inside ? x[at.y] : 0.0f;
        pairs.cosine[k] = inside ? trig[i] : 0.0f, pairs.sine[k] = inside ? trig[i + half] : 0.0f;
        pairs.first_weight[k] = has_weight ? a.norm_weight[at.x] : 1.0f;
        pairs.second_weight[k] = has_weight ? a.norm_weight[at.y] : 1.0f;
    }
}

/// Norm and rotation of one head by a warp: `put(column, value)` gets the results, each after all reads of its column.
/// Sums are spelled out, so that every kernel that rotates gives the same bits.
template <class Put> DEVICE void rotate(const RopeArgs &a, u32 row, u32 head, Put put) {
    u32 lane = threadIdx.x % 32, half = a.n_rot / 2, span = 32 * PAIRS;
    const float *x = a.x.data + (u64)row * a.x.stride + head * a.head_cols, *trig = a.trig + (u64)row * a.n_rot;
    Pairs pairs;
    load_pairs(a, x, trig, 0, pairs);
    float factor = 1.0f;
    if (a.norm) {
        float squares = 0.0f;
#pragma unroll
        for (u32 k = 0; k < PAIRS; k++)
            squares = fmaf(pairs.second[k], pairs.second[k], fmaf(pairs.first[k], pairs.first[k], squares));
        for (u32 i = span + lane; i < half; i += 32) {
            float p = x[columns_of(a, i).x], q = x[columns_of(a, i).y];
            squares = fmaf(q, q, fmaf(p, p, squares));
        }
        for (u32 i = a.n_rot + lane; i < a.head_cols; i += 32) squares = fmaf(x[i], x[i], squares);
        factor = 1.0f / sqrtf(warp_sum(squares) / (float)a.head_cols + a.eps);
    }
    for (u32 base = 0; base < half; base += span) {
        if (base > 0) load_pairs(a, x, trig, base, pairs);
#pragma unroll
        for (u32 k = 0; k < PAIRS; k++) {
            u32 i = base + lane + 32 * k;
            if (i >= half) break;
            float p = pairs.first[k] * factor * pairs.first_weight[k];
            float q = pairs.second[k] * factor * pairs.second_weight[k];
            put(columns_of(a, i).x, fmaf(p, pairs.cosine[k], -(q * pairs.sine[k])));
            put(columns_of(a, i).y, fmaf(p, pairs.sine[k], q * pairs.cosine[k]));
        }
    }
    for (u32 i = a.n_rot + lane; i < a.head_cols; i += 32)
        put(i, x[i] * factor * (a.norm_weight ? a.norm_weight[i] : 1.0f));
}

DEVICE float *head_of(const RopeArgs &a, u32 row, u32 head) {
    return a.out.data + (u64)row * a.out.stride + head * a.head_cols;
}

/// Grid (divide_up(heads, warps), rows). `out` may be `x`; dimensions from n_rot on pass through.
extern "C" __global__ void BOUNDS(128, 8) rope(RopeArgs a) {
    u32 head = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, row = blockIdx.y;
    if (head >= a.heads) return;
    float *out = head_of(a, row, head);
    rotate(a, row, head, [&](u32 i, float y) { out[i] = y; });
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

DEVICE void put_cached(void *cache, u32 f32_cache, u64 at, float v) {
    if (f32_cache) ((float *)cache)[at] = v;
    else ((u16 *)cache)[at] = f32_to_f16(v); // infinite beyond the range, so that it shows
}

DEVICE void store_row(const StoreKvArgs &a, void *cache, u64 slot, View x, u32 row, u32 col) {
    put_cached(cache, a.f32_cache, slot * x.cols + col, x.data[(u64)row * x.stride + col]);
}

DEVICE void note_slot(const StoreKvArgs &a, u32 row, i32 slot) {
    a.slot_positions[slot] = a.positions[row];
    a.slot_sequences[slot] = a.sequences[row];
}

/// Grid (column blocks over k.cols + v.cols, rows).
extern "C" __global__ void BOUNDS(256, 4) store_kv(StoreKvArgs a) {
    u32 row = blockIdx.y;
    i32 slot = a.slots[row];
    if (slot < 0) return;
    u32 v_cols = a.v.data ? a.v.cols : 0, first = blockIdx.x * blockDim.x + threadIdx.x;
    for (u32 i = first; i < a.k.cols + v_cols; i += gridDim.x * blockDim.x) {
        if (i < a.k.cols) store_row(a, a.k_cache, (u64)slot, a.k, row, i);
        else store_row(a, a.v_cache, (u64)slot, a.v, row, i - a.k.cols);
    }
    if (first == 0) note_slot(a, row, slot);
}
EXPORT(store_kv)

struct HeadsArgs {
    View q, q_out;          // heads of the queries, and where they go
    View k;                 // heads of the keys, as many columns per head; they go to the cache
    View v;                 // values, which go to the cache as they are
    const float *q_weight;  // {head_cols}, nullable: weights of the norms
    const float *k_weight;
    const float *trig;      // [rows, n_rot] from rope_angles
    void *k_cache, *v_cache;
    const i32 *slots, *positions, *sequences;
    i32 *slot_positions, *slot_sequences;
    u32 head_cols, n_rot, neox, norm, f32_cache;
    float q_eps, k_eps;
    u32 reserved;
};

/// Grid (divide_up(query heads + key heads + values' groups, warps), rows): what `rope` does to queries and keys and
/// `store_kv` to keys and values, in one launch. A group of the values has as many columns as a head.
extern "C" __global__ void BOUNDS(128, 8) rope_and_store(HeadsArgs g) {
    u32 head = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, row = blockIdx.y, lane = threadIdx.x % 32;
    u32 q_heads = g.q.cols / g.head_cols, k_heads = g.k.cols / g.head_cols;
    u32 is_q = head < q_heads;
    i32 slot = is_q ? 0 : g.slots[row];
    if (slot < 0) return;
    if (head < q_heads + k_heads) {
        RopeArgs a{is_q ? g.q : g.k, g.q_out, g.trig, is_q ? g.q_weight : g.k_weight, q_heads, g.head_cols,
                   g.n_rot, g.neox, g.norm, is_q ? g.q_eps : g.k_eps};
        u32 own = is_q ? head : head - q_heads;
        float *out = head_of(a, row, own);
        u64 at = (u64)(u32)slot * g.k.cols + own * g.head_cols;
        rotate(a, row, own, [&](u32 i, float y) {
            if (is_q) out[i] = y;
            else put_cached(g.k_cache, g.f32_cache, at + i, y);
        });
        return;
    }
    u32 first = (head - q_heads - k_heads) * g.head_cols, last = min(first + g.head_cols, g.v.cols);
    for (u32 i = first + lane; i < last; i += 32)
        put_cached(g.v_cache, g.f32_cache, (u64)(u32)slot * g.v.cols + i, g.v.data[(u64)row * g.v.stride + i]);
    if (first == 0 && lane == 0) {
        g.slot_positions[slot] = g.positions[row];
        g.slot_sequences[slot] = g.sequences[row];
    }
}
EXPORT(rope_and_store)
