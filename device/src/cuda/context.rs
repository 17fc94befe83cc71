//! The context of one device, its streams and events, and the rule that the first failure loses the GPU.
//! Next: `gpu.rs`.

use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::{DriverError, result, sys};

use super::module::ModuleSource;
use super::probe::{GpuModel, describe, probe};
use crate::DeviceError;
use crate::gpu::{EventId, StreamId, StreamKind};

/// What a [`CudaGpu`](super::CudaGpu) is made of.
#[derive(Clone)]
pub struct CudaOptions {
    /// Which device, as the driver counts them.
    pub ordinal: u32,
    /// Most memory that the process may take on the device, context included; `None`: all that is free.
    pub ceiling_bytes: Option<u64>,
    /// PTX by module name.
    pub modules: ModuleSource,
}

/// What a context holds for kernels that call functions with stacks, print or allocate. None of this program's does (CI
/// proves it of the stack), so all of it goes back: on an H200 the context takes 260 MiB instead of 524. A driver that
/// keeps more than it is asked to is not an error: whatever the context takes is measured and counted.
const LIMITS: [(sys::CUlimit, usize); 3] = [
    (sys::CUlimit::CU_LIMIT_STACK_SIZE, 0),
    (sys::CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE, 0),
    (sys::CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, 0),
];

/// Sets the limits of the current context.
fn trim() {
    for (limit, bytes) in LIMITS {
        // SAFETY: a context is current.
        let _ = unsafe { sys::cuCtxSetLimit(limit, bytes) };
    }
}

/// A retained primary context with its handles. All methods may be called from any thread.
pub(super) struct Context {
    pub(super) model: GpuModel,
    pub(super) driver: u32,
    device: sys::CUdevice,
    context: sys::CUcontext,
    streams: Mutex<Vec<sys::CUstream>>,
    events: Mutex<Vec<sys::CUevent>>,
    lost: OnceLock<String>,
}

// SAFETY: driver handles may be used from any thread whose current context is theirs; `enter` sees to that.
unsafe impl Send for Context {}
// SAFETY: as above; the driver's functions are thread-safe.
unsafe impl Sync for Context {}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// Retains the primary context of a device; waits of this process spin rather than sleep.
    pub(super) fn open(ordinal: u32) -> Result<Context, DeviceError> {
        let driver = probe()?;
        let model = driver.usable(ordinal)?.clone();
        let lost = |call: &str, error| DeviceError::GpuLost { message: format!("{call}: {}", describe(error)) };
        let device = result::device::get(ordinal as i32).map_err(|e| lost("cuDeviceGet", e))?;
        let spin = sys::CUctx_flags_enum::CU_CTX_SCHED_SPIN as u32;
        // A context that is active already keeps its flags, which is not an error worth stopping for.
        // SAFETY: the device was given by the driver.
        let _ = unsafe { sys::cuDevicePrimaryCtxSetFlags_v2(device, spin) };
        // SAFETY: as above.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(|e| lost("cuDevicePrimaryCtxRetain", e))?;
        let (streams, events) = (Mutex::default(), Mutex::default());
        let context =
            Context { model, driver: driver.version, device, context, streams, events, lost: OnceLock::new() };
        context.enter()?;
        trim();
        Ok(context)
    }

    /// Makes the context current on this thread. Errors: the GPU is lost.
    pub(super) fn enter(&self) -> Result<(), DeviceError> {
        if let Some(message) = self.lost.get() {
            return Err(DeviceError::GpuLost { message: message.clone() });
        }
        // SAFETY: the context is retained until `self` is dropped.
        self.check("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })
    }

    /// The driver's handle.
    pub(super) fn raw(&self) -> sys::CUcontext {
        self.context
    }

    /// Turns a driver error into the loss of the GPU: after most errors its context is unusable anyway.
    pub(super) fn check<T>(&self, call: &str, result: Result<T, DriverError>) -> Result<T, DeviceError> {
        result.map_err(|error| {
            let message = format!("{call}: {}", describe(error));
            DeviceError::GpuLost { message: self.lost.get_or_init(|| message).clone() }
        })
    }

    /// Free and total bytes of the device.
    pub(super) fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.enter()?;
        let (free, total) = self.check("cuMemGetInfo", result::mem_get_info())?;
        Ok((free as u64, total as u64))
    }

    /// Makes a stream that does not wait for the legacy default stream. Unpacking goes before operators, whose blocks
    /// would otherwise keep it, and with it the link, waiting; copies need no multiprocessor.
    pub(super) fn new_stream(&self, kind: StreamKind) -> Result<StreamId, DeviceError> {
        self.enter()?;
        let (least, greatest) = self.check("cuCtxGetStreamPriorityRange", result::stream::get_priority_range())?;
        // Smaller numbers go first.
        let priority = match kind {
            StreamKind::Unpack => greatest,
            StreamKind::Compute => (greatest + 1).min(least),
            StreamKind::Transfer => least,
        };
        let stream = result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, priority);
        let stream = self.check("cuStreamCreateWithPriority", stream)?;
        let mut streams = lock(&self.streams);
        streams.push(stream);
        Ok(StreamId(streams.len() as u32 - 1))
    }

    pub(super) fn stream(&self, id: StreamId) -> Result<sys::CUstream, DeviceError> {
        let stream = lock(&self.streams).get(id.0 as usize).copied();
        stream.ok_or(DeviceError::GpuHandle { kind: "stream", id: id.0 })
    }

    pub(super) fn new_event(&self) -> Result<EventId, DeviceError> {
        self.enter()?;
        let event = self.check("cuEventCreate", result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT))?;
        let mut events = lock(&self.events);
        events.push(event);
        Ok(EventId(events.len() as u32 - 1))
    }

    pub(super) fn event(&self, id: EventId) -> Result<sys::CUevent, DeviceError> {
        let event = lock(&self.events).get(id.0 as usize).copied();
        event.ok_or(DeviceError::GpuHandle { kind: "event", id: id.0 })
    }

    /// Whether any stream reports an error; for waits that look at memory only.
    pub(super) fn look_for_errors(&self) -> Result<(), DeviceError> {
        self.enter()?;
        for &stream in lock(&self.streams).iter() {
            // SAFETY: the stream lives as long as `self`.
            match unsafe { sys::cuStreamQuery(stream) } {
                sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_NOT_READY => {}
                error => self.check("cuStreamQuery", Err(DriverError(error)))?,
            }
        }
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the handles are ours, nothing is enqueued any more once the owner is dropped, and each is freed once.
        // Errors (a lost GPU) leave nothing to do.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            for stream in lock(&self.streams).drain(..) {
                let _ = result::stream::destroy(stream);
            }
            for event in lock(&self.events).drain(..) {
                let _ = result::event::destroy(event);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
