//! Attention of few tokens over a long F16 cache: each block takes 128 slots of one key/value head for up to 16 query
//! rows (heads of the group times tokens), and a second kernel joins the splits. Splits lie at fixed slots and sums
//! have one order, so a token's result does not depend on what else is in the batch nor on how many splits a launch
//! has. A block first learns which slots its rows see; one without any is done. Then keys and values come as chunks of
//! 64 columns, all of them under way at once where four chunks hold them: few blocks must keep the memory busy. Warps
//! share out slots for the scores and columns for the result. Piece c of 16 bytes of slot s stands at c ^ (s % 8).
//! Head columns: keys a multiple of 32, values of 64. Many tokens: `attention_prefill.cu`, the next file.
#include "activation.cuh"
#include "attention.cuh"

static constexpr u32 WARPS = 8, THREADS = 32 * WARPS, SLOTS = 128, ROWS = 16, COLS = 64, RING = 4;
static constexpr u32 CHUNK_BYTES = SLOTS * COLS * 2, WEIGHT_PITCH = SLOTS + 8;

/// Token and head of a query row of this block.
struct Row {
    u32 inside, token, head;
};

DEVICE Row row_of(const AttentionArgs &a, u32 index) {
    u32 group = a.q_heads / a.kv_heads, row = blockIdx.z * ROWS + index;
    u32 inside = row < a.tokens * group;
    return Row{inside, inside ? row / group : 0, blockIdx.y * group + row % group};
}

/// Where the results of a row for this block's slots stand, as a number of splits.
DEVICE u64 place_of(const AttentionArgs &a, Row row) {
    return ((u64)row.token * a.q_heads + row.head) * a.splits + blockIdx.x;
}

/// The chunks that a block goes through: those of the keys, then those of the values.
struct Chunks {
    u8 *ring;
    u32 first_slot, last_slot; // the last that holds anything: beyond it its bytes are read again, and masked
    u32 keys, all;
};

DEVICE u8 *chunk_at(const Chunks &chunks, u32 chunk) { return chunks.ring + chunk % RING * CHUNK_BYTES; }

DEVICE u8 *piece_at(u8 *chunk, u32 slot, u32 piece) { return chunk + slot * (2 * COLS) + ((piece ^ slot % 8) << 4); }

/// Starts the copy of a chunk as one group; beyond the last chunk the group is empty.
DEVICE void fetch(const AttentionArgs &a, const Chunks &chunks, u32 chunk) {
    u32 is_key = chunk < chunks.keys, col = (is_key ? chunk : chunk - chunks.keys) * COLS;
    u32 cols = is_key ? a.k_head_cols : a.v_head_cols, pitch = is_key ? a.k_slot_cols : a.v_slot_cols;
    const u16 *head = is_key ? (const u16 *)a.k_cache + blockIdx.y * a.k_head_cols
                             : (const u16 *)a.v_cache + blockIdx.y * (a.v_slot_cols / a.kv_heads);
    u32 piece = threadIdx.x % 8;
    if (chunk < chunks.all) {
#pragma unroll
        for (u32 i = 0; i < SLOTS / (THREADS / 8); i++) {
            u32 slot = threadIdx.x / 8 + i * (THREADS / 8), from = min(chunks.first_slot + slot, chunks.last_slot);
            copy16_async(piece_at(chunk_at(chunks, chunk), slot, piece), head + (u64)from * pitch + col + 8 * piece,
                         col + 8 * piece < cols);
        }
    }
    copy_commit();
}

/// Waits for a chunk; the following ones stay under way.
DEVICE void await_chunk() {
    copy_wait<RING - 1>();
    __syncthreads();
}

/// The chunk has been read by this warp: its room takes the one that comes next.
DEVICE void replace(const AttentionArgs &a, const Chunks &chunks, u32 chunk) {
    if (chunk + RING < chunks.all) __syncthreads();
    fetch(a, chunks, chunk + RING);
}

/// Queries as F16, zeros in rows without work and beyond the head's columns. The scale is applied to the scores.
DEVICE void load_queries(const AttentionArgs &a, u16 *queries, u32 pitch) {
    u32 index = threadIdx.x / 16;
    Row row = row_of(a, index);
    const float *from = a.q + (u64)row.token * a.q_stride + row.head * a.k_head_cols;
    for (u32 col = threadIdx.x % 16 * 4; col + 8 < pitch; col += 64) {
        float4 v = make_float4(0, 0, 0, 0);
        if (row.inside && col < a.k_head_cols) {
            if ((u64)from % 16 == 0) v = *(const float4 *)(from + col);
            else v = make_float4(from[col], from[col + 1], from[col + 2], from[col + 3]);
        }
        *(uint2 *)(queries + index * pitch + col) = make_uint2(pack_f16(v.x, v.y), pack_f16(v.z, v.w));
    }
}

/// Which of this lane's scores count: bit 4 n + 2 h + j for slot 8 n + 2 t + j of the warp's 16 and row g + 8 h.
DEVICE u32 visible(const AttentionArgs &a, u32 first_slot) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, bits = 0, n_slots = *a.n_slots;
    i32 position[2], lowest[2], sequence[2], slot_position[4], slot_sequence[4];
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        Row row = row_of(a, g + 8 * h);
        position[h] = row.inside ? a.positions[row.token] : -1;
        sequence[h] = row.inside ? a.sequences[row.token] : -1;
        lowest[h] = max(0, first_visible(a, position[h]));
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 slot = first_slot + i / 2 * 8 + 2 * t + i % 2;
        slot_position[i] = slot < a.slots ? a.slot_positions[slot] : -1;
        slot_sequence[i] = slot < a.slots ? a.slot_sequences[slot] : -1;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 known = first_slot + i / 2 * 8 + 2 * t + i % 2 < n_slots;
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            u32 in_reach = slot_position[i] >= lowest[h] && slot_position[i] <= position[h];
            u32 seen = known && in_reach && slot_sequence[i] == sequence[h];
            bits |= seen << (4 * (i / 2) + 2 * h + i % 2);
        }
    }
    return bits;
}

/// Scores of 16 rows and this warp's 16 slots over the columns of a chunk: rows g and g + 8, slots 8 n + 2 t and next.
DEVICE void multiply_keys(const u16 *queries, u32 pitch, u8 *chunk, float (*score)[4]) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = 16 * warp + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (u32 k = 0; k < COLS / 16; k++) {
        u32 q[4], keys[4];
        ldmatrix4(q, queries + lane % 16 * pitch + 16 * k + lane / 16 * 8);
        ldmatrix4(keys, piece_at(chunk, slot, 2 * k + lane / 8 % 2));
        mma_f16(score[0], q, keys);
        mma_f16(score[1], q, keys + 2);
    }
}

/// Softmax over the block's slots without the division: scores become F16 weights. `tops` and `sums` get each warp's
/// maxima and sums; both are complete after the next barrier.
DEVICE void weigh(const AttentionArgs &a, float (*score)[4], u32 bits, float (*tops)[ROWS], float (*sums)[ROWS],
                  u16 (*weights)[WEIGHT_PITCH]) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        float top = -INFINITY;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float &s = score[i / 2][2 * h + i % 2];
            s = bits >> (4 * (i / 2) + 2 * h + i % 2) & 1 ? score_of(a, s) : -INFINITY;
            top = fmaxf(top, s);
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        if (t == 0) tops[warp][g + 8 * h] = top;
    }
    __syncthreads();
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        float top = tops[0][g + 8 * h], sum = 0.0f, w[4];
#pragma unroll
        for (u32 i = 1; i < WARPS; i++) top = fmaxf(top, tops[i][g + 8 * h]);
        if (top == -INFINITY) top = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            w[i] = fast_exp2(score[i / 2][2 * h + i % 2] - top);
            sum += w[i];
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (t == 0) sums[warp][g + 8 * h] = sum;
#pragma unroll
        for (u32 n = 0; n < 2; n++)
            *(u32 *)&weights[g + 8 * h][16 * warp + 8 * n + 2 * t] = pack_f16(w[2 * n], w[2 * n + 1]);
    }
}

/// Weights of all slots times 8 columns of values: rows g and g + 8, columns 8 warp + 2 t and the next of the chunk.
DEVICE void multiply_values(const u16 (*weights)[WEIGHT_PITCH], u8 *chunk, float *out) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (u32 k = 0; k < SLOTS / 32; k++) {
        u32 first[4], second[4], values[4];
        ldmatrix4(first, &weights[lane % 16][32 * k + lane / 16 * 8]);
        ldmatrix4(second, &weights[lane % 16][32 * k + 16 + lane / 16 * 8]);
        ldmatrix4_trans(values, piece_at(chunk, 32 * k + lane, warp));
        mma_f16(out, first, values);
        mma_f16(out, second, values + 2);
    }
}

/// Maximum and sum of each row; what is not seen has neither.
DEVICE void write_scales(const AttentionArgs &a, u32 seen, float (*tops)[ROWS], float (*sums)[ROWS]) {
    if (threadIdx.x >= ROWS) return;
    Row row = row_of(a, threadIdx.x);
    float top = -INFINITY, sum = 0.0f;
    if (seen) {
#pragma unroll
        for (u32 i = 0; i < WARPS; i++) {
            top = fmaxf(top, tops[i][threadIdx.x]);
            sum += sums[i][threadIdx.x];
        }
    }
    if (row.inside) a.partial_scale[place_of(a, row)] = make_float2(top, sum);
}

/// Grid (splits, kv_heads, divide_up(tokens * group, 16)), 256 threads. Dynamic shared memory: the ring, then 16
/// queries, 8 elements longer than the chunks of the keys.
extern "C" __global__ void BOUNDS(256, 3) attention_split(AttentionArgs a) {
    DYNAMIC_SHARED(memory);
    __shared__ __align__(16) u16 weights[ROWS][WEIGHT_PITCH];
    __shared__ float tops[WARPS][ROWS], sums[WARPS][ROWS];
    __shared__ u32 sees_some[WARPS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, first_slot = blockIdx.x * SLOTS;
    u32 bits = visible(a, first_slot + 16 * warp), some = 0;
    u32 warp_sees = __any_sync(0xffffffffu, bits != 0);
    if (lane == 0) sees_some[warp] = warp_sees;
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) some |= sees_some[i];
    if (!some) {
        write_scales(a, 0, tops, sums);
        return;
    }
    u32 keys = divide_up(a.k_head_cols, COLS), all = keys + a.v_head_cols / COLS, pitch = keys * COLS + 8;
    Chunks chunks{memory, first_slot, min(*a.n_slots, a.slots) - 1, keys, all};
#pragma unroll 1
    for (u32 chunk = 0; chunk < RING; chunk++) fetch(a, chunks, chunk);
    u16 *queries = (u16 *)(memory + min(RING, all) * CHUNK_BYTES);
    load_queries(a, queries, pitch);
    float score[2][4] = {};
#pragma unroll 1
    for (u32 chunk = 0; chunk < keys; chunk++) {
        await_chunk();
        multiply_keys(queries + chunk * COLS, pitch, chunk_at(chunks, chunk), score);
        replace(a, chunks, chunk);
    }
    weigh(a, score, bits, tops, sums, weights);
    Row rows[2] = {row_of(a, g), row_of(a, g + 8)};
#pragma unroll 1
    for (u32 chunk = keys; chunk < all; chunk++) {
        await_chunk();
        if (chunk == keys) write_scales(a, 1, tops, sums);
        float out[4] = {};
        multiply_values(weights, chunk_at(chunks, chunk), out);
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            float *to = a.partial + place_of(a, rows[h]) * a.v_head_cols + (chunk - keys) * COLS + 8 * warp + 2 * t;
            if (rows[h].inside) *(float2 *)to = make_float2(out[2 * h], out[2 * h + 1]);
        }
        replace(a, chunks, chunk);
    }
}
EXPORT(attention_split)

struct JoinArgs {
    AttentionArgs attention;
    Forms forms; // what is written of the rows; no F16, whose scale needs the whole row
};

static constexpr u32 SHARES = THREADS / 16, AHEAD = 4;

/// What a split's results are multiplied by: 0 where nothing was seen (its columns were not written).
DEVICE float share_of(float2 scale, float top) { return scale.y == 0.0f ? 0.0f : fast_exp2(scale.x - top); }

DEVICE void add_share(float4 &sum, float share, float4 v) {
    if (share == 0.0f) return;
    sum.x = fmaf(share, v.x, sum.x), sum.y = fmaf(share, v.y, sum.y);
    sum.z = fmaf(share, v.z, sum.z), sum.w = fmaf(share, v.w, sum.w);
}

/// Grid (tokens * q_heads, v_head_cols / 64), 256 threads: joins the splits of one row. Sixteen threads stand side by
/// side over the columns, sixteen such rows share out the splits; what they need first is loaded before anything waits.
extern "C" __global__ void BOUNDS(256, 4) attention_join(JoinArgs args) {
    __shared__ __align__(16) float4 shares[WARPS][16];
    const AttentionArgs &a = args.attention;
    u32 row = blockIdx.x, token = row / a.q_heads, head = row % a.q_heads, lane = threadIdx.x % 32;
    u32 share = threadIdx.x / 16, col = blockIdx.y * COLS + threadIdx.x % 16 * 4;
    const float2 *scales = a.partial_scale + (u64)row * a.splits;
    const float *partial = a.partial + (u64)row * a.splits * a.v_head_cols + col;
    float4 ahead[AHEAD];
    float2 ahead_scale[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
        u32 split = share + i * SHARES, inside = split < a.splits;
        ahead_scale[i] = inside ? scales[split] : make_float2(-INFINITY, 0.0f);
        ahead[i] = inside ? *(const float4 *)(partial + (u64)split * a.v_head_cols) : make_float4(0, 0, 0, 0);
    }
    float sink = a.sinks ? a.sinks[head] * LOG2E : -INFINITY, top = sink, total = 0.0f;
    for (u32 i = lane; i < a.splits; i += 32) top = fmaxf(top, scales[i].x);
    top = warp_max(top);
    if (top == -INFINITY) top = 0.0f;
    for (u32 i = lane; i < a.splits; i += 32) total = fmaf(scales[i].y, share_of(scales[i], top), total);
    total = warp_sum(total) + fast_exp2(sink - top);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) add_share(sum, share_of(ahead_scale[i], top), ahead[i]);
#pragma unroll 4
    for (u32 split = share + AHEAD * SHARES; split < a.splits; split += SHARES) {
        float4 v = *(const float4 *)(partial + (u64)split * a.v_head_cols);
        add_share(sum, share_of(scales[split], top), v);
    }
    sum.x += __shfl_xor_sync(0xffffffffu, sum.x, 16), sum.y += __shfl_xor_sync(0xffffffffu, sum.y, 16);
    sum.z += __shfl_xor_sync(0xffffffffu, sum.z, 16), sum.w += __shfl_xor_sync(0xffffffffu, sum.w, 16);
    if (lane < 16) shares[threadIdx.x / 32][lane] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    sum = shares[0][lane % 16];
#pragma unroll
    for (u32 i = 1; i < WARPS; i++) {
        float4 v = shares[i][lane % 16];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    float4 y = make_float4(0, 0, 0, 0);
    if (total > 0.0f) y = make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total);
    write_forms(args.forms, token, head * a.v_head_cols + col, a.q_heads * a.v_head_cols, y, 1.0f, lane < 16);
}
EXPORT(attention_join)
