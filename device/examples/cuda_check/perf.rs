//! How fast: bandwidths, chains of a model's matrices in one graph, prefill products, attention, small kernels.
//!
//! Every figure is a median over replays of one recorded graph, after a warm-up; weights are random and larger than the
//! second-level cache. Next file: `perf/models.rs`.

mod models;

use std::time::Instant;

use device::DeviceError;
use device::cuda::{CudaGpu, CudaGraph};
use device::gpu::{DeviceRegion, Epoch, EventId, Gpu, StreamId, StreamKind};
use kernels::cuda::ops;
use kernels::cuda::product::{self, Activations, Chip, Form, Part, TokenTile};
use kernels::cuda::rows::convert;
use kernels::cuda::transfer::{copy_bytes, fill_random, move_rows, read_bytes};
use kernels::cuda::{DevicePtr, Forms, GpuLayout, GpuMatrix, Launch, View};
use kernels::quant::WeightType;

use crate::machine::kernel;
use crate::{Arguments, is_listed};

const GIB: u64 = 1 << 30;
/// Replays of a measurement.
const REPLAYS: usize = 9;

/// A bump allocator over one large region, with timing.
struct Lab<'a> {
    gpu: &'a CudaGpu,
    arena: DeviceRegion,
    used_bytes: u64,
    noise: DevicePtr,
    stream: StreamId,
    events: Vec<EventId>,
}

impl Lab<'_> {
    fn chip(&self) -> Chip {
        Chip::of(self.gpu.model().capability)
    }

    /// All whose matrix kernels this GPU runs.
    fn chips(&self) -> impl Iterator<Item = Chip> + use<> {
        let own = self.chip();
        [Chip::Portable, Chip::Sm90].into_iter().filter(move |&chip| chip <= own)
    }

    fn room(&mut self, bytes: u64) -> DevicePtr {
        let at = self.used_bytes;
        self.used_bytes = (at + bytes.max(16)).next_multiple_of(256);
        assert!(self.used_bytes <= self.arena.bytes, "the measurement needs more than the arena");
        DevicePtr(self.arena.start.0 + at)
    }

    fn rows(&mut self, rows: u64, cols: u32) -> View {
        View { data: self.room(rows * u64::from(cols) * 4), stride: cols, cols }
    }

    fn put_i32(&mut self, values: &[i32]) -> Result<DevicePtr, DeviceError> {
        let at = self.room(values.len() as u64 * 4);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.gpu.upload(device::gpu::DevicePtr(at.0), &bytes)?;
        Ok(at)
    }

    fn enqueue(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        let task = self.gpu.task(self.stream)?;
        launches.iter().try_for_each(|launch| task.launch(&kernel(launch)))
    }

    fn graph(&self, launches: &[Launch]) -> Result<CudaGraph, DeviceError> {
        self.gpu.task(self.stream)?.record(|task| launches.iter().try_for_each(|launch| task.launch(&kernel(launch))))
    }

    /// Median microseconds of one replay of these launches as a graph.
    fn time(&self, launches: &[Launch]) -> Result<f64, DeviceError> {
        let graph = self.graph(launches)?;
        let task = self.gpu.task(self.stream)?;
        for _ in 0..2 {
            task.replay(&graph)?;
        }
        for pair in self.events.chunks(2) {
            self.gpu.record(self.stream, pair[0])?;
            task.replay(&graph)?;
            self.gpu.record(self.stream, pair[1])?;
        }
        self.gpu.synchronize(self.stream)?;
        let mut times = Vec::new();
        for pair in self.events.chunks(2) {
            times.push(self.gpu.elapsed(pair[0], pair[1])?.as_micros_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

/// All measurements.
pub fn run(gpu: &CudaGpu, wanted: &Arguments) -> Result<(), DeviceError> {
    let free = gpu.memory()?.free_bytes;
    let arena = gpu.take_memory((free - GIB).min(16 * GIB), "measurements")?;
    let stream = gpu.new_stream(StreamKind::Compute)?;
    let events = (0..2 * REPLAYS).map(|_| gpu.new_event()).collect::<Result<_, _>>()?;
    let noise = DevicePtr(gpu.take_memory(4 * NOISE, "noise")?.start.0);
    make_noise(gpu, noise)?;
    let mut lab = Lab { gpu, arena, used_bytes: 0, noise, stream, events };
    let copy_gb_s = bandwidths(&mut lab)?;
    if is_listed(&wanted.sections, "small") {
        latencies(&mut lab)?;
    }
    let chosen = |ty: WeightType| wanted.has_type(ty);
    for section in ["chains", "prefill", "experts", "attention", "small"] {
        match section {
            _ if !is_listed(&wanted.sections, section) => Ok(()),
            "chains" => chains(&mut lab, copy_gb_s, &chosen),
            "prefill" => prefill(&mut lab, wanted.dense_tflops, &chosen),
            "experts" => models::experts(&mut lab, &chosen),
            "attention" => models::attentions(&mut lab),
            _ => models::small(&mut lab),
        }?;
    }
    Ok(())
}

fn bandwidths(lab: &mut Lab) -> Result<f64, DeviceError> {
    lab.used_bytes = 0;
    let bytes = 4 * GIB;
    let (from, to) = (lab.room(bytes), lab.room(bytes));
    let blocks = lab.gpu.description().multiprocessors * 4;
    lab.enqueue(&[fill_random(from, bytes, 1)])?;
    let kernel_us = lab.time(&[copy_bytes(from, to, bytes, blocks)])?;
    let read_us = lab.time(&[read_bytes(from, to, bytes, blocks)])?;
    let task = lab.gpu.task(lab.stream)?;
    let engine = task.record(|task| task.copy(device::gpu::DevicePtr(to.0), device::gpu::DevicePtr(from.0), bytes))?;
    let start = Instant::now();
    task.replay(&engine)?;
    lab.gpu.synchronize(lab.stream)?;
    let first = start.elapsed();
    lab.gpu.record(lab.stream, lab.events[0])?;
    for _ in 0..4 {
        task.replay(&engine)?;
    }
    lab.gpu.record(lab.stream, lab.events[1])?;
    lab.gpu.synchronize(lab.stream)?;
    let engine_us = lab.gpu.elapsed(lab.events[0], lab.events[1])?.as_micros_f64() / 4.0;
    let gb_s = |moved: u64, us: f64| moved as f64 / us / 1e3;
    println!("copy, driver       {:8.0} GB/s read + written (first {first:?})", gb_s(2 * bytes, engine_us));
    println!("copy, kernel       {:8.0} GB/s read + written", gb_s(2 * bytes, kernel_us));
    println!("read, kernel       {:8.0} GB/s", gb_s(bytes, read_us));
    Ok(gb_s(2 * bytes, engine_us))
}

fn latencies(lab: &mut Lab) -> Result<(), DeviceError> {
    lab.used_bytes = 0;
    let mapped = lab.gpu.take_mapped(64 << 20, "zero copy")?;
    let local = lab.room(64 << 20);
    let view = |at: DevicePtr| View { data: at, stride: 5120, cols: 5120 };
    let host = DevicePtr(mapped.device.0);
    for rows in [1u32, 512] {
        let to_host = lab.time(&[move_rows(view(local), view(host), rows, None)])?;
        let to_gpu = lab.time(&[move_rows(view(host), view(local), rows, None)])?;
        let gb_s = |us: f64| f64::from(rows) * 5120.0 * 4.0 / us / 1e3;
        println!(
            "zero copy, {rows:4} rows of 5120: to host {to_host:6.1} us ({:.1} GB/s), to GPU {to_gpu:6.1} us ({:.1})",
            gb_s(to_host),
            gb_s(to_gpu)
        );
    }
    let (x, y) = (lab.rows(1, 256), lab.rows(1, 256));
    let many: Vec<Launch> = (0..200).map(|_| ops::add(x, y, y, 1)).collect();
    println!("small kernel in a graph {:.2} us", lab.time(&many)? / 200.0);
    let (flag_to_cpu, flag_to_gpu) = (lab.gpu.new_flag()?, lab.gpu.new_flag()?);
    let rounds = 500;
    let start = Instant::now();
    for round in 1..=rounds {
        lab.gpu.wait_flag(lab.stream, flag_to_gpu, Epoch(round))?;
        lab.gpu.signal_flag(lab.stream, flag_to_cpu, Epoch(round))?;
        lab.gpu.host_signal(flag_to_gpu, Epoch(round))?;
        while !lab.gpu.host_sees(flag_to_cpu, Epoch(round))? {
            std::hint::spin_loop();
        }
    }
    println!(
        "wait and signal, enqueued then passed: {:.2} us",
        start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
    );
    Ok(())
}

/// Activations of a form over uninitialised memory that a conversion fills.
fn activations(lab: &mut Lab, form: Form, x: View, rows: u32) -> (Activations, Option<Launch>) {
    let elements = u64::from(rows.next_multiple_of(4)) * u64::from(x.cols);
    let none = Forms::default();
    let (data, scales, forms) = match form {
        Form::F32 => (x.data, DevicePtr::NULL, none),
        Form::Q8 => {
            let (q8, q8_scales) = (lab.room(elements), lab.room(elements / 4));
            (q8, q8_scales, Forms { q8, q8_scales, ..none })
        }
        Form::F16 => {
            let (f16, row_scale) = (lab.room(elements * 2), lab.room(u64::from(rows) * 4));
            (f16, row_scale, Forms { f16, row_scale, ..none })
        }
        Form::Bf16 => {
            let bf16 = lab.room(elements * 2);
            (bf16, DevicePtr::NULL, Forms { bf16, ..none })
        }
    };
    let launch = (form != Form::F32).then(|| convert(x, rows, forms));
    (Activations { form, data, scales, stride: x.cols }, launch)
}

/// Floats that [`fill_rows`] has at hand: the largest operand of a measurement.
const NOISE: u64 = 2048 * 17408;

/// Uniform in [-1, 1): made once, since tensor cores are faster on zeros than on numbers.
fn make_noise(gpu: &CudaGpu, at: DevicePtr) -> Result<(), DeviceError> {
    let uniform = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let values: Vec<u8> = (0..NOISE as u32).flat_map(|i| uniform(i).to_le_bytes()).collect();
    gpu.upload(device::gpu::DevicePtr(at.0), &values)
}

/// Noise in `x`.
fn fill_rows(lab: &Lab, x: View, rows: u32) -> Result<(), DeviceError> {
    let bytes = u64::from(rows) * u64::from(x.cols) * 4;
    lab.enqueue(&[copy_bytes(lab.noise, x.data, bytes.next_multiple_of(16), 256)])
}

/// A matrix of random bytes: any bits are weights, and their values do not matter for time.
fn matrix(lab: &mut Lab, ty: WeightType, layout: GpuLayout, rows: u32, cols: u32) -> GpuMatrix {
    let bytes = layout.row_bytes(ty, cols as usize).unwrap_or(0) as u64 * u64::from(rows);
    GpuMatrix { ty, layout, data: lab.room(bytes), rows, cols }
}

fn matrix_bytes(weight: &GpuMatrix) -> u64 {
    weight.row_bytes().unwrap_or(0) * u64::from(weight.rows)
}

/// Layers of a 14B model, every matrix of one type, in one graph with the conversions between them.
fn chains(lab: &mut Lab, copy_gb_s: f64, chosen: &dyn Fn(WeightType) -> bool) -> Result<(), DeviceError> {
    println!("\nchain of Qwen3-14B's matrices in one graph, conversions included: share of the copy's bandwidth");
    println!("{:18} {:>7} {:>9} {:>9} {:>7}", "type", "tokens", "us/layer", "GB/s", "share");
    for ty in WeightType::ALL.into_iter().filter(|&ty| chosen(ty)) {
        for layout in [GpuLayout::Tiled, GpuLayout::Gguf].into_iter().filter(|layout| layout.exists_for(ty)) {
            for tokens in [1, 2, 4, 8, 16, 32] {
                let (us, bytes) = chain(lab, ty, layout, tokens)?;
                let gb_s = bytes as f64 / us / 1e3;
                let name = format!("{ty} {}", if layout == GpuLayout::Tiled { "tiled" } else { "" });
                println!(
                    "{name:18} {tokens:7} {:9.1} {gb_s:9.0} {:6.1} %",
                    us / LAYERS as f64,
                    100.0 * gb_s / copy_gb_s
                );
            }
        }
    }
    Ok(())
}

const LAYERS: usize = 6;

/// Microseconds and weight bytes of one pass over the chain.
fn chain(lab: &mut Lab, ty: WeightType, layout: GpuLayout, tokens: u32) -> Result<(f64, u64), DeviceError> {
    lab.used_bytes = 0;
    let (hidden, wide) = (5120, 17408);
    let none = View::default();
    let mut launches = Vec::new();
    let mut bytes = 0;
    let x = lab.rows(u64::from(tokens), hidden);
    fill_rows(lab, x, tokens)?;
    let middle = lab.rows(u64::from(tokens), wide);
    let (k, v) = (lab.rows(u64::from(tokens), 1024), lab.rows(u64::from(tokens), 1024));
    let up = lab.rows(u64::from(tokens), wide);
    let weights_from = lab.used_bytes;
    for _ in 0..LAYERS {
        let mut step = |lab: &mut Lab, input: View, outs: &[(View, u32)]| {
            let form = product::form(ty, input.cols, tokens);
            let (active, conversion) = activations(lab, form, input, tokens);
            launches.extend(conversion);
            let parts: Vec<Part> = outs
                .iter()
                .map(|&(out, rows)| {
                    let weight = matrix(lab, ty, layout, rows, input.cols);
                    bytes += matrix_bytes(&weight);
                    Part { weight, bias: DevicePtr::NULL, residual: none, out }
                })
                .collect();
            launches.extend(product::product(lab.chip(), &parts, &active, tokens).unwrap_or_default());
        };
        step(lab, x, &[(View { cols: hidden, ..middle }, hidden), (k, 1024), (v, 1024)]);
        step(lab, View { cols: hidden, stride: wide, ..middle }, &[(x, hidden)]);
        step(lab, x, &[(middle, wide), (up, wide)]);
        step(lab, up, &[(x, hidden)]);
    }
    // Random bits over all weights; activations that came between were nothing yet.
    let weights = DevicePtr(lab.arena.start.0 + weights_from);
    lab.enqueue(&[fill_random(weights, lab.used_bytes - weights_from, 7)])?;
    Ok((lab.time(&launches)?, bytes))
}

fn prefill(lab: &mut Lab, dense_tflops: Option<f64>, chosen: &dyn Fn(WeightType) -> bool) -> Result<(), DeviceError> {
    println!("\nprefill products, TFLOP/s by token tile 64 / 128 / 192 / 256 (share of dense F16 of the best)");
    let shapes = [(17408u32, 5120u32), (5120, 17408), (5120, 5120)];
    for chip in lab.chips() {
        for ty in WeightType::ALL.into_iter().filter(|&ty| ty != WeightType::F32 && chosen(ty)) {
            for (rows, cols) in shapes {
                for tokens in [512u32, 2048] {
                    let rates = prefill_rates(lab, chip, ty, (rows, cols), tokens)?;
                    let best = rates.iter().flatten().copied().fold(0.0, f64::max);
                    let share = dense_tflops.map_or(String::new(), |dense| format!("{:5.1} %", 100.0 * best / dense));
                    let rates =
                        rates.map(|rate| rate.map_or("     -".to_string(), |rate| format!("{rate:6.1}"))).join(" ");
                    let rule = TokenTile::for_shape(chip, ty, rows.div_ceil(128), tokens);
                    println!("{chip:?} {ty:8} {cols:6} -> {rows:6} x {tokens:5}: {rates}  {share} {rule:?}");
                }
            }
        }
    }
    Ok(())
}

/// By tile, in the layout that weights have on a GPU.
fn prefill_rates(
    lab: &mut Lab,
    chip: Chip,
    ty: WeightType,
    (rows, cols): (u32, u32),
    tokens: u32,
) -> Result<[Option<f64>; 4], DeviceError> {
    let layout = GpuLayout::preferred(ty);
    lab.used_bytes = 0;
    let x = lab.rows(u64::from(tokens), cols);
    fill_rows(lab, x, tokens)?;
    let form = product::form(ty, cols, tokens);
    let (active, conversion) = activations(lab, form, x, tokens);
    lab.enqueue(&conversion.into_iter().collect::<Vec<_>>())?;
    let weight = matrix(lab, ty, layout, rows, cols);
    lab.enqueue(&[fill_random(weight.data, matrix_bytes(&weight), 3)])?;
    let out = lab.rows(u64::from(tokens), rows);
    let part = Part { weight, bias: DevicePtr::NULL, residual: View::default(), out };
    let flop = 2.0 * f64::from(rows) * f64::from(cols) * f64::from(tokens);
    let mut rates = [None; 4];
    for (rate, tile) in rates.iter_mut().zip(TokenTile::ALL).filter(|(_, tile)| tile.exists_on(chip)) {
        if let Ok(launch) = product::matmul(chip, &[part], &active, tokens, tile) {
            *rate = Some(flop / lab.time(&[launch; 4])? * 4.0 / 1e6);
        }
    }
    Ok(rates)
}
