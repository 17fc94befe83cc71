//! What every kernel source includes: integer names, conversions, warp reductions, tensor-core and copy instructions.
//! Written for NVRTC without any header of the toolkit: half-precision arithmetic and tensor cores are PTX. With
//! ATS_EMULATE the same names come from `emulate.h`, so that each kernel also runs as plain C++ (never in a product).
//! Next file: `weights.cuh`.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

#ifdef ATS_EMULATE
#include "emulate.h"
#else
#define DEVICE static __device__ __forceinline__
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]
#define DYNAMIC_TILES(name) extern __shared__ __align__(1024) u8 name[]
#define EXPORT(kernel)
#define BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define INFINITY __int_as_float(0x7f800000)

/// Approximations by the special function unit: relative error near 2^-21, sine and cosine for |x| <= pi.
DEVICE float fast_exp(float x) { return __expf(x); }
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float fast_sin(float x) { return __sinf(x); }
DEVICE float fast_cos(float x) { return __cosf(x); }

// ---- half precision: a u16 holds one number, a u32 two (the lower half first) ----

DEVICE float f16_to_f32(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

DEVICE u16 f32_to_f16(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

DEVICE u32 pack_f16(float lo, float hi) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

DEVICE u32 pack_bf16(float lo, float hi) {
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}

DEVICE u32 f16x2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

DEVICE u32 f16x2_sub(u32 a, u32 b) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

DEVICE u32 f16x2_mul(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

DEVICE u32 bf16x2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// ---- integer dot products and byte shuffles ----

/// sum += four unsigned bytes of q times four signed bytes of x.
DEVICE i32 dot4(u32 q, u32 x, i32 sum) {
    i32 d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(q), "r"(x), "r"(sum));
    return d;
}

/// Four bytes chosen from the eight of (lo, hi) by the low three bits of the selector's nibbles.
DEVICE u32 bytes4(u32 lo, u32 hi, u32 selector) { return __byte_perm(lo, hi, selector); }

/// The 32 bits that start `bits` (0..31) above the lowest bit of hi:lo.
DEVICE u32 funnel(u32 lo, u32 hi, u32 bits) { return __funnelshift_r(lo, hi, bits); }

// ---- tensor cores ----

/// c += a·b for a 16x16 (row) and b 16x8 (column), F16 in, F32 accumulated.
DEVICE void mma_f16(float *c, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// The same with BF16 inputs.
DEVICE void mma_bf16(float *c, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

/// Four 8x8 matrices of 16-bit elements; lane i names row i % 8 of matrix i / 8.
DEVICE void ldmatrix4(u32 *d, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/// The same, each matrix transposed.
DEVICE void ldmatrix4_trans(u32 *d, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// ---- asynchronous copies to shared memory ----

/// 16 bytes, both ends 16-byte aligned; zeros are written where `valid` is 0 (then nothing is read).
DEVICE void copy16_async(void *shared, const void *global, i32 valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

/// 16 bytes, or nothing at all, without a branch.
DEVICE void copy16_async_if(u32 wanted, void *shared, const void *global) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(wanted)
                 : "memory");
}

DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most N of this thread's committed groups are unfinished.
template <int N> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---- memory ----

/// Weights are read once per round: they should not push activations out of the L1 cache.
DEVICE uint4 load_once16(const void *p) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

DEVICE uint2 load_once8(const void *p) {
    uint2 v;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

/// Read by several lanes or twice by one: kept in L1.
DEVICE u32 load4(const void *p) { return __ldg((const u32 *)p); }
DEVICE uint4 load16(const void *p) { return __ldg((const uint4 *)p); }
DEVICE uint2 load8(const void *p) { return __ldg((const uint2 *)p); }
DEVICE u16 load2(const void *p) { return __ldg((const u16 *)p); }
DEVICE u8 load1(const void *p) { return __ldg((const u8 *)p); }

/// Flags live in memory that the CPU and other devices see.
DEVICE u32 load_flag(const u32 *flag) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
    return v;
}

DEVICE void store_flag(u32 *flag, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

DEVICE void pause_ns(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }
#endif

DEVICE float bf16_to_f32(u16 h) { return __uint_as_float((u32)h << 16); }

DEVICE u16 f32_to_bf16(float f) { return (u16)pack_bf16(f, 0.0f); }

/// Bytes of one word, as numbers.
DEVICE u32 byte_of(u32 word, u32 index) { return (word >> (8 * index)) & 0xff; }

// ---- reductions over a warp; every lane gets the result, all lanes take part ----

DEVICE float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

DEVICE float warp_max(float v) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

/// Sum over a block of at most 1024 threads (a multiple of 32); `scratch` is 32 floats of shared memory, free again
/// after the return. Every thread gets the result, and the order of the sum is fixed.
DEVICE float block_sum(float v, float *scratch) {
    v = warp_sum(v);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    float total = warp_sum(lane < warps ? scratch[lane] : 0.0f);
    __syncthreads();
    return total;
}

DEVICE float block_max(float v, float *scratch) {
    v = warp_max(v);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    float total = warp_max(lane < warps ? scratch[lane] : -INFINITY);
    __syncthreads();
    return total;
}

DEVICE u32 divide_up(u32 a, u32 b) { return (a + b - 1) / b; }
