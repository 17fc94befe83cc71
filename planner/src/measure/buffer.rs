//! A large buffer whose bytes are sensible weights of every type, read piece by piece so that none is in a cache when
//! its turn comes.

use super::{MeasureError, steady_us};
use device::memory::HostRegion;
use device::probe::{Effort, read_sum, time_rounds};
use device::team::Team;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes that a worker fills at once.
const BLOCK_BYTES: usize = 1 << 20;
/// Pieces start at multiples of a cache line.
const LINE_BYTES: usize = 64;

/// See the module text.
pub struct Buffer {
    region: HostRegion,
    /// Where the last figure stopped: the next one goes on from there, or it would find what that one left in caches.
    cursor_bytes: AtomicUsize,
}

impl Buffer {
    /// `bytes` of memory, filled by the team's active workers.
    pub fn new(team: &mut Team, bytes: usize) -> Result<Buffer, MeasureError> {
        let mut region = HostRegion::new(bytes.max(BLOCK_BYTES))?;
        let blocks: Vec<_> = region.as_mut_slice().chunks_mut(BLOCK_BYTES).map(Mutex::new).collect();
        let mut content = vec![0; BLOCK_BYTES];
        fill(&mut content);
        team.run(|worker| {
            worker.for_blocks(blocks.len() as u32, 1, |claimed| {
                for block in claimed {
                    // Each block is claimed once: the lock is free and never poisoned.
                    let mut bytes = blocks[block].lock().unwrap_or_else(PoisonError::into_inner);
                    let len = bytes.len();
                    bytes.copy_from_slice(&content[..len]);
                }
            });
        })?;
        drop(blocks);
        Ok(Buffer { region, cursor_bytes: AtomicUsize::new(0) })
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        self.region.as_slice()
    }

    /// The turn of the first piece that a figure of pieces of `bytes` should read.
    pub fn first_turn(&self, bytes: usize) -> usize {
        self.cursor_bytes.load(Ordering::Relaxed).div_ceil(bytes.next_multiple_of(LINE_BYTES).max(1))
    }

    /// A figure has read so many pieces.
    pub fn has_read(&self, bytes: usize, pieces: usize) {
        let first = self.first_turn(bytes);
        let end = (first + pieces).saturating_mul(bytes.next_multiple_of(LINE_BYTES));
        self.cursor_bytes.store(end % self.region.len().max(1), Ordering::Relaxed);
    }

    /// The piece of `bytes` whose turn it is; all of the buffer if that is smaller.
    pub fn piece(&self, bytes: usize, turn: usize) -> &[u8] {
        let all = self.bytes();
        let bytes = bytes.clamp(1, all.len());
        let stride = bytes.next_multiple_of(LINE_BYTES);
        let start = turn % ((all.len() - bytes) / stride + 1) * stride;
        &all[start..start + bytes]
    }
}

/// What a round of plain reads covers, in blocks that workers claim.
const READ_PIECE_BYTES: usize = 128 << 20;
const READ_BLOCK_BYTES: usize = 256 << 10;

/// Plain reads by the team's active workers: what no operator can beat.
pub fn read_gb_per_s(team: &mut Team, buffer: &Buffer, effort: Effort) -> Result<f64, MeasureError> {
    let bytes = READ_PIECE_BYTES.min(buffer.bytes().len() / 2);
    let first = buffer.first_turn(bytes);
    let timing = time_rounds(team, effort, |worker, round| {
        let blocks: Vec<&[u8]> = buffer.piece(bytes, first + round).chunks(READ_BLOCK_BYTES).collect();
        worker.for_blocks(blocks.len() as u32, 1, |claimed| {
            for block in claimed {
                black_box(read_sum(blocks[block]));
            }
        });
    })?;
    buffer.has_read(bytes, effort.warm_up_rounds + timing.rounds);
    Ok(bytes as f64 / steady_us(&timing).max(1e-3) / 1000.0)
}

/// Pseudo-random bytes between 0x2c and 0x3b: two of them are a half-precision number between 0.06 and 0.9, four a
/// normal single-precision one, one a small power of two. So scales of any block type are neither huge, zero, denormal
/// nor NaN, and codes are anything.
fn fill(bytes: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let sensible = (state & 0x0f0f_0f0f_0f0f_0f0f) + 0x2c2c_2c2c_2c2c_2c2c;
        word.copy_from_slice(&sensible.to_le_bytes()[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::team::{CallerPinning, Pinning, TeamConfig};
    use kernels::quant::{WeightType, dequantise_row};

    fn buffer() -> Buffer {
        let config = TeamConfig { threads: 2, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 0 };
        Buffer::new(&mut Team::new(config).unwrap(), 3 << 20).unwrap()
    }

    #[test]
    fn the_bytes_are_sensible_weights_of_every_type() {
        let buffer = buffer();
        let mut row = vec![0.0; 256];
        for ty in WeightType::ALL {
            let bytes = buffer.piece(ty.row_bytes(256).unwrap(), 7);
            dequantise_row(ty, bytes, &mut row).unwrap();
            assert!(row.iter().all(|x| x.is_finite() && x.abs() < 1e6), "{ty}");
            assert!(row.iter().any(|x| x.abs() > 1e-30), "{ty}");
        }
    }

    #[test]
    fn pieces_rotate_and_stay_inside() {
        let buffer = buffer();
        let starts: Vec<usize> = (0..5)
            .map(|turn| buffer.piece(1 << 20, turn).as_ptr() as usize - buffer.bytes().as_ptr() as usize)
            .collect();
        assert_eq!(starts, [0, 1 << 20, 2 << 20, 0, 1 << 20]);
        assert_eq!(buffer.piece(usize::MAX, 3).len(), 3 << 20);
    }

    #[test]
    fn a_figure_goes_on_where_the_last_one_stopped() {
        let buffer = buffer();
        assert_eq!(buffer.first_turn(1 << 20), 0);
        buffer.has_read(1 << 20, 2);
        assert_eq!((buffer.first_turn(1 << 20), buffer.first_turn(1 << 19), buffer.first_turn(3 << 20)), (2, 4, 1));
        buffer.has_read(1 << 19, 3);
        assert_eq!(buffer.first_turn(1 << 19), 1, "round the end");
    }
}
