//! Kernels that produce activation rows: plain conversion, RMS norm with an optional residual sum, gated units.
//! Each writes the F32 row and/or the forms that matrix products read (`activation.cuh`). A row whose scale must be
//! known first is one block's, which keeps its values: everything is read once. Rows without a scale are
//! shared out to several blocks. Q8 needs columns in multiples of 32, F16 and BF16 of 4. Per-head norms are in
//! `heads.cu`. Next file: `heads.cu`.
#include "activation.cuh"

/// Columns of a scaled row that a block keeps; groups of four columns that a thread loads before it waits for one, and
/// that it keeps of a row to be normalised.
static constexpr u32 KEPT_COLS = 20480, AT_ONCE = 4, NORM_KEPT = 4;

struct ConvertArgs {
    View x;
    Forms forms;
};

/// Whether a row can be read by fours.
DEVICE u32 is_whole(const float *row, u32 cols) { return (u64)row % 16 == 0 && cols % 4 == 0; }

/// Four columns of a whole row, zeros from `cols` on.
DEVICE float4 read_whole(const float *row, u32 col, u32 cols) {
    return col < cols ? *(const float4 *)(row + col) : make_float4(0, 0, 0, 0);
}

/// Four columns, zeros from `cols` on.
DEVICE float4 read4(const float *row, u32 col, u32 cols) {
    if (col + 3 < cols && (u64)(row + col) % 16 == 0) return *(const float4 *)(row + col);
    float4 v = make_float4(0, 0, 0, 0);
    if (col < cols) v.x = row[col];
    if (col + 1 < cols) v.y = row[col + 1];
    if (col + 2 < cols) v.z = row[col + 2];
    if (col + 3 < cols) v.w = row[col + 3];
    return v;
}

/// The largest of each warp's `top` in the block, of at most 32 warps; `tops` is shared memory used once.
DEVICE float largest(float top, float *tops) {
    top = warp_max(top);
    u32 lane = threadIdx.x % 32;
    if (lane == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    return warp_max(lane < blockDim.x / 32 ? tops[lane] : 0.0f);
}

/// Writes a row that this block has alone and that has a scale; `value(col)` gives four columns, zeros beyond the last.
/// Up to KEPT_COLS columns wait in dynamic shared memory until the scale is known, the others are computed again.
template <class Value> DEVICE void write_scaled(const Forms &forms, u32 row, u32 cols, Value value) {
    DYNAMIC_SHARED(memory);
    __shared__ float tops[32];
    float4 *kept = (float4 *)memory;
    u32 step = blockDim.x * 4, lane = threadIdx.x % 32;
    float top = 0.0f;
    for (u32 first = threadIdx.x * 4; first < cols; first += AT_ONCE * step) {
        float4 v[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) v[i] = value(first + i * step);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 col = first + i * step;
            top = fmaxf(top, max_abs4(v[i]));
            if (col < min(cols, KEPT_COLS)) kept[col / 4] = v[i];
        }
    }
    float scale = row_scale_of(largest(top, tops)), inverse = 1.0f / scale;
    if (threadIdx.x == 0) forms.row_scale[row] = scale;
    for (u32 base = (threadIdx.x - lane) * 4; base < cols; base += step) {
        u32 col = base + lane * 4;
        float4 v = col < min(cols, KEPT_COLS) ? kept[col / 4] : value(col); // what this thread has put there
        write_forms(forms, row, col, cols, v, inverse, col < cols);
    }
}

/// Writes this block's part of a row without a scale.
template <class Value> DEVICE void write_plain(const Forms &forms, u32 row, u32 cols, Value value) {
    u32 step = gridDim.x * blockDim.x * 4, lane = threadIdx.x % 32;
    for (u32 base = (blockIdx.x * blockDim.x + threadIdx.x - lane) * 4; base < cols; base += step) {
        u32 col = base + lane * 4;
        write_forms(forms, row, col, cols, value(col), 1.0f, col < cols);
    }
}

/// Grid (column blocks, rows); with a row scale one column block only.
extern "C" __global__ void BOUNDS(512, 3) convert_rows(ConvertArgs a) {
    u32 row = blockIdx.y, cols = a.x.cols;
    const float *x = a.x.data + (u64)row * a.x.stride;
    auto whole = [&](u32 col) { return read_whole(x, col, cols); };
    auto ragged = [&](u32 col) { return read4(x, col, cols); };
    if (!a.forms.f16) write_plain(a.forms, row, cols, ragged);
    else if (is_whole(x, cols)) write_scaled(a.forms, row, cols, whole);
    else write_scaled(a.forms, row, cols, ragged);
}
EXPORT(convert_rows)

struct NormArgs {
    View x;
    const float *residual; // nullable: x + residual is normalised, and written to `sum`
    float *sum;            // nullable only when `residual` is
    const float *weight;   // nullable
    Forms forms;
    u32 residual_stride, sum_stride;
    float eps;
    u32 reserved;
};

/// The input of the norm: x, plus the residual where there is one.
DEVICE float4 norm_input(const NormArgs &a, u32 row, u32 col) {
    float4 v = read4(a.x.data + (u64)row * a.x.stride, col, a.x.cols);
    if (a.residual) {
        float4 r = read4(a.residual + (u64)row * a.residual_stride, col, a.x.cols);
        v.x += r.x, v.y += r.y, v.z += r.z, v.w += r.w;
    }
    return v;
}

DEVICE float4 norm_weight(const NormArgs &a, u32 col) {
    return a.weight ? read4(a.weight, col, a.x.cols) : make_float4(1, 1, 1, 1);
}

DEVICE float4 weighted(float4 v, float4 w, float factor) {
    return make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w);
}

/// What a row needs to know of itself: its sum of squares and its largest weighted magnitude, for the whole block.
DEVICE float2 row_facts(float squares, float top, float2 *scratch) {
    squares = warp_sum(squares), top = warp_max(top);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (lane == 0) scratch[warp] = make_float2(squares, top);
    __syncthreads();
    float2 own = lane < warps ? scratch[lane] : make_float2(0.0f, 0.0f);
    return make_float2(warp_sum(own.x), warp_max(own.y));
}

/// Grid (parts, rows). y = x / sqrt(mean(x^2) + eps) * weight. With several parts (no row scale, no residual) every
/// block learns the row's sum by itself, and writes the groups of columns that are its own: few rows use more of the
/// chip.
extern "C" __global__ void BOUNDS(1024, 1) rms_norm(NormArgs a) {
    __shared__ float2 scratch[32];
    u32 row = blockIdx.y, cols = a.x.cols, step = blockDim.x * 4, span = step * NORM_KEPT;
    float4 kept[NORM_KEPT], weight[NORM_KEPT];
    float squares = 0.0f, top = 0.0f;
    for (u32 base = 0; base < cols; base += span) {
#pragma unroll
        for (u32 i = 0; i < NORM_KEPT; i++) kept[i] = norm_input(a, row, base + i * step + threadIdx.x * 4);
#pragma unroll
        for (u32 i = 0; i < NORM_KEPT; i++)
            if (i % gridDim.x == blockIdx.x) weight[i] = norm_weight(a, base + i * step + threadIdx.x * 4);
#pragma unroll
        for (u32 i = 0; i < NORM_KEPT; i++) {
            float4 v = kept[i];
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            if (a.forms.f16) top = fmaxf(top, max_abs4(weighted(v, weight[i], 1.0f)));
        }
    }
    float2 facts = row_facts(squares, top, scratch);
    float factor = 1.0f / sqrtf(facts.x / (float)cols + a.eps), inverse = 1.0f;
    if (a.forms.f16) {
        float scale = row_scale_of(facts.y * factor);
        inverse = 1.0f / scale;
        if (threadIdx.x == 0) a.forms.row_scale[row] = scale;
    }
    for (u32 base = 0; base < cols; base += span) {
#pragma unroll
        for (u32 i = 0; i < NORM_KEPT; i++) {
            u32 col = base + i * step + threadIdx.x * 4, active = col < cols;
            if (i % gridDim.x != blockIdx.x || col - threadIdx.x % 32 * 4 >= cols) continue; // as the whole warp does
            float4 v = cols <= span ? kept[i] : norm_input(a, row, col);
            float4 w = cols <= span ? weight[i] : norm_weight(a, col);
            if (active && a.residual) write4(a.sum + (u64)row * a.sum_stride, col, cols, v);
            write_forms(a.forms, row, col, cols, weighted(v, w, factor), inverse, active);
        }
    }
}
EXPORT(rms_norm)

struct GluArgs {
    View gate;
    const float *up;
    Forms forms;
    u32 up_stride;
    u32 activation; // 0 silu, 1 gelu (tanh), 2 clamped swish
    float alpha, limit;
};

DEVICE float glu(const GluArgs &a, float gate, float up) {
    if (a.activation == 0) return gate / (1.0f + expf(-gate)) * up;
    if (a.activation == 1) {
        float inner = 0.79788456080286535588f * gate * (1.0f + 0.044715f * gate * gate);
        return gate / (1.0f + expf(-2.0f * inner)) * up; // (1 + tanh z) / 2 without the cancellation
    }
    float g = fminf(gate, a.limit), u = fmaxf(-a.limit, fminf(up, a.limit));
    return g / (1.0f + expf(-a.alpha * g)) * (u + 1.0f);
}

DEVICE float4 glu4(const GluArgs &a, float4 g, float4 u) {
    return make_float4(glu(a, g.x, u.x), glu(a, g.y, u.y), glu(a, g.z, u.z), glu(a, g.w, u.w));
}

/// Grid (column blocks, rows); with a row scale one column block only.
extern "C" __global__ void BOUNDS(512, 3) glu_rows(GluArgs a) {
    u32 row = blockIdx.y, cols = a.gate.cols;
    const float *gate = a.gate.data + (u64)row * a.gate.stride, *up = a.up + (u64)row * a.up_stride;
    auto whole = [&](u32 col) { return glu4(a, read_whole(gate, col, cols), read_whole(up, col, cols)); };
    auto ragged = [&](u32 col) { return glu4(a, read4(gate, col, cols), read4(up, col, cols)); };
    if (!a.forms.f16) write_plain(a.forms, row, cols, ragged);
    else if (is_whole(gate, cols) && is_whole(up, cols)) write_scaled(a.forms, row, cols, whole);
    else write_scaled(a.forms, row, cols, ragged);
}
EXPORT(glu_rows)
