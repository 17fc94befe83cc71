//! What both attention kernels for many tokens share: which tiles of slots a block sees, and the online softmax of the
//! rows that a lane holds (as `mma` lays out results: lane 4 g + t has rows g and g + 8, slots 8 n + 2 t and + 1).
//! Next file: `attention_prefill.cu`.
#pragma once
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
