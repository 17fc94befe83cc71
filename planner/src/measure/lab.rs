//! The team, weights and time that the CPU's figures are taken with: the [`Source`] that measures.
//!
//! Turns share the time that is left for them. A figure's first turn has a round before the timed ones, which takes the
//! page faults of its results. Next: `products.rs`.

use super::attention::{CacheElement, attention_gb_per_s};
use super::buffer::{Buffer, read_gb_per_s};
use super::figures::Pace;
use super::products::{ProductCase, weight_type};
use super::rows::{DELTA_BYTES, delta_us, elementwise_gb_per_s};
use super::settle::{Figure, Kind, Source};
use super::{MeasureError, Watch};
use crate::profile::Operator;
use device::memory::HostMemoryInfo;
use device::probe::Effort;
use device::team::{Team, TeamConfig};
use device::topology::Topology;
use kernels::quant::packed_bytes;
use std::time::{Duration, Instant};

/// Rows that lie together in memory.
const PANEL_ROWS: u64 = 16;
/// Rows of a slice that stands for a matrix when there are many tokens.
const SLICE_ROWS: u64 = 256;
/// Tokens up to which a whole matrix is timed.
const WHOLE_TOKENS: u32 = 64;
/// Times the caches' size that weights rotate through, if that is not too much; a cache whose replacement adapts keeps
/// its size of what is walked in turn, and with four times that a quarter of all reads never see memory.
const ROTATIONS: (u64, u64) = (4, 8);
/// What the larger of those may come to.
const ROTATION_MOST_BYTES: u64 = 5 << 29;

/// See the module text.
pub struct Lab<'a, 'w> {
    /// The team.
    pub team: Team,
    buffer: Buffer,
    pace: Pace,
    turns_left: usize,
    /// When sweeps should be over, and when taking figures again must be.
    ends: (Instant, Instant),
    taken_by_others: f64,
    turns: usize,
    watch: &'a mut Watch<'w>,
}

impl<'a, 'w> Lab<'a, 'w> {
    /// A team of `threads` with so many turns in the sweeps. Its time begins when the memory is there.
    pub fn new(
        topology: &Topology,
        threads: u16,
        (pace, turns): (Pace, usize),
        watch: &'a mut Watch<'w>,
    ) -> Result<Lab<'a, 'w>, MeasureError> {
        let mut team = Team::new(TeamConfig::on_cores(topology, usize::from(threads)))?;
        let buffer = Buffer::new(&mut team, rotation_bytes(topology, &pace))?;
        let begin = Instant::now();
        let ends = (begin + pace.all, begin + pace.all + pace.all / 10);
        Ok(Lab { team, buffer, pace, turns_left: turns, ends, taken_by_others: 0.0, turns: 0, watch })
    }

    /// Share of the team's CPU time that others took, on average.
    pub fn share_of_others(&self) -> f64 {
        self.taken_by_others / self.turns.max(1) as f64
    }

    /// Effort of a turn.
    fn effort(&mut self, first: bool, left: usize) -> Effort {
        let end = if self.turns_left > 0 { self.ends.0 } else { self.ends.1 };
        self.turns_left = self.turns_left.saturating_sub(1);
        let effort = self.pace.effort(left, end.saturating_duration_since(Instant::now()));
        Effort { warm_up_rounds: if first { effort.warm_up_rounds } else { 0 }, ..effort }
    }

    fn tell(&mut self, figure: &Figure) {
        let remaining = self.ends.0.saturating_duration_since(Instant::now());
        let done = 1.0 - remaining.as_secs_f64() / self.pace.all.as_secs_f64().max(1e-3);
        (self.watch)(&figure.to_string(), done.clamp(0.0, 1.0));
    }

    /// The product that stands for a figure's: of the model's own matrix, for many tokens and of one too large to
    /// rotate through a slice of its rows.
    fn case(&self, figure: &Figure, (operator, name): (Operator, &str)) -> Result<ProductCase, MeasureError> {
        let (ty, tokens) = (weight_type(name)?, figure.tokens);
        let Some((rows, columns)) = figure.shape else {
            let is_expert = operator == Operator::ExpertMatmul;
            return Ok(if is_expert { ProductCase::expert(ty, tokens) } else { ProductCase::dense(ty, tokens) });
        };
        let panel_bytes = packed_bytes(ty, PANEL_ROWS as usize, columns as usize)?;
        let rows = timed_rows(rows, tokens, self.buffer.bytes().len() / panel_bytes.max(1)) as usize;
        Ok(ProductCase { ty, rows, cols: columns as usize, tokens: tokens as usize })
    }
}

impl Source for Lab<'_, '_> {
    type Error = MeasureError;

    fn gb_per_s(&mut self, figure: &Figure, first: bool, left: usize) -> Result<f64, MeasureError> {
        self.tell(figure);
        let effort = self.effort(first, left);
        self.team.set_active(usize::from(figure.threads));
        let rate = match figure.kind {
            Kind::Read => read_gb_per_s(&mut self.team, &self.buffer, effort)?,
            Kind::Operator(operator @ (Operator::Matmul | Operator::ExpertMatmul), name) => {
                let case = self.case(figure, (operator, name))?;
                case.bytes()? as f64 / case.time_us(&mut self.team, &self.buffer, effort)? / 1000.0
            }
            Kind::Operator(Operator::Attention, name) => {
                let element = if name == "F32" { CacheElement::F32 } else { CacheElement::F16 };
                attention_gb_per_s(&mut self.team, &self.buffer, (element, figure.tokens), effort)?
            }
            Kind::Operator(Operator::DeltaNet, _) => {
                DELTA_BYTES / delta_us(&mut self.team, figure.tokens as usize, effort)? / 1000.0
            }
            Kind::Operator(Operator::Elementwise, _) => elementwise_gb_per_s(&mut self.team, effort)?,
        };
        self.taken_by_others += f64::from(self.team.pressure().mean_share);
        self.turns += 1;
        Ok(rate)
    }

    fn has_time(&self) -> bool {
        Instant::now() < self.ends.1
    }
}

/// Memory to rotate through: several times what the caches hold, but no more than a quarter of what is available.
pub fn rotation_bytes(topology: &Topology, pace: &Pace) -> usize {
    let caches = topology.caches.iter().map(|cache| cache.size_bytes.saturating_mul(cache.instances as u64)).max();
    let available = HostMemoryInfo::of_this_process().map_or(1 << 30, |info| info.available_bytes);
    rotated(caches.unwrap_or(0), pace.rotation_bytes as u64, available) as usize
}

fn rotated(cache_bytes: u64, least: u64, available: u64) -> u64 {
    let cache_bytes = cache_bytes.min(1 << 31);
    let (few, many) = (ROTATIONS.0 * cache_bytes, ROTATIONS.1 * cache_bytes);
    least.max(few).max(many.min(ROTATION_MOST_BYTES)).min(available / 4).max(16 << 20)
}

/// Rows that are timed of a matrix: all, or as many as stand for it. They take at most half of what is rotated through.
fn timed_rows(rows: u64, tokens: u32, rotated_panels: usize) -> u64 {
    let fitting = (rotated_panels as u64 / 2).max(1) * PANEL_ROWS;
    rows.min(if tokens > WHOLE_TOKENS { SLICE_ROWS.min(fitting) } else { fitting })
}

/// The barrier of a team in microseconds, at its calmest of some tries.
pub fn barrier_us(team: &mut Team) -> Result<f64, MeasureError> {
    let effort = Effort { warm_up_rounds: 1, rounds: (3, 1000), time: Duration::from_millis(10) };
    let mut least = f64::INFINITY;
    for _ in 0..3 {
        least = least.min(super::steady_us(&device::probe::barrier(team, effort)?));
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_stands_for_what_is_too_large_or_takes_too_long() {
        // Rows, tokens, panels that are rotated through: whole, many tokens, a large matrix, both, no room.
        let cases = [
            (5120, 64, 20_000, 5120),
            (5120, 65, 20_000, 256),
            (151_936, 1, 4000, 32_000),
            (151_936, 512, 20, 160),
            (9, 1, 0, 9),
        ];
        for (rows, tokens, panels, timed) in cases {
            assert_eq!(timed_rows(rows, tokens, panels), timed, "{rows} rows, {tokens} tokens");
        }
    }

    #[test]
    fn weights_rotate_through_several_times_the_caches() {
        const MIB: u64 = 1 << 20;
        // Cache, least, available: a laptop's, a server's, one so large that four times must do, little memory.
        let cases =
            [(24, 256, 60_000, 256), (64, 256, 60_000, 512), (300, 256, 100_000, 2400), (480, 256, 99_000, 2560)];
        for (cache, least, available, expected) in cases {
            assert_eq!(rotated(cache * MIB, least * MIB, available * MIB), expected * MIB, "{cache} MiB");
        }
        assert_eq!(rotated(1100 * MIB, 256 * MIB, 99_000 * MIB), 4400 * MIB);
        assert_eq!(rotated(300 * MIB, 256 * MIB, 4000 * MIB), 1000 * MIB);
        assert_eq!(rotated(0, 0, 0), 16 * MIB);
    }
}
