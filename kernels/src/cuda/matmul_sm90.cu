//! Matrix times many vectors by asynchronous tensor-core products, for compute capability 9.0; `matmul.cu` elsewhere.
//! A block computes 128 weight rows by BN tokens: each of its two groups of four warps multiplies 64 rows by all
//! tokens, both operands from shared memory. While a step of 64 columns runs, every thread starts the copies of later
//! activations, decodes its unit of the next step's weights, and loads the unit after that. One barrier per step: a
//! buffer is written two steps after its last reader started, when that step is known to be finished.
//! Next file: `attention.cu`.
#include "matmul.cuh"
#include "wgmma.cuh"

static constexpr u32 THREADS = 256, PITCH = BM + 4;

/// Sizes that depend on the token tile. Two-byte weights need no decoding: they are copied like activations, as far
/// ahead. Others are decoded one step ahead; large tiles take K-quants in whole superblocks through shared memory,
/// since single units from global memory are many small requests.
template <u32 N> struct Shape {
    static constexpr bool STAGED = W::PIECES > 0 && N >= 192, SPREAD = W::EXACT || N >= 192;
    static constexpr u32 BESIDE_BLOCKS = N == 192 ? 5 : W::PIECES > 11 ? 3 : 4;
    static constexpr u32 DECODED = STAGED ? BESIDE_BLOCKS : N == 256 ? 5 : N == 128 ? 4 : 6;
    static constexpr u32 COPIED = N == 128 ? 6 : N == 192 ? 5 : 4;
    static constexpr u32 B_STAGES = W::EXACT ? COPIED : DECODED;
    static constexpr u32 A_STAGES = W::EXACT ? B_STAGES : 3, AHEAD = B_STAGES - 2;
    static constexpr u32 A_BYTES = BM * ROW_BYTES, B_BYTES = N * ROW_BYTES;
    static constexpr u32 BLOCK_BYTES = STAGED ? BM * 16 * W::PIECES : 0; // a superblock of each row
    static constexpr u32 TILE_BYTES = A_STAGES * A_BYTES + B_STAGES * B_BYTES + 2 * BLOCK_BYTES;
};

/// The copies of two-byte rows that this thread makes in every step: one 16-byte chunk of ROWS / 32 rows.
template <u32 ROWS> struct Copier {
    const uint4 *from;
    u32 row[ROWS / 32]; // first chunk of the row
    u32 half, part, to;
};

template <u32 ROWS> DEVICE Copier<ROWS> copier(const void *from) {
    Copier<ROWS> copier;
    u32 chunk = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS;
    copier.from = (const uint4 *)from;
    copier.half = chunk / 4, copier.part = chunk % 4;
    copier.to = row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
    return copier;
}

/// Starts the copy of one step; past the last unit of the row come zeros.
template <u32 ROWS> DEVICE void copy_step(const Copier<ROWS> &c, u8 *tile, u32 step, u32 units) {
    u32 unit = UNITS * step + c.half, inside = unit < units;
    u32 chunk = W::column(inside ? unit : 0, c.part / 2) / 8 + c.part % 2;
#pragma unroll
    for (u32 i = 0; i < ROWS / 32; i++)
        copy16_async(tile + c.to + 32 * ROW_BYTES * i, c.from + (c.row[i] + chunk), inside);
}

/// Activations of the block's tokens.
template <u32 N> DEVICE Copier<N> copier_of_x(const MatmulArgs &a, const i32 *x_rows) {
    Copier<N> copies = copier<N>(a.x);
#pragma unroll
    for (u32 i = 0; i < N / 32; i++) copies.row[i] = (u32)x_rows[threadIdx.x / CHUNKS + 32 * i] * (a.cols / 8);
    return copies;
}

/// Two-byte weights of the block's rows.
DEVICE Copier<BM> copier_of_weights(const MatmulArgs &a, const Task &task) {
    const MatmulPart &part = a.parts[task.part];
    Copier<BM> copies = copier<BM>(matrix_of(a, task));
#pragma unroll
    for (u32 i = 0; i < BM / 32; i++)
        copies.row[i] = min(task.first_row + threadIdx.x / CHUNKS + 32 * i, part.rows - 1) * (u32)(a.row_bytes / 16);
    return copies;
}

/// Starts the copy of a superblock of half of the block's rows, if it is wanted and there is one. No branch: products
/// may run.
template <class V>
DEVICE void copy_half_block(const MatmulArgs &a, const Task &task, u8 *buffers, u32 block, u32 half, u32 wanted) {
    constexpr u32 PIECES = BM / 2 * V::PIECES;
    const u8 *matrix = matrix_of(a, task);
    u32 blocks = a.cols / 256, last = a.parts[task.part].rows - 1, at = block < blocks ? block : 0;
    u8 *to = buffers + (block % 2 * 2 + half) * (16 * PIECES);
#pragma unroll
    for (u32 k = 0; k < divide_up(PIECES, THREADS); k++) {
        u32 i = threadIdx.x + THREADS * k;
        const u8 *row = matrix + (u64)min(task.first_row + BM / 2 * half + i / V::PIECES, last) * a.row_bytes;
        copy16_async_if(wanted && block < blocks && i < PIECES, to + 16 * i, V::piece(row, at, blocks, i % V::PIECES));
    }
}

/// This thread's unit of a step.
template <class V, bool STAGED>
DEVICE typename V::Raw unit_of(const u8 *row, const u8 *blocks, u32 step, u32 units) {
    u32 unit = UNITS * step + threadIdx.x % UNITS;
    if constexpr (STAGED) {
        const u8 *block = blocks + unit / 8 % 2 * (BM * 16 * V::PIECES);
        return V::staged(block + threadIdx.x / UNITS * 16 * V::PIECES, unit, units / 8);
    } else {
        return V::load(row, min(unit, units - 1), units);
    }
}

template <class V> DEVICE void expand_unit(const typename V::Raw &raw, Codes &codes) {
    if constexpr (!V::EXACT) V::expand(raw, codes);
}

/// One group of an expanded unit to the weight tile.
DEVICE void store_expanded(u8 *tile, const Codes &codes, u32 group) {
    u32 h[8];
    expand_group<W>(codes.q + 4 * group, codes.scale[group], codes.offset[group], h);
    store_group(tile, h, group);
}

/// The sums of the block to shared memory as [token][row].
template <u32 N> DEVICE void stage_sums(const float (&sum)[N / 2], float *staged) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float *mine = staged + 2 * t * PITCH + 16 * warp + g;
#pragma unroll
    for (u32 n = 0; n < N / 8; n++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) mine[(8 * n + i % 2) * PITCH + i / 2 * 8] = sum[4 * n + i];
}

/// Adds four values of a row to others; those of rows past the end are left alone.
DEVICE float4 plus(float4 v, const float *from, u32 left) {
    if (left >= 4 && (u64)from % 16 == 0) {
        float4 other = *(const float4 *)from;
        return make_float4(v.x + other.x, v.y + other.y, v.z + other.z, v.w + other.w);
    }
    if (left > 0) v.x += from[0];
    if (left > 1) v.y += from[1];
    if (left > 2) v.z += from[2];
    if (left > 3) v.w += from[3];
    return v;
}

DEVICE void put(float *to, float4 v, u32 left) {
    if (left >= 4 && (u64)to % 16 == 0) {
        *(float4 *)to = v;
        return;
    }
    if (left > 0) to[0] = v.x;
    if (left > 1) to[1] = v.y;
    if (left > 2) to[2] = v.z;
    if (left > 3) to[3] = v.w;
}

/// Staged results to the output, a warp per token, four rows per lane.
DEVICE void write_sums(const MatmulArgs &a, const Task &task, const i32 *x_rows, const float *staged) {
    const MatmulPart &part = a.parts[task.part];
    u32 lane = threadIdx.x % 32, row = task.first_row + 4 * lane, left = row < part.rows ? part.rows - row : 0;
    float4 bias = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (part.bias) bias = plus(bias, part.bias + (u64)task.expert * part.rows + row, left);
#pragma unroll 2
    for (u32 place = threadIdx.x / 32; place < task.entries; place += THREADS / 32) {
        u32 entry = a.order ? (u32)a.order[task.first_entry + place] : task.first_entry + place;
        u32 token = entry / a.chosen, slot = entry % a.chosen;
        float scale = (a.row_scale ? a.row_scale[x_rows[place]] : 1.0f) * (1.0f / gain<W>());
        float4 v = *(const float4 *)(staged + place * PITCH + 4 * lane);
        v = make_float4(v.x * scale + bias.x, v.y * scale + bias.y, v.z * scale + bias.z, v.w * scale + bias.w);
        if (part.residual) v = plus(v, part.residual + (u64)token * part.residual_stride + row, left);
        put(part.out + (u64)token * part.out_stride + (u64)slot * part.rows + row, v, left);
    }
}

/// The block's rows of x, for places without an entry the first one's: their sums are not written.
template <u32 N> DEVICE void find_rows(const MatmulArgs &a, const Task &task, i32 *x_rows) {
    for (u32 i = threadIdx.x; i < N; i += THREADS) {
        u32 place = task.first_entry + (i < task.entries ? i : 0);
        u32 entry = a.order ? (u32)a.order[place] : place;
        x_rows[i] = (i32)(a.x_per_entry ? entry : entry / a.chosen);
    }
    __syncthreads();
}

template <u32 N> DEVICE void matmul(const MatmulArgs &a) {
    typedef Shape<N> S;
    DYNAMIC_TILES(shared);
    u8 *weights = shared, *activations = weights + S::A_STAGES * S::A_BYTES;
    u8 *blocks = activations + S::B_STAGES * S::B_BYTES;
    i32 *x_rows = (i32 *)(shared + S::TILE_BYTES);
    Task task = find_task<N>(a);
    if (task.entries == 0) return;
    find_rows<N>(a, task, x_rows);
    u32 units = a.cols / 32, steps = divide_up(units, UNITS);
    u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    u64 first_a = operand_at(weights) + group * (64 * ROW_BYTES / 16), first_b = operand_at(activations);
    Copier<N> x = copier_of_x<N>(a, x_rows);
    Copier<BM> exact;
    const u8 *row = weight_row(a, task);
    typename W::Raw raw, next;
    Codes codes;
    float sum[N / 2] = {};
    if constexpr (W::EXACT) exact = copier_of_weights(a, task);
    if constexpr (S::STAGED) {
        copy_half_block<W>(a, task, blocks, 0, 0, 1);
        copy_half_block<W>(a, task, blocks, 0, 1, 1);
        copy_half_block<W>(a, task, blocks, 1, 0, 1);
    }
#pragma unroll
    for (u32 i = 0; i < S::AHEAD; i++) {
        copy_step<N>(x, activations + i * S::B_BYTES, i, units);
        if constexpr (W::EXACT) copy_step<BM>(exact, weights + i * S::A_BYTES, i, units);
        copy_commit();
    }
    copy_wait<(int)S::AHEAD - 1>();
    if constexpr (S::STAGED) __syncthreads();
    if constexpr (!W::EXACT) {
        raw = unit_of<W, S::STAGED>(row, blocks, 0, units);
        store_weights(weights, raw);
        if constexpr (!S::STAGED) raw = unit_of<W, false>(row, blocks, 1, units);
    }
    publish_shared();
    __syncthreads();
    u32 stage_a = 0, stage_b = 0;
    for (u32 step = 0; step < steps; step++) {
        u32 next_a = stage_a + 1 == S::A_STAGES ? 0 : stage_a + 1;
        u32 ahead = stage_b + S::AHEAD >= S::B_STAGES ? stage_b + S::AHEAD - S::B_STAGES : stage_b + S::AHEAD;
        u8 *decoded = weights + next_a * S::A_BYTES;
        u64 tile_a = first_a + stage_a * (S::A_BYTES / 16), tile_b = first_b + stage_b * (S::B_BYTES / 16);
        if constexpr (!W::EXACT && !S::STAGED) next = unit_of<W, false>(row, blocks, step + 2, units);
        start_products();
        multiply_tiles<W::BRAIN>(sum, tile_a, tile_b);
        if constexpr (!S::SPREAD) {
            multiply_tiles<W::BRAIN>(sum, tile_a + 2, tile_b + 2);
            multiply_tiles<W::BRAIN>(sum, tile_a + 4, tile_b + 4);
            multiply_tiles<W::BRAIN>(sum, tile_a + 6, tile_b + 6);
            commit_products();
        }
        // A warp waits where it issues a product while others run. With one block on a multiprocessor other work goes
        // in between; with two the other block works meanwhile.
        copy_step<N>(x, activations + ahead * S::B_BYTES, step + S::AHEAD, units);
        if constexpr (W::EXACT) copy_step<BM>(exact, weights + ahead * S::A_BYTES, step + S::AHEAD, units);
        if constexpr (S::SPREAD) multiply_tiles<W::BRAIN>(sum, tile_a + 2, tile_b + 2);
        if constexpr (S::STAGED) { // into the buffer that was decoded before
            u32 half = (step + 1) % 4;
            copy_half_block<W>(a, task, blocks, (step + 1) / 4 + 1, half % 2, half < 2);
            multiply_tiles<W::BRAIN>(sum, tile_a + 4, tile_b + 4);
            raw = unit_of<W, true>(row, blocks, step + 1, units);
        }
        copy_commit();
        if constexpr (!W::EXACT) {
            expand_unit<W>(raw, codes);
            store_expanded(decoded, codes, 0);
        }
        if constexpr (S::STAGED) multiply_tiles<W::BRAIN>(sum, tile_a + 6, tile_b + 6);
        else if constexpr (S::SPREAD) multiply_tiles<W::BRAIN>(sum, tile_a + 4, tile_b + 4);
        if constexpr (!W::EXACT) store_expanded(decoded, codes, 1);
        if constexpr (S::SPREAD && !S::STAGED) multiply_tiles<W::BRAIN>(sum, tile_a + 6, tile_b + 6);
        if constexpr (S::SPREAD) commit_products();
        if constexpr (!S::STAGED) raw = next;
        wait_products<1>();             // the step before this one is finished
        copy_wait<(int)S::AHEAD - 1>(); // the next step's copies are there
        publish_shared();
        __syncthreads();
        stage_a = next_a, stage_b = stage_b + 1 == S::B_STAGES ? 0 : stage_b + 1;
    }
    finish_sums(sum);
    copy_wait<0>();
    __syncthreads(); // the tiles make room for the results
    stage_sums<N>(sum, (float *)shared);
    __syncthreads();
    write_sums(a, task, x_rows, (const float *)shared);
}

/// Grid (token tiles, or the most expert tiles; blocks of 128 rows of all parts), 256 threads, dynamic shared memory
/// TILE_BYTES of the shape + 4 BN.
extern "C" __global__ void BOUNDS(256, 2) matmul64(MatmulArgs a) { matmul<64>(a); }
EXPORT(matmul64)
extern "C" __global__ void BOUNDS(256, 2) matmul128(MatmulArgs a) { matmul<128>(a); }
EXPORT(matmul128)
extern "C" __global__ void BOUNDS(256, 1) matmul192(MatmulArgs a) { matmul<192>(a); }
EXPORT(matmul192)
extern "C" __global__ void BOUNDS(256, 1) matmul256(MatmulArgs a) { matmul<256>(a); }
EXPORT(matmul256)
