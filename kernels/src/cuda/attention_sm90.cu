//! Attention of many tokens by asynchronous tensor-core products, for compute capability 9.0; `attention_prefill.cu`
//! elsewhere, and what it says of rows, tiles and softmax holds here. A block has 128 query rows, 64 for each group of
//! four warps. Queries and keys are operands in shared memory, weights stay in registers, values are read across.
//! Tiles are of 64 columns, rows 128 bytes with 16-byte chunk c of row r at c ^ (r % 8), as `wgmma.cuh` wants them.
//! While a tile's weights are multiplied with its values, the next tile's scores become weights. Next file: `move.cu`.
#include "attention_tiles.cuh"
#include "wgmma.cuh"

static constexpr u32 THREADS = 256, ROWS = 128, SLOTS = 128, ROW_BYTES = 128;

/// Keys or values of a tile of slots: D / 64 tiles side by side.
template <u32 D> struct Shape {
    static constexpr u32 PLANE_BYTES = SLOTS * ROW_BYTES, TILE_BYTES = D / 64 * PLANE_BYTES;
    static constexpr u32 QUERY_BYTES = D / 64 * ROWS * ROW_BYTES, CHUNKS = D / 8;
};

/// 16-byte chunk of a row in tiles of so many rows.
DEVICE u8 *chunk_at(u8 *tile, u32 rows, u32 row, u32 chunk) {
    return tile + (chunk / 8 * rows + row) * ROW_BYTES + ((chunk % 8 ^ row % 8) << 4);
}

/// Starts copying one tile of a cache.
template <u32 D> DEVICE void copy_tile(const u16 *cache, u32 slot_cols, u8 *tile, u32 first_slot, u32 n_slots) {
    typedef Shape<D> S;
#pragma unroll
    for (u32 i = threadIdx.x; i < SLOTS * S::CHUNKS; i += THREADS) {
        u32 row = i / S::CHUNKS, chunk = i % S::CHUNKS, slot = first_slot + row;
        i32 inside = slot < n_slots;
        const u16 *from = cache + (u64)(inside ? slot : 0) * slot_cols + 8 * chunk;
        copy16_async(chunk_at(tile, SLOTS, row, chunk), from, inside);
    }
}

/// Queries of the block's rows as F16 in shared memory.
template <u32 D> DEVICE void load_queries(const AttentionArgs &a, u32 first_row, u8 *queries) {
    typedef Shape<D> S;
    u32 group = a.q_heads / a.kv_heads;
    for (u32 i = threadIdx.x; i < ROWS * S::CHUNKS; i += THREADS) {
        u32 row = i / S::CHUNKS, chunk = i % S::CHUNKS, index = first_row + row;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (index < a.tokens * group) {
            u32 head = blockIdx.y * group + index % group;
            const float *q = a.q + (u64)(index / group) * a.q_stride + head * D + 8 * chunk;
            v = make_uint4(pack_f16(q[0], q[1]), pack_f16(q[2], q[3]), pack_f16(q[4], q[5]), pack_f16(q[6], q[7]));
        }
        *(uint4 *)chunk_at(queries, ROWS, row, chunk) = v;
    }
}

/// Sums as the softmax sees them.
template <u32 N> DEVICE float (&tiles_of(float (&flat)[N]))[N / 4][4] { return *(float (*)[N / 4][4])&flat; }

/// Starts score = q k^T for the rows of this group of warps.
template <u32 D> DEVICE void start_scores(float (&score)[SLOTS / 2], u64 queries, u64 keys) {
    start_products();
    multiply_first(score, queries, keys);
#pragma unroll
    for (u32 k = 1; k < D / 16; k++) {
        u64 q = queries + k / 4 * (ROWS * ROW_BYTES / 16) + k % 4 * 2;
        u64 b = keys + k / 4 * (Shape<D>::PLANE_BYTES / 16) + k % 4 * 2;
        multiply_tiles<false>(score, q, b);
    }
    commit_products();
}

typedef u32 Weights[SLOTS / 16][4];

/// Starts out += weights times the tile's values.
template <u32 D> DEVICE void start_values(float (&out)[D / 2], const Weights &weights, u64 values) {
    start_products();
#pragma unroll
    for (u32 k = 0; k < SLOTS / 16; k++) multiply_rows(out, weights[k], values + k * (16 * ROW_BYTES / 16));
    commit_products();
}

/// Finished scores to weights in their place; returns by how much the sums so far shrink.
DEVICE float2 weigh_scores(const AttentionArgs &a, float (&score)[SLOTS / 2], const int2 *rows, u32 first_slot,
                           u32 n_slots, u32 mixed, Softmax &softmax) {
    scale_scores(a, tiles_of(score));
    if (mixed) mask_scores(a, rows, first_slot, n_slots, tiles_of(score));
    return weigh(softmax, tiles_of(score));
}

DEVICE void pack_weights(const float (&score)[SLOTS / 2], Weights &weights) {
#pragma unroll
    for (u32 k = 0; k < SLOTS / 16; k++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) weights[k][i] = pack_f16(score[8 * k + 2 * i], score[8 * k + 2 * i + 1]);
}

template <u32 N> DEVICE void shrink_sums(float (&out)[N], float2 shrink) {
#pragma unroll
    for (u32 i = 0; i < N; i++) out[i] *= i % 4 < 2 ? shrink.x : shrink.y;
}

/// The seen tiles of one batch, whose first slot is `first_slot`; the first of them is `tile`.
template <u32 D>
DEVICE void attend(const AttentionArgs &a, const u8 *status, u32 tile, u32 tiles, u32 first_slot, const int2 *rows,
                   u8 *shared, Softmax &softmax, float (&out)[D / 2]) {
    typedef Shape<D> S;
    u8 *queries = shared, *keys = shared + S::QUERY_BYTES, *values = keys + 2 * S::TILE_BYTES;
    const u16 *k_cache = (const u16 *)a.k_cache + blockIdx.y * D;
    const u16 *v_cache = (const u16 *)a.v_cache + blockIdx.y * (a.v_slot_cols / a.kv_heads);
    u32 n_slots = *a.n_slots, next = next_seen(status, tile + 1, tiles), stage = 0;
    u64 q_operand = operand_at(queries) + __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) * (64 * ROW_BYTES / 16);
    u64 k_operand = operand_at(keys), v_operand = operand_across(values, S::PLANE_BYTES);
    copy_tile<D>(k_cache, a.k_slot_cols, keys, first_slot + tile * SLOTS, n_slots);
    copy_commit();
    copy_tile<D>(v_cache, a.v_slot_cols, values, first_slot + tile * SLOTS, n_slots);
    if (next < tiles) copy_tile<D>(k_cache, a.k_slot_cols, keys + S::TILE_BYTES, first_slot + next * SLOTS, n_slots);
    copy_commit();
    copy_wait<1>();
    publish_shared();
    __syncthreads();
    Weights weights;
    float score[SLOTS / 2];
    start_scores<D>(score, q_operand, k_operand);
    finish_sums(score);
    u32 mixed = status[tile] == MIXED;
    shrink_sums(out, weigh_scores(a, score, rows, first_slot + tile * SLOTS, n_slots, mixed, softmax));
    pack_weights(score, weights);
#pragma unroll 1
    while (next < tiles) {
        copy_wait<0>();
        publish_shared();
        __syncthreads(); // this tile's values and the next one's keys are there, and nobody reads those before
        u32 other = stage ^ 1, after = next_seen(status, next + 1, tiles);
        u64 now_values = v_operand + stage * (S::TILE_BYTES / 16), next_keys = k_operand + other * (S::TILE_BYTES / 16);
        copy_tile<D>(v_cache, a.v_slot_cols, values + other * S::TILE_BYTES, first_slot + next * SLOTS, n_slots);
        if (after < tiles)
            copy_tile<D>(k_cache, a.k_slot_cols, keys + stage * S::TILE_BYTES, first_slot + after * SLOTS, n_slots);
        copy_commit();
        float coming[SLOTS / 2];
        start_scores<D>(coming, q_operand, next_keys);
        start_values<D>(out, weights, now_values);
        wait_products<1>();
        settle_sums(coming);
        mixed = status[next] == MIXED;
        float2 shrink = weigh_scores(a, coming, rows, first_slot + next * SLOTS, n_slots, mixed, softmax);
        finish_sums(out);
        shrink_sums(out, shrink);
        pack_weights(coming, weights); // not before: the running product reads them
        stage = other, next = after;
    }
    copy_wait<0>();
    publish_shared();
    __syncthreads();
    start_values<D>(out, weights, v_operand + stage * (S::TILE_BYTES / 16));
    finish_sums(out);
}

template <u32 D> DEVICE void prefill(const AttentionArgs &a) {
    DYNAMIC_TILES(shared);
    __shared__ u8 status[STATUS_BATCH];
    __shared__ Range range;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_slots = *a.n_slots;
    u32 first_row = (gridDim.x - 1 - blockIdx.x) * ROWS, row = first_row + 16 * warp + lane / 4; // the longest first
    find_range<ROWS>(a, first_row, &range);
    load_queries<D>(a, first_row, shared);
    __syncthreads();
    int2 rows[2] = {row_token(a, row), row_token(a, row + 8)};
    Softmax softmax = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    float out[D / 2] = {};
    for (u32 base = 0; base * SLOTS < n_slots; base += STATUS_BATCH) {
        u32 tiles = min(STATUS_BATCH, divide_up(n_slots, SLOTS) - base);
        for (u32 i = warp; i < tiles; i += THREADS / 32)
            status[i] = class_tile<SLOTS>(a, range, (base + i) * SLOTS, n_slots);
        __syncthreads();
        u32 tile = next_seen(status, 0, tiles);
        if (tile < tiles) attend<D>(a, status, tile, tiles, base * SLOTS, rows, shared, softmax, out);
        __syncthreads();
    }
    write_rows<D>(a, first_row, softmax, tiles_of(out));
}

/// Grid (divide_up(tokens * group, 128), kv_heads), 256 threads, dynamic shared memory QUERY_BYTES + 4 TILE_BYTES.
extern "C" __global__ void BOUNDS(256, 1) attention64(AttentionArgs a) { prefill<64>(a); }
EXPORT(attention64)
extern "C" __global__ void BOUNDS(256, 1) attention128(AttentionArgs a) { prefill<128>(a); }
EXPORT(attention128)
