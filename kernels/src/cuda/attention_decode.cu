//! Attention of few tokens over a long F16 cache: each block takes 128 slots of one key/value head for up to 16 query
//! rows (heads of the group times tokens), and a second kernel joins the splits. Splits lie at fixed slots, so a
//! token's result does not depend on what else is in the batch.
//! Keys go from memory straight into tensor-core fragments: lane t of four takes 8 neighbouring columns, queries are
//! read in the same order. Values are two slots per fragment register, made of two 16-byte rows by byte shuffles; the
//! output columns of a fragment are therefore 8 apart. Head columns: keys a multiple of 32, values of 64.
//! Many tokens: `attention_prefill.cu`, the next file.
#include "attention.cuh"

static constexpr u32 WARPS = 4, SLOTS = 128, WARP_SLOTS = SLOTS / WARPS, ROWS = 16, TILES = WARP_SLOTS / 8;
static constexpr u32 MAX_KEY_COLS = 576, QUERY_PITCH = MAX_KEY_COLS + 8, COLS = 64;

/// Token and head of a query row of this block.
struct Row {
    u32 inside, token, head;
};

DEVICE Row row_of(const AttentionArgs &a, u32 index) {
    u32 group = a.q_heads / a.kv_heads, row = blockIdx.z * ROWS + index;
    u32 inside = row < a.tokens * group;
    return Row{inside, inside ? row / group : 0, blockIdx.y * group + row % group};
}

/// Queries as F16, zeros in rows without work. The scale is applied to the scores.
DEVICE void load_queries(const AttentionArgs &a, u16 (*q)[QUERY_PITCH]) {
    for (u32 i = threadIdx.x; i < ROWS * (a.k_head_cols / 2); i += blockDim.x) {
        u32 index = i / (a.k_head_cols / 2), col = i % (a.k_head_cols / 2) * 2;
        Row row = row_of(a, index);
        const float *from = a.q + (u64)row.token * a.q_stride + row.head * a.k_head_cols + col;
        *(u32 *)&q[index][col] = row.inside ? pack_f16(from[0], from[1]) : 0;
    }
}

/// Scores of 16 rows and this warp's 32 slots: score[tile][i], rows g and g + 8, slots 8 tile + 2 t and the next.
DEVICE void multiply_keys(const AttentionArgs &a, const u16 (*q)[QUERY_PITCH], u32 first_slot, u32 n_slots,
                          float (*score)[4]) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u16 *keys = (const u16 *)a.k_cache + blockIdx.y * a.k_head_cols + 8 * t;
    const u16 *slot[TILES];
#pragma unroll
    for (u32 n = 0; n < TILES; n++) slot[n] = keys + (u64)min(first_slot + 8 * n + g, n_slots - 1) * a.k_slot_cols;
#pragma unroll 2
    for (u32 col = 0; col < a.k_head_cols; col += 32) {
        uint4 upper = *(const uint4 *)&q[g][col + 8 * t], lower = *(const uint4 *)&q[g + 8][col + 8 * t];
        u32 first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            uint4 k = load16(slot[n] + col);
            u32 b0[2] = {k.x, k.y}, b1[2] = {k.z, k.w};
            mma_f16(score[n], first, b0);
            mma_f16(score[n], second, b1);
        }
    }
}

/// Applies scale and mask; returns whether this lane saw any slot.
DEVICE i32 mask_scores(const AttentionArgs &a, u32 first_slot, u32 n_slots, float (*score)[4]) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    i32 any = 0;
    Row rows[2] = {row_of(a, g), row_of(a, g + 8)};
    i32 position[2], sequence[2];
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        position[h] = rows[h].inside ? a.positions[rows[h].token] : -1;
        sequence[h] = rows[h].inside ? a.sequences[rows[h].token] : -1;
    }
#pragma unroll
    for (u32 n = 0; n < TILES; n++) {
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            u32 slot = first_slot + 8 * n + 2 * t + j, known = slot < n_slots;
            i32 slot_position = known ? a.slot_positions[slot] : -1;
            i32 slot_sequence = known ? a.slot_sequences[slot] : -1;
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                i32 visible = sees(a, position[h], sequence[h], slot_position, slot_sequence);
                float &s = score[n][2 * h + j];
                s = visible ? score_of(a, s) : -INFINITY;
                any |= visible;
            }
        }
    }
    return any;
}

/// Softmax over the block's slots without the division: scores become weights. Also writes maximum and sum per row.
DEVICE void weigh(const AttentionArgs &a, float (*score)[4], float (*tops)[ROWS], float (*sums)[ROWS]) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        float top = -INFINITY;
#pragma unroll
        for (u32 n = 0; n < TILES; n++) top = fmaxf(top, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        if (t == 0) tops[warp][g + 8 * h] = top;
    }
    __syncthreads();
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        u32 r = g + 8 * h;
        float top = fmaxf(fmaxf(tops[0][r], tops[1][r]), fmaxf(tops[2][r], tops[3][r])), sum = 0.0f;
        if (top == -INFINITY) top = 0.0f;
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                score[n][2 * h + j] = fast_exp2(score[n][2 * h + j] - top);
                sum += score[n][2 * h + j];
            }
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (t == 0) sums[warp][r] = sum;
    }
    __syncthreads();
    if (threadIdx.x < ROWS) {
        u32 r = threadIdx.x;
        Row row = row_of(a, r);
        float top = fmaxf(fmaxf(tops[0][r], tops[1][r]), fmaxf(tops[2][r], tops[3][r]));
        float sum = sums[0][r] + sums[1][r] + sums[2][r] + sums[3][r];
        u64 place = ((u64)row.token * a.q_heads + row.head) * a.splits + blockIdx.x;
        if (row.inside) a.partial_scale[place] = make_float2(top, sum);
    }
}

/// This warp's weights times 64 columns of values: out[n][i] is column 8 g' + n for g' = 2 t, 2 t + 1 of the fragment.
DEVICE void multiply_values(const AttentionArgs &a, const u32 (*weights)[4], u32 first_slot, u32 n_slots, u32 first_col,
                            float (*out)[4]) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u16 *values = (const u16 *)a.v_cache + blockIdx.y * (a.v_slot_cols / a.kv_heads) + first_col + 8 * g;
#pragma unroll
    for (u32 k = 0; k < WARP_SLOTS / 16; k++) {
        uint4 v[4]; // slots 2 t, 2 t + 1, 2 t + 8, 2 t + 9
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 slot = min(first_slot + 16 * k + 2 * t + i % 2 + i / 2 * 8, n_slots - 1);
            v[i] = load16(values + (u64)slot * a.v_slot_cols);
        }
        const u32 *w[4] = {&v[0].x, &v[1].x, &v[2].x, &v[3].x};
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            u32 pick = n % 2 ? 0x7632 : 0x5410;
            u32 b[2] = {bytes4(w[0][n / 2], w[1][n / 2], pick), bytes4(w[2][n / 2], w[3][n / 2], pick)};
            mma_f16(out[n], weights[k], b);
        }
    }
}

/// Grid (splits, kv_heads, divide_up(tokens * group, 16)), 128 threads.
extern "C" __global__ void BOUNDS(128, 4) attention_split(AttentionArgs a) {
    __shared__ __align__(16) u16 q[ROWS][QUERY_PITCH];
    __shared__ float tops[WARPS][ROWS], sums[WARPS][ROWS], shares[WARPS][ROWS][COLS + 1];
    __shared__ u32 seen;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    u32 n_slots = *a.n_slots, first_slot = blockIdx.x * SLOTS + warp * WARP_SLOTS;
    if (blockIdx.x * SLOTS >= n_slots) return;
    if (threadIdx.x == 0) seen = 0;
    __syncthreads();
    float score[TILES][4] = {};
    if (mask_scores(a, first_slot, n_slots, score)) seen = 1;
    __syncthreads();
    if (!seen) {
        Row row = row_of(a, threadIdx.x % ROWS);
        u64 place = ((u64)row.token * a.q_heads + row.head) * a.splits + blockIdx.x;
        if (threadIdx.x < ROWS && row.inside) a.partial_scale[place] = make_float2(-INFINITY, 0.0f);
        return;
    }
    load_queries(a, q);
    __syncthreads();
#pragma unroll
    for (u32 n = 0; n < TILES; n++) score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0.0f;
    multiply_keys(a, q, first_slot, n_slots, score);
    mask_scores(a, first_slot, n_slots, score);
    weigh(a, score, tops, sums);
    u32 weights[WARP_SLOTS / 16][4];
#pragma unroll
    for (u32 k = 0; k < WARP_SLOTS / 16; k++) {
        weights[k][0] = pack_f16(score[2 * k][0], score[2 * k][1]);
        weights[k][1] = pack_f16(score[2 * k][2], score[2 * k][3]);
        weights[k][2] = pack_f16(score[2 * k + 1][0], score[2 * k + 1][1]);
        weights[k][3] = pack_f16(score[2 * k + 1][2], score[2 * k + 1][3]);
    }
    for (u32 col = 0; col < a.v_head_cols; col += COLS) {
        float out[8][4] = {};
        multiply_values(a, weights, first_slot, n_slots, col, out);
#pragma unroll
        for (u32 n = 0; n < 8; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) shares[warp][g + i / 2 * 8][8 * (2 * t + i % 2) + n] = out[n][i];
        __syncthreads();
        for (u32 i = threadIdx.x; i < ROWS * COLS; i += blockDim.x) {
            u32 r = i / COLS, c = i % COLS;
            Row row = row_of(a, r);
            if (!row.inside) break; // rows with work come first
            float sum = shares[0][r][c] + shares[1][r][c] + shares[2][r][c] + shares[3][r][c];
            u64 place = ((u64)row.token * a.q_heads + row.head) * a.splits + blockIdx.x;
            a.partial[place * a.v_head_cols + col + c] = sum;
        }
        __syncthreads();
    }
}
EXPORT(attention_split)

static constexpr u32 SHARES = 4, CHUNK = 256;

/// Grid (tokens * q_heads, divide_up(v_head_cols, 64)), 256 threads: joins the splits of one row. Thread (share,
/// column) sums every fourth split, so that many loads are under way and the order is fixed.
extern "C" __global__ void BOUNDS(256, 4) attention_join(AttentionArgs a) {
    __shared__ float scratch[32], factors[CHUNK], shares[SHARES][COLS];
    u32 row = blockIdx.x, token = row / a.q_heads, head = row % a.q_heads, share = threadIdx.x / COLS;
    u32 col = blockIdx.y * COLS + threadIdx.x % COLS, inside = col < a.v_head_cols;
    u32 splits = min(a.splits, divide_up(*a.n_slots, SLOTS));
    const float2 *scales = a.partial_scale + (u64)row * a.splits;
    const float *partial = a.partial + (u64)row * a.splits * a.v_head_cols + (inside ? col : 0);
    float sink = a.sinks ? a.sinks[head] * LOG2E : -INFINITY, top = -INFINITY, total = 0.0f, sum = 0.0f;
    for (u32 i = threadIdx.x; i < splits; i += blockDim.x) top = fmaxf(top, scales[i].x);
    top = fmaxf(sink, block_max(top, scratch));
    if (top == -INFINITY) top = 0.0f;
    for (u32 first = 0; first < splits; first += CHUNK) {
        u32 i = first + threadIdx.x, count = min(CHUNK, splits - first);
        float2 s = i < splits ? scales[i] : make_float2(0.0f, 0.0f);
        float factor = s.y == 0.0f ? 0.0f : fast_exp2(s.x - top); // 0: nothing seen, its columns were not written
        factors[threadIdx.x] = factor;
        total += s.y * factor;
        __syncthreads();
#pragma unroll 8
        for (u32 j = share; j < count; j += SHARES) {
            float v = partial[(u64)(first + j) * a.v_head_cols];
            sum += factors[j] == 0.0f ? 0.0f : factors[j] * v;
        }
        __syncthreads();
    }
    total = block_sum(total, scratch) + fast_exp2(sink - top);
    shares[share][threadIdx.x % COLS] = sum;
    __syncthreads();
    if (share > 0 || !inside) return;
    u32 c = threadIdx.x;
    sum = (shares[0][c] + shares[1][c]) + (shares[2][c] + shares[3][c]);
    a.out[(u64)token * a.out_stride + head * a.v_head_cols + col] = total > 0.0f ? sum / total : 0.0f;
}
EXPORT(attention_join)
