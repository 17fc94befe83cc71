//! Matrix times many vectors on tensor cores, weights decoded on the way to shared memory: prefill and grouped experts.
//! One module per type and layout. A block computes 128 weight rows by BN tokens in steps of 64 columns. Activations
//! (F16 with a scale per row, BF16 for types with BRAIN) come by asynchronous copies; of the weights every thread loads
//! one unit into registers, a whole step before it decodes it into the other half of a double buffer. The columns of a
//! step are the units 2k and 2k + 1 in the order unit, group: weights and activations agree, so formats whose groups
//! lie apart need no shuffle. Sums are F32 in a fixed order.
//! Shared rows are 128 bytes; 16-byte chunk c of row r stands at c ^ (r % 8), free of bank conflicts both ways.
//! Fewer tokens: `skinny.cu`. Next file: `attention.cu`.
#include "matmul.cuh"

/// Sizes that depend on the token tile.
template <u32 N> struct Shape {
    static constexpr u32 BN = N, STAGES = N == 256 ? 2 : 3;
    static constexpr u32 WARPS_M = N == 64 ? 4 : 2, WARPS_N = 8 / WARPS_M;
    static constexpr u32 TILES_M = BM / WARPS_M / 16, TILES_N = BN / WARPS_N / 8;
    static constexpr u32 A_BYTES = BM * ROW_BYTES, B_BYTES = BN * ROW_BYTES;
};

/// Starts the copy of one step of activations.
template <u32 BN> DEVICE void copy_activations(const MatmulArgs &a, const i32 *x_rows, u8 *tile, u32 step) {
    u32 chunk = threadIdx.x % CHUNKS, unit = UNITS * step + chunk / 4;
    u32 inside = unit < a.cols / 32, col = W::column(inside ? unit : 0, chunk / 2 % 2) + chunk % 2 * 8;
#pragma unroll
    for (u32 i = 0; i < BN / 32; i++) {
        u32 row = threadIdx.x / CHUNKS + 32 * i;
        i32 from = x_rows[row];
        copy16_async(chunk_at(tile, row, chunk), a.x + (u64)max(from, 0) * a.cols + col, inside && from >= 0);
    }
    copy_commit();
}

/// One step of 16 columns: fragments from shared memory, then all products of this warp.
template <class S>
DEVICE void multiply(float (&sum)[S::TILES_M][S::TILES_N][4], u8 *weights, u8 *activations, u32 slice) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 row_a = warp / S::WARPS_N * (BM / S::WARPS_M) + lane % 16, chunk_a = 2 * slice + lane / 16;
    u32 row_b = warp % S::WARPS_N * (S::BN / S::WARPS_N) + lane / 16 * 8 + lane % 8, chunk_b = 2 * slice + lane / 8 % 2;
    u32 fa[S::TILES_M][4], fb[S::TILES_N / 2][4];
#pragma unroll
    for (u32 m = 0; m < S::TILES_M; m++) ldmatrix4(fa[m], chunk_at(weights, row_a + 16 * m, chunk_a));
#pragma unroll
    for (u32 n = 0; n < S::TILES_N / 2; n++) ldmatrix4(fb[n], chunk_at(activations, row_b + 16 * n, chunk_b));
#pragma unroll
    for (u32 m = 0; m < S::TILES_M; m++)
#pragma unroll
        for (u32 n = 0; n < S::TILES_N; n++) mma<W>(sum[m][n], fa[m], fb[n / 2] + n % 2 * 2);
}

/// One row of a warp's results from shared memory to the output: `width` rows of weights of one entry.
DEVICE void write_entry(const MatmulArgs &a, const Task &task, const i32 *x_rows, u32 place, u32 first_row, u32 width,
                        const float *staged) {
    const MatmulPart &part = a.parts[task.part];
    u32 entry = a.order ? (u32)a.order[task.first_entry + place] : task.first_entry + place;
    u32 token = entry / a.chosen, slot = entry % a.chosen;
    float scale = (a.row_scale ? a.row_scale[x_rows[place]] : 1.0f) * (1.0f / gain<W>());
    for (u32 i = threadIdx.x % 32; i < width; i += 32) {
        u32 row = first_row + i;
        if (row >= part.rows) break;
        float v = staged[i] * scale;
        if (part.bias) v += part.bias[(u64)task.expert * part.rows + row];
        if (part.residual) v += part.residual[(u64)token * part.residual_stride + row];
        part.out[(u64)token * part.out_stride + (u64)slot * part.rows + row] = v;
    }
}

/// Writes the sums of this warp through its share of shared memory, half of its tokens at a time.
template <class S>
DEVICE void write_sums(const MatmulArgs &a, const Task &task, const float (&sum)[S::TILES_M][S::TILES_N][4],
                       const i32 *x_rows, float *shared) {
    constexpr u32 WM = BM / S::WARPS_M, WN = S::BN / S::WARPS_N, PITCH = WM + 4, HALF = S::TILES_N / 2;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    u32 first_row = task.first_row + warp / S::WARPS_N * WM, first_place = warp % S::WARPS_N * WN;
    float *staged = shared + warp * (WN / 2) * PITCH, *mine = staged + 2 * t * PITCH + g;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
#pragma unroll
        for (u32 n = 0; n < HALF; n++)
#pragma unroll
            for (u32 m = 0; m < S::TILES_M; m++)
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    mine[(8 * n + i % 2) * PITCH + 16 * m + i / 2 * 8] = sum[m][half * HALF + n][i];
        __syncwarp();
#pragma unroll 1
        for (u32 n = 0; n < WN / 2; n++) {
            u32 place = first_place + half * (WN / 2) + n;
            if (place < task.entries) write_entry(a, task, x_rows, place, first_row, WM, staged + n * PITCH);
        }
        __syncwarp();
    }
}

template <u32 N> DEVICE void matmul(const MatmulArgs &a) {
    typedef Shape<N> S;
    DYNAMIC_SHARED(shared);
    __shared__ i32 x_rows[N];
    Task task = find_task<N>(a);
    if (task.entries == 0) return;
    for (u32 i = threadIdx.x; i < N; i += blockDim.x) {
        u32 place = task.first_entry + i;
        u32 entry = i < task.entries ? (a.order ? (u32)a.order[place] : place) : 0;
        x_rows[i] = i < task.entries ? (i32)(a.x_per_entry ? entry : entry / a.chosen) : -1;
    }
    __syncthreads();
    u8 *weights = shared, *activations = shared + 2 * S::A_BYTES;
    u32 units = a.cols / 32, steps = divide_up(units, UNITS), own = threadIdx.x % UNITS;
    const u8 *from = weight_row(a, task);
    float sum[S::TILES_M][S::TILES_N][4] = {};
#pragma unroll
    for (u32 i = 0; i + 1 < S::STAGES; i++) copy_activations<N>(a, x_rows, activations + i * S::B_BYTES, i);
    typename W::Raw raw = W::load(from, min(own, units - 1), units);
    store_weights(weights, raw);
    raw = W::load(from, min(UNITS + own, units - 1), units);
    u32 stage = 0;
    for (u32 step = 0; step < steps; step++) {
        copy_wait<(int)S::STAGES - 2>();
        __syncthreads(); // this step's tiles are complete, and nobody reads the ones about to be written
        u32 ahead = (stage + S::STAGES - 1) % S::STAGES;
        copy_activations<N>(a, x_rows, activations + ahead * S::B_BYTES, step + S::STAGES - 1);
        u32 next = UNITS * (step + 1) + own;
        u8 *tile = weights + step % 2 * S::A_BYTES, *batch = activations + stage * S::B_BYTES;
        multiply<S>(sum, tile, batch, 0);
        multiply<S>(sum, tile, batch, 1);
        store_weights(weights + (step + 1) % 2 * S::A_BYTES, raw);
        raw = W::load(from, min(next + UNITS, units - 1), units);
        multiply<S>(sum, tile, batch, 2);
        multiply<S>(sum, tile, batch, 3);
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    __syncthreads(); // the tiles make room for the results
    write_sums<S>(a, task, sum, x_rows, (float *)shared);
}

/// Grid (token tiles, or the most expert tiles; blocks of 128 rows of all parts), 256 threads, dynamic shared memory
/// 2 A_BYTES + STAGES B_BYTES of the shape.
extern "C" __global__ void BOUNDS(256, 2) matmul64(MatmulArgs a) { matmul<64>(a); }
EXPORT(matmul64)
extern "C" __global__ void BOUNDS(256, 1) matmul128(MatmulArgs a) { matmul<128>(a); }
EXPORT(matmul128)
extern "C" __global__ void BOUNDS(256, 1) matmul256(MatmulArgs a) { matmul<256>(a); }
EXPORT(matmul256)
