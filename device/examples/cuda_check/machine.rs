//! A GPU as the case tables see it: one arena, one stream. Next file: `perf.rs`.

use device::cuda::{CudaGpu, KernelLaunch};
use device::gpu::{DevicePtr as GpuPtr, DeviceRegion, Gpu, StreamId, StreamKind};
use kernels::cuda::check::Machine;
use kernels::cuda::product::Chip;
use kernels::cuda::{DevicePtr, Launch};

/// Enough for the largest case.
const ARENA_BYTES: u64 = 256 << 20;

/// See the module text.
pub struct GpuMachine<'a> {
    gpu: &'a CudaGpu,
    arena: DeviceRegion,
    used_bytes: u64,
    stream: StreamId,
}

/// A launch as the device layer takes it.
pub fn kernel(launch: &Launch) -> KernelLaunch<'_> {
    let Launch { module, kernel, grid, threads, shared_bytes, .. } = *launch;
    KernelLaunch { module, kernel, grid, threads, shared_bytes, args: launch.args() }
}

impl<'a> GpuMachine<'a> {
    pub fn new(gpu: &'a CudaGpu) -> Result<Self, String> {
        let arena = gpu.take_memory(ARENA_BYTES, "the checks").map_err(|error| error.to_string())?;
        let stream = gpu.new_stream(StreamKind::Compute).map_err(|error| error.to_string())?;
        Ok(GpuMachine { gpu, arena, used_bytes: 0, stream })
    }

    pub fn free(self) -> Result<(), String> {
        self.gpu.give_back(self.arena).map_err(|error| error.to_string())
    }
}

impl Machine for GpuMachine<'_> {
    fn name(&self) -> String {
        self.gpu.description().name.clone()
    }

    fn chips(&self) -> Vec<Chip> {
        let own = Chip::of(self.gpu.model().capability);
        [Chip::Portable, Chip::Sm90].into_iter().filter(|&chip| chip <= own).collect()
    }

    fn alloc(&mut self, bytes: usize) -> Result<DevicePtr, String> {
        let at = self.used_bytes;
        self.used_bytes = (at + bytes as u64).next_multiple_of(256);
        if self.used_bytes > ARENA_BYTES {
            return Err(format!("the case needs more than {ARENA_BYTES} bytes"));
        }
        Ok(DevicePtr(self.arena.start.0 + at))
    }

    fn write(&mut self, to: DevicePtr, bytes: &[u8]) -> Result<(), String> {
        self.gpu.upload(GpuPtr(to.0), bytes).map_err(|error| error.to_string())
    }

    fn read(&mut self, from: DevicePtr, bytes: &mut [u8]) -> Result<(), String> {
        self.gpu.synchronize(self.stream).map_err(|error| error.to_string())?;
        self.gpu.download(bytes, GpuPtr(from.0)).map_err(|error| error.to_string())
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), String> {
        let task = self.gpu.task(self.stream).map_err(|error| error.to_string())?;
        task.launch(&kernel(launch)).map_err(|error| error.to_string())
    }

    fn clear(&mut self) -> Result<(), String> {
        self.gpu.synchronize(self.stream).map_err(|error| error.to_string())?;
        self.used_bytes = 0;
        Ok(())
    }
}
