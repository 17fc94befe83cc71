//! Weight rows from the file's order to planes (kernels::cuda::layout), and from the CPU's panels to either, for any
//! type: permutations of bytes. The first is used at load, the second when a streamed weight arrives.
//! Next file: `mod.rs`.
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

static constexpr u32 PANEL = 16, MAX_FIELDS = 6;

struct UnpackArgs {
    const u8 *from; // panels of 16 rows (kernels::quant::pack_panels)
    u8 *to;
    u64 to_row_bytes;
    u32 rows;         // of all panels; those of the last panel beyond are not written
    u32 blocks;       // of a row
    u32 chunk_blocks; // of a whole chunk
    u32 block_bytes;
    u32 fields;       // of a block, in the order of the panel
    u32 heads;        // how many of them stand before the others, for all blocks of a chunk
    u32 head_bytes;   // of these in one block
    u32 reserved;
    u32 len[MAX_FIELDS], unit[MAX_FIELDS]; // bytes in a block; bytes that stand side by side
    u32 transposed[MAX_FIELDS];            // 1: 32 bits, bit 8 j + g instead of 4 g + j
    u32 base[MAX_FIELDS], step[MAX_FIELDS]; // where the field of block 0 goes in a row, and from block to block
};

/// Bit 8 j + g to bit 4 g + j.
DEVICE u32 restore_bits(u32 word) {
    u32 out = 0;
#pragma unroll
    for (u32 bit = 0; bit < 32; bit++) out |= ((word >> bit) & 1) << (bit % 8 * 4 + bit / 8);
    return out;
}

/// Writes four bytes to an address of any alignment.
DEVICE void store_unaligned(u8 *to, u32 word) {
    if ((u64)to % 4 == 0) {
        *(u32 *)to = word;
    } else if ((u64)to % 2 == 0) {
        ((u16 *)to)[0] = (u16)word, ((u16 *)to)[1] = (u16)(word >> 16);
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) to[i] = (u8)(word >> (8 * i));
    }
}

/// One unit of one row, or (fields of 16 bytes or more in units of 4) four neighbouring ones.
DEVICE void unpack_units(const u8 *from, u8 *to, u32 unit, u32 count, u32 transposed) {
    if (unit == 1) {
        *to = *from;
    } else if (unit == 2) {
        u16 h = *(const u16 *)from;
        to[0] = (u8)h, to[1] = (u8)(h >> 8);
    } else if (count == 1) {
        u32 word = *(const u32 *)from;
        store_unaligned(to, transposed ? restore_bits(word) : word);
    } else {
        u32 w[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) w[i] = *(const u32 *)(from + 4 * PANEL * i);
        if ((u64)to % 16 == 0) {
            *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; i++) store_unaligned(to + 4 * i, w[i]);
        }
    }
}

/// Grid (panels, chunks or fewer), 128 threads; a thread moves the units of one row.
extern "C" __global__ void BOUNDS(128, 8) unpack_panels(UnpackArgs a) {
    u32 lane = threadIdx.x % PANEL, row = blockIdx.x * PANEL + lane;
    if (row >= a.rows) return;
    u8 *to = a.to + row * a.to_row_bytes;
    const u8 *panel = a.from + (u64)blockIdx.x * PANEL * a.blocks * a.block_bytes;
    for (u32 chunk = blockIdx.y; chunk * a.chunk_blocks < a.blocks; chunk += gridDim.y) {
        u32 first = chunk * a.chunk_blocks, blocks = min(a.chunk_blocks, a.blocks - first), before = 0;
        const u8 *from = panel + (u64)first * a.block_bytes * PANEL;
#pragma unroll
        for (u32 f = 0; f < MAX_FIELDS; f++) {
            if (f >= a.fields) break;
            if (f == a.heads) before = 0;
            u32 len = a.len[f], unit = a.unit[f], count = unit == 4 && len % 16 == 0 ? 4 : 1;
            u32 per = len / (unit * count);
            for (u32 i = threadIdx.x / PANEL; i < blocks * per; i += blockDim.x / PANEL) {
                u32 block = i / per, at = i % per * unit * count;
                u32 start = f < a.heads ? before * blocks + block * len
                                        : a.head_bytes * blocks + block * (a.block_bytes - a.head_bytes) + before;
                u8 *field = to + a.base[f] + (first + block) * a.step[f] + at;
                unpack_units(from + (start + at) * PANEL + lane * unit, field, unit, count, a.transposed[f]);
            }
            before += len;
        }
    }
}
EXPORT(unpack_panels)
