//! Elementwise kernels and small row movements: sums, gates, caps, column copies, row selection, expert scaling.
//! Grid (column blocks, rows) throughout, 256 threads. Gated units are in `rows.cu`. Next file: `embed.cu`.
#include "activation.cuh"

/// Loops over this thread's columns of one row.
#define FOR_COLUMNS(col, cols) \
    for (u32 col = blockIdx.x * blockDim.x + threadIdx.x; col < (cols); col += gridDim.x * blockDim.x)

DEVICE float *at(View v, u32 row, u32 col) { return v.data + (u64)row * v.stride + col; }

struct AddArgs {
    View a, b, out;
};

/// out = a + b. Grid as for columns in groups of four.
extern "C" __global__ void BOUNDS(256, 4) add(AddArgs g) {
    u32 row = blockIdx.y;
    float *a = at(g.a, row, 0), *b = at(g.b, row, 0), *out = at(g.out, row, 0);
    if (((u64)a | (u64)b | (u64)out | (u64)g.out.cols * 4) % 16 == 0) {
        FOR_COLUMNS(col, g.out.cols / 4) {
            float4 x = ((const float4 *)a)[col], y = ((const float4 *)b)[col];
            ((float4 *)out)[col] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
        }
        return;
    }
    FOR_COLUMNS(col, g.out.cols) out[col] = a[col] + b[col];
}
EXPORT(add)

struct SigmoidGateArgs {
    View x, gate, out;
};

/// out = x * sigmoid(gate); a gate of one column serves all columns.
extern "C" __global__ void BOUNDS(256, 4) sigmoid_gate(SigmoidGateArgs g) {
    u32 row = blockIdx.y;
    FOR_COLUMNS(col, g.out.cols) {
        float gate = *at(g.gate, row, g.gate.cols == 1 ? 0 : col);
        *at(g.out, row, col) = *at(g.x, row, col) / (1.0f + expf(-gate));
    }
}
EXPORT(sigmoid_gate)

struct SoftcapArgs {
    View x, out;
    float cap;
    u32 reserved;
};

/// out = cap * tanh(x / cap).
extern "C" __global__ void BOUNDS(256, 4) softcap(SoftcapArgs g) {
    u32 row = blockIdx.y;
    FOR_COLUMNS(col, g.out.cols) *at(g.out, row, col) = g.cap * tanhf(*at(g.x, row, col) / g.cap);
}
EXPORT(softcap)

struct CopyColsArgs {
    View x, out;
    u32 x_stride, out_stride, width, groups;
};

/// out[g * out_stride + i] = x[g * x_stride + i].
extern "C" __global__ void BOUNDS(256, 4) copy_cols(CopyColsArgs g) {
    u32 row = blockIdx.y;
    FOR_COLUMNS(i, g.width * g.groups) {
        u32 group = i / g.width, col = i % g.width;
        *at(g.out, row, group * g.out_stride + col) = *at(g.x, row, group * g.x_stride + col);
    }
}
EXPORT(copy_cols)

struct SelectRowsArgs {
    View x, out;
    const i32 *rows; // which row of x each row of out is
};

/// out[o] = x[rows[o]].
extern "C" __global__ void BOUNDS(256, 4) select_rows(SelectRowsArgs g) {
    u32 row = blockIdx.y, from = (u32)g.rows[row];
    FOR_COLUMNS(col, g.out.cols) *at(g.out, row, col) = *at(g.x, from, col);
}
EXPORT(select_rows)

struct ExpertScaleArgs {
    View x, weights, out; // weights [rows, chosen], out [rows, chosen * x.cols]
};

/// out[:, j] = weights[j] * x.
extern "C" __global__ void BOUNDS(256, 4) expert_scale(ExpertScaleArgs g) {
    u32 row = blockIdx.y;
    FOR_COLUMNS(i, g.out.cols) {
        u32 j = i / g.x.cols, col = i % g.x.cols;
        *at(g.out, row, i) = *at(g.weights, row, j) * *at(g.x, row, col);
    }
}
EXPORT(expert_scale)

struct ExpertSumArgs {
    View x, weights, out, residual; // weights.data and residual.data nullable
    View ids;                       // i32 [rows, chosen], data nullable: choices of -1 are left out
    u32 chosen;
    u32 reserved;
};

/// out = sum over j of weights[j] * x[:, j] (+ residual), in order of j, over the chosen experts that are held here.
extern "C" __global__ void BOUNDS(256, 4) expert_sum(ExpertSumArgs g) {
    u32 row = blockIdx.y;
    FOR_COLUMNS(col, g.out.cols) {
        float sum = 0.0f;
        for (u32 j = 0; j < g.chosen; j++) {
            if (g.ids.data && ((const i32 *)g.ids.data)[(u64)row * g.ids.stride + j] < 0) continue;
            float weight = g.weights.data ? *at(g.weights, row, j) : 1.0f;
            sum = fmaf(weight, *at(g.x, row, j * g.out.cols + col), sum);
        }
        if (g.residual.data) sum += *at(g.residual, row, col);
        *at(g.out, row, col) = sum;
    }
}
EXPORT(expert_sum)

struct ReduceArgs {
    const float *partials[8]; // each `out.cols` columns, rows `strides` apart
    u32 strides[8];
    View out;
    u32 count;
    u32 reserved;
};

/// out = sum of the partial results, in order.
extern "C" __global__ void BOUNDS(256, 4) reduce(ReduceArgs g) {
    u32 row = blockIdx.y;
    FOR_COLUMNS(col, g.out.cols) {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (i < g.count) sum += g.partials[i][(u64)row * g.strides[i] + col];
        *at(g.out, row, col) = sum;
    }
}
EXPORT(reduce)
