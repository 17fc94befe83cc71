//! What the CPU's products and the copy engine take from each other: both at once, for every size of team. Products
//! rather than plain reads: their prefetches ask more of memory, and the link gets what they leave. Large ones: with a
//! barrier every 9 MB the team left the link 51 GB/s on the H200 machine, a model's layers leave it 43.

use super::super::buffer::Buffer;
use super::super::cpu::rounded;
use super::super::figures::Pace;
use super::super::gpu::GpuFigures;
use super::super::lab::rotation_bytes;
use super::super::products::{ProductCase, Rounds};
use super::super::{MeasureError, Watch};
use crate::profile::{Contention, Profile};
use device::cuda::CudaGpu;
use device::gpu::{CopySource, DeviceRegion, EventId, Gpu as _, HostSpan, StreamId, StreamKind};
use device::memory::HostRegion;
use device::team::{Team, TeamConfig};
use device::topology::Topology;
use kernels::quant::WeightType;
use std::sync::Arc;
use std::time::Instant;

/// What most models decode.
const DECODED: WeightType = WeightType::Q4_K;
/// One copy, and how long copies run beside the team, about.
const COPY_BYTES: u64 = 32 << 20;
const COPY_S: f64 = 0.05;
/// Tries of each team, all teams once and then all again.
const SWEEPS: usize = 3;

/// Fills the contention of every team that the profile has.
pub fn contention(
    profile: &mut Profile,
    gpu: &CudaGpu,
    figures: &GpuFigures,
    watch: &mut Watch<'_>,
) -> Result<(), MeasureError> {
    let link = figures.host_to_device.last().map_or(1.0, |size| size.gb_per_s);
    let most = profile.contention.last().map_or(1, |entry| entry.threads);
    let topology = Topology::of_this_process()?;
    let entries = std::mem::take(&mut profile.contention);
    let measured = std::thread::scope(|scope| {
        // A team pins the thread that drives it.
        let work = || together(gpu, &topology, (&entries, most, link), watch);
        let handle = std::thread::Builder::new().spawn_scoped(scope, work);
        let handle = handle.map_err(|error| MeasureError::Interrupted(error.to_string()))?;
        handle.join().unwrap_or_else(|_| Err(MeasureError::Interrupted("its thread died".to_owned())))
    });
    profile.contention = measured?;
    Ok(())
}

fn together(
    gpu: &CudaGpu,
    topology: &Topology,
    (entries, most, link): (&[Contention], u16, f64),
    watch: &mut Watch<'_>,
) -> Result<Vec<Contention>, MeasureError> {
    let mut team = Team::new(TeamConfig::on_cores(topology, usize::from(most)))?;
    let buffer = Buffer::new(&mut team, rotation_bytes(topology, &Pace::FULL))?;
    let rounds = Rounds::new(&ProductCase::large(DECODED), &buffer, usize::from(most))?;
    let mut bench = Bench::new(gpu, (team, rounds), link)?;
    let mut best = vec![Together::default(); entries.len()];
    for _ in 0..SWEEPS {
        for (entry, best) in entries.iter().zip(&mut best) {
            watch(&format!("{} threads while the link streams", entry.threads), 0.0);
            best.add(bench.both(usize::from(entry.threads))?);
        }
    }
    let measured = entries.iter().zip(&best);
    Ok(measured.map(|(entry, best)| best.contention(entry, link)).collect())
}

/// Rates of one team.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Together {
    /// The team alone.
    alone: f64,
    /// Team and link at once.
    beside: f64,
    link: f64,
}

impl Together {
    /// Another try. Others take memory's rate from both: the try in which both together got most is the calmest.
    fn add(&mut self, other: Together) {
        if other.beside + other.link > self.beside + self.link {
            (self.beside, self.link) = (other.beside, other.link);
        }
        self.alone = self.alone.max(other.alone);
    }

    fn contention(&self, entry: &Contention, link: f64) -> Contention {
        let share = (self.beside / self.alone).min(1.0);
        Contention {
            threads: entry.threads,
            cpu_alone_gb_per_s: entry.cpu_alone_gb_per_s,
            cpu_while_link_gb_per_s: rounded(entry.cpu_alone_gb_per_s * share),
            link_alone_gb_per_s: link,
            link_while_cpu_gb_per_s: rounded(self.link.min(link)),
        }
    }
}

/// A team with products, and copies to run beside it.
struct Bench<'a> {
    gpu: &'a CudaGpu,
    team: Team,
    rounds: Rounds<'a>,
    copy: (HostSpan, DeviceRegion),
    copies: u64,
    stream: StreamId,
    events: [EventId; 2],
}

impl<'a> Bench<'a> {
    fn new(gpu: &'a CudaGpu, (team, rounds): (Team, Rounds<'a>), link: f64) -> Result<Bench<'a>, MeasureError> {
        let mut region = HostRegion::new(COPY_BYTES as usize)?;
        region.as_mut_slice().fill(1);
        let from = HostSpan { range: 0..region.len(), region: Arc::new(region) };
        gpu.pin(&from.region)?;
        let target = gpu.take_memory(COPY_BYTES, "measuring the link")?;
        let stream = gpu.new_stream(StreamKind::Transfer)?;
        let events = [gpu.new_event()?, gpu.new_event()?];
        let copies = ((COPY_S * link * 1e9 / COPY_BYTES as f64) as u64).max(4);
        Ok(Bench { gpu, team, rounds, copy: (from, target), copies, stream, events })
    }

    /// A team alone, and beside the copies.
    fn both(&mut self, threads: usize) -> Result<Together, MeasureError> {
        let Bench { gpu, stream, events: [begin, end], copies, .. } = *self;
        self.team.set_active(threads);
        let begun = |start: Instant| Ok(start.elapsed().as_secs_f64() < COPY_S);
        let alone = self.rounds.gb_per_s_while(&mut self.team, begun)?;
        gpu.record(stream, begin)?;
        for _ in 0..copies {
            gpu.copy_to_gpu(stream, self.copy.1.start, &CopySource::Span(self.copy.0.clone()))?;
        }
        gpu.record(stream, end)?;
        let beside = self.rounds.gb_per_s_while(&mut self.team, |_| Ok(!gpu.event_passed(end)?))?;
        gpu.synchronize(stream)?;
        let link_us = gpu.elapsed(begin, end)?.as_micros_f64();
        Ok(Together { alone, beside, link: (copies * COPY_BYTES) as f64 / link_us / 1000.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calmest_try_is_the_one_in_which_team_and_link_got_most_together() {
        let mut best = Together::default();
        for (alone, beside, link) in [(100.0, 60.0, 40.0), (130.0, 70.0, 20.0), (90.0, 85.0, 45.0), (120.0, 90.0, 30.0)]
        {
            best.add(Together { alone, beside, link });
        }
        assert_eq!(best, Together { alone: 130.0, beside: 85.0, link: 45.0 });
        let entry = Contention {
            threads: 8,
            cpu_alone_gb_per_s: 143.0,
            cpu_while_link_gb_per_s: 143.0,
            link_alone_gb_per_s: 1.0,
            link_while_cpu_gb_per_s: 1.0,
        };
        let found = best.contention(&entry, 55.0);
        assert_eq!((found.cpu_alone_gb_per_s, found.cpu_while_link_gb_per_s), (143.0, 93.5));
        assert_eq!((found.link_alone_gb_per_s, found.link_while_cpu_gb_per_s), (55.0, 45.0));
    }
}
