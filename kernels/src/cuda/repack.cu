//! Weight rows from the file's order to planes (kernels::cuda::layout), for any type: a permutation of bytes.
//! Used once at load, or on arrival of a streamed weight. Next file: `mod.rs`.
#include "common.cuh"

struct RepackArgs {
    const u8 *from;
    u8 *to;
    u64 rows, from_row_bytes, to_row_bytes;
    u32 block_bytes, blocks, fields;
    u32 reserved;
    u32 at[4], len[4], plane[4]; // per field: offset and length in a block, offset of its plane in a row
};

/// Byte `i` of field `f` of a row.
DEVICE u32 field_byte(const RepackArgs &a, const u8 *row, u32 f, u32 i) {
    u32 block = i / a.len[f];
    return block < a.blocks ? row[block * a.block_bytes + a.at[f] + i % a.len[f]] : 0;
}

/// Any grid in x; a block takes rows, a thread four bytes at a time.
extern "C" __global__ void BOUNDS(128, 8) repack(RepackArgs a) {
    for (u64 r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const u8 *row = a.from + r * a.from_row_bytes;
        u8 *to = a.to + r * a.to_row_bytes;
#pragma unroll
        for (u32 f = 0; f < 4; f++) {
            if (f >= a.fields) break;
            u32 words = (a.len[f] * a.blocks + 15) / 16 * 4;
            for (u32 w = threadIdx.x; w < words; w += blockDim.x) {
                u32 word = 0;
#pragma unroll
                for (u32 i = 0; i < 4; i++) word |= field_byte(a, row, f, 4 * w + i) << (8 * i);
                *(u32 *)(to + a.plane[f] + 4 * w) = word;
            }
        }
    }
}
EXPORT(repack)
