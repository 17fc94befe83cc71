//! CUDA on the CPU for tests: the names of `common.cuh` and the built-in names of a kernel as plain C++.
//! Each thread of a block is a fibre; a barrier or a warp collective switches to the next one, so data races between
//! barriers show as wrong results when the order of the fibres is reversed (`ORDER`). Copies announced by
//! `copy16_async` happen only at the wait, so a missing wait shows too. Dynamic shared memory starts as NaNs. It is
//! compiled by `kernels/tests/cuda_emulated.rs` with the system's C++ compiler, x86-64 only, and is part of no product.
//! Next file: `common.cuh`.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

struct uint2 { u32 x, y; };
struct uint3 { u32 x, y, z; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct int2 { i32 x, y; };
struct alignas(16) int4 { i32 x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static inline int2 make_int2(i32 x, i32 y) { return {x, y}; }

#define DEVICE static inline
#define __device__
#define __global__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__
#define BOUNDS(threads, blocks)
#define DYNAMIC_SHARED(name) u8 *name = emu::shared_start()
#define DYNAMIC_TILES(name) u8 *name = emu::shared_start()

namespace emu {

struct Copy { void *to; const void *from; bool valid; };

/// An asynchronous product that runs: its operands, and what they held when it started.
struct Running { u64 a, b; u32 rows_b; u64 seen; };

struct Fibre {
    void *stack_pointer = nullptr;
    uint3 thread{};
    bool finished = false;
    std::vector<std::vector<Copy>> groups; // committed
    std::vector<Copy> open;
    std::vector<std::vector<Running>> product_groups; // committed
    std::vector<Running> products;
};

struct Barrier { u32 arrived = 0, generation = 0, members = 0; };

static std::vector<Fibre> fibres;
static std::vector<u8> stacks;
static std::vector<u8> shared;
static void *scheduler_stack_pointer;
static u32 current;
static bool progress;
static uint3 block, grid, size;
static Barrier block_barrier;
static std::vector<Barrier> warp_barriers;
static u32 exchange[32][32][8]; // [warp][lane][word]
static void (*body)(void **);
static void **arguments;
static constexpr size_t STACK = 128 * 1024;

// Saves the callee-saved registers and the stack pointer, and continues on the other stack.
__attribute__((naked, noinline)) static void switch_stack(void ** /*save*/, void * /*load*/) {
    asm volatile("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
                 "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
                 "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

static u8 *shared_start() { return (u8 *)(((uintptr_t)shared.data() + 1023) & ~(uintptr_t)1023); }

static void fail(const char *what) {
    fprintf(stderr, "emulated kernel, block (%u,%u,%u) thread %u: %s\n", block.x, block.y, block.z, current, what);
    abort();
}

static void yield() { switch_stack(&fibres[current].stack_pointer, scheduler_stack_pointer); }

static void release_if_full(Barrier &barrier) {
    if (barrier.members > 0 && barrier.arrived == barrier.members) {
        barrier.arrived = 0;
        barrier.generation++;
        progress = true;
    }
}

static void wait(Barrier &barrier) {
    u32 generation = barrier.generation;
    barrier.arrived++;
    release_if_full(barrier);
    while (barrier.generation == generation) yield();
}

static u32 warp() { return current / 32; }
static u32 lane() { return current % 32; }

static void warp_wait() {
    if (warp_barriers[warp()].members != 32) fail("warp collective after a lane has returned");
    wait(warp_barriers[warp()]);
}

static void fibre_main() {
    body(arguments);
    fibres[current].finished = true;
    progress = true;
    block_barrier.members--;
    release_if_full(block_barrier);
    Barrier &own = warp_barriers[warp()];
    own.members--;
    release_if_full(own);
    for (;;) yield();
}

static void start_fibre(u32 index) {
    Fibre &fibre = fibres[index];
    fibre = Fibre{};
    fibre.thread = {index % size.x, index / size.x % size.y, index / (size.x * size.y)};
    u8 *top = stacks.data() + (index + 1) * STACK;
    void **frame = (void **)((uintptr_t)top & ~(uintptr_t)63);
    *--frame = nullptr; // keeps the stack aligned as after a call
    *--frame = (void *)fibre_main;
    for (int i = 0; i < 6; i++) *--frame = nullptr;
    fibre.stack_pointer = frame;
}

static void run_block(bool reverse) {
    u32 threads = size.x * size.y * size.z;
    fibres.resize(threads);
    stacks.resize(threads * STACK + 64);
    block_barrier = Barrier{0, 0, threads};
    warp_barriers.assign((threads + 31) / 32, Barrier{0, 0, 0});
    for (u32 i = 0; i < threads; i++) warp_barriers[i / 32].members++;
    memset(shared.data(), 0xff, shared.size());
    for (u32 i = 0; i < threads; i++) start_fibre(i);
    for (bool alive = true; alive;) {
        alive = progress = false;
        for (u32 i = 0; i < threads; i++) {
            current = reverse ? threads - 1 - i : i;
            if (fibres[current].finished) continue;
            switch_stack(&scheduler_stack_pointer, fibres[current].stack_pointer);
            alive |= !fibres[current].finished;
        }
        if (alive && !progress) fail("deadlock: every thread waits");
    }
}

static void launch(const u32 *dims, u32 shared_bytes, u32 order, void (*kernel)(void **), void **args) {
    grid = {dims[0], dims[1], dims[2]};
    size = {dims[3], dims[4], dims[5]};
    shared.assign(shared_bytes + 1024 + 128, 0xff);
    body = kernel;
    arguments = args;
    u64 blocks = (u64)grid.x * grid.y * grid.z;
    for (u64 i = 0; i < blocks; i++) {
        u64 b = order ? blocks - 1 - i : i;
        block = {(u32)(b % grid.x), (u32)(b / grid.x % grid.y), (u32)(b / ((u64)grid.x * grid.y))};
        run_block(order != 0);
    }
}

template <class... A, size_t... I> static void apply(void (*f)(A...), void **args, std::index_sequence<I...>) {
    f(*(std::remove_reference_t<A> *)args[I]...);
}
template <class... A> static void call(void (*f)(A...), void **args) {
    apply(f, args, std::index_sequence_for<A...>{});
}

static void *swap_words(const void *own, u32 bytes) { // returns this warp's exchange area
    memcpy(exchange[warp()][lane()], own, bytes);
    warp_wait();
    return exchange[warp()];
}

// Conversion without the compiler's library call, which dominated the tests' time.
struct HalfTable {
    float values[65536];
    HalfTable() {
        for (u32 bits = 0; bits < 65536; bits++) {
            u16 b = (u16)bits;
            _Float16 h;
            memcpy(&h, &b, 2);
            values[bits] = (float)h;
        }
    }
};
static const HalfTable halves;

static float half_of(u32 word, u32 index, bool brain) {
    u16 bits = (u16)(word >> (16 * index));
    if (!brain) return halves.values[bits];
    u32 wide = (u32)bits << 16;
    float f;
    memcpy(&f, &wide, 4);
    return f;
}

static void mma(float *c, const u32 *a, const u32 *b, bool brain) {
    u32 own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    auto words = (u32(*)[8])swap_words(own, sizeof own);
    u32 g = lane() / 4, t = lane() % 4;
    for (u32 i = 0; i < 4; i++) {
        u32 row = g + 8 * (i / 2), col = 2 * t + i % 2;
        float sum = c[i];
        for (u32 k = 0; k < 16; k++) {
            float av = half_of(words[row % 8 * 4 + k % 8 / 2][k / 8 * 2 + row / 8], k % 2, brain);
            float bv = half_of(words[col * 4 + k % 8 / 2][4 + k / 8], k % 2, brain);
            sum += av * bv;
        }
        c[i] = sum;
    }
    warp_wait();
}

static void ldmatrix(u32 *d, const void *row, bool transposed) {
    auto words = (u32(*)[8])swap_words(&row, sizeof row);
    for (u32 m = 0; m < 4; m++) {
        u16 pair[2];
        for (u32 j = 0; j < 2; j++) {
            u32 r = transposed ? lane() % 4 * 2 + j : lane() / 4, c = transposed ? lane() / 4 : lane() % 4 * 2 + j;
            const u16 *source;
            memcpy(&source, words[m * 8 + r], sizeof source);
            pair[j] = source[c];
        }
        memcpy(&d[m], pair, 4);
    }
    warp_wait();
}

// The two bytes at `column` of `row` of an operand (wgmma.cuh); the swap acts on the address.
static u16 operand_element(u64 operand, u32 row, u32 column) {
    u32 rows_apart = (u32)(operand >> 32 & 0x3fff) << 4, at = (u32)(operand & 0x3fff) << 4;
    at += row / 8 * rows_apart + row % 8 * 128 + 2 * column;
    u16 element;
    memcpy(&element, shared_start() + (at ^ (at >> 3 & 0x70)), 2);
    return element;
}

static u64 digest(const Running &product) {
    u64 sum = 0;
    for (u32 row = 0; row < 64; row++)
        for (u32 column = 0; column < 16; column++) sum = sum * 31 + operand_element(product.a, row, column);
    for (u32 row = 0; row < product.rows_b; row++)
        for (u32 column = 0; column < 16; column++) sum = sum * 31 + operand_element(product.b, row, column);
    return sum;
}

// Computed at once; one lane of each warp sees to it that the operands stay as they are until the wait.
template <u32 N> static void multiply_tiles(float (&d)[N], u64 a, u64 b, bool brain) {
    if (a >> 62 != 1 || b >> 62 != 1) fail("operands of another form");
    u32 g = lane() / 4, t = lane() % 4, w = warp() % 4;
    for (u32 i = 0; i < 2; i++) {
        float row[16];
        for (u32 k = 0; k < 16; k++) row[k] = half_of(operand_element(a, 16 * w + g + 8 * i, k), 0, brain);
        for (u32 n = 0; n < N / 4; n++)
            for (u32 j = 0; j < 2; j++)
                for (u32 k = 0; k < 16; k++)
                    d[4 * n + 2 * i + j] += row[k] * half_of(operand_element(b, 8 * n + 2 * t + j, k), 0, brain);
    }
    Running product{a, b, 2 * N, 0};
    if (lane() == 0) product.seen = digest(product);
    fibres[current].products.push_back(product);
}

static void commit_products() {
    Fibre &fibre = fibres[current];
    fibre.product_groups.push_back(std::move(fibre.products));
    fibre.products.clear();
}

static void wait_products(size_t most) {
    auto &groups = fibres[current].product_groups;
    for (; groups.size() > most; groups.erase(groups.begin()))
        for (const Running &product : groups.front())
            if (lane() == 0 && digest(product) != product.seen) fail("an operand changed before the wait");
}

} // namespace emu

#define EXPORT(kernel)                                                                                                \
    extern "C" void emulate_##kernel(const u32 *dims, u32 shared_bytes, u32 order, void **args) {                     \
        emu::launch(dims, shared_bytes, order, [](void **a) { emu::call(kernel, a); }, args);                         \
    }

#define threadIdx (emu::fibres[emu::current].thread)
#define blockIdx (emu::block)
#define gridDim (emu::grid)
#define blockDim (emu::size)

static inline void __syncthreads() { emu::wait(emu::block_barrier); }
static inline void __syncwarp(u32 = 0xffffffffu) { emu::warp_wait(); }
static inline void __threadfence() {}
static inline void __threadfence_system() {}

template <class T> static inline T __shfl_sync(u32, T value, int source) {
    auto words = (u32(*)[8])emu::swap_words(&value, sizeof(T));
    T result;
    memcpy(&result, words[source & 31], sizeof(T));
    emu::warp_wait();
    return result;
}
template <class T> static inline T __shfl_xor_sync(u32 mask, T value, int step) {
    return __shfl_sync(mask, value, (int)(emu::lane() ^ (u32)step));
}
static inline u32 __ballot_sync(u32, int predicate) {
    u32 own = predicate != 0;
    auto words = (u32(*)[8])emu::swap_words(&own, 4);
    u32 result = 0;
    for (u32 i = 0; i < 32; i++) result |= words[i][0] << i;
    emu::warp_wait();
    return result;
}
static inline int __popc(u32 word) { return __builtin_popcount(word); }
static inline int __any_sync(u32 mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(u32 mask, int predicate) { return __ballot_sync(mask, predicate) == 0xffffffffu; }

template <class T> static inline T atomicAdd(T *p, T v) { T old = *p; *p += v; return old; }
static inline u32 atomicInc(u32 *p, u32 limit) { u32 old = *p; *p = old >= limit ? 0 : old + 1; return old; }

static inline u32 __float_as_uint(float f) { u32 u; memcpy(&u, &f, 4); return u; }
static inline float __uint_as_float(u32 u) { float f; memcpy(&f, &u, 4); return f; }
static inline i32 __float_as_int(float f) { i32 u; memcpy(&u, &f, 4); return u; }
static inline float __int_as_float(i32 u) { float f; memcpy(&f, &u, 4); return f; }
static inline float fast_exp(float x) { return expf(x); }
static inline float fast_exp2(float x) { return exp2f(x); }
static inline float fast_sin(float x) { return sinf(x); }
static inline float fast_cos(float x) { return cosf(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float cospif(float x) { return (float)cos(3.14159265358979323846 * x); }
static inline float sinpif(float x) { return (float)sin(3.14159265358979323846 * x); }
static inline i32 __float2int_rn(float x) { return (i32)lrintf(x); }
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }

DEVICE float f16_to_f32(u16 h) { return emu::half_of(h, 0, false); }
DEVICE u16 f32_to_f16(float f) { _Float16 h = (_Float16)f; u16 u; memcpy(&u, &h, 2); return u; }
DEVICE u32 pack_f16(float lo, float hi) { return f32_to_f16(lo) | (u32)f32_to_f16(hi) << 16; }
DEVICE u32 emulated_bf16(float f) {
    u32 u = __float_as_uint(f);
    if (f != f) return 0x7fff;
    return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
DEVICE u32 pack_bf16(float lo, float hi) { return emulated_bf16(lo) | emulated_bf16(hi) << 16; }
DEVICE u32 f16x2_fma(u32 a, u32 b, u32 c) {
    float r[2];
    for (u32 i = 0; i < 2; i++)
        r[i] = emu::half_of(a, i, false) * emu::half_of(b, i, false) + emu::half_of(c, i, false);
    return pack_f16(r[0], r[1]);
}
DEVICE u32 f16x2_sub(u32 a, u32 b) {
    return pack_f16(emu::half_of(a, 0, false) - emu::half_of(b, 0, false),
                    emu::half_of(a, 1, false) - emu::half_of(b, 1, false));
}
DEVICE u32 f16x2_mul(u32 a, u32 b) {
    return pack_f16(emu::half_of(a, 0, false) * emu::half_of(b, 0, false),
                    emu::half_of(a, 1, false) * emu::half_of(b, 1, false));
}
DEVICE u32 bf16x2_fma(u32 a, u32 b, u32 c) {
    float r[2];
    for (u32 i = 0; i < 2; i++)
        r[i] = emu::half_of(a, i, true) * emu::half_of(b, i, true) + emu::half_of(c, i, true);
    return pack_bf16(r[0], r[1]);
}
DEVICE i32 dot4(u32 q, u32 x, i32 sum) {
    for (u32 i = 0; i < 4; i++) sum += (i32)(u8)(q >> (8 * i)) * (i32)(i8)(x >> (8 * i));
    return sum;
}
DEVICE u32 bytes4(u32 lo, u32 hi, u32 selector) {
    u64 all = (u64)hi << 32 | lo;
    u32 result = 0;
    for (u32 i = 0; i < 4; i++) {
        u32 pick = selector >> (4 * i) & 0xf;
        u32 byte = (u32)(all >> (8 * (pick & 7))) & 0xff;
        if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << (8 * i);
    }
    return result;
}
DEVICE u32 funnel(u32 lo, u32 hi, u32 bits) { return (u32)((((u64)hi << 32) | lo) >> (bits & 31)); }
DEVICE void mma_f16(float *c, const u32 *a, const u32 *b) { emu::mma(c, a, b, false); }
DEVICE void mma_bf16(float *c, const u32 *a, const u32 *b) { emu::mma(c, a, b, true); }
DEVICE void ldmatrix4(u32 *d, const void *row) { emu::ldmatrix(d, row, false); }
DEVICE void ldmatrix4_trans(u32 *d, const void *row) { emu::ldmatrix(d, row, true); }

DEVICE u64 operand_at(const void *tile) {
    u64 at = (u64)((const u8 *)tile - emu::shared_start());
    if (at % 1024 != 0) emu::fail("a tile that starts inside a group of 8 rows");
    return (u64)1 << 62 | (u64)64 << 32 | (u64)1 << 16 | at >> 4;
}
DEVICE void publish_shared() {}
DEVICE void start_products() {}
DEVICE void commit_products() { emu::commit_products(); }
template <bool BRAIN, size_t N> DEVICE void multiply_tiles(float (&d)[N], u64 a, u64 b) {
    emu::multiply_tiles<(u32)N>(d, a, b, BRAIN);
}
template <int N> DEVICE void wait_products() { emu::wait_products(N); }
template <size_t N> DEVICE void finish_sums(float (&)[N]) { emu::wait_products(0); }

DEVICE void check_aligned(const void *p, uintptr_t bytes) {
    if ((uintptr_t)p % bytes != 0) emu::fail("misaligned vector access");
}
DEVICE void copy16_async(void *to, const void *from, i32 valid) {
    check_aligned(to, 16);
    if (valid) check_aligned(from, 16);
    emu::fibres[emu::current].open.push_back({to, from, valid != 0});
}
DEVICE void copy16_async_if(u32 wanted, void *to, const void *from) {
    if (wanted) copy16_async(to, from, 1);
}
DEVICE void copy_commit() {
    auto &fibre = emu::fibres[emu::current];
    fibre.groups.push_back(std::move(fibre.open));
    fibre.open.clear();
}
template <int N> DEVICE void copy_wait() {
    auto &groups = emu::fibres[emu::current].groups;
    while (groups.size() > (size_t)N) {
        for (auto &c : groups.front()) {
            if (c.valid) memcpy(c.to, c.from, 16);
            else memset(c.to, 0, 16);
        }
        groups.erase(groups.begin());
    }
}
template <class T> DEVICE T load_checked(const void *p) {
    check_aligned(p, sizeof(T));
    T v;
    memcpy(&v, p, sizeof(T));
    return v;
}
DEVICE uint4 load_once16(const void *p) { return load_checked<uint4>(p); }
DEVICE uint2 load_once8(const void *p) { return load_checked<uint2>(p); }
DEVICE u32 load4(const void *p) { return load_checked<u32>(p); }
DEVICE uint4 load16(const void *p) { return load_checked<uint4>(p); }
DEVICE uint2 load8(const void *p) { return load_checked<uint2>(p); }
DEVICE u16 load2(const void *p) { return load_checked<u16>(p); }
DEVICE u8 load1(const void *p) { return load_checked<u8>(p); }
template <class T> DEVICE T __ldg(const T *p) { return load_checked<T>(p); }
DEVICE u32 load_flag(const u32 *flag) { return *(const volatile u32 *)flag; }
DEVICE void store_flag(u32 *flag, u32 value) { *(volatile u32 *)flag = value; }
DEVICE void pause_ns(u32) { emu::yield(); }
