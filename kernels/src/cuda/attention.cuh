//! What the three attention kernels share: their arguments and who sees whom.
//! A cache is a set of slots; a slot says which position of which sequence it holds (position -1: nothing). Tokens of a
//! round have positions and sequences of their own, so batches, several sequences and reused prefixes need no other
//! code. Cache memory must have been zeroed once: masked slots are multiplied by zero. Next file: `attention.cu`.
#pragma once
#include "common.cuh"

struct AttentionArgs {
    const float *q;      // [tokens, q_heads * k_head_cols], rows q_stride apart
    const void *k_cache; // [slots, kv_heads * k_head_cols], F16 (F32 for attention.cu with f32_cache)
    const void *v_cache; // [slots, kv_heads * v_head_cols], or the key cache itself (values = first columns of keys)
    const i32 *slot_positions, *slot_sequences;
    const i32 *positions, *sequences; // per token
    const u32 *n_slots;               // slots 0 .. *n_slots may hold something
    const float *sinks;               // {q_heads}, nullable
    float *out;                       // [tokens, q_heads * v_head_cols]
    float *partial;                   // split kernels only: [tokens * q_heads][splits][v_head_cols]
    float2 *partial_scale;            // [tokens * q_heads][splits]: maximum (base 2) and sum
    u32 tokens, q_heads, kv_heads, k_head_cols, v_head_cols;
    u32 q_stride, out_stride;
    u32 k_slot_cols, v_slot_cols; // columns from one slot to the next in each cache
    u32 mask;                     // 0 causal, 1 window, 2 chunk
    u32 mask_tokens;
    u32 splits; // room for splits in `partial`
    u32 f32_cache;
    float scale;
    float softcap; // 0: none
    u32 slots;     // split kernels only: slots that the launch covers; the arrays have so many
};

static constexpr float LOG2E = 1.4426950408889634f;

/// The score in base 2 of a product q.k.
DEVICE float score_of(const AttentionArgs &a, float product) {
    float score = product * a.scale;
    if (a.softcap > 0.0f) score = a.softcap * (1.0f - 2.0f / (fast_exp(2.0f * score / a.softcap) + 1.0f)); // tanh
    return score * LOG2E;
}

/// The first position that a token at `position` may see; not above 0: all.
DEVICE i32 first_visible(const AttentionArgs &a, i32 position) {
    if (a.mask == 1) return position - (i32)a.mask_tokens + 1;
    if (a.mask == 2) return position / (i32)a.mask_tokens * (i32)a.mask_tokens;
    return 0;
}

/// Whether a token at `position` of `sequence` sees the slot.
DEVICE i32 sees(const AttentionArgs &a, i32 position, i32 sequence, i32 slot_position, i32 slot_sequence) {
    if (slot_position < 0 || slot_position > position || slot_sequence != sequence) return 0;
    if (a.mask == 1) return position - slot_position < (i32)a.mask_tokens;
    if (a.mask == 2) return slot_position >= position / (i32)a.mask_tokens * (i32)a.mask_tokens;
    return 1;
}
