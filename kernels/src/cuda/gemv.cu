//! Matrix times few vectors: dot products on bytes against Q8 activations, for decoding 1 to 4 tokens.
//! One module per quantised type and layout (macros WEIGHT, IS_TILED). A warp computes one row of weights (two for more
//! tokens), or a share of a row where the matrix has too few rows to fill the device (`split` warps per row). Sums
//! always run in the same order for the same matrix. Up to three matrices of one type share a launch (QKV, gate + up).
//! With slots, each (token, slot) pair uses a matrix of a stack: routed experts by id, or attention heads in order.
//! More tokens: `skinny.cu`. Next file: `gemv_float.cu`.
#include "weights.cuh"
#include "activation.cuh"

typedef WEIGHT<IS_TILED> W;

struct GemvPart {
    const u8 *weight;
    const float *bias;     // {rows}, with slots {rows} per matrix; nullable
    const float *residual; // [tokens, rows], nullable: added to the result
    float *out;            // [tokens, rows], with slots [tokens, slots * rows]
    u32 rows;
    u32 out_stride, residual_stride;
    u32 reserved;
};

struct GemvArgs {
    GemvPart parts[3];
    const i8 *x;
    const BlockScale *x_scales;
    const i32 *ids;    // slots only: which matrix, nullable (then slot j uses matrix j)
    const i32 *places; // slots only: where each matrix lies in the stack, nullable (then matrix j at place j)
    u64 row_bytes;
    u64 matrix_bytes;  // slots only: from one place of the stack to the next
    u32 cols, tokens, n_parts;
    u32 split;         // warps per row: 1, 2 or 4
    u32 x_stride;      // columns from one token's activations to the next
    u32 x_slot_stride; // slots only: columns from one slot's input to the next (0: all slots read the same)
    u32 slots, ids_stride, matrices; // slots only; ids outside `matrices` give zeros
    u32 reserved;
};

static constexpr u32 WARPS = 4;

/// Which part this block belongs to; `block` becomes its number within the part.
DEVICE u32 find_part(const GemvArgs &a, u32 rows_per_block, u32 &block) {
    u32 part = 0;
    block = blockIdx.x;
    while (part + 1 < a.n_parts && block >= divide_up(a.parts[part].rows, rows_per_block)) {
        block -= divide_up(a.parts[part].rows, rows_per_block);
        part++;
    }
    return part;
}

/// 16 bytes of codes times 16 of activations.
DEVICE i32 dot16(const u32 *q, const uint4 &x, i32 start) {
    return dot4(q[0], x.x, dot4(q[1], x.y, dot4(q[2], x.z, dot4(q[3], x.w, start))));
}

/// The sum of the activations' codes in one half of a block.
DEVICE i32 half_sum(const uint2 &head, u32 upper) { return upper ? (i32)head.y >> 16 : (i32)(i16)head.y; }

/// A unit times one vector, where both groups lie in the same block of activations and share scale and offset.
DEVICE float dot_block(const Codes &c, const uint4 &x0, const uint4 &x1, const uint2 &head) {
    i32 total = half_sum(head, 0) + half_sum(head, 1);
    float dot = (float)dot16(c.q, x0, dot16(c.q + 4, x1, -W::ZERO * total));
    float product = W::OFFSET ? fmaf(c.scale[0], dot, c.offset[0] * (float)total) : c.scale[0] * dot;
    return __uint_as_float(head.x) * product;
}

/// One group of a unit times one vector.
DEVICE float dot_group(const Codes &c, int group, const uint4 &x, const uint2 &head, u32 upper) {
    i32 total = W::ZERO != 0 || W::OFFSET ? half_sum(head, upper) : 0;
    float dot = (float)dot16(c.q + 4 * group, x, -W::ZERO * total);
    float product = W::OFFSET ? fmaf(c.scale[group], dot, c.offset[group] * (float)total) : c.scale[group] * dot;
    return __uint_as_float(head.x) * product;
}

/// The units of R rows times T vectors, added to the sums.
template <int T, int R>
DEVICE void add_unit(float (&sum)[R][T], const typename W::Raw (&raw)[R], u32 unit, const i8 *x,
                     const BlockScale *scales, u32 x_stride) {
    u32 col0 = W::column(unit, 0), col1 = W::column(unit, 1), scale_stride = x_stride / 32;
    Codes codes[R];
#pragma unroll
    for (int r = 0; r < R; r++) W::expand(raw[r], codes[r]);
#pragma unroll
    for (int t = 0; t < T; t++) {
        const i8 *xt = x + t * x_stride;
        const BlockScale *st = scales + t * scale_stride;
        uint4 x0 = load16(xt + col0), x1 = load16(xt + col1);
        uint2 head0 = load8(st + col0 / 32);
        if constexpr (W::SPAN == 16) {
#pragma unroll
            for (int r = 0; r < R; r++) sum[r][t] += dot_block(codes[r], x0, x1, head0);
        } else {
            uint2 head1 = load8(st + col1 / 32);
            u32 upper = col0 / 16 % 2;
#pragma unroll
            for (int r = 0; r < R; r++)
                sum[r][t] += dot_group(codes[r], 0, x0, head0, upper) + dot_group(codes[r], 1, x1, head1, upper);
        }
    }
}

/// sum[r][t] += this lane's share of row r times vector t. The lane takes units lane + 32 j: what depends on a unit's
/// place in its superblock is the same in every step.
template <int T, int R>
DEVICE void accumulate(float (&sum)[R][T], const u8 *const (&rows)[R], const GemvArgs &a, const i8 *x,
                       const BlockScale *scales, u32 part, u32 split) {
    u32 units = a.cols / 32, lane = threadIdx.x % 32;
#pragma unroll(T *R == 1 ? 2 : 1)
    for (u32 j = part; 32 * j + lane < units; j += split) {
        u32 unit = 32 * j + lane;
        typename W::Raw raw[R];
#pragma unroll
        for (int r = 0; r < R; r++) raw[r] = W::load(rows[r], unit, units);
        add_unit<T, R>(sum, raw, unit, x, scales, a.x_stride);
    }
}

/// Adds the shares of the warps of one row; the first of them gets the sums.
template <int N> DEVICE void join_warps(float *sums, u32 split) {
    __shared__ float shares[WARPS][N];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < N; i++) {
        sums[i] = warp_sum(sums[i]);
        if (lane == 0) shares[warp][i] = sums[i];
    }
    if (split == 1) return;
    __syncthreads();
    if (warp % split != 0) return;
#pragma unroll
    for (int i = 0; i < N; i++) {
        sums[i] = 0.0f;
#pragma unroll 1
        for (u32 w = 0; w < split; w++) sums[i] += shares[warp + w][i];
    }
}

template <int T, int R> DEVICE void gemv(const GemvArgs &a) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, block;
    u32 rows_per_block = WARPS / a.split * R;
    const GemvPart &part = a.parts[find_part(a, rows_per_block, block)];
    u32 first_row = block * rows_per_block + warp / a.split * R;
    const u8 *rows[R];
#pragma unroll
    for (int r = 0; r < R; r++) rows[r] = part.weight + (u64)min(first_row + r, part.rows - 1) * a.row_bytes;
    float sum[R][T] = {};
    accumulate<T, R>(sum, rows, a, a.x, a.x_scales, warp % a.split, a.split);
    join_warps<R * T>(&sum[0][0], a.split);
    if (lane != 0 || warp % a.split != 0) return;
#pragma unroll
    for (int r = 0; r < R; r++) {
        u32 row = first_row + r;
        if (row >= part.rows) break;
        float bias = part.bias ? part.bias[row] : 0.0f;
#pragma unroll
        for (u32 t = 0; t < T; t++) {
            if (t >= a.tokens) break;
            float extra = part.residual ? part.residual[(u64)t * part.residual_stride + row] : 0.0f;
            part.out[(u64)t * part.out_stride + row] = sum[r][t] + bias + extra;
        }
    }
}

/// Grid (row blocks of all parts). Exactly as many tokens as the name says, but gemv4 takes 3 too (its x has 4 rows).
extern "C" __global__ void BOUNDS(128, 8) gemv1(GemvArgs a) { gemv<1, 1>(a); }
EXPORT(gemv1)
extern "C" __global__ void BOUNDS(128, 5) gemv2(GemvArgs a) { gemv<2, 2>(a); }
EXPORT(gemv2)
extern "C" __global__ void BOUNDS(128, 4) gemv4(GemvArgs a) { gemv<4, 2>(a); }
EXPORT(gemv4)

/// Grid (row blocks of all parts, tokens * slots).
extern "C" __global__ void BOUNDS(128, 8) gemv_slots(GemvArgs a) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, block;
    u32 token = blockIdx.y / a.slots, slot = blockIdx.y % a.slots;
    u32 rows_per_block = WARPS / a.split;
    const GemvPart &part = a.parts[find_part(a, rows_per_block, block)];
    u32 row = block * rows_per_block + warp / a.split;
    u32 matrix = a.ids ? (u32)a.ids[(u64)token * a.ids_stride + slot] : slot;
    u32 inside = matrix < a.matrices;
    if (!inside) { // an expert that is computed elsewhere: all of the block's threads leave
        if (lane == 0 && warp % a.split == 0 && row < part.rows)
            part.out[(u64)token * part.out_stride + slot * part.rows + row] = 0.0f;
        return;
    }
    u64 place = a.places ? (u32)max(a.places[matrix], 0) : matrix;
    const u8 *rows[1] = {part.weight + place * a.matrix_bytes + (u64)min(row, part.rows - 1) * a.row_bytes};
    u64 column = (u64)token * a.x_stride + slot * a.x_slot_stride;
    float sum[1][1] = {};
    accumulate<1, 1>(sum, rows, a, a.x + column, a.x_scales + column / 32, warp % a.split, a.split);
    join_warps<1>(&sum[0][0], a.split);
    if (lane != 0 || warp % a.split != 0 || row >= part.rows) return;
    float bias = part.bias ? part.bias[(u64)matrix * part.rows + row] : 0.0f;
    part.out[(u64)token * part.out_stride + slot * part.rows + row] = sum[0][0] + bias;
}
EXPORT(gemv_slots)
