//! Attention of many tokens over an F16 cache on tensor cores, a block per tile of query rows and key/value head.
//! Query rows are (token, head of the group) pairs, token-major, so all heads of a group share the keys and values in
//! shared memory. Slots are taken in tiles; before the loop all tiles are classed as unseen (skipped), seen by every
//! row (no mask) or mixed. Softmax is online, in base 2; scores and sums are F32, weights F16. Keys, values and queries
//! stand in shared memory with chunk c of row r at c ^ (r % 8). Head sizes 64, 128, 256 with equal values.
//! Next file: `move.cu`.
#include "attention.cuh"

static constexpr u32 STATUS_BATCH = 256; // tiles classed at a time

/// What a block's rows have in common.
struct Range {
    i32 first, last; // smallest and largest position
    i32 sequence;    // -1 when rows differ
};

enum Status : u8 { UNSEEN, MIXED, ALL };

/// Position and sequence of the token of query row `index`.
DEVICE int2 row_token(const AttentionArgs &a, u32 index) {
    u32 group = a.q_heads / a.kv_heads;
    if (index >= a.tokens * group) return make_int2(-1, -1);
    return make_int2(a.positions[index / group], a.sequences[index / group]);
}

/// Least and greatest position of the block's rows, by its first warp; `out` is shared.
template <u32 ROWS> DEVICE void find_range(const AttentionArgs &a, u32 first_row, Range *out) {
    if (threadIdx.x >= 32) return;
    i32 first = 0x7fffffff, last = -1, low = 0x7fffffff, high = -1;
    for (u32 i = threadIdx.x; i < ROWS; i += 32) {
        int2 token = row_token(a, first_row + i);
        if (token.x < 0) continue;
        first = min(first, token.x), last = max(last, token.x);
        low = min(low, token.y), high = max(high, token.y);
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        first = min(first, __shfl_xor_sync(0xffffffffu, first, step));
        last = max(last, __shfl_xor_sync(0xffffffffu, last, step));
        low = min(low, __shfl_xor_sync(0xffffffffu, low, step));
        high = max(high, __shfl_xor_sync(0xffffffffu, high, step));
    }
    if (threadIdx.x == 0) *out = Range{first, last, low == high ? low : -1};
}

/// Classes one tile of slots; all lanes of a warp call it together.
template <u32 SLOTS> DEVICE Status class_tile(const AttentionArgs &a, const Range &range, u32 first_slot, u32 n_slots) {
    i32 some = 0, all = 1;
    for (u32 i = threadIdx.x % 32; i < SLOTS; i += 32) {
        u32 slot = first_slot + i;
        i32 position = slot < n_slots ? a.slot_positions[slot] : -1;
        i32 sequence = slot < n_slots ? a.slot_sequences[slot] : -1;
        i32 known = position >= 0 && position <= range.last;
        // Windows and chunks begin later for later tokens, so the ends of the range decide.
        i32 candidate = range.sequence < 0 || sequence == range.sequence;
        some |= known && candidate && position >= first_visible(a, range.first);
        all &= known && position <= range.first && position >= first_visible(a, range.last) &&
               range.sequence >= 0 && sequence == range.sequence;
    }
    some = __any_sync(0xffffffffu, some), all = __all_sync(0xffffffffu, all);
    return all ? ALL : some ? MIXED : UNSEEN;
}

/// The next tile of the batch that somebody sees, or `tiles`.
DEVICE u32 next_seen(const u8 *status, u32 tile, u32 tiles) {
    while (tile < tiles && status[tile] == UNSEEN) tile++;
    return tile;
}

/// Online softmax of two rows per lane.
struct Softmax {
    float top[2], total[2];
};

/// Scores to weights; returns by how much the sums so far shrink.
template <u32 TILES>
DEVICE float2 weigh(Softmax &softmax, float (&score)[TILES][4]) {
    float shrink[2];
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        float top = softmax.top[h];
#pragma unroll
        for (u32 n = 0; n < TILES; n++) top = fmaxf(top, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        float base = top == -INFINITY ? 0.0f : top, sum = 0.0f;
        shrink[h] = fast_exp2(softmax.top[h] - base);
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                float &s = score[n][2 * h + j];
                s = fast_exp2(s - base);
                sum += s;
            }
        }
        softmax.top[h] = top;
        softmax.total[h] = softmax.total[h] * shrink[h] + sum; // of this lane's slots; joined at the end
    }
    return make_float2(shrink[0], shrink[1]);
}

template <u32 TILES> DEVICE void scale_scores(const AttentionArgs &a, float (&score)[TILES][4]) {
    float factor = a.scale * LOG2E;
    i32 capped = a.softcap > 0.0f;
#pragma unroll
    for (u32 n = 0; n < TILES; n++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) score[n][i] = capped ? score_of(a, score[n][i]) : score[n][i] * factor;
}

/// Sets what the rows do not see to -infinity.
template <u32 TILES>
DEVICE void mask_scores(const AttentionArgs &a, const int2 *rows, u32 first_slot, u32 n_slots,
                        float (&score)[TILES][4]) {
    u32 t = threadIdx.x % 4;
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            u32 slot = first_slot + 8 * n + 2 * t + j;
            i32 position = slot < n_slots ? a.slot_positions[slot] : -1;
            i32 sequence = slot < n_slots ? a.slot_sequences[slot] : -1;
#pragma unroll
            for (u32 h = 0; h < 2; h++)
                if (!sees(a, rows[h].x, rows[h].y, position, sequence)) score[n][2 * h + j] = -INFINITY;
        }
    }
}

/// Divides by the sum of weights, the sink's included, and writes this warp's rows.
template <u32 D>
DEVICE void write_rows(const AttentionArgs &a, u32 first_row, Softmax &softmax, const float (&out)[D / 8][4]) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = a.q_heads / a.kv_heads;
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        u32 index = first_row + 16 * warp + lane / 4 + 8 * h;
        float total = softmax.total[h], factor = 1.0f;
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (index >= a.tokens * group) continue;
        u32 token = index / group, head = blockIdx.y * group + index % group;
        if (a.sinks) {
            float sink = a.sinks[head] * LOG2E, top = fmaxf(softmax.top[h], sink);
            factor = fast_exp2(softmax.top[h] - top);
            total = total * factor + fast_exp2(sink - top);
        }
        factor = total > 0.0f ? factor / total : 0.0f;
        float *to = a.out + (u64)token * a.out_stride + head * D + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < D / 8; n++) {
            to[8 * n] = out[n][2 * h] * factor;
            to[8 * n + 1] = out[n][2 * h + 1] * factor;
        }
    }
}

template <u32 D> struct Shape {
    static constexpr u32 WARPS = D == 256 ? 4 : 8, ROWS = 16 * WARPS, SLOTS = D == 256 ? 32 : 64;
    static constexpr u32 ROW_BYTES = 2 * D, TILE_BYTES = SLOTS * ROW_BYTES;
    static constexpr u32 QUERY_BYTES = ROWS * ROW_BYTES;
};

template <u32 D> DEVICE u8 *chunk_at(u8 *tile, u32 row, u32 chunk) {
    return tile + row * (2 * D) + ((chunk ^ (row & 7)) << 4);
}

/// Starts copying one tile of a cache.
template <u32 D> DEVICE void copy_tile(const u16 *cache, u32 slot_cols, u8 *tile, u32 first_slot, u32 n_slots) {
    typedef Shape<D> S;
    constexpr u32 CHUNKS = D / 8;
    for (u32 i = threadIdx.x; i < S::SLOTS * CHUNKS; i += 32 * S::WARPS) {
        u32 row = i / CHUNKS, chunk = i % CHUNKS, slot = first_slot + row;
        i32 inside = slot < n_slots;
        copy16_async(chunk_at<D>(tile, row, chunk), cache + (u64)(inside ? slot : 0) * slot_cols + 8 * chunk, inside);
    }
}

/// Queries of the block's rows as F16 in shared memory.
template <u32 D> DEVICE void load_queries(const AttentionArgs &a, u32 first_row, u8 *queries) {
    typedef Shape<D> S;
    u32 group = a.q_heads / a.kv_heads;
    for (u32 i = threadIdx.x; i < S::ROWS * (D / 8); i += 32 * S::WARPS) {
        u32 row = i / (D / 8), chunk = i % (D / 8), index = first_row + row;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (index < a.tokens * group) {
            u32 head = blockIdx.y * group + index % group;
            const float *q = a.q + (u64)(index / group) * a.q_stride + head * D + 8 * chunk;
            v = make_uint4(pack_f16(q[0], q[1]), pack_f16(q[2], q[3]), pack_f16(q[4], q[5]), pack_f16(q[6], q[7]));
        }
        *(uint4 *)chunk_at<D>(queries, row, chunk) = v;
    }
}

/// score = q k^T for this warp's 16 rows and the tile's slots.
template <u32 D>
DEVICE void multiply_keys(u8 *queries, u8 *keys, float (&score)[Shape<D>::SLOTS / 8][4]) {
    constexpr u32 TILES = Shape<D>::SLOTS / 8;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (u32 n = 0; n < TILES; n++) score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0.0f;
#pragma unroll
    for (u32 k = 0; k < D / 16; k++) {
        u32 q[4];
        ldmatrix4(q, chunk_at<D>(queries, 16 * warp + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (u32 n = 0; n < TILES; n += 2) {
            u32 b[4];
            ldmatrix4(b, chunk_at<D>(keys, 8 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            mma_f16(score[n], q, b);
            mma_f16(score[n + 1], q, b + 2);
        }
    }
}

/// out += weights times the tile's values.
template <u32 D>
DEVICE void multiply_values(const float (&weight)[Shape<D>::SLOTS / 8][4], u8 *values, float (&out)[D / 8][4]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 k = 0; k < Shape<D>::SLOTS / 16; k++) {
        u32 w[4] = {pack_f16(weight[2 * k][0], weight[2 * k][1]), pack_f16(weight[2 * k][2], weight[2 * k][3]),
                    pack_f16(weight[2 * k + 1][0], weight[2 * k + 1][1]),
                    pack_f16(weight[2 * k + 1][2], weight[2 * k + 1][3])};
#pragma unroll
        for (u32 n = 0; n < D / 8; n += 2) {
            u32 b[4];
            ldmatrix4_trans(b, chunk_at<D>(values, 16 * k + lane % 16, n + lane / 16));
            mma_f16(out[n], w, b);
            mma_f16(out[n + 1], w, b + 2);
        }
    }
}

template <u32 D> DEVICE void prefill(const AttentionArgs &a) {
    typedef Shape<D> S;
    DYNAMIC_SHARED(shared);
    __shared__ u8 status[STATUS_BATCH];
    __shared__ Range range;
    u8 *queries = shared, *keys = shared + S::QUERY_BYTES, *values = keys + 2 * S::TILE_BYTES;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_slots = *a.n_slots;
    u32 first_row = (gridDim.x - 1 - blockIdx.x) * S::ROWS; // the longest first
    const u16 *k_cache = (const u16 *)a.k_cache + blockIdx.y * D;
    const u16 *v_cache = (const u16 *)a.v_cache + blockIdx.y * (a.v_slot_cols / a.kv_heads);
    find_range<S::ROWS>(a, first_row, &range);
    load_queries<D>(a, first_row, queries);
    __syncthreads();
    u32 row = first_row + 16 * warp + lane / 4;
    int2 rows[2] = {row_token(a, row), row_token(a, row + 8)};
    Softmax softmax = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    float out[D / 8][4] = {};
    for (u32 base = 0; base * S::SLOTS < n_slots; base += STATUS_BATCH) {
        u32 tiles = min(STATUS_BATCH, divide_up(n_slots, S::SLOTS) - base), stage = 0;
        for (u32 i = warp; i < tiles; i += S::WARPS)
            status[i] = class_tile<S::SLOTS>(a, range, (base + i) * S::SLOTS, n_slots);
        __syncthreads();
        u32 tile = next_seen(status, 0, tiles);
        if (tile < tiles) {
            copy_tile<D>(k_cache, a.k_slot_cols, keys, (base + tile) * S::SLOTS, n_slots);
            copy_tile<D>(v_cache, a.v_slot_cols, values, (base + tile) * S::SLOTS, n_slots);
        }
        copy_commit();
        while (tile < tiles) {
            u32 next = next_seen(status, tile + 1, tiles);
            if (next < tiles) {
                u32 other = (stage ^ 1) * S::TILE_BYTES, slot = (base + next) * S::SLOTS;
                copy_tile<D>(k_cache, a.k_slot_cols, keys + other, slot, n_slots);
                copy_tile<D>(v_cache, a.v_slot_cols, values + other, slot, n_slots);
            }
            copy_commit();
            copy_wait<1>();
            __syncthreads();
            float score[S::SLOTS / 8][4];
            multiply_keys<D>(queries, keys + stage * S::TILE_BYTES, score);
            scale_scores(a, score);
            if (status[tile] == MIXED) mask_scores(a, rows, (base + tile) * S::SLOTS, n_slots, score);
            float2 shrink = weigh(softmax, score);
#pragma unroll
            for (u32 n = 0; n < D / 8; n++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) out[n][i] *= i < 2 ? shrink.x : shrink.y;
            multiply_values<D>(score, values + stage * S::TILE_BYTES, out);
            __syncthreads(); // the other stage may be refilled
            stage ^= 1, tile = next;
        }
        __syncthreads();
    }
    write_rows<D>(a, first_row, softmax, out);
}

/// Grid (divide_up(tokens * group, rows of the shape), kv_heads), 32 * WARPS threads, dynamic shared memory
/// QUERY_BYTES + 4 * TILE_BYTES.
extern "C" __global__ void BOUNDS(256, 1) attention64(AttentionArgs a) { prefill<64>(a); }
EXPORT(attention64)
extern "C" __global__ void BOUNDS(256, 1) attention128(AttentionArgs a) { prefill<128>(a); }
EXPORT(attention128)
extern "C" __global__ void BOUNDS(128, 1) attention256(AttentionArgs a) { prefill<256>(a); }
EXPORT(attention256)
