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

static constexpr u32 SORT_WARPS = 16, SORT_AHEAD = 8;

/// The exclusive prefix of two numbers per thread over a block of SORT_WARPS warps; `total` gets the sums.
DEVICE uint2 block_prefix(uint2 own, uint2 &total) {
    __shared__ uint2 sums[SORT_WARPS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint2 upto = own;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        u32 x = __shfl_sync(0xffffffffu, upto.x, (int)(lane - step));
        u32 y = __shfl_sync(0xffffffffu, upto.y, (int)(lane - step));
        if (lane >= step) upto.x += x, upto.y += y;
    }
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    uint2 before = make_uint2(0, 0);
    total = make_uint2(0, 0);
#pragma unroll
    for (u32 w = 0; w < SORT_WARPS; w++) {
        if (w == warp) before = total;
        total.x += sums[w].x, total.y += sums[w].y;
    }
    return make_uint2(before.x + upto.x - own.x, before.y + upto.y - own.y);
}

/// The expert of an entry; MAX_EXPERTS past the end and for ids of no expert.
DEVICE u32 expert_of(const SortArgs &a, u32 entry, u32 entries) {
    if (entry >= entries) return MAX_EXPERTS;
    u32 at = a.ids.stride == a.chosen ? entry : entry / a.chosen * a.ids.stride + entry % a.chosen;
    u32 expert = (u32)((const i32 *)a.ids.data)[at];
    return expert < a.experts ? expert : MAX_EXPERTS;
}

/// The lanes that hold the same number below 2 * MAX_EXPERTS: as many votes as it has bits, where comparing all values
/// of a warp takes a step for each.
DEVICE u32 lanes_with(u32 number) {
    u32 same = 0xffffffffu;
#pragma unroll
    for (u32 bit = 1; bit <= MAX_EXPERTS; bit *= 2) {
        u32 set = __ballot_sync(0xffffffffu, number & bit);
        same &= number & bit ? set : ~set;
    }
    return same;
}

/// Thread e turns the warps' counts of expert e into the places where each warp puts its first entry of it, and writes
/// the expert's tiles.
DEVICE void place_expert(const SortArgs &a, u32 (*places)[MAX_EXPERTS]) {
    u32 expert = threadIdx.x, count = 0;
#pragma unroll
    for (u32 w = 0; w < SORT_WARPS; w++) {
        u32 own = places[w][expert];
        places[w][expert] = count;
        count += own;
    }
    uint2 total, start = block_prefix(make_uint2(count, divide_up(count, a.tile)), total);
#pragma unroll
    for (u32 w = 0; w < SORT_WARPS; w++) places[w][expert] += start.x;
    for (u32 i = 0; i * a.tile < count; i++) {
        int4 t = {(i32)expert, (i32)(start.x + i * a.tile), (i32)min(a.tile, count - i * a.tile), 0};
        if (start.y + i < a.max_tiles) a.tiles[start.y + i] = t;
    }
    if (expert == 0) *a.n_tiles = min(total.y, a.max_tiles);
}

/// One block of 512 threads. Each warp counts and then places a share of the entries, in order: the order of the result
/// is always the same (atomics only count).
extern "C" __global__ void BOUNDS(512, 1) sort_by_expert(SortArgs a) {
    __shared__ u32 places[SORT_WARPS][MAX_EXPERTS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, entries = a.rows * a.chosen;
    u32 share = divide_up(entries, 32 * SORT_WARPS) * 32, first = warp * share, end = min(entries, first + share);
    for (u32 w = 0; w < SORT_WARPS; w++) places[w][threadIdx.x] = 0;
    __syncthreads();
    for (u32 at = first; at < end; at += 32 * SORT_AHEAD) {
        u32 expert[SORT_AHEAD];
#pragma unroll
        for (u32 i = 0; i < SORT_AHEAD; i++) expert[i] = expert_of(a, at + 32 * i + lane, end);
#pragma unroll
        for (u32 i = 0; i < SORT_AHEAD; i++)
            if (expert[i] < MAX_EXPERTS) atomicAdd(&places[warp][expert[i]], 1u);
    }
    __syncthreads();
    place_expert(a, places);
    __syncthreads();
    for (u32 at = first; at < end; at += 32 * SORT_AHEAD) {
        u32 expert[SORT_AHEAD];
#pragma unroll
        for (u32 i = 0; i < SORT_AHEAD; i++) expert[i] = expert_of(a, at + 32 * i + lane, end);
#pragma unroll
        for (u32 i = 0; i < SORT_AHEAD; i++) {
            u32 same = lanes_with(expert[i]), before = __popc(same & ((1u << lane) - 1));
            u32 inside = expert[i] < MAX_EXPERTS, place = inside ? places[warp][expert[i]] + before : 0;
            __syncwarp();
            if (inside && before == 0) places[warp][expert[i]] += __popc(same);
            __syncwarp();
            if (inside) a.order[place] = (i32)(at + 32 * i + lane);
        }
    }
}
EXPORT(sort_by_expert)

struct HeldArgs {
    View ids;      // i32 [rows, chosen]
    View out;      // i32 [rows, chosen]
    u32 held[16];  // bit e % 32 of word e / 32: whether expert e is held here
    u32 count;     // rows * chosen
    u32 reserved;
};

/// The place of each chosen expert among those that are held here, -1 for others. Grid (blocks of 256 entries).
extern "C" __global__ void BOUNDS(256, 4) held_ids(HeldArgs a) {
    u32 entry = blockIdx.x * 256 + threadIdx.x;
    if (entry >= a.count) return;
    u32 row = entry / a.ids.cols, j = entry % a.ids.cols;
    u32 expert = (u32)((const i32 *)a.ids.data)[(u64)row * a.ids.stride + j], place = 0;
    u32 inside = 0;
#pragma unroll
    for (u32 word = 0; word < MAX_EXPERTS / 32; word++) {
        u32 bits = a.held[word];
        if (word < expert / 32) place += __popc(bits);
        if (word == expert / 32) {
            u32 bit = 1u << (expert % 32);
            place += __popc(bits & (bit - 1));
            inside = bits & bit;
        }
    }
    ((i32 *)a.out.data)[(u64)row * a.out.stride + j] = inside ? (i32)place : -1;
}
EXPORT(held_ids)
