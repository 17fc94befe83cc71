//! One large region of GPU memory, handed out from the start for every figure, and a stream with events.

use super::super::MeasureError;
use device::clock::Nanos;
use device::cuda::{CudaGpu, KernelLaunch};
use device::gpu::{DevicePtr as GpuPtr, DeviceRegion, Epoch, EventId, Gpu as _, StreamId, StreamKind};
use kernels::cuda::ops::add;
use kernels::cuda::product::{Activations, Form};
use kernels::cuda::rows::convert;
use kernels::cuda::transfer::{copy_bytes, fill_random, move_rows};
use kernels::cuda::{Chip, DevicePtr, Forms, GpuLayout, GpuMatrix, Launch, View};
use kernels::quant::WeightType;

/// Memory to measure in, if so much is free.
const ARENA_BYTES: u64 = 1 << 30;
/// What is left to others.
const SPARE_BYTES: u64 = 128 << 20;
/// Timed replays of a graph.
const REPLAYS: usize = 7;
/// Launches of a small kernel in one graph.
const SMALL_LAUNCHES: usize = 200;
/// Rows of activations that move between host and GPU.
const MOVED_ROWS: u32 = 512;
const MOVED_COLS: u32 = 5120;
/// Columns of a row that is handed over: what more takes is a matter of the link's rate.
const HANDED_COLS: u32 = 256;
/// Hand-overs that are timed, and how long each is left alone when it has been queued.
const HAND_OVERS: u32 = 64;
const SETTLED: Nanos = Nanos(50_000);

/// See the module text.
pub struct Lab<'a> {
    gpu: &'a CudaGpu,
    arena: DeviceRegion,
    used_bytes: u64,
    stream: StreamId,
    events: [EventId; 2],
}

impl<'a> Lab<'a> {
    pub fn new(gpu: &'a CudaGpu) -> Result<Lab<'a>, MeasureError> {
        let free = gpu.memory()?.free_bytes.saturating_sub(SPARE_BYTES);
        let arena = gpu.take_memory(free.min(ARENA_BYTES), "measuring kernels")?;
        let stream = gpu.new_stream(StreamKind::Compute)?;
        let lab = Lab { gpu, arena, used_bytes: 0, stream, events: [gpu.new_event()?, gpu.new_event()?] };
        lab.enqueue(&[fill_random(DevicePtr(arena.start.0), arena.bytes / 16 * 16, 1)])?;
        Ok(lab)
    }

    /// Memory that was taken.
    pub fn arena_bytes(&self) -> u64 {
        self.arena.bytes
    }

    /// Whose matrix kernels the GPU runs.
    pub fn chip(&self) -> Chip {
        Chip::of(self.gpu.model().capability)
    }

    /// Forgets what was handed out.
    pub fn clear(&mut self) {
        self.used_bytes = 0;
    }

    /// Bytes that are still to be had.
    pub fn left_bytes(&self) -> u64 {
        self.arena.bytes.saturating_sub(self.used_bytes)
    }

    /// Memory of random content.
    pub fn room(&mut self, bytes: u64) -> Result<DevicePtr, MeasureError> {
        let at = self.used_bytes;
        let end = (at + bytes.max(16)).next_multiple_of(256);
        if end > self.arena.bytes {
            return Err(MeasureError::NoRoom { needed_mib: end >> 20, free_mib: self.arena.bytes >> 20 });
        }
        self.used_bytes = end;
        Ok(DevicePtr(self.arena.start.0 + at))
    }

    /// F32 rows.
    pub fn rows(&mut self, rows: u32, cols: u32) -> Result<View, MeasureError> {
        let data = self.room(u64::from(rows) * u64::from(cols) * 4)?;
        Ok(View { data, stride: cols, cols })
    }

    /// An array with content.
    pub fn put_i32(&mut self, values: &[i32]) -> Result<DevicePtr, MeasureError> {
        let at = self.room(values.len() as u64 * 4)?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.gpu.upload(GpuPtr(at.0), &bytes)?;
        Ok(at)
    }

    /// A matrix, or a stack of them.
    pub fn matrix(&mut self, ty: WeightType, (rows, cols): (u32, u32), stack: u32) -> Result<GpuMatrix, MeasureError> {
        let layout = GpuLayout::preferred(ty);
        let bytes = layout.row_bytes(ty, cols as usize)? as u64 * u64::from(rows) * u64::from(stack);
        Ok(GpuMatrix { ty, layout, data: self.room(bytes)?, rows, cols })
    }

    /// Activations in a form, and the launch that makes them.
    pub fn activations(
        &mut self,
        form: Form,
        x: View,
        rows: u32,
    ) -> Result<(Activations, Option<Launch>), MeasureError> {
        let elements = u64::from(rows.next_multiple_of(4)) * u64::from(x.cols);
        let none = Forms::default();
        let (data, scales, forms) = match form {
            Form::F32 => {
                return Ok((Activations { form, data: x.data, scales: DevicePtr::NULL, stride: x.cols }, None));
            }
            Form::Q8 => {
                let (q8, q8_scales) = (self.room(elements)?, self.room(elements / 4)?);
                (q8, q8_scales, Forms { q8, q8_scales, ..none })
            }
            Form::F16 => {
                let (f16, row_scale) = (self.room(elements * 2)?, self.room(u64::from(rows) * 4)?);
                (f16, row_scale, Forms { f16, row_scale, ..none })
            }
            Form::Bf16 => {
                let bf16 = self.room(elements * 2)?;
                (bf16, DevicePtr::NULL, Forms { bf16, ..none })
            }
        };
        Ok((Activations { form, data, scales, stride: x.cols }, Some(convert(x, rows, forms))))
    }

    /// Puts launches on the stream.
    pub fn enqueue(&self, launches: &[Launch]) -> Result<(), MeasureError> {
        let task = self.gpu.task(self.stream)?;
        Ok(launches.iter().try_for_each(|launch| task.launch(&kernel(launch)))?)
    }

    /// Median time of these launches as one graph, in microseconds.
    pub fn time_us(&self, launches: &[Launch]) -> Result<f64, MeasureError> {
        let task = self.gpu.task(self.stream)?;
        let graph = task.record(|task| launches.iter().try_for_each(|launch| task.launch(&kernel(launch))))?;
        task.replay(&graph)?;
        let mut times_us = Vec::with_capacity(REPLAYS);
        for _ in 0..REPLAYS {
            self.gpu.record(self.stream, self.events[0])?;
            task.replay(&graph)?;
            self.gpu.record(self.stream, self.events[1])?;
            self.gpu.synchronize(self.stream)?;
            times_us.push(self.gpu.elapsed(self.events[0], self.events[1])?.as_micros_f64());
        }
        times_us.sort_by(f64::total_cmp);
        Ok(times_us[REPLAYS / 2].max(1e-3))
    }

    /// A small kernel inside a graph.
    pub fn small_kernel_us(&mut self) -> Result<f64, MeasureError> {
        self.clear();
        let (x, y) = (self.rows(1, 256)?, self.rows(1, 256)?);
        let launches = vec![add(x, y, y, 1); SMALL_LAUNCHES];
        Ok(self.time_us(&launches)? / SMALL_LAUNCHES as f64)
    }

    /// Half of the time from the host's signal, through a move of activations to the GPU and one back, to its sight of
    /// the GPU's signal: what rounds do. Flags alone take a sixth of it on the H200 machine (1.8 of 11 us).
    pub fn hand_over_us(&mut self) -> Result<f64, MeasureError> {
        self.clear();
        let mapped = self.gpu.take_mapped(u64::from(HANDED_COLS) * 8, "measuring hand-overs")?;
        let local = self.rows(1, HANDED_COLS)?;
        let host =
            |row: u64| View { data: DevicePtr(mapped.device.0).offset(row * u64::from(HANDED_COLS) * 4), ..local };
        let moves = [move_rows(host(0), local, 1, None), move_rows(local, host(1), 1, None)];
        let (to_gpu, to_cpu, clock) = (self.gpu.new_flag()?, self.gpu.new_flag()?, self.gpu.clock());
        let mut times_us = Vec::with_capacity(HAND_OVERS as usize);
        for epoch in (1..=HAND_OVERS).map(Epoch) {
            self.gpu.wait_flag(self.stream, to_gpu, epoch)?;
            self.enqueue(&moves)?;
            self.gpu.signal_flag(self.stream, to_cpu, epoch)?;
            // All of it is with the GPU when the CPU's part of a round ends.
            let queued = clock.now();
            while clock.now().since(queued) < SETTLED {
                std::hint::spin_loop();
            }
            let start = clock.now();
            self.gpu.host_signal(to_gpu, epoch)?;
            while !self.gpu.host_sees(to_cpu, epoch)? {
                std::hint::spin_loop();
            }
            times_us.push(clock.now().since(start).as_micros_f64() / 2.0);
        }
        times_us.sort_by(f64::total_cmp);
        Ok(times_us[times_us.len() / 2])
    }

    /// Copies inside GPU memory, bytes read and written.
    pub fn copy_gb_per_s(&mut self) -> Result<f64, MeasureError> {
        self.clear();
        let bytes = self.left_bytes() / 2 / 4096 * 4096;
        let (from, to) = (self.room(bytes)?, self.room(bytes)?);
        let blocks = self.gpu.description().multiprocessors * 4;
        let us = self.time_us(&[copy_bytes(from, to, bytes, blocks)])?;
        Ok(2.0 * bytes as f64 / us / 1000.0)
    }

    /// Rows of activations moved from mapped host memory by a kernel.
    pub fn zero_copy_gb_per_s(&mut self) -> Result<f64, MeasureError> {
        self.clear();
        let bytes = u64::from(MOVED_ROWS) * u64::from(MOVED_COLS) * 4;
        let mapped = self.gpu.take_mapped(bytes, "measuring zero copy")?;
        let local = self.rows(MOVED_ROWS, MOVED_COLS)?;
        let host = View { data: DevicePtr(mapped.device.0), ..local };
        let us = self.time_us(&[move_rows(host, local, MOVED_ROWS, None)])?;
        Ok(bytes as f64 / us / 1000.0)
    }
}

/// A launch as the device layer takes it.
fn kernel(launch: &Launch) -> KernelLaunch<'_> {
    let Launch { module, kernel, grid, threads, shared_bytes, .. } = *launch;
    KernelLaunch { module, kernel, grid, threads, shared_bytes, args: launch.args() }
}
