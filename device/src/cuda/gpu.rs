//! [`CudaGpu`]: the [`Gpu`] interface on a CUDA device. Memory is taken for good and counted against the ceiling.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::{DriverError, result, sys};

use super::context::{Context, CudaOptions, lock};
use super::graph::{CudaGraph, KernelPriority};
use super::mapped::{Flags, take_mapped};
use super::module::{CudaTask, KernelLaunch, Modules};
use super::probe::{GpuModel, describe};
use crate::DeviceError;
use crate::clock::{Clock, Nanos};
use crate::gpu::{
    CopySource, DevicePtr, DeviceRegion, Epoch, EventId, FlagId, Gpu, GpuDescription, GpuMemory, GpuOp, GpuTarget,
    GraphId, Launch, MappedRegion, StreamId, StreamKind,
};
use crate::memory::HostRegion;

/// The driver aligns allocations to this.
const ALIGNMENT_BYTES: u64 = 256;
/// Looks at a flag between two looks at the streams' errors.
const LOOKS_PER_ERROR_CHECK: u32 = 1 << 14;
/// What a context takes where the driver cannot be asked: a little more than any that was seen.
const CONTEXT_BYTES_ASSUMED: u64 = 640 << 20;

/// A CUDA device.
pub struct CudaGpu {
    // Order of fields = order of dropping: graphs before modules before the context.
    graphs: Mutex<Vec<CudaGraph>>,
    /// Copies of the recording under way; `None` = one of them is not known.
    recorded: Mutex<Option<Vec<usize>>>,
    is_recording: AtomicBool,
    modules: Modules,
    flags: Flags,
    context: Arc<Context>,
    description: GpuDescription,
    clock: Clock,
    ceiling_bytes: Option<u64>,
    context_bytes: u64,
    taken_bytes: AtomicU64,
    looks: AtomicU32,
    memory: Mutex<Vec<u64>>,
    mapped: Mutex<Vec<MappedRegion>>,
    pinned: Mutex<Vec<Arc<HostRegion>>>,
}

impl CudaGpu {
    /// Opens a device.
    ///
    /// # Errors
    /// Why there is none, or a ceiling that does not even hold the context.
    pub fn open(options: &CudaOptions) -> Result<CudaGpu, DeviceError> {
        let before = nvml_used_bytes(options.ordinal);
        let context = Arc::new(Context::open(options.ordinal)?);
        let flags = Flags::new(&context)?;
        let after = nvml_used_bytes(options.ordinal);
        let context_bytes = match (before, after) {
            (Some(before), Some(after)) if after > before => after - before,
            _ => CONTEXT_BYTES_ASSUMED,
        };
        let GpuModel { name, capability, multiprocessors, memory_bytes, .. } = context.model.clone();
        let description = GpuDescription { name, capability, driver: context.driver, memory_bytes, multiprocessors };
        let gpu = CudaGpu {
            graphs: Mutex::default(),
            recorded: Mutex::default(),
            is_recording: AtomicBool::new(false),
            modules: Modules::new(Arc::clone(&context), Arc::clone(&options.modules)),
            flags,
            context,
            description,
            clock: Clock::wall(),
            ceiling_bytes: options.ceiling_bytes,
            context_bytes,
            taken_bytes: AtomicU64::new(0),
            looks: AtomicU32::new(0),
            memory: Mutex::default(),
            mapped: Mutex::default(),
            pinned: Mutex::default(),
        };
        let ceiling = options.ceiling_bytes.unwrap_or(u64::MAX);
        if context_bytes > ceiling {
            let purpose = "the CUDA context".to_string();
            return Err(DeviceError::GpuMemory { bytes: context_bytes, purpose, free_bytes: ceiling });
        }
        Ok(gpu)
    }

    /// What the device says of itself.
    pub fn model(&self) -> &GpuModel {
        &self.context.model
    }

    /// Machine code of a module for this driver and device, to be stored.
    ///
    /// # Errors
    /// An unknown module, or the driver's compiler.
    pub fn machine_code(&self, module: &str) -> Result<Vec<u8>, DeviceError> {
        self.modules.machine_code(module)
    }

    /// Machine code of several modules, made on several threads, in the modules' order.
    ///
    /// # Errors
    /// As [`CudaGpu::machine_code`].
    pub fn machine_codes(&self, modules: &[&str], threads: usize) -> Result<Vec<Vec<u8>>, DeviceError> {
        self.modules.machine_codes(modules, threads)
    }

    /// Uses stored machine code for a module that is not loaded yet.
    ///
    /// # Errors
    /// Code of another device or driver.
    pub fn load_machine_code(&self, module: &str, code: &[u8]) -> Result<(), DeviceError> {
        self.modules.load_machine_code(module, code)
    }

    /// Loads modules before they are needed, on several threads.
    ///
    /// # Errors
    /// The first that does not load.
    pub fn load_modules(&self, names: &[&str], threads: usize) -> Result<(), DeviceError> {
        self.modules.load_all(names, threads)
    }

    /// A stream to put kernels on.
    ///
    /// # Errors
    /// An unknown stream or a lost GPU.
    pub fn task(&self, stream: StreamId) -> Result<CudaTask<'_>, DeviceError> {
        self.context.enter()?;
        Ok(CudaTask::new(&self.context, &self.modules, self.context.stream(stream)?))
    }

    /// Runs one kernel and waits: whether this device executes this program's code at all, known in the first second.
    ///
    /// # Errors
    /// The kernel does not load or run.
    pub fn trial(&self, launch: &KernelLaunch) -> Result<(), DeviceError> {
        let stream = self.new_stream(StreamKind::Compute)?;
        self.task(stream)?.launch(launch)?;
        self.synchronize(stream)
    }

    /// Frees what was taken last, if it is this region; for benchmarks and tests, which take much in turn.
    ///
    /// # Errors
    /// Another region was taken later, or a lost GPU.
    pub fn give_back(&self, region: DeviceRegion) -> Result<(), DeviceError> {
        self.context.enter()?;
        let mut memory = lock(&self.memory);
        if memory.last() != Some(&region.start.0) {
            return Err(DeviceError::GpuAddress { address: region.start.0, bytes: region.bytes });
        }
        memory.pop();
        self.taken_bytes.fetch_sub(rounded(region.bytes), Ordering::Relaxed);
        // SAFETY: allocated by `take_memory`; the caller is done with it.
        self.context.check("cuMemFree", unsafe { result::free_sync(region.start.0) })
    }

    /// Remembers the copy that was recorded last.
    fn note_copy(&self, stream: sys::CUstream) -> Result<(), DeviceError> {
        let node = CudaGraph::last_node(&self.context, stream)?;
        let mut recorded = lock(&self.recorded);
        *recorded = recorded.take().zip(node).map(|(mut copies, node)| {
            copies.push(node as usize);
            copies
        });
        Ok(())
    }

    fn left_bytes(&self) -> Result<u64, DeviceError> {
        let (free, _) = self.context.memory()?;
        let ours = self.context_bytes + self.taken_bytes.load(Ordering::Relaxed);
        Ok(self.ceiling_bytes.map_or(free, |ceiling| free.min(ceiling.saturating_sub(ours))))
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(ALIGNMENT_BYTES).unwrap_or(u64::MAX)
}

/// Memory in use on the device by everybody, as the management library counts it; `None` where it is not there.
fn nvml_used_bytes(ordinal: u32) -> Option<u64> {
    let nvml = nvml_wrapper::Nvml::init().ok()?;
    Some(nvml.device_by_index(ordinal).ok()?.memory_info().ok()?.used)
}

impl Gpu for CudaGpu {
    fn description(&self) -> &GpuDescription {
        &self.description
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn memory(&self) -> Result<GpuMemory, DeviceError> {
        let (unclaimed_bytes, total_bytes) = self.context.memory()?;
        let ours_bytes = self.context_bytes + self.taken_bytes.load(Ordering::Relaxed);
        Ok(GpuMemory { total_bytes, free_bytes: self.left_bytes()?, ours_bytes, unclaimed_bytes })
    }

    fn take_memory(&self, bytes: u64, purpose: &str) -> Result<DeviceRegion, DeviceError> {
        let (size, free_bytes) = (rounded(bytes), self.left_bytes()?);
        let short = || DeviceError::GpuMemory { bytes, purpose: purpose.to_string(), free_bytes };
        if size > free_bytes {
            return Err(short());
        }
        // SAFETY: a fresh allocation aliases nothing.
        let start = match unsafe { result::malloc_sync(size as usize) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => return Err(short()),
            other => self.context.check("cuMemAlloc", other)?,
        };
        lock(&self.memory).push(start);
        self.taken_bytes.fetch_add(size, Ordering::Relaxed);
        Ok(DeviceRegion { start: DevicePtr(start), bytes })
    }

    fn take_mapped(&self, bytes: u64, _purpose: &str) -> Result<MappedRegion, DeviceError> {
        let region = take_mapped(&self.context, bytes)?;
        lock(&self.mapped).push(region);
        Ok(region)
    }

    fn pin(&self, region: &Arc<HostRegion>) -> Result<(), DeviceError> {
        self.context.enter()?;
        let mut pinned = lock(&self.pinned);
        if region.is_empty() || pinned.iter().any(|known| Arc::ptr_eq(known, region)) {
            return Ok(());
        }
        let bytes = region.len();
        // SAFETY: the region's pages stay mapped, since the GPU keeps the region alive.
        let registered = unsafe {
            let start = region.as_ptr().cast_mut().cast::<c_void>();
            sys::cuMemHostRegister_v2(start, bytes, sys::CU_MEMHOSTREGISTER_PORTABLE)
        };
        registered.result().map_err(|error| {
            let pinned_bytes = pinned.iter().map(|region| region.len() as u64).sum();
            DeviceError::PinRefused { bytes: bytes as u64, pinned_bytes, reason: describe(error) }
        })?;
        pinned.push(Arc::clone(region));
        Ok(())
    }

    fn upload(&self, to: DevicePtr, from: &[u8]) -> Result<(), DeviceError> {
        self.context.enter()?;
        // SAFETY: whoever calls vouches for the device range.
        self.context.check("cuMemcpyHtoD", unsafe { result::memcpy_htod_sync(to.0, from) })
    }

    fn download(&self, to: &mut [u8], from: DevicePtr) -> Result<(), DeviceError> {
        self.context.enter()?;
        // SAFETY: whoever calls vouches for the device range.
        self.context.check("cuMemcpyDtoH", unsafe { result::memcpy_dtoh_sync(to, from.0) })
    }

    fn new_stream(&self, kind: StreamKind) -> Result<StreamId, DeviceError> {
        self.context.new_stream(kind)
    }

    fn new_event(&self) -> Result<EventId, DeviceError> {
        self.context.new_event()
    }

    fn new_flag(&self) -> Result<FlagId, DeviceError> {
        self.flags.take()
    }

    fn record(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.context.enter()?;
        let (event, stream) = (self.context.event(event)?, self.context.stream(stream)?);
        // SAFETY: both handles live as long as the context.
        self.context.check("cuEventRecord", unsafe { result::event::record(event, stream) })
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.context.enter()?;
        let (event, stream) = (self.context.event(event)?, self.context.stream(stream)?);
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles live as long as the context.
        self.context.check("cuStreamWaitEvent", unsafe { result::stream::wait_event(stream, event, flags) })
    }

    fn event_passed(&self, event: EventId) -> Result<bool, DeviceError> {
        self.context.enter()?;
        // SAFETY: the handle lives as long as the context.
        match unsafe { result::event::query(self.context.event(event)?) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => self.context.check("cuEventQuery", Err(error)),
        }
    }

    fn elapsed(&self, from: EventId, to: EventId) -> Result<Nanos, DeviceError> {
        self.context.enter()?;
        // SAFETY: the handles live as long as the context.
        match unsafe { result::event::elapsed(self.context.event(from)?, self.context.event(to)?) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY | sys::CUresult::CUDA_ERROR_INVALID_HANDLE)) => {
                Err(DeviceError::EventPending { event: to.0 })
            }
            other => Ok(Nanos((f64::from(self.context.check("cuEventElapsedTime", other)?) * 1e6).round() as u64)),
        }
    }

    fn signal_flag(&self, stream: StreamId, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        self.context.enter()?;
        let (stream, address) = (self.context.stream(stream)?, self.flags.address(flag)?);
        // The default flags put a memory barrier before the write.
        // SAFETY: the flag is mapped memory of this context.
        let written = unsafe { sys::cuStreamWriteValue32_v2(stream, address.0, epoch.0, 0) };
        self.context.check("cuStreamWriteValue32", written.result())
    }

    fn wait_flag(&self, stream: StreamId, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        self.context.enter()?;
        let (stream, address) = (self.context.stream(stream)?, self.flags.address(flag)?);
        let at_least = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the flag is mapped memory of this context.
        let waits = unsafe { sys::cuStreamWaitValue32_v2(stream, address.0, epoch.0, at_least) };
        self.context.check("cuStreamWaitValue32", waits.result())
    }

    fn host_signal(&self, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        self.flags.signal(flag, epoch)
    }

    fn host_sees(&self, flag: FlagId, epoch: Epoch) -> Result<bool, DeviceError> {
        if self.flags.sees(flag, epoch)? {
            return Ok(true);
        }
        if self.looks.fetch_add(1, Ordering::Relaxed) % LOOKS_PER_ERROR_CHECK == LOOKS_PER_ERROR_CHECK - 1 {
            self.context.look_for_errors()?;
        }
        Ok(false)
    }

    fn copy_to_gpu(&self, stream: StreamId, to: DevicePtr, from: &CopySource) -> Result<(), DeviceError> {
        self.context.enter()?;
        let stream = self.context.stream(stream)?;
        match from {
            CopySource::Span(span) => {
                let (address, bytes) = (span.range.start as u64, span.range.len() as u64);
                let bytes = span.bytes().ok_or(DeviceError::GpuAddress { address, bytes })?;
                // SAFETY: whoever calls vouches for the device range; the source is never written while it is shared,
                // and pinned regions live as long as the GPU.
                let copied = unsafe { result::memcpy_htod_async(to.0, bytes, stream) };
                self.context.check("cuMemcpyHtoDAsync", copied)?;
            }
            CopySource::Mapped { start, bytes } => {
                // SAFETY: as above; mapped regions live as long as the GPU.
                let copied = unsafe { sys::cuMemcpyAsync(to.0, start.0, *bytes as usize, stream) };
                self.context.check("cuMemcpyAsync", copied.result())?;
            }
            CopySource::Pageable(_) => return Err(crate::timeline::pageable()),
        }
        if self.is_recording.load(Ordering::Relaxed) { self.note_copy(stream) } else { Ok(()) }
    }

    fn launch(&self, stream: StreamId, launch: &Launch) -> Result<(), DeviceError> {
        let task = self.task(stream)?;
        launch.op.run(GpuTarget::Cuda(&task), launch.args)
    }

    fn record_graph(
        &self,
        stream: StreamId,
        work: &mut dyn FnMut() -> Result<(), DeviceError>,
    ) -> Result<Option<GraphId>, DeviceError> {
        self.context.enter()?;
        let stream = self.context.stream(stream)?;
        *lock(&self.recorded) = Some(Vec::new());
        self.is_recording.store(true, Ordering::Relaxed);
        let graph = CudaGraph::capture(&self.context, stream, KernelPriority::OfRecording, work);
        self.is_recording.store(false, Ordering::Relaxed);
        let mut graph = graph?;
        // Without them the graph is whole, but its copies stay as they are.
        let copies = lock(&self.recorded).take().unwrap_or_default();
        graph.copies = copies.into_iter().map(|node| node as sys::CUgraphNode).collect();
        let mut graphs = lock(&self.graphs);
        graphs.push(graph);
        Ok(Some(GraphId(graphs.len() as u32 - 1)))
    }

    fn redirect_copy(
        &self,
        graph: GraphId,
        number: usize,
        to: DevicePtr,
        from: &CopySource,
    ) -> Result<bool, DeviceError> {
        let graphs = lock(&self.graphs);
        let known = graphs.get(graph.0 as usize).ok_or(DeviceError::GpuHandle { kind: "graph", id: graph.0 })?;
        let CopySource::Span(span) = from else { return Ok(false) };
        let (address, bytes) = (span.range.start as u64, span.range.len() as u64);
        let bytes = span.bytes().ok_or(DeviceError::GpuAddress { address, bytes })?;
        Ok(known.redirect(&self.context, number, to.0, bytes).unwrap_or(false))
    }

    fn launch_graph(&self, stream: StreamId, graph: GraphId) -> Result<(), DeviceError> {
        self.context.enter()?;
        let stream = self.context.stream(stream)?;
        let graphs = lock(&self.graphs);
        let known = graphs.get(graph.0 as usize).ok_or(DeviceError::GpuHandle { kind: "graph", id: graph.0 })?;
        known.launch(&self.context, stream)
    }

    fn settle(&self, stream: StreamId, op: &dyn GpuOp) -> Result<(), DeviceError> {
        op.settle(GpuTarget::Cuda(&self.task(stream)?))
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.context.enter()?;
        let stream = self.context.stream(stream)?;
        // SAFETY: the handle lives as long as the context.
        self.context.check("cuStreamSynchronize", unsafe { result::stream::synchronize(stream) })
    }
}

impl Drop for CudaGpu {
    fn drop(&mut self) {
        if self.context.enter().is_err() {
            return;
        }
        // Nothing may read memory that is about to go: wait for all streams, whatever they say.
        let _ = self.context.look_for_errors();
        for index in 0.. {
            let Ok(stream) = self.context.stream(StreamId(index)) else { break };
            // SAFETY: the stream is the context's.
            let _ = unsafe { result::stream::synchronize(stream) };
        }
        // SAFETY: each was taken by us and is freed once, when no stream has work left.
        unsafe {
            for start in lock(&self.memory).drain(..) {
                let _ = result::free_sync(start);
            }
            let flags = std::iter::once(self.flags.region());
            for region in lock(&self.mapped).drain(..).chain(flags) {
                let _ = result::free_host(region.host.cast::<c_void>());
            }
            for region in lock(&self.pinned).drain(..) {
                let _ = sys::cuMemHostUnregister(region.as_ptr().cast_mut().cast::<c_void>());
            }
        }
    }
}
