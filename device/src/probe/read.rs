//! Plain reads of host memory: what a set of threads can get at all. The bound that every decode kernel is judged by.
//!
//! A read is a wrapping sum over 64-bit words, with the widest registers the CPU has and prefetches [`AHEAD_BYTES`]
//! ahead; blocks are claimed, not dealt. Measured on 16 cores at 8 threads: 48 GB/s with 16-byte loads and equal
//! shares, 58 with 64-byte loads, 89 with the prefetches; at 16 threads 101 with equal shares (a slow thread holds up
//! the rest), 138 to 152 with claimed blocks. Pages are huge. Next: `../probe.rs`.

use std::hint::black_box;
use std::ops::Range;

use super::{Effort, Timing, time_rounds};
use crate::DeviceError;
use crate::memory::HostRegion;
use crate::team::{Team, TeamConfig};
use crate::topology::Topology;

/// Rows that workers claim: as large as a block of a weight matrix.
const BLOCK_BYTES: usize = 256 << 10;

/// A large buffer cut into pieces that are read in turn, so that none is in a cache when its turn comes.
pub struct Rotation {
    region: HostRegion,
    piece_bytes: usize,
}

impl Rotation {
    /// A buffer of `bytes` in pieces of `piece_bytes` (both rounded to blocks, one piece at least), filled by the
    /// team's active workers. Errors: the system refuses the memory, a worker panicked.
    pub fn new(team: &mut Team, bytes: usize, piece_bytes: usize) -> Result<Self, DeviceError> {
        let piece_bytes = piece_bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        let pieces = (bytes / piece_bytes).max(1);
        let mut region = HostRegion::new(pieces * piece_bytes)?;
        let blocks: Vec<_> = region.as_mut_slice().chunks_mut(BLOCK_BYTES).map(std::sync::Mutex::new).collect();
        team.run(|worker| {
            worker.for_blocks(blocks.len() as u32, 1, |range| {
                for block in range {
                    // Each block is claimed once: the lock is free and never poisoned.
                    blocks[block].lock().unwrap_or_else(|broken| broken.into_inner()).fill(block as u8);
                }
            });
        })?;
        drop(blocks);
        Ok(Self { region, piece_bytes })
    }

    /// Pieces.
    pub fn pieces(&self) -> usize {
        self.region.len() / self.piece_bytes
    }

    /// The piece whose turn it is in round `round`.
    pub fn piece(&self, round: usize) -> &[u8] {
        let start = round % self.pieces() * self.piece_bytes;
        &self.region.as_slice()[start..start + self.piece_bytes]
    }
}

/// Read bandwidth at one number of threads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadPoint {
    /// Threads.
    pub threads: usize,
    /// Median rate, in 10⁹ bytes per second.
    pub gb_per_s: f64,
    /// Times of the rounds behind it.
    pub timing: Timing,
    /// Bytes that the buffers covered.
    pub rotation_bytes: u64,
}

/// Bytes read in one round: long enough that waking the team and the last blocks do not count.
const ROUND_BYTES: usize = 256 << 20;

/// Plain read bandwidth at each of `threads` (cut to the usable cores), over `rotation_bytes` of memory. `progress`
/// hears of every point. Errors: no memory, no threads.
pub fn read_curve(
    topology: &Topology,
    threads: &[usize],
    rotation_bytes: usize,
    effort: Effort,
    mut progress: impl FnMut(&ReadPoint),
) -> Result<Vec<ReadPoint>, DeviceError> {
    let most = threads.iter().copied().max().unwrap_or(1).clamp(1, topology.cores.len().max(1));
    let mut team = Team::new(TeamConfig::on_cores(topology, most))?;
    let rotation = Rotation::new(&mut team, rotation_bytes, ROUND_BYTES.min(rotation_bytes))?;
    let mut points = Vec::with_capacity(threads.len());
    for &threads in threads {
        team.set_active(threads);
        let point = read_point(&mut team, &rotation, effort)?;
        progress(&point);
        points.push(point);
    }
    Ok(points)
}

fn read_point(team: &mut Team, rotation: &Rotation, effort: Effort) -> Result<ReadPoint, DeviceError> {
    let timing = time_rounds(team, effort, |worker, round| {
        let piece = rotation.piece(round);
        worker.for_blocks((piece.len() / BLOCK_BYTES) as u32, 1, |blocks: Range<usize>| {
            for block in blocks {
                black_box(read_sum(&piece[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES]));
            }
        });
    })?;
    let gb_per_s = timing.gb_per_s(rotation.piece_bytes as f64);
    let rotation_bytes = rotation.region.len() as u64;
    Ok(ReadPoint { threads: team.active(), gb_per_s, timing, rotation_bytes })
}

/// How far ahead of the sum a block is prefetched; 1 KiB and 4 KiB measured the same within 2 %.
const AHEAD_BYTES: usize = 2 << 10;

/// Words of one step: four AVX-512 registers.
const STEP_BYTES: usize = 256;

/// Wrapping sum of the 64-bit words of `bytes`; a rest below 256 bytes is left out. Whoever times it keeps the result.
pub fn read_sum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU and the operating system support AVX-512F.
            return unsafe { x86::sum_avx512(bytes) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU and the operating system support AVX2.
            return unsafe { x86::sum_avx2(bytes) };
        }
    }
    sum_steps(bytes, |_| {})
}

/// The sum; `prefetch` hears of the address of every cache line some way ahead. Without target features of its own, so
/// that it inlines into callers that have some.
#[inline(always)]
fn sum_steps(bytes: &[u8], prefetch: impl Fn(*const u8)) -> u64 {
    let mut chains = [0_u64; STEP_BYTES / 8];
    for step in bytes.as_chunks::<STEP_BYTES>().0 {
        for line in 0..STEP_BYTES / 64 {
            prefetch(step.as_ptr().wrapping_add(AHEAD_BYTES + line * 64));
        }
        for (chain, word) in chains.iter_mut().zip(step.as_chunks::<8>().0) {
            *chain = chain.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    chains.iter().fold(0, |total, chain| total.wrapping_add(*chain))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! `sum_steps` compiled for wide registers.

    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    #[target_feature(enable = "avx512f")]
    pub fn sum_avx512(bytes: &[u8]) -> u64 {
        super::sum_steps(bytes, prefetch)
    }

    #[target_feature(enable = "avx2")]
    pub fn sum_avx2(bytes: &[u8]) -> u64 {
        super::sum_steps(bytes, prefetch)
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_sum_reads_every_whole_step() {
        for steps in [0, 1, 2, 17] {
            let whole = steps * STEP_BYTES;
            let bytes: Vec<u8> = (0..whole + STEP_BYTES - 1).map(|i| (i * 37 + i / 256) as u8).collect();
            let words = bytes[..whole].chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
            let expected = words.fold(0, u64::wrapping_add);
            assert_eq!((read_sum(&bytes), sum_steps(&bytes, |_| {})), (expected, expected));
        }
    }

    #[test]
    fn a_small_curve_has_a_point_per_thread_count() {
        let topology = Topology::of_this_process().unwrap();
        let effort = Effort { warm_up_rounds: 1, rounds: (2, 2), time: Duration::ZERO };
        std::thread::spawn(move || {
            let (mut heard, asked) = (0, [1, topology.cores.len(), 4096]);
            let points = read_curve(&topology, &asked, 3 << 20, effort, |_| heard += 1).unwrap();
            let threads: Vec<usize> = points.iter().map(|point| point.threads).collect();
            assert_eq!((threads, heard), (vec![1, topology.cores.len(), topology.cores.len()], 3));
            assert!(points.iter().all(|point| point.gb_per_s > 0.0 && point.rotation_bytes == 3 << 20));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_rotation_returns_to_its_first_piece() {
        let config = TeamConfig {
            threads: 2,
            pinning: crate::team::Pinning::Free,
            caller: crate::team::CallerPinning::Leave,
            spin_us: 0,
        };
        let mut team = Team::new(config).unwrap();
        let rotation = Rotation::new(&mut team, 1 << 20, 1).unwrap();
        assert_eq!(rotation.pieces(), 4);
        let firsts: Vec<u8> = (0..6).map(|round| rotation.piece(round)[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 3, 0, 1]);
        assert!(rotation.piece(3).iter().all(|&byte| byte == 3));
    }
}
