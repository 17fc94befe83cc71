//! What the CPU's reads and the copy engine take from each other: both at once, for every size of team.

use super::super::cpu::rounded;
use super::super::gpu::GpuFigures;
use super::super::{MeasureError, Watch};
use crate::profile::{Contention, Profile};
use device::cuda::CudaGpu;
use device::gpu::{CopySource, Gpu as _, HostSpan, StreamKind};
use device::memory::HostRegion;
use device::probe::Rotation;
use device::team::{Team, TeamConfig};
use device::topology::Topology;
use kernels::cpu::Isa;
use kernels::cpu::bounds::plain_read;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// Memory that the team reads, in pieces that are claimed in blocks.
const READ_BYTES: usize = 512 << 20;
const PIECE_BYTES: usize = 64 << 20;
const BLOCK_BYTES: usize = 256 << 10;
/// One copy, and how long copies run beside the team, about.
const COPY_BYTES: u64 = 32 << 20;
const COPY_S: f64 = 0.15;

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
    let rotation = Rotation::new(&mut team, READ_BYTES, PIECE_BYTES)?;
    let mut region = HostRegion::new(COPY_BYTES as usize)?;
    region.as_mut_slice().fill(1);
    let from = HostSpan { range: 0..region.len(), region: Arc::new(region) };
    gpu.pin(&from.region)?;
    let target = gpu.take_memory(COPY_BYTES, "measuring the link")?;
    let stream = gpu.new_stream(StreamKind::Transfer)?;
    let (begin, end) = (gpu.new_event()?, gpu.new_event()?);
    let copies = ((COPY_S * link * 1e9 / COPY_BYTES as f64) as u64).max(4);
    let mut measured = Vec::with_capacity(entries.len());
    for entry in entries {
        watch(&format!("{} threads while the link streams", entry.threads), 0.0);
        team.set_active(usize::from(entry.threads));
        let alone = read_while(&mut team, &rotation, |start| Ok(start.elapsed().as_secs_f64() < COPY_S))?;
        gpu.record(stream, begin)?;
        for _ in 0..copies {
            gpu.copy_to_gpu(stream, target.start, &CopySource::Span(from.clone()))?;
        }
        gpu.record(stream, end)?;
        let beside = read_while(&mut team, &rotation, |_| Ok(!gpu.event_passed(end)?))?;
        gpu.synchronize(stream)?;
        let link_us = gpu.elapsed(begin, end)?.as_micros_f64();
        measured.push(Contention {
            threads: entry.threads,
            cpu_alone_gb_per_s: entry.cpu_alone_gb_per_s,
            cpu_while_link_gb_per_s: rounded(entry.cpu_alone_gb_per_s * (beside / alone).min(1.0)),
            link_alone_gb_per_s: link,
            link_while_cpu_gb_per_s: rounded(((copies * COPY_BYTES) as f64 / link_us / 1000.0).min(link)),
        });
    }
    Ok(measured)
}

/// Rate at which the team reads as long as `goes_on`.
fn read_while(
    team: &mut Team,
    rotation: &Rotation,
    goes_on: impl Fn(Instant) -> Result<bool, MeasureError>,
) -> Result<f64, MeasureError> {
    let (isa, start) = (Isa::detect(), Instant::now());
    let mut rounds = 0;
    while rounds == 0 || goes_on(start)? {
        let piece = rotation.piece(rounds);
        team.run(|worker| {
            worker.for_blocks((piece.len() / BLOCK_BYTES) as u32, 1, |blocks| {
                for block in blocks {
                    black_box(plain_read(isa, &piece[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES]));
                }
            });
        })?;
        rounds += 1;
    }
    Ok((rounds * PIECE_BYTES) as f64 / start.elapsed().as_secs_f64() / 1e9)
}
