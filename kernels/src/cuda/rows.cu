//! Kernels that produce activation rows: plain conversion, RMS norm with an optional residual sum, gated units.
//! Each writes the F32 row and/or the forms that matrix products read (`activation.cuh`). A row whose scale must be
//! known first is one block's, which keeps its values: everything is read once. Rows without a scale are
//! shared out to several blocks. Q8 needs columns in multiples of 32, F16 and BF16 of 4. Per-head norms are in
//! `heads.cu`. Next file: `heads.cu`.
#include "activation.cuh"

/// Columns of a scaled row that a block keeps; groups of four columns that a thread loads before it waits for one.
static constexpr u32 KEPT_COLS = 20480, AT_ONCE = 4;

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

/// AT_ONCE groups of four columns of a row, `step` columns apart.
struct Loaded {
    float4 v[AT_ONCE];
};

/// Moves every group one place forward: loops over registers that are not unrolled, since small kernels run from cold
/// instruction caches.
DEVICE void shift(Loaded &loaded) {
#pragma unroll
    for (u32 i = 0; i + 1 < AT_ONCE; i++) loaded.v[i] = loaded.v[i + 1];
}

/// All loads are under way before the first is waited for. Ragged rows need no speed, and no code of their own.
DEVICE Loaded load_row(const float *row, u32 first, u32 step, u32 cols) {
    Loaded loaded;
    if ((u64)row % 16 == 0 && cols % 4 == 0) {
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 col = first + i * step;
            loaded.v[i] = col < cols ? *(const float4 *)(row + col) : make_float4(0, 0, 0, 0);
        }
        return loaded;
    }
#pragma unroll 1
    for (u32 i = 0; i < AT_ONCE; i++) {
        shift(loaded);
        loaded.v[AT_ONCE - 1] = read4(row, first + i * step, cols);
    }
    return loaded;
}

/// The largest of each warp's `top` in the block, of at most 32 warps; `tops` is shared memory used once.
DEVICE float largest(float top, float *tops) {
    top = warp_max(top);
    u32 lane = threadIdx.x % 32;
    if (lane == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    return warp_max(lane < blockDim.x / 32 ? tops[lane] : 0.0f);
}

/// Writes a row that this block has alone and that has a scale; the source gives four columns, zeros beyond the last.
/// Up to KEPT_COLS columns wait in dynamic shared memory until the scale is known, the others are computed again.
template <class Source> DEVICE void write_scaled(const Forms &forms, u32 row, u32 cols, Source source) {
    DYNAMIC_SHARED(memory);
    __shared__ float tops[32];
    float4 *kept = (float4 *)memory;
    u32 step = blockDim.x * 4, lane = threadIdx.x % 32;
    float top = 0.0f;
    for (u32 first = threadIdx.x * 4; first < cols; first += AT_ONCE * step) {
        auto loaded = source.load(first, step);
#pragma unroll 1
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 col = first + i * step;
            float4 v = source.next(loaded);
            top = fmaxf(top, max_abs4(v));
            if (col < min(cols, KEPT_COLS)) kept[col / 4] = v;
        }
    }
    float scale = row_scale_of(largest(top, tops)), inverse = 1.0f / scale;
    if (threadIdx.x == 0) forms.row_scale[row] = scale;
    for (u32 base = (threadIdx.x - lane) * 4; base < cols; base += step) {
        u32 col = base + lane * 4;
        float4 v = col < min(cols, KEPT_COLS) ? kept[col / 4] : source.at(col); // as this thread has put it
        write_forms(forms, row, col, cols, v, inverse, col < cols);
    }
}

/// Writes this block's part of a row without a scale.
template <class Source> DEVICE void write_plain(const Forms &forms, u32 row, u32 cols, Source source) {
    u32 step = gridDim.x * blockDim.x * 4, lane = threadIdx.x % 32;
    for (u32 base = (blockIdx.x * blockDim.x + threadIdx.x - lane) * 4; base < cols; base += step) {
        u32 col = base + lane * 4;
        write_forms(forms, row, col, cols, source.at(col), 1.0f, col < cols);
    }
}

/// Where columns come from: a row as it is.
struct PlainRow {
    const float *x;
    u32 cols;

    Loaded load(u32 first, u32 step) const { return load_row(x, first, step, cols); }
    float4 at(u32 col) const { return read4(x, col, cols); }
    float4 next(Loaded &loaded) const {
        float4 v = loaded.v[0];
        shift(loaded);
        return v;
    }
};

/// Grid (column blocks, rows); with a row scale one column block only.
extern "C" __global__ void BOUNDS(512, 3) convert_rows(ConvertArgs a) {
    u32 row = blockIdx.y;
    PlainRow source{a.x.data + (u64)row * a.x.stride, a.x.cols};
    if (a.forms.f16) write_scaled(a.forms, row, a.x.cols, source);
    else write_plain(a.forms, row, a.x.cols, source);
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

/// Columns of the norm's input (x, plus the residual where there is one) and of the weights.
struct NormColumns {
    Loaded input, weight;
};

DEVICE NormColumns load_norm(const NormArgs &a, u32 row, u32 first, u32 step) {
    NormColumns columns;
    columns.input = load_row(a.x.data + (u64)row * a.x.stride, first, step, a.x.cols);
    if (a.weight) columns.weight = load_row(a.weight, first, step, a.x.cols);
    if (a.residual) {
        Loaded residual = load_row(a.residual + (u64)row * a.residual_stride, first, step, a.x.cols);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            float4 &v = columns.input.v[i], r = residual.v[i];
            v.x += r.x, v.y += r.y, v.z += r.z, v.w += r.w;
        }
    }
    if (!a.weight) {
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) columns.weight.v[i] = make_float4(1, 1, 1, 1);
    }
    return columns;
}

/// Grid (parts, rows). y = x / sqrt(mean(x^2) + eps) * weight. With several parts (no row scale, no residual) every
/// block learns the row's sum by itself, and writes the groups of columns that are its own: few rows use more of the
/// chip. A row of more columns than the threads keep is read twice.
extern "C" __global__ void BOUNDS(512, 1) rms_norm(NormArgs a) {
    __shared__ float2 scratch[32];
    u32 row = blockIdx.y, cols = a.x.cols, step = blockDim.x * 4, span = step * AT_ONCE;
    NormColumns columns;
    float squares = 0.0f, top = 0.0f;
    for (u32 base = 0; base < cols; base += span) {
        columns = load_norm(a, row, base + threadIdx.x * 4, step);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            float4 v = columns.input.v[i];
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            top = fmaxf(top, max_abs4(weighted(v, columns.weight.v[i], 1.0f)));
        }
    }
    float2 facts = row_facts(squares, top, scratch);
    float factor = 1.0f / sqrtf(facts.x / (float)cols + a.eps), inverse = 1.0f;
    if (a.forms.f16) {
        float scale = row_scale_of(facts.y * factor);
        inverse = 1.0f / scale;
        if (threadIdx.x == 0) a.forms.row_scale[row] = scale;
    }
#pragma unroll 1
    for (u32 i = 0, base = 0; base < cols; i++, base += step) {
        u32 col = base + threadIdx.x * 4, active = col < cols;
        if (cols > span && i % AT_ONCE == 0) columns = load_norm(a, row, col, step);
        float4 v = columns.input.v[0], w = columns.weight.v[0];
        shift(columns.input), shift(columns.weight);
        if (i % AT_ONCE % gridDim.x != blockIdx.x || col - threadIdx.x % 32 * 4 >= cols) continue; // the warp as one
        if (active && a.residual) write4(a.sum + (u64)row * a.sum_stride, col, cols, v);
        write_forms(a.forms, row, col, cols, weighted(v, w, factor), inverse, active);
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

/// Where columns come from: a gated unit of two rows.
struct GatedRow {
    const GluArgs &a;
    const float *gate, *up;

    struct Pair {
        Loaded gate, up;
    };

    Pair load(u32 first, u32 step) const {
        return Pair{load_row(gate, first, step, a.gate.cols), load_row(up, first, step, a.gate.cols)};
    }
    float4 at(u32 col) const {
        return glu4(a, read4(gate, col, a.gate.cols), read4(up, col, a.gate.cols));
    }
    float4 next(Pair &loaded) const {
        float4 v = glu4(a, loaded.gate.v[0], loaded.up.v[0]);
        shift(loaded.gate), shift(loaded.up);
        return v;
    }
};

/// Grid (column blocks, rows); with a row scale one column block only.
extern "C" __global__ void BOUNDS(512, 2) glu_rows(GluArgs a) {
    u32 row = blockIdx.y;
    GatedRow source{a, a.gate.data + (u64)row * a.gate.stride, a.up + (u64)row * a.up_stride};
    if (a.forms.f16) write_scaled(a.forms, row, a.gate.cols, source);
    else write_plain(a.forms, row, a.gate.cols, source);
}
EXPORT(glu_rows)
