//! Kernels that produce activation rows: plain conversion, RMS norm with an optional residual sum, gated units.
//! Each writes the F32 row and/or the forms that matrix products read (`activation.cuh`). One block per row, or, when
//! no row scale is wanted, several blocks per row. Q8 needs columns in multiples of 32, F16 and BF16 of 4. Per-head
//! norms are in `heads.cu`. Next file: `heads.cu`.
#include "activation.cuh"

struct ConvertArgs {
    View x;
    Forms forms;
};

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

/// Grid (column blocks, rows); with a row scale one column block only.
extern "C" __global__ void BOUNDS(256, 4) convert_rows(ConvertArgs a) {
    __shared__ float scratch[32];
    u32 row = blockIdx.y;
    const float *x = a.x.data + (u64)row * a.x.stride;
    u32 step = gridDim.x * blockDim.x * 4, first = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    float inverse = 1.0f;
    if (a.forms.f16) {
        float top = 0.0f;
        for (u32 col = first; col < a.x.cols; col += step) top = fmaxf(top, max_abs4(read4(x, col, a.x.cols)));
        float scale = row_scale_of(block_max(top, scratch));
        inverse = 1.0f / scale;
        if (threadIdx.x == 0) a.forms.row_scale[row] = scale;
    }
    u32 base = (blockIdx.x * blockDim.x + threadIdx.x / 32 * 32) * 4, lane = threadIdx.x % 32;
    for (; base < a.x.cols; base += step) {
        u32 col = base + lane * 4;
        i32 active = col < a.x.cols;
        write_forms(a.forms, row, col, a.x.cols, read4(x, col, a.x.cols), inverse, active);
    }
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

DEVICE float4 weighted(const NormArgs &a, float4 v, u32 col, float factor) {
    float4 w = a.weight ? read4(a.weight, col, a.x.cols) : make_float4(1, 1, 1, 1);
    return make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w);
}

/// Grid (1, rows). y = x / sqrt(mean(x^2) + eps) * weight.
extern "C" __global__ void BOUNDS(1024, 1) rms_norm(NormArgs a) {
    __shared__ float scratch[32];
    u32 row = blockIdx.y, step = blockDim.x * 4;
    float squares = 0.0f, top = 0.0f;
    for (u32 col = threadIdx.x * 4; col < a.x.cols; col += step) {
        float4 v = norm_input(a, row, col);
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        if (a.forms.f16) top = fmaxf(top, max_abs4(weighted(a, v, col, 1.0f)));
    }
    float mean = block_sum(squares, scratch) / (float)a.x.cols;
    float factor = 1.0f / sqrtf(mean + a.eps), inverse = 1.0f;
    if (a.forms.f16) {
        float scale = row_scale_of(block_max(top, scratch) * factor);
        inverse = 1.0f / scale;
        if (threadIdx.x == 0) a.forms.row_scale[row] = scale;
    }
    u32 lane = threadIdx.x % 32;
    for (u32 base = threadIdx.x / 32 * 128; base < a.x.cols; base += step) {
        u32 col = base + lane * 4;
        i32 active = col < a.x.cols;
        float4 v = norm_input(a, row, col);
        if (active && a.residual) {
            write4(a.sum + (u64)row * a.sum_stride, col, a.x.cols, v);
        }
        write_forms(a.forms, row, col, a.x.cols, weighted(a, v, col, factor), inverse, active);
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

DEVICE float4 glu4(const GluArgs &a, u32 row, u32 col) {
    float4 g = read4(a.gate.data + (u64)row * a.gate.stride, col, a.gate.cols);
    float4 u = read4(a.up + (u64)row * a.up_stride, col, a.gate.cols);
    return make_float4(glu(a, g.x, u.x), glu(a, g.y, u.y), glu(a, g.z, u.z), glu(a, g.w, u.w));
}

/// Grid (column blocks, rows); with a row scale one column block only.
extern "C" __global__ void BOUNDS(256, 4) glu_rows(GluArgs a) {
    __shared__ float scratch[32];
    u32 row = blockIdx.y, step = gridDim.x * blockDim.x * 4;
    float inverse = 1.0f;
    if (a.forms.f16) {
        float top = 0.0f;
        for (u32 col = (blockIdx.x * blockDim.x + threadIdx.x) * 4; col < a.gate.cols; col += step)
            top = fmaxf(top, max_abs4(glu4(a, row, col)));
        float scale = row_scale_of(block_max(top, scratch));
        inverse = 1.0f / scale;
        if (threadIdx.x == 0) a.forms.row_scale[row] = scale;
    }
    u32 base = (blockIdx.x * blockDim.x + threadIdx.x / 32 * 32) * 4, lane = threadIdx.x % 32;
    for (; base < a.gate.cols; base += step) {
        u32 col = base + lane * 4;
        i32 active = col < a.gate.cols;
        float4 v = glu4(a, row, col);
        write_forms(a.forms, row, col, a.gate.cols, v, inverse, active);
    }
}
EXPORT(glu_rows)
