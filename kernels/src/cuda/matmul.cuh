//! What both matrix kernels share: arguments, which tile a block computes, weights decoded into shared memory.
//! A step is 64 columns: the units 2k and 2k + 1 in the order unit, group. Weights and activations agree on it, so
//! formats whose groups lie apart need no shuffle. Shared rows are 128 bytes; 16-byte chunk c of row r stands at
//! c ^ (r % 8), free of bank conflicts both ways. Next file: `matmul.cu`.
#pragma once
#include "weights.cuh"

typedef WEIGHT<IS_TILED> W;

/// One of up to three matrices with the same input.
struct MatmulPart {
    const u8 *weight;
    const float *bias;     // {rows}, with experts {rows} each; nullable
    const float *residual; // [tokens, rows], nullable: added to the result; not with experts
    float *out;            // [tokens, rows], with experts [tokens, chosen * rows]
    u32 rows;
    u32 out_stride, residual_stride;
    u32 reserved;
};

struct MatmulArgs {
    MatmulPart parts[3];
    const u16 *x;           // [x rows, cols]
    const float *row_scale; // [x rows], nullable for BF16
    const i32 *order;       // experts: entries token * chosen + j sorted by expert; else null
    const int4 *tiles;      // experts: {expert, first place in order, entries, 0} per tile of BN
    const u32 *n_tiles;     // experts: how many tiles there are
    const i32 *places;      // experts: where each matrix lies in the stack, nullable (then matrix j at place j)
    u64 row_bytes;
    u64 matrix_bytes;       // experts: from one place of the stack to the next
    u32 cols, tokens, n_parts;
    u32 chosen;             // experts per token, else 1
    u32 x_per_entry;        // 1: x has a row per entry; 0: a row per token
    u32 reserved;
};

static constexpr u32 BM = 128, ROW_BYTES = 128, CHUNKS = 8, UNITS = 2;

DEVICE u8 *chunk_at(u8 *tile, u32 row, u32 chunk) { return tile + row * ROW_BYTES + ((chunk ^ (row & 7)) << 4); }

/// What this block computes; `entries` is 0 for a block without work.
struct Task {
    u32 part, first_row, first_entry, entries, expert;
};

template <u32 BN> DEVICE Task find_task(const MatmulArgs &a) {
    Task task;
    u32 block = blockIdx.y;
    task.part = 0;
    while (task.part + 1 < a.n_parts && block >= divide_up(a.parts[task.part].rows, BM)) {
        block -= divide_up(a.parts[task.part].rows, BM);
        task.part++;
    }
    task.first_row = block * BM;
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

/// The matrix of weights that the block reads.
DEVICE const u8 *matrix_of(const MatmulArgs &a, const Task &task) {
    u64 place = a.places ? (u32)max(a.places[task.expert], 0) : task.expert;
    return a.parts[task.part].weight + place * a.matrix_bytes;
}

/// The row of weights that this thread decodes.
DEVICE const u8 *weight_row(const MatmulArgs &a, const Task &task) {
    u32 row = min(task.first_row + threadIdx.x / UNITS, a.parts[task.part].rows - 1);
    return matrix_of(a, task) + (u64)row * a.row_bytes;
}

/// 16 weights of this thread's unit, decoded, to the weight tile. Past the end of a row stands its last unit again: the
/// activations there are zeros.
DEVICE void store_group(u8 *tile, const u32 *h, u32 group) {
    u32 row = threadIdx.x / UNITS, chunk = threadIdx.x % UNITS * 4 + 2 * group;
    *(uint4 *)chunk_at(tile, row, chunk) = make_uint4(h[0], h[1], h[2], h[3]);
    *(uint4 *)chunk_at(tile, row, chunk + 1) = make_uint4(h[4], h[5], h[6], h[7]);
}

/// Decodes this thread's unit into the weight tile.
DEVICE void store_weights(u8 *tile, const typename W::Raw &raw) {
    u32 h[16];
    pairs<W>(raw, h);
    store_group(tile, h, 0);
    store_group(tile, h + 8, 1);
}
