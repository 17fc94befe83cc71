//! Attention for every head size and cache type: one block per token and query head, plain F32 arithmetic.
//! The fast kernels (`attention_decode.cu`, `attention_prefill.cu`) take F16 caches and the usual head sizes; this one
//! takes the rest and F32 caches. Next file: `attention_decode.cu`.
#include "attention.cuh"

static constexpr u32 THREADS = 128, MAX_COLS = 1024;

DEVICE float cached(const void *cache, u32 f32_cache, u64 at) {
    return f32_cache ? ((const float *)cache)[at] : f16_to_f32(((const u16 *)cache)[at]);
}

/// This thread's slot: its score in base 2, -infinity where it is not seen.
DEVICE float score(const AttentionArgs &a, const float *q, u32 token, u32 kv_head, u32 slot, u32 n_slots) {
    if (slot >= n_slots) return -INFINITY;
    if (!sees(a, a.positions[token], a.sequences[token], a.slot_positions[slot], a.slot_sequences[slot]))
        return -INFINITY;
    u64 at = (u64)slot * a.k_slot_cols + kv_head * a.k_head_cols;
    float sum = 0.0f;
    for (u32 i = 0; i < a.k_head_cols; i++) sum = fmaf(q[i], cached(a.k_cache, a.f32_cache, at + i), sum);
    return score_of(a, sum);
}

/// Grid (q_heads, tokens).
extern "C" __global__ void BOUNDS(128, 4) attention(AttentionArgs a) {
    __shared__ float q[MAX_COLS], weights[THREADS], scratch[32];
    u32 head = blockIdx.x, token = blockIdx.y, kv_head = head / (a.q_heads / a.kv_heads), n_slots = *a.n_slots;
    for (u32 i = threadIdx.x; i < a.k_head_cols; i += THREADS)
        q[i] = a.q[(u64)token * a.q_stride + head * a.k_head_cols + i];
    __syncthreads();
    float top = a.sinks ? a.sinks[head] * LOG2E : -INFINITY, total = a.sinks ? 1.0f : 0.0f;
    float out[MAX_COLS / THREADS] = {};
    for (u32 first = 0; first < n_slots; first += THREADS) {
        float s = score(a, q, token, kv_head, first + threadIdx.x, n_slots);
        float new_top = fmaxf(top, block_max(s, scratch));
        if (new_top == -INFINITY) continue; // the same in every thread
        float shrink = exp2f(top - new_top), weight = exp2f(s - new_top);
        weights[threadIdx.x] = weight;
        total = total * shrink + block_sum(weight, scratch);
        top = new_top;
        u32 slots = min(THREADS, n_slots - first);
#pragma unroll
        for (u32 i = 0; i < MAX_COLS / THREADS; i++) {
            u32 col = threadIdx.x + i * THREADS;
            if (col >= a.v_head_cols) continue;
            float sum = out[i] * shrink;
            for (u32 j = 0; j < slots; j++) {
                u64 at = (u64)(first + j) * a.v_slot_cols + kv_head * (a.v_slot_cols / a.kv_heads) + col;
                sum = fmaf(weights[j], cached(a.v_cache, a.f32_cache, at), sum);
            }
            out[i] = sum;
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < MAX_COLS / THREADS; i++) {
        u32 col = threadIdx.x + i * THREADS;
        float value = total > 0.0f ? out[i] / total : 0.0f;
        if (col < a.v_head_cols) a.out[(u64)token * a.out_stride + head * a.v_head_cols + col] = value;
    }
}
EXPORT(attention)
