//! Matrix times many vectors by asynchronous tensor-core products, for compute capability 9.0; `matmul.cu` elsewhere.
//! A block computes 128 weight rows by BN tokens: each of its two groups of four warps multiplies 64 rows by all
//! tokens, both operands from shared memory. While a step of 64 columns runs, every thread starts the copies of later
//! activations, decodes its unit of the next step's weights, and loads the unit after that. One barrier per step: a
//! buffer is written two steps after its last reader started, when that step is known to be finished.
//! Next file: `attention.cu`.
#include "matmul.cuh"
#include "wgmma.cuh"

static constexpr u32 THREADS = 256, PITCH = BM + 4;

/// Sizes that depend on the token tile.
template <u32 N> struct Shape {
    static constexpr u32 A_STAGES = 3, B_STAGES = N == 256 ? 5 : N == 128 ? 4 : 6, AHEAD = B_STAGES - 2;
    static constexpr u32 A_BYTES = BM * ROW_BYTES, B_BYTES = N * ROW_BYTES;
    static constexpr u32 TILE_BYTES = A_STAGES * A_BYTES + B_STAGES * B_BYTES;
    static constexpr u32 COPIES = N / 32;
};

/// The copies that this thread makes in every step: one 16-byte chunk of COPIES rows, 32 apart.
template <u32 N> struct Copier {
    const uint4 *x;
    u32 row[Shape<N>::COPIES]; // first chunk of the row
    u32 half, part, to;
};

template <u32 N> DEVICE Copier<N> copier(const MatmulArgs &a, const i32 *x_rows) {
    Copier<N> copier;
    u32 chunk = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS;
    copier.x = (const uint4 *)a.x;
#pragma unroll
    for (u32 i = 0; i < Shape<N>::COPIES; i++) copier.row[i] = (u32)x_rows[row + 32 * i] * (a.cols / 8);
    copier.half = chunk / 4, copier.part = chunk % 4;
    copier.to = row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
    return copier;
}

/// Starts the copy of one step of activations; past the last unit of the row come zeros.
template <u32 N> DEVICE void copy_activations(const Copier<N> &c, u8 *tile, u32 step, u32 units) {
    u32 unit = UNITS * step + c.half, inside = unit < units;
    u32 chunk = W::column(inside ? unit : 0, c.part / 2) / 8 + c.part % 2;
#pragma unroll
    for (u32 i = 0; i < Shape<N>::COPIES; i++)
        copy16_async(tile + c.to + 32 * ROW_BYTES * i, c.x + (c.row[i] + chunk), inside);
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

/// Staged results to the output, a warp per token, four rows per lane.
DEVICE void write_sums(const MatmulArgs &a, const Task &task, const i32 *x_rows, const float *staged) {
    u32 lane = threadIdx.x % 32, row = task.first_row + 4 * lane;
    float bias[4] = {};
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        if (a.bias && row + i < a.rows) bias[i] = a.bias[(u64)task.expert * a.rows + row + i];
#pragma unroll 2
    for (u32 place = threadIdx.x / 32; place < task.entries; place += THREADS / 32) {
        u32 entry = a.order ? (u32)a.order[task.first_entry + place] : task.first_entry + place;
        u32 token = entry / a.chosen, slot = entry % a.chosen;
        float scale = (a.row_scale ? a.row_scale[x_rows[place]] : 1.0f) * (1.0f / gain<W>());
        float4 v = *(const float4 *)(staged + place * PITCH + 4 * lane);
        v = make_float4(v.x * scale + bias[0], v.y * scale + bias[1], v.z * scale + bias[2], v.w * scale + bias[3]);
        float *to = a.out + (u64)token * a.out_stride + (u64)slot * a.rows + row;
        if (row + 3 < a.rows && (u64)to % 16 == 0) {
            *(float4 *)to = v;
        } else {
            if (row < a.rows) to[0] = v.x;
            if (row + 1 < a.rows) to[1] = v.y;
            if (row + 2 < a.rows) to[2] = v.z;
            if (row + 3 < a.rows) to[3] = v.w;
        }
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
    u8 *weights = shared, *activations = shared + S::A_STAGES * S::A_BYTES;
    i32 *x_rows = (i32 *)(shared + S::TILE_BYTES);
    Task task = find_task<N>(a);
    if (task.entries == 0) return;
    find_rows<N>(a, task, x_rows);
    Copier<N> copies = copier<N>(a, x_rows);
    u32 units = a.cols / 32, steps = divide_up(units, UNITS), own = threadIdx.x % UNITS;
    u32 row = min(task.first_row + threadIdx.x / UNITS, a.rows - 1);
    u64 place = a.places ? (u32)max(a.places[task.expert], 0) : task.expert;
    const u8 *from = a.weight + place * a.matrix_bytes + (u64)row * a.row_bytes;
    u32 group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    u64 first_a = operand_at(weights) + group * (64 * ROW_BYTES / 16), first_b = operand_at(activations);
    float sum[N / 2] = {};
#pragma unroll
    for (u32 i = 0; i < S::AHEAD; i++) {
        copy_activations<N>(copies, activations + i * S::B_BYTES, i, units);
        copy_commit();
    }
    typename W::Raw raw = W::load(from, min(own, units - 1), units);
    store_weights(weights, raw, own < units);
    raw = W::load(from, min(UNITS + own, units - 1), units);
    copy_wait<(int)S::AHEAD - 1>();
    publish_shared();
    __syncthreads();
    u32 stage_a = 0, stage_b = 0;
    for (u32 step = 0; step < steps; step++) {
        u32 next_a = stage_a + 1 == S::A_STAGES ? 0 : stage_a + 1, next = UNITS * (step + 1) + own;
        u32 ahead = stage_b + S::AHEAD >= S::B_STAGES ? stage_b + S::AHEAD - S::B_STAGES : stage_b + S::AHEAD;
        start_step<W::BRAIN>(sum, first_a + stage_a * (S::A_BYTES / 16), first_b + stage_b * (S::B_BYTES / 16));
        copy_activations<N>(copies, activations + ahead * S::B_BYTES, step + S::AHEAD, units);
        copy_commit();
        store_weights(weights + next_a * S::A_BYTES, raw, next < units);
        raw = W::load(from, min(next + UNITS, units - 1), units);
        wait_steps<1>();                // the step before this one is finished
        copy_wait<(int)S::AHEAD - 1>(); // the next step's activations are there
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

/// Grid (token tiles, or the most expert tiles; divide_up(rows, 128)), 256 threads, dynamic shared memory
/// TILE_BYTES of the shape + 4 BN.
extern "C" __global__ void BOUNDS(256, 2) matmul64(MatmulArgs a) { matmul<64>(a); }
EXPORT(matmul64)
extern "C" __global__ void BOUNDS(256, 2) matmul128(MatmulArgs a) { matmul<128>(a); }
EXPORT(matmul128)
extern "C" __global__ void BOUNDS(256, 1) matmul192(MatmulArgs a) { matmul<192>(a); }
EXPORT(matmul192)
extern "C" __global__ void BOUNDS(256, 1) matmul256(MatmulArgs a) { matmul<256>(a); }
EXPORT(matmul256)
