//! Mixture of experts: choosing the experts of each token, and sorting the choices by expert for grouped products.
//! Expert weights themselves are multiplied in `gemv.cu` (by id) and `matmul.cu` (grouped). Next file: `recurrent.cu`.
#include "activation.cuh"

static constexpr u32 MAX_EXPERTS = 512; // 16 per lane

struct RouterArgs {
    View logits;       // [rows, experts]
    const float *bias; // {experts}, nullable: added to the score for choosing only
    View ids;          // i32 [rows, chosen]
    View weights;      // [rows, chosen]
    u32 experts, chosen;
    u32 score;         // 0 softmax, 1 sigmoid, 2 the logit
    u32 weighting;     // 0 score, 1 normalised score, 2 softmax of the chosen
    float scale;
    u32 reserved;
};

/// Scores of this lane's experts (lane + 32 i), -infinity where there is none.
DEVICE void score_experts(const RouterArgs &a, u32 row, u32 lane, float *score) {
    const float *logits = a.logits.data + (u64)row * a.logits.stride;
    float top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < MAX_EXPERTS / 32; i++) {
        u32 expert = lane + 32 * i;
        score[i] = expert < a.experts ? logits[expert] : -INFINITY;
        top = fmaxf(top, score[i]);
    }
    if (a.score == 2) return;
    top = warp_max(top);
#pragma unroll
    for (u32 i = 0; i < MAX_EXPERTS / 32; i++) {
        if (lane + 32 * i >= a.experts) continue;
        score[i] = a.score == 1 ? 1.0f / (1.0f + expf(-score[i])) : expf(score[i] - top);
        sum += score[i];
    }
    sum = warp_sum(sum);
    if (a.score == 1) return;
#pragma unroll
    for (u32 i = 0; i < MAX_EXPERTS / 32; i++)
        if (lane + 32 * i < a.experts) score[i] /= sum;
}

/// The best remaining expert over the warp; ties go to the lower index.
DEVICE u32 best_expert(const float *ranked, u32 lane) {
    float best = -INFINITY;
    u32 index = 0xffffffffu;
#pragma unroll
    for (u32 i = 0; i < MAX_EXPERTS / 32; i++)
        if (ranked[i] > best) best = ranked[i], index = lane + 32 * i;
#pragma unroll
    for (u32 step = 16; step > 0; step >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, best, (int)step);
        u32 other_index = __shfl_xor_sync(0xffffffffu, index, (int)step);
        if (other > best || (other == best && other_index < index)) best = other, index = other_index;
    }
    return index;
}

/// One warp per row, grid (rows). Logits that are not numbers are never chosen while others remain.
extern "C" __global__ void BOUNDS(32, 8) router(RouterArgs a) {
    u32 row = blockIdx.x, lane = threadIdx.x;
    float score[MAX_EXPERTS / 32], ranked[MAX_EXPERTS / 32];
    score_experts(a, row, lane, score);
#pragma unroll
    for (u32 i = 0; i < MAX_EXPERTS / 32; i++) {
        u32 expert = lane + 32 * i;
        ranked[i] = score[i] + (a.bias && expert < a.experts ? a.bias[expert] : 0.0f);
    }
    i32 *ids = (i32 *)a.ids.data + (u64)row * a.ids.stride;
    float *weights = a.weights.data + (u64)row * a.weights.stride;
    float sum = 0.0f, top = 0.0f;
    for (u32 j = 0; j < a.chosen; j++) {
        u32 expert = best_expert(ranked, lane);
        if (expert >= a.experts) expert = j; // only where too few logits are numbers
        float own = 0.0f;
#pragma unroll
        for (u32 i = 0; i < MAX_EXPERTS / 32; i++)
            if (lane + 32 * i == expert) own = score[i], ranked[i] = -INFINITY;
        float weight = __shfl_sync(0xffffffffu, own, (int)(expert % 32));
        if (a.weighting == 2) {
            if (j == 0) top = weight;
            weight = expf(weight - top);
        }
        sum += weight;
        if (lane == 0) ids[j] = (i32)expert, weights[j] = weight;
    }
    if (a.weighting == 1) sum = fmaxf(sum, 6.103515625e-5f); // 2^-14
    float factor = a.weighting == 0 ? a.scale : a.scale / sum;
    if (lane == 0)
        for (u32 j = 0; j < a.chosen; j++) weights[j] *= factor;
}
EXPORT(router)

struct SortArgs {
    View ids;     // i32 [rows, chosen]
    i32 *order;   // [rows * chosen]: entries (row * chosen + j) sorted by expert, in order within one
    int4 *tiles;  // {expert, first place in order, entries, 0}, up to `tile` entries of one expert each
    u32 *n_tiles; // how many tiles were written
    u32 rows, chosen, experts, tile;
    u32 max_tiles;
    u32 reserved;
};

/// One block of 512 threads (thread e counts and places expert e), no atomics: the order is always the same.
extern "C" __global__ void BOUNDS(512, 1) sort_by_expert(SortArgs a) {
    __shared__ u32 counts[MAX_EXPERTS], starts[MAX_EXPERTS], tile_starts[MAX_EXPERTS];
    __shared__ i32 chunk[2048];
    u32 expert = threadIdx.x, entries = a.rows * a.chosen, count = 0;
    const i32 *ids = (const i32 *)a.ids.data;
    for (u32 first = 0; first < entries; first += 2048) {
        u32 n = min(2048u, entries - first);
        for (u32 i = threadIdx.x; i < n; i += blockDim.x)
            chunk[i] = ids[(u64)((first + i) / a.chosen) * a.ids.stride + (first + i) % a.chosen];
        __syncthreads();
        for (u32 i = 0; i < n; i++) count += chunk[i] == (i32)expert;
        __syncthreads();
    }
    counts[expert] = expert < a.experts ? count : 0;
    __syncthreads();
    if (expert == 0) {
        u32 place = 0, tile = 0;
        for (u32 e = 0; e < a.experts; e++) {
            starts[e] = place, tile_starts[e] = tile;
            place += counts[e], tile += divide_up(counts[e], a.tile);
        }
        *a.n_tiles = min(tile, a.max_tiles);
    }
    __syncthreads();
    if (expert < a.experts) {
        for (u32 i = 0; i * a.tile < count; i++) {
            int4 t = {(i32)expert, (i32)(starts[expert] + i * a.tile), (i32)min(a.tile, count - i * a.tile), 0};
            if (tile_starts[expert] + i < a.max_tiles) a.tiles[tile_starts[expert] + i] = t;
        }
    }
    u32 place = expert < a.experts ? starts[expert] : 0;
    for (u32 first = 0; first < entries; first += 2048) {
        u32 n = min(2048u, entries - first);
        for (u32 i = threadIdx.x; i < n; i += blockDim.x)
            chunk[i] = ids[(u64)((first + i) / a.chosen) * a.ids.stride + (first + i) % a.chosen];
        __syncthreads();
        for (u32 i = 0; i < n; i++)
            if (chunk[i] == (i32)expert) a.order[place++] = (i32)(first + i);
        __syncthreads();
    }
}
EXPORT(sort_by_expert)
