//! What the tests of the simulated GPU share: a small machine, and the layers of a little model.
#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::Arc;

use device::DeviceError;
use device::clock::Nanos;
use device::gpu::{CopySource, DevicePtr, Gpu, GpuOp, GpuTarget, HostSpan, Launch, LaunchArgs, StreamId, StreamKind};
use device::memory::HostRegion;
use device::sim::{Faults, LinkPoint, LoadScript, SimConfig, SimGpu, SimProfile};

pub const LAYERS: usize = 8;
pub const WORDS: usize = 256;
pub const BYTES: u64 = WORDS as u64 * 4;

pub fn profile() -> SimProfile {
    SimProfile {
        name: "test".into(),
        memory_bytes: 1 << 20,
        context_bytes: 4096,
        pinned_limit_bytes: 1 << 30,
        link: vec![LinkPoint { bytes: 1, rate_gbps: 0.1 }],
        pageable_factor: 0.25,
        submit: Nanos(100),
        copy_start: Nanos(500),
        to_gpu: Nanos(1000),
        to_cpu: Nanos(700),
    }
}

pub fn sim(faults: Faults) -> Arc<SimGpu> {
    sim_under_load(faults, LoadScript::default())
}

pub fn sim_under_load(faults: Faults, load: LoadScript) -> Arc<SimGpu> {
    Arc::new(SimGpu::new(SimConfig { profile: profile(), load, faults, ceiling_bytes: None }))
}

/// x[i] = x[i] · 31 + w[(i + x[0]) mod n]: every word matters, and so does the order of layers.
pub fn layer(x: &mut [u32], weights: &[u32]) {
    let shift = x[0] as usize;
    for i in 0..x.len() {
        x[i] = x[i].wrapping_mul(31).wrapping_add(weights[(i + shift) % weights.len()]);
    }
}

pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

pub fn set_words(bytes: &mut [u8], words: &[u32]) {
    bytes.chunks_exact_mut(4).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
}

pub struct LayerOp {
    pub weights: DevicePtr,
    pub x: DevicePtr,
}

impl GpuOp for LayerOp {
    fn name(&self) -> &str {
        "layer"
    }
    fn run(&self, target: GpuTarget<'_>, _: LaunchArgs) -> Result<(), DeviceError> {
        let GpuTarget::Simulated(task) = target else { panic!("a simulated GPU runs this") };
        let weights = words(task.read(self.weights, BYTES)?);
        let place = task.write(self.x, BYTES)?;
        let mut x = words(place);
        layer(&mut x, &weights);
        set_words(place, &x);
        Ok(())
    }
}

/// The zero-copy kernel.
pub struct MoveOp {
    pub from: DevicePtr,
    pub to: DevicePtr,
}

impl GpuOp for MoveOp {
    fn name(&self) -> &str {
        "move"
    }
    fn run(&self, target: GpuTarget<'_>, _: LaunchArgs) -> Result<(), DeviceError> {
        let GpuTarget::Simulated(task) = target else { panic!("a simulated GPU runs this") };
        task.write(self.to, BYTES)?.copy_from_slice(task.read(self.from, BYTES)?);
        Ok(())
    }
}

pub fn launch(op: impl GpuOp + 'static) -> Launch {
    Launch { op: Arc::new(op), args: LaunchArgs::default(), expected: Nanos(2_000) }
}

pub fn weights() -> Arc<HostRegion> {
    let mut region = HostRegion::new(LAYERS * BYTES as usize).unwrap();
    for (l, place) in region.as_mut_slice().chunks_exact_mut(BYTES as usize).enumerate() {
        let layer: Vec<u32> = (0..WORDS).map(|i| (l as u32 + 1) * 1_000_003 + i as u32).collect();
        set_words(place, &layer);
    }
    Arc::new(region)
}

/// Streams, memory and a weight source without a timeline.
pub struct Bare {
    pub compute: StreamId,
    pub transfer: StreamId,
    pub source: CopySource,
    pub slot: DevicePtr,
    pub x: DevicePtr,
    pub mapped: DevicePtr,
}

impl Bare {
    pub fn new(gpu: &SimGpu) -> Self {
        let region = weights();
        let source = CopySource::Span(HostSpan { region, range: 0..BYTES as usize });
        let memory = gpu.take_memory(2 * BYTES, "all").unwrap().start;
        let streams = [StreamKind::Compute, StreamKind::Transfer].map(|kind| gpu.new_stream(kind).unwrap());
        let mapped = gpu.take_mapped(BYTES, "mapped").unwrap().device;
        let [compute, transfer] = streams;
        Self { compute, transfer, source, slot: memory, x: memory.offset(BYTES), mapped }
    }
    pub fn layer(&self) -> Launch {
        launch(LayerOp { weights: self.slot, x: self.x })
    }
}
