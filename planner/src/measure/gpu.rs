//! A GPU asked through its interface: memory, link by size of a piece, hand-overs between it and the host. The same
//! questions go to a real and to a simulated one, whose clock is virtual. What kernels reach is not here.

use super::cpu::rounded;
use super::{MeasureError, Watch};
use crate::profile::{Profile, SizeRate};
use device::clock::Nanos;
use device::gpu::{CopySource, DeviceRegion, Epoch, EventId, Gpu, HostSpan, StreamId, StreamKind};
use device::memory::HostRegion;
use device::sim::{Faults, LinkPoint, LoadScript, SimConfig, SimGpu, SimProfile};
use std::sync::Arc;

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuFigures {
    /// Name.
    pub model: String,
    /// `8.6` is 86.
    pub compute_capability: u32,
    /// All of its memory.
    pub memory_mib: u64,
    /// What could be taken before this process took anything.
    pub free_mib: u64,
    /// What the context takes.
    pub context_mib: u64,
    /// Copy engine from pinned memory.
    pub host_to_device: Vec<SizeRate>,
    /// From pageable memory, large pieces.
    pub pageable_gb_per_s: f64,
    /// Host signals, GPU goes on, signals back, host sees it: half of that.
    pub hand_over_us: f64,
    /// A small copy and waiting for it.
    pub blocking_switch_us: f64,
}

/// Sizes of pieces.
const SIZES_KIB: [u64; 5] = [4, 64, 1024, 8192, 65_536];
/// Bytes copied for one size at least, and copies at most.
const BYTES_PER_SIZE: u64 = 128 << 20;
const COPIES_MOST: u64 = 64;
/// Tries of each size: others may use the memory in some.
const TRIES: usize = 3;
/// Hand-overs that are timed.
const HAND_OVERS: u32 = 64;
/// Blocking copies that are timed.
const SWITCHES: usize = 9;

/// Measures a GPU.
///
/// # Errors
/// The GPU fails, or has no 64 MiB left.
pub fn probe(gpu: &dyn Gpu, watch: &mut Watch<'_>) -> Result<GpuFigures, MeasureError> {
    watch("GPU memory and link", 0.0);
    let (description, memory) = (gpu.description().clone(), gpu.memory()?);
    let bench = Bench::new(gpu)?;
    let mut host_to_device = Vec::with_capacity(SIZES_KIB.len());
    // The link sleeps when idle: one large copy wakes it.
    bench.copies_us(&bench.pinned, 64 << 20, 2)?;
    for size_kib in SIZES_KIB {
        let bytes = size_kib << 10;
        let copies = (BYTES_PER_SIZE / bytes).clamp(1, COPIES_MOST);
        let us = bench.calmest_us(&bench.pinned, bytes, copies)?;
        host_to_device.push(SizeRate { size_kib, gb_per_s: rate(bytes * copies, us) });
    }
    let large = SIZES_KIB[SIZES_KIB.len() - 1] << 10;
    let pageable_us = bench.calmest_us(&bench.pageable, large, 2)?;
    watch("hand-overs between GPU and CPU", 0.5);
    Ok(GpuFigures {
        model: description.name,
        compute_capability: description.capability.0 * 10 + description.capability.1,
        memory_mib: memory.total_bytes >> 20,
        free_mib: (memory.free_bytes + memory.ours_bytes).min(memory.total_bytes) >> 20,
        context_mib: memory.ours_bytes >> 20,
        host_to_device,
        pageable_gb_per_s: rate(2 * large, pageable_us),
        hand_over_us: rounded(bench.hand_over_us()?),
        blocking_switch_us: rounded(bench.blocking_switch_us()?),
    })
}

fn rate(bytes: u64, us: f64) -> f64 {
    rounded(bytes as f64 / us.max(1e-3) / 1000.0)
}

/// Streams and memory to measure with.
struct Bench<'a> {
    gpu: &'a dyn Gpu,
    compute: StreamId,
    transfer: StreamId,
    events: [EventId; 2],
    target: DeviceRegion,
    pinned: Arc<HostRegion>,
    pageable: Arc<HostRegion>,
}

impl<'a> Bench<'a> {
    fn new(gpu: &'a dyn Gpu) -> Result<Bench<'a>, MeasureError> {
        let bytes = SIZES_KIB[SIZES_KIB.len() - 1] << 10;
        let region = || -> Result<Arc<HostRegion>, MeasureError> {
            let mut region = HostRegion::new(bytes as usize)?;
            region.as_mut_slice().fill(1);
            Ok(Arc::new(region))
        };
        let (pinned, pageable) = (region()?, region()?);
        gpu.pin(&pinned)?;
        Ok(Bench {
            gpu,
            compute: gpu.new_stream(StreamKind::Compute)?,
            transfer: gpu.new_stream(StreamKind::Transfer)?,
            events: [gpu.new_event()?, gpu.new_event()?],
            target: gpu.take_memory(bytes, "measuring the link")?,
            pinned,
            pageable,
        })
    }

    /// Time of so many copies of the same piece, one after the other.
    fn copies_us(&self, from: &Arc<HostRegion>, bytes: u64, copies: u64) -> Result<f64, MeasureError> {
        let span = HostSpan { region: Arc::clone(from), range: 0..bytes as usize };
        self.gpu.record(self.transfer, self.events[0])?;
        for _ in 0..copies {
            self.gpu.copy_to_gpu(self.transfer, self.target.start, &CopySource::Span(span.clone()))?;
        }
        self.gpu.record(self.transfer, self.events[1])?;
        self.gpu.synchronize(self.transfer)?;
        Ok(self.gpu.elapsed(self.events[0], self.events[1])?.as_micros_f64())
    }

    /// The same at its calmest of some tries.
    fn calmest_us(&self, from: &Arc<HostRegion>, bytes: u64, copies: u64) -> Result<f64, MeasureError> {
        (0..TRIES).try_fold(f64::INFINITY, |least, _| Ok(least.min(self.copies_us(from, bytes, copies)?)))
    }

    /// Half of the time from the host's signal to its sight of the answer of a stream that waited for it.
    fn hand_over_us(&self) -> Result<f64, MeasureError> {
        let (to_gpu, to_cpu) = (self.gpu.new_flag()?, self.gpu.new_flag()?);
        let clock = self.gpu.clock();
        let mut samples_us = Vec::new();
        for epoch in (1..=HAND_OVERS).map(Epoch) {
            self.gpu.wait_flag(self.compute, to_gpu, epoch)?;
            self.gpu.signal_flag(self.compute, to_cpu, epoch)?;
            let start = clock.now();
            self.gpu.host_signal(to_gpu, epoch)?;
            while !self.gpu.host_sees(to_cpu, epoch)? {
                std::hint::spin_loop();
            }
            samples_us.push(clock.now().since(start).as_micros_f64() / 2.0);
        }
        Ok(median(samples_us))
    }

    fn blocking_switch_us(&self) -> Result<f64, MeasureError> {
        let clock = self.gpu.clock();
        let mut samples_us = Vec::new();
        for _ in 0..SWITCHES {
            let span = HostSpan { region: Arc::clone(&self.pinned), range: 0..16 << 10 };
            let start = clock.now();
            self.gpu.copy_to_gpu(self.transfer, self.target.start, &CopySource::Span(span))?;
            self.gpu.synchronize(self.transfer)?;
            samples_us.push(clock.now().since(start).as_micros_f64());
        }
        Ok(median(samples_us))
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}

/// The simulated GPU of a profile; `None` without a GPU in it.
pub fn simulated(profile: &Profile) -> Option<SimGpu> {
    let gpu = profile.gpu.as_ref()?;
    let link_point = |size: &SizeRate| LinkPoint { bytes: size.size_kib << 10, rate_gbps: size.gb_per_s };
    let large = gpu.host_to_device.last().map_or(1.0, |size| size.gb_per_s);
    let nanos = Nanos::from_micros_f64;
    let sim = SimProfile {
        name: profile.name.clone(),
        memory_bytes: gpu.memory_mib << 20,
        context_bytes: gpu.context_mib << 20,
        pinned_limit_bytes: profile.memory.pinned_limit_mib << 20,
        link: gpu.host_to_device.iter().map(link_point).collect(),
        pageable_factor: gpu.pageable_gb_per_s / large,
        submit: Nanos(0),
        // The profile's rates have it in them.
        copy_start: Nanos(0),
        to_gpu: nanos(profile.latency.to_gpu_us),
        to_cpu: nanos(profile.latency.to_cpu_us),
    };
    let (load, faults) = (LoadScript::default(), Faults::none());
    Some(SimGpu::new(SimConfig { profile: sim, load, faults, ceiling_bytes: None }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{machines::MACHINES, synthetic};

    #[test]
    fn a_simulated_gpu_measures_as_its_profile_says() {
        for machine in MACHINES.iter().filter(|machine| machine.gpu.is_some()).take(3) {
            let profile = synthetic::profile(machine);
            let (gpu, latency) = (profile.gpu.clone().unwrap(), &profile.latency);
            let found = probe(&simulated(&profile).unwrap(), &mut |_, _| {}).unwrap();
            assert_eq!(found.model, format!("sim:{}", machine.name));
            assert_eq!((found.memory_mib, found.context_mib), (gpu.memory_mib, gpu.context_mib));
            for (found, expected) in found.host_to_device.iter().zip(&gpu.host_to_device) {
                assert_eq!(found.size_kib, expected.size_kib);
                assert!((found.gb_per_s / expected.gb_per_s - 1.0).abs() < 0.01, "{found:?} {expected:?}");
            }
            assert!((found.pageable_gb_per_s / gpu.pageable_gb_per_s - 1.0).abs() < 0.02);
            let both_us = latency.to_gpu_us + latency.to_cpu_us;
            assert!((2.0 * found.hand_over_us - both_us).abs() < 0.01 * both_us, "{}", found.hand_over_us);
        }
        let cpu_only = MACHINES.iter().find(|machine| machine.gpu.is_none()).unwrap();
        assert!(simulated(&synthetic::profile(cpu_only)).is_none());
    }
}
