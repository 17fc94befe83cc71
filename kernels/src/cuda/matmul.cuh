//! What both matrix kernels share: arguments, which tile a block computes, weights decoded into shared memory.
//! A step is 64 columns: the units 2k and 2k + 1 in the order unit, group. Weights and activations agree on it, so
//! formats whose groups lie apart need no shuffle. Shared rows are 128 bytes; 16-byte chunk c of row r stands at
//! c ^ (r % 8), free of bank conflicts both ways. Next file: `matmul.cu`.
#pragma once
#include "weights.cuh"

typedef WEIGHT<IS_TILED> W;

struct MatmulArgs {
    const u8 *weight;
    const float *bias;      // {rows}, with experts {rows} each; nullable
    float *out;             // [tokens, rows], with experts [tokens, chosen * rows]
    const u16 *x;           // [x rows, cols]
    const float *row_scale; // [x rows], nullable for BF16
    const i32 *order;       // experts: entries token * chosen + j sorted by expert; else null
    const int4 *tiles;      // experts: {expert, first place in order, entries, 0} per tile of BN
    const u32 *n_tiles;     // experts: how many tiles there are
    const i32 *places;      // experts: where each matrix lies in the stack, nullable (then matrix j at place j)
    u64 row_bytes;
    u64 matrix_bytes;       // experts: from one place of the stack to the next
    u32 rows, cols, tokens;
    u32 out_stride;
    u32 chosen;             // experts per token, else 1
    u32 x_per_entry;        // 1: x has a row per entry; 0: a row per token
};

static constexpr u32 BM = 128, ROW_BYTES = 128, CHUNKS = 8, UNITS = 2;

DEVICE u8 *chunk_at(u8 *tile, u32 row, u32 chunk) { return tile + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4); }

/// What this block computes; `entries` is 0 for a block without work.
struct Task {
    u32 first_row, first_entry, entries, expert;
};

template <u32 BN> DEVICE Task find_task(const MatmulArgs &a) {
    Task task;
    task.first_row = blockIdx.y * BM;
    if (a.order) {
        u32 inside = blockIdx.x < *a.n_tiles;
        int4 tile = a.tiles[inside ? blockIdx.x : 0];
        task.expert = (u32)tile.x, task.first_entry = (u32)tile.y, task.entries = inside ? (u32)tile.z : 0;
    } else {
        task.expert = 0, task.first_entry = blockIdx.x * BN;
        task.entries = min(BN, a.tokens - task.first_entry);
    }
    return task;
}

/// Decodes this thread's unit into the weight tile.
DEVICE void store_weights(u8 *tile, const typename W::Raw &raw, u32 inside) {
    u32 h[16];
    pairs<W>(raw, h);
    u32 row = threadIdx.x / UNITS, chunk = threadIdx.x % UNITS * 4;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        uint4 v = make_uint4(h[4 * i], h[4 * i + 1], h[4 * i + 2], h[4 * i + 3]);
        *(uint4 *)chunk_at(tile, row, chunk + i) = inside ? v : make_uint4(0, 0, 0, 0);
    }
}
