//! Matrix times 2 to 32 vectors on tensor cores, weights decoded in registers: verification batches, short prompts.
//! One module per type and layout. A block's eight warps share 16 rows of weights and divide the columns between them;
//! each lane decodes the units of two rows straight into the fragments of `mma` m16n8k16. The columns of a step are
//! taken in the order in which lanes hold them (lane t of four holds unit t), for weights and activations alike, so
//! nothing is exchanged between lanes. Activations are F16 with a scale per row, or BF16 for types with BRAIN.
//! Fewer tokens: `gemv.cu`; more: `matmul.cu`, which is the next file.
#include "weights.cuh"

typedef WEIGHT<IS_TILED> W;

struct SkinnyPart {
    const u8 *weight;
    const float *bias;
    const float *residual;
    float *out;
    u32 rows;
    u32 out_stride, residual_stride;
    u32 reserved;
};

struct SkinnyArgs {
    SkinnyPart parts[3];
    const u16 *x;           // [tokens, cols]
    const float *row_scale; // [tokens], nullable for BF16
    u64 row_bytes;
    u32 cols, tokens, n_parts;
    u32 x_stride;
};

static constexpr u32 WARPS = 8, ROWS = 16;

/// The same columns of one token's activations.
DEVICE void load_activations(const u16 *x, u32 unit, u32 inside, u32 *h) {
#pragma unroll
    for (int group = 0; group < 2; group++) {
        const u16 *from = x + W::column(unit, group);
        uint4 a = inside ? load16(from) : make_uint4(0, 0, 0, 0);
        uint4 b = inside ? load16(from + 8) : make_uint4(0, 0, 0, 0);
        u32 *to = h + 8 * group;
        to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
    }
}

/// 16 rows times TILES tiles of 8 tokens.
template <u32 TILES>
DEVICE void multiply(float (&sum)[TILES][4], const SkinnyArgs &a, const SkinnyPart &part, u32 first_row) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, units = a.cols / 32;
    const u8 *upper = part.weight + (u64)min(first_row + g, part.rows - 1) * a.row_bytes;
    const u8 *lower = part.weight + (u64)min(first_row + g + 8, part.rows - 1) * a.row_bytes;
#pragma unroll 1
    for (u32 unit = 4 * warp + t; unit - t < units; unit += 4 * WARPS) {
        u32 inside = unit < units, at = inside ? unit : 0; // past the end: unit 0 times zeros
        typename W::Raw raw[2] = {W::load(upper, at, units), W::load(lower, at, units)};
        u32 h0[16], h1[16], x[16];
        if constexpr (TILES == 1) { // one tile's loads go out together with the weights'
            u32 present = inside && g < a.tokens;
            load_activations(a.x + (u64)(present ? g : 0) * a.x_stride, at, present, x);
        }
        pairs<W>(raw[0], h0);
        pairs<W>(raw[1], h1);
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            if (n * 8 >= a.tokens) break;
            u32 token = n * 8 + g, present = inside && token < a.tokens;
            if constexpr (TILES > 1) load_activations(a.x + (u64)(present ? token : 0) * a.x_stride, at, present, x);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 fragment[4] = {h0[2 * i], h1[2 * i], h0[2 * i + 1], h1[2 * i + 1]};
                mma<W>(sum[n], fragment, x + 2 * i);
            }
        }
    }
}

template <u32 TILES> DEVICE void skinny(const SkinnyArgs &a) {
    __shared__ float shares[WARPS][ROWS][8 * TILES + 1];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, block = blockIdx.x, p = 0;
    while (p + 1 < a.n_parts && block >= divide_up(a.parts[p].rows, ROWS)) {
        block -= divide_up(a.parts[p].rows, ROWS);
        p++;
    }
    const SkinnyPart &part = a.parts[p];
    u32 first_row = block * ROWS;
    float sum[TILES][4] = {};
    multiply<TILES>(sum, a, part, first_row);
#pragma unroll
    for (u32 n = 0; n < TILES; n++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) shares[warp][g + i / 2 * 8][n * 8 + 2 * t + i % 2] = sum[n][i];
    __syncthreads();
    for (u32 i = threadIdx.x; i < ROWS * a.tokens; i += blockDim.x) {
        u32 r = i % ROWS, token = i / ROWS, row = first_row + r;
        if (row >= part.rows) continue;
        float total = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) total += shares[w][r][token];
        total *= (a.row_scale ? a.row_scale[token] : 1.0f) * (1.0f / gain<W>());
        if (part.bias) total += part.bias[row];
        if (part.residual) total += part.residual[(u64)token * part.residual_stride + row];
        part.out[(u64)token * part.out_stride + row] = total;
    }
}

/// Grid (blocks of 16 rows of all parts), 256 threads; at most as many tokens as the name says.
extern "C" __global__ void BOUNDS(256, 3) skinny8(SkinnyArgs a) { skinny<1>(a); }
EXPORT(skinny8)
extern "C" __global__ void BOUNDS(256, 2) skinny16(SkinnyArgs a) { skinny<2>(a); }
EXPORT(skinny16)
extern "C" __global__ void BOUNDS(256, 2) skinny32(SkinnyArgs a) { skinny<4>(a); }
EXPORT(skinny32)
