//! Rows of a table of any weight type as exact floats: token embeddings, and the reference conversion of a matrix.
//! One module per type (macros WEIGHT and IS_TILED), or WEIGHT=F32 for plain floats. Next file: `gemv.cu`.
#include "weights.cuh"

struct EmbedArgs {
    const u8 *table;
    const i32 *ids; // nullable: then row r of the table goes to row r
    float *out;
    u64 row_bytes;
    u32 cols, out_stride;
    float scale;
    u32 rows_in_table; // ids outside give a row of zeros
};

/// Columns first, first + step, ... of a row of floats.
DEVICE void write_floats(const EmbedArgs &a, const u8 *row, float *out, u32 first, u32 step) {
    const float *x = (const float *)row;
    for (u32 col = first; col < a.cols; col += step) out[col] = a.scale * x[col];
}

/// Units first, first + step, ... of a row of type W.
template <class W> DEVICE void write_units(const EmbedArgs &a, const u8 *row, float *out, u32 first, u32 step) {
    u32 units = a.cols / 32;
    for (u32 unit = first; unit < units; unit += step) {
        typename W::Raw raw = W::load(row, unit, units);
        if constexpr (W::EXACT) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                u16 h = (u16)(raw.q[i / 2] >> (16 * (i % 2)));
                out[W::column(unit, 0) + i] = a.scale * (W::BRAIN ? bf16_to_f32(h) : f16_to_f32(h));
            }
        } else {
            Codes c;
            W::expand(raw, c);
#pragma unroll
            for (int i = 0; i < 32; i++) {
                float q = (float)((i32)byte_of(c.q[i / 4], i % 4) - W::ZERO);
                out[W::column(unit, i / 16) + i % 16] = a.scale * (c.scale[i / 16] * q + c.offset[i / 16]);
            }
        }
    }
}

/// Grid (unit blocks, rows).
extern "C" __global__ void BOUNDS(128, 4) embed(EmbedArgs a) {
    u32 row = blockIdx.y, id = a.ids ? (u32)a.ids[row] : row;
    float *out = a.out + (u64)row * a.out_stride;
    u32 first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    if (id >= a.rows_in_table) {
        for (u32 col = first; col < a.cols; col += step) out[col] = 0.0f;
        return;
    }
    const u8 *from = a.table + (u64)id * a.row_bytes;
#ifdef WEIGHT_F32
    write_floats(a, from, out, first, step);
#else
    write_units<WEIGHT<IS_TILED>>(a, from, out, first, step);
#endif
}
EXPORT(embed)
