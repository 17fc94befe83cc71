//! Attention of many tokens over an F16 cache on tensor cores, a block per tile of query rows and key/value head.
//! Query rows are (token, head of the group) pairs, token-major, so all heads of a group share the keys and values in
//! shared memory. Slots are taken in tiles; before the loop all tiles are classed as unseen (skipped), seen by every
//! row (no mask) or mixed. Softmax is online, in base 2; scores and sums are F32, weights F16. Keys, values and queries
//! stand in shared memory with chunk c of row r at c ^ (r % 8). Head sizes 64, 128, 256 with equal values.
//! Next file: `move.cu`.
#include "attention_tiles.cuh"

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
