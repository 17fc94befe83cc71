//! Moving activations and signalling: zero-copy rows between the device and mapped host memory, flags, and the
//! kernels that probes time (device copy, host reads). Weights move by the copy engine, not here.
//! Flags count rounds: a writer stores this round's number, a waiter continues once flag - round >= 0, so nothing is
//! ever reset and graphs need no new parameters. Next file: `mod.rs`.
#include "activation.cuh"

struct MoveArgs {
    View from, to;
    u32 *flag;        // nullable: written after the last row has arrived
    const u32 *round; // this round's number (device or mapped memory)
    u32 *arrived;     // one counter per move in device memory, 0 between launches; needed with a flag
    u32 rows;
    u32 reserved;
};

/// Grid (column blocks, rows). The last block to finish publishes the flag.
extern "C" __global__ void BOUNDS(256, 4) move_rows(MoveArgs a) {
    u32 row = blockIdx.y;
    const float *from = a.from.data + (u64)row * a.from.stride;
    float *to = a.to.data + (u64)row * a.to.stride;
    u32 first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    i32 vectors = ((u64)from | (u64)to | a.from.cols * 4) % 16 == 0;
    if (vectors) {
        for (u32 i = first; i < a.from.cols / 4; i += step) ((float4 *)to)[i] = ((const float4 *)from)[i];
    } else {
        for (u32 i = first; i < a.from.cols; i += step) to[i] = from[i];
    }
    if (!a.flag) return;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 blocks = gridDim.x * gridDim.y;
        u32 last = atomicInc(a.arrived, blocks - 1) == blocks - 1; // wraps to 0 for the next launch
        __threadfence_system();
        if (last) store_flag(a.flag, *(const volatile u32 *)a.round);
    }
}
EXPORT(move_rows)

struct FlagArgs {
    u32 *flag;
    const u32 *round;
};

/// One thread: flag = round.
extern "C" __global__ void BOUNDS(32, 1) write_flag(FlagArgs a) {
    if (threadIdx.x != 0) return;
    __threadfence_system();
    store_flag(a.flag, *(const volatile u32 *)a.round);
}
EXPORT(write_flag)

/// One thread: waits until flag - round >= 0.
extern "C" __global__ void BOUNDS(32, 1) wait_flag(FlagArgs a) {
    if (threadIdx.x != 0) return;
    u32 round = *(const volatile u32 *)a.round;
    while ((i32)(load_flag(a.flag) - round) < 0) pause_ns(50);
    __threadfence_system();
}
EXPORT(wait_flag)

struct CounterArgs {
    u32 *counter;
    u32 step;
    u32 reserved;
};

/// One thread: counter += step; starts a round.
extern "C" __global__ void BOUNDS(32, 1) advance(CounterArgs a) {
    if (threadIdx.x == 0) *a.counter += a.step;
}
EXPORT(advance)

struct CopyArgs {
    const uint4 *from;
    uint4 *to;
    u64 vectors; // of 16 bytes
};

/// Any grid: a copy on the multiprocessors, for probes of device and zero-copy bandwidth.
extern "C" __global__ void BOUNDS(512, 2) copy_bytes(CopyArgs a) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.vectors; i += step) a.to[i] = a.from[i];
}
EXPORT(copy_bytes)

/// Any grid: reads everything; what was read reaches memory only if it sums to a number that it never does.
extern "C" __global__ void BOUNDS(512, 2) read_bytes(CopyArgs a) {
    u64 step = (u64)gridDim.x * blockDim.x;
    u32 mixed = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.vectors; i += step) {
        uint4 v = a.from[i];
        mixed |= (v.x ^ v.y) + (v.z ^ v.w);
    }
    if (mixed == 0x9e3779b9u && a.vectors == 0x7fffffffull) a.to[0].x = mixed;
}
EXPORT(read_bytes)

struct FillArgs {
    u32 *to;
    u64 words;
    u32 seed;
    u32 mask; // bits that may be set: 0xbfffbfff keeps every 16- and 32-bit float finite and small
};

/// Any grid: pseudo-random words, for benchmarks.
extern "C" __global__ void BOUNDS(512, 2) fill_random(FillArgs a) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.words; i += step) {
        u32 x = (u32)i * 0x9e3779b1u + a.seed;
        x ^= x >> 16, x *= 0x85ebca6bu, x ^= x >> 13, x *= 0xc2b2ae35u, x ^= x >> 16;
        a.to[i] = x & a.mask;
    }
}
EXPORT(fill_random)
