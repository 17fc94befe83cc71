//! Tensor-core products of a group of four warps, asynchronous, operands in shared memory: compute capability 9.0 only.
//! An operand is described by 64 bits: its first byte / 16, the distance of groups of 8 rows / 16 from bit 32, and in
//! bits 62 and 63 that rows are 128 bytes with their 16-byte chunks swapped as in `matmul.cuh`. Tiles start at
//! multiples of 1024 bytes. Emulated in `emulate.h`. Next file: `matmul_sm90.cu`.
#pragma once
#include "common.cuh"

static constexpr u64 OPERAND_FORM = (u64)1 << 62 | (u64)64 << 32 | (u64)1 << 16;

#ifndef ATS_EMULATE
DEVICE u64 operand_at(const void *tile) { return OPERAND_FORM | (shared_address(tile) & 0x3ffff) >> 4; }

/// What ordinary stores and finished copies of this thread wrote to shared memory is seen by tensor cores that start
/// after the next barrier.
DEVICE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define ATS_NAMES_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ATS_NAMES_64 ATS_NAMES_32 "," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define ATS_NAMES_96 ATS_NAMES_64 "," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define ATS_NAMES_128 ATS_NAMES_96 "," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define ATS_SUMS_8(d, i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),       \
        "+f"(d[i + 7])
#define ATS_SUMS_32(d, i) ATS_SUMS_8(d, i), ATS_SUMS_8(d, i + 8), ATS_SUMS_8(d, i + 16), ATS_SUMS_8(d, i + 24)
#define ATS_SUMS_64(d) ATS_SUMS_32(d, 0), ATS_SUMS_32(d, 32)
#define ATS_SUMS_96(d) ATS_SUMS_64(d), ATS_SUMS_32(d, 64)
#define ATS_SUMS_128(d) ATS_SUMS_96(d), ATS_SUMS_32(d, 96)
#define ATS_MULTIPLY(n, type, names, a_name, b_name, sums, a, b)                                                      \
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "."   \
                 type " {" names "}, " a_name ", " b_name ", p, 1, 1, 0, 0;\n}"                                       \
                 : sums : "l"(a), "l"(b) : "memory")

/// Opens a group of products.
DEVICE void start_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Closes the group that `start_products` opened.
DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// sum += a b^T over 16 columns of 64 rows and N tokens, F32 sums as lanes of `mma` hold them: lane 4 g + t of warp w
/// has rows 16 w + g and + 8, columns 8 n + 2 t and + 1 in sum[4 n..]. It goes on after the call, but a warp whose last
/// product has not begun waits for it here. The sums are not to be touched until `finish_sums`.
template <bool BRAIN> DEVICE void multiply_tiles(float (&d)[32], u64 a, u64 b) {
    if constexpr (BRAIN) ATS_MULTIPLY("64", "bf16", ATS_NAMES_32, "%32", "%33", ATS_SUMS_32(d, 0), a, b);
    else ATS_MULTIPLY("64", "f16", ATS_NAMES_32, "%32", "%33", ATS_SUMS_32(d, 0), a, b);
}
template <bool BRAIN> DEVICE void multiply_tiles(float (&d)[64], u64 a, u64 b) {
    if constexpr (BRAIN) ATS_MULTIPLY("128", "bf16", ATS_NAMES_64, "%64", "%65", ATS_SUMS_64(d), a, b);
    else ATS_MULTIPLY("128", "f16", ATS_NAMES_64, "%64", "%65", ATS_SUMS_64(d), a, b);
}
template <bool BRAIN> DEVICE void multiply_tiles(float (&d)[96], u64 a, u64 b) {
    if constexpr (BRAIN) ATS_MULTIPLY("192", "bf16", ATS_NAMES_96, "%96", "%97", ATS_SUMS_96(d), a, b);
    else ATS_MULTIPLY("192", "f16", ATS_NAMES_96, "%96", "%97", ATS_SUMS_96(d), a, b);
}
template <bool BRAIN> DEVICE void multiply_tiles(float (&d)[128], u64 a, u64 b) {
    if constexpr (BRAIN) ATS_MULTIPLY("256", "bf16", ATS_NAMES_128, "%128", "%129", ATS_SUMS_128(d), a, b);
    else ATS_MULTIPLY("256", "f16", ATS_NAMES_128, "%128", "%129", ATS_SUMS_128(d), a, b);
}

/// Waits until at most N closed groups run.
template <int N> DEVICE void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

/// Waits for all groups; the sums are there.
template <u32 N> DEVICE void finish_sums(float (&d)[N]) {
    wait_products<0>();
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
#endif
