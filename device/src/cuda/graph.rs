//! Recorded runs of kernels and copies: one call per round instead of one per kernel. Next: `gpu.rs`.

use cudarc::driver::{result, sys};

use super::context::Context;
use crate::DeviceError;

/// A recorded and instantiated graph. It must not outlive the memory that its kernels use.
#[derive(Debug)]
pub struct CudaGraph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

// SAFETY: graph handles may be used from any thread; launches are ordered by their stream.
unsafe impl Send for CudaGraph {}
// SAFETY: launching does not change the graph.
unsafe impl Sync for CudaGraph {}

/// Which priority a graph's kernels have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelPriority {
    /// That of the stream on which the graph is put.
    OfLaunch,
    /// That of the stream on which each was recorded.
    OfRecording,
}

impl KernelPriority {
    fn flags(self) -> sys::CUgraphInstantiate_flags {
        match self {
            KernelPriority::OfLaunch => sys::CUgraphInstantiate_flags(0),
            KernelPriority::OfRecording => sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
        }
    }
}

impl CudaGraph {
    /// Records what `work` puts on the stream, and takes what the graph needs on the device. The stream is left as it
    /// was even if `work` fails. Must not be called while a stream waits for the host: the driver may wait for it.
    pub(super) fn capture(
        context: &Context,
        stream: sys::CUstream,
        priority: KernelPriority,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<CudaGraph, DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is the context's.
        context.check("cuStreamBeginCapture", unsafe { result::stream::begin_capture(stream, mode) })?;
        let outcome = work();
        // SAFETY: as above; the capture has begun.
        let graph = unsafe { result::stream::end_capture(stream) };
        outcome?;
        let graph = context.check("cuStreamEndCapture", graph)?;
        // SAFETY: the graph was just made.
        let exec = unsafe { result::graph::instantiate(graph, priority.flags()) };
        let exec = context.check("cuGraphInstantiateWithFlags", exec)?;
        let graph = CudaGraph { graph, exec };
        // SAFETY: both handles are live.
        context.check("cuGraphUpload", unsafe { sys::cuGraphUpload(graph.exec, stream) }.result())?;
        Ok(graph)
    }

    pub(super) fn launch(&self, context: &Context, stream: sys::CUstream) -> Result<(), DeviceError> {
        // SAFETY: both handles are live.
        context.check("cuGraphLaunch", unsafe { result::graph::launch(self.exec, stream) })
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // SAFETY: each handle is destroyed once; the driver keeps what is still running.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.graph);
        }
    }
}
