//! Launches that move activations and signal: zero-copy rows, flags, round counters, and the probes' kernels.
//! A flag holds the number of the last round that passed it; waiters compare cyclically. Next: `check.rs`.

use super::args::{CopyArgs, CounterArgs, FillArgs, FlagArgs, MoveArgs, View};
use super::launch::blocks;
use super::{DevicePtr, Launch};

/// A flag to publish when a movement has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    /// U32 in mapped host or device memory.
    pub flag: DevicePtr,
    /// U32: this round's number.
    pub round: DevicePtr,
    /// U32 in device memory, 0 before the first use, one per movement.
    pub arrived: DevicePtr,
}

/// Copies rows on the multiprocessors, then publishes the flag, if any.
pub fn move_rows(from: View, to: View, rows: u32, publish: Option<Publish>) -> Launch {
    let args = MoveArgs {
        from,
        to,
        flag: publish.map_or(DevicePtr::NULL, |p| p.flag),
        round: publish.map_or(DevicePtr::NULL, |p| p.round),
        arrived: publish.map_or(DevicePtr::NULL, |p| p.arrived),
        rows,
        reserved: 0,
    };
    Launch::new("move", "move_rows", [blocks(from.cols, 1024, 16), rows, 1], 256, &args)
}

/// flag = round, after everything before it in the stream.
pub fn write_flag(flag: DevicePtr, round: DevicePtr) -> Launch {
    Launch::new("move", "write_flag", [1, 1, 1], 32, &FlagArgs { flag, round })
}

/// Holds the stream until flag − round ≥ 0 (cyclic). Enqueue it only when the writer is certain to come.
pub fn wait_flag(flag: DevicePtr, round: DevicePtr) -> Launch {
    Launch::new("move", "wait_flag", [1, 1, 1], 32, &FlagArgs { flag, round })
}

/// counter += step.
pub fn advance(counter: DevicePtr, step: u32) -> Launch {
    Launch::new("move", "advance", [1, 1, 1], 32, &CounterArgs { counter, step, reserved: 0 })
}

/// Copies `bytes` (a multiple of 16) with so many blocks.
pub fn copy_bytes(from: DevicePtr, to: DevicePtr, bytes: u64, blocks: u32) -> Launch {
    Launch::new("move", "copy_bytes", [blocks, 1, 1], 512, &CopyArgs { from, to, vectors: bytes / 16 })
}

/// Reads `bytes` (a multiple of 16) with so many blocks; `sink` is 16 bytes that stay as they are.
pub fn read_bytes(from: DevicePtr, sink: DevicePtr, bytes: u64, blocks: u32) -> Launch {
    Launch::new("move", "read_bytes", [blocks, 1, 1], 512, &CopyArgs { from, to: sink, vectors: bytes / 16 })
}

/// Pseudo-random words over `bytes` (a multiple of 4), finite and below 2 as F16, BF16 and F32; for benchmarks.
pub fn fill_random(to: DevicePtr, bytes: u64, seed: u32) -> Launch {
    let args = FillArgs { to, words: bytes / 4, seed, mask: 0xbfff_bfff };
    Launch::new("move", "fill_random", [1024, 1, 1], 512, &args)
}
