//! Operators with a state per sequence: causal depthwise convolution and the gated delta net. Both take the tokens of
//! a round in order; where a token's sequence differs from the one before, the state is stored and another loaded.
//! State memories are F32. Snapshots are plain copies made by the caller. Next file: `attention.cu`.
#include "activation.cuh"

struct ConvArgs {
    View x, out;
    const float *filter;  // {taps, channels}, taps contiguous, tap taps - 1 = the current token
    float *state;         // [sequences][channels][taps - 1], oldest first
    const i32 *sequences; // per row
    u64 state_stride;     // floats of one sequence
    u32 rows, taps;
};

static constexpr u32 MAX_TAPS = 8;

/// One thread per channel, grid (divide_up(channels, 128)). out = silu(filter * x).
extern "C" __global__ void BOUNDS(128, 8) causal_conv(ConvArgs a) {
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= a.x.cols) return;
    u32 past = a.taps - 1;
    float filter[MAX_TAPS], window[MAX_TAPS]; // window[MAX_TAPS - 1] is the newest; unused taps have filter 0
#pragma unroll
    for (u32 i = 0; i < MAX_TAPS; i++) {
        u32 missing = MAX_TAPS - a.taps;
        filter[i] = i >= missing ? a.filter[(u64)channel * a.taps + i - missing] : 0.0f;
        window[i] = 0.0f;
    }
    i32 sequence = -1;
    for (u32 row = 0; row < a.rows; row++) {
        if (a.sequences[row] != sequence) {
            float *own = a.state + (u64)max(sequence, 0) * a.state_stride + (u64)channel * past;
            float *next = a.state + (u64)a.sequences[row] * a.state_stride + (u64)channel * past;
#pragma unroll
            for (u32 i = 1; i < MAX_TAPS; i++) {
                u32 skip = MAX_TAPS - past;
                if (i >= skip && sequence >= 0) own[i - skip] = window[i];
            }
#pragma unroll
            for (u32 i = 1; i < MAX_TAPS; i++) {
                u32 skip = MAX_TAPS - past;
                if (i >= skip) window[i] = next[i - skip];
            }
            sequence = a.sequences[row];
        }
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i + 1 < MAX_TAPS; i++) window[i] = window[i + 1];
        window[MAX_TAPS - 1] = a.x.data[(u64)row * a.x.stride + channel];
#pragma unroll
        for (u32 i = 0; i < MAX_TAPS; i++) sum = fmaf(filter[i], window[i], sum);
        a.out.data[(u64)row * a.out.stride + channel] = sum / (1.0f + expf(-sum));
    }
    float *own = a.state + (u64)max(sequence, 0) * a.state_stride + (u64)channel * past;
#pragma unroll
    for (u32 i = 1; i < MAX_TAPS; i++)
        if (i >= MAX_TAPS - past && sequence >= 0) own[i - (MAX_TAPS - past)] = window[i];
}
EXPORT(causal_conv)

struct DeltaArgs {
    View q, k, v;         // q, k [rows, key_heads * head_cols]; v [rows, value_heads * head_cols]
    View b, alpha;        // [rows, value_heads]
    View out;             // [rows, value_heads * head_cols]
    const float *a, *dt;  // {value_heads}
    float *state;         // [sequences][value_heads][head_cols (value)][head_cols (key)]
    const i32 *sequences; // per row
    u64 state_stride;     // floats of one sequence
    u32 rows, key_heads, value_heads, head_cols;
    u32 tiled; // value head j uses key head j % key_heads instead of j / (value_heads / key_heads)
    u32 reserved;
};

static constexpr u32 KEYS_PER_LANE = 8; // head_cols up to 256

DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/// The row of the state that belongs to this warp's value column, keys lane + 32 i.
struct StateRow {
    float m[KEYS_PER_LANE];
    DEVICE void move(StateRow &s, const DeltaArgs &a, i32 sequence, u32 head, u32 column, u32 lane, u32 storing) {
        u64 row = ((u64)head * a.head_cols + column) * a.head_cols;
        float *base = a.state + (u64)sequence * a.state_stride + row;
#pragma unroll
        for (u32 i = 0; i < KEYS_PER_LANE; i++) {
            u32 key = lane + 32 * i;
            if (key >= a.head_cols) continue;
            if (storing) base[key] = s.m[i];
            else s.m[i] = base[key];
        }
    }
};

/// One warp per value column; grid (divide_up(head_cols, 4), value_heads), 128 threads.
/// Decay, then M += k u^T with u = beta (v - M^T k), then o = M^T q, both products taken from the decayed M at once:
/// o = M^T q + u (k . q).
extern "C" __global__ void BOUNDS(128, 4) delta_net(DeltaArgs a) {
    u32 lane = threadIdx.x % 32, column = blockIdx.x * 4 + threadIdx.x / 32, head = blockIdx.y;
    if (column >= a.head_cols) return;
    u32 key_head = a.tiled ? head % a.key_heads : head / (a.value_heads / a.key_heads);
    StateRow s;
#pragma unroll
    for (u32 i = 0; i < KEYS_PER_LANE; i++) s.m[i] = 0.0f;
    i32 sequence = -1;
    for (u32 row = 0; row < a.rows; row++) {
        if (a.sequences[row] != sequence) {
            if (sequence >= 0) StateRow::move(s, a, sequence, head, column, lane, 1);
            sequence = a.sequences[row];
            StateRow::move(s, a, sequence, head, column, lane, 0);
        }
        const float *q = a.q.data + (u64)row * a.q.stride + key_head * a.head_cols;
        const float *k = a.k.data + (u64)row * a.k.stride + key_head * a.head_cols;
        float value = a.v.data[(u64)row * a.v.stride + head * a.head_cols + column];
        float beta = 1.0f / (1.0f + expf(-a.b.data[(u64)row * a.b.stride + head]));
        float decay = expf(a.a[head] * softplus(a.alpha.data[(u64)row * a.alpha.stride + head] + a.dt[head]));
        float mk = 0.0f, mq = 0.0f, kq = 0.0f, keys[KEYS_PER_LANE];
#pragma unroll
        for (u32 i = 0; i < KEYS_PER_LANE; i++) {
            u32 key = lane + 32 * i;
            i32 inside = key < a.head_cols;
            keys[i] = inside ? k[key] : 0.0f;
            float query = inside ? q[key] : 0.0f;
            s.m[i] *= decay;
            mk = fmaf(s.m[i], keys[i], mk), mq = fmaf(s.m[i], query, mq), kq = fmaf(keys[i], query, kq);
        }
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) {
            mk += __shfl_xor_sync(0xffffffffu, mk, step);
            mq += __shfl_xor_sync(0xffffffffu, mq, step);
            kq += __shfl_xor_sync(0xffffffffu, kq, step);
        }
        float u = beta * (value - mk);
#pragma unroll
        for (u32 i = 0; i < KEYS_PER_LANE; i++) s.m[i] = fmaf(u, keys[i], s.m[i]);
        if (lane == 0) a.out.data[(u64)row * a.out.stride + head * a.head_cols + column] = fmaf(u, kq, mq);
    }
    if (sequence >= 0) StateRow::move(s, a, sequence, head, column, lane, 1);
}
EXPORT(delta_net)
