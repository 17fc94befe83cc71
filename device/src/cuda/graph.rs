//! Recorded runs of kernels and copies: one call per round instead of one per kernel. Next: `gpu.rs`.

use cudarc::driver::{result, sys};

use super::context::Context;
use crate::DeviceError;

/// A recorded and instantiated graph. It must not outlive the memory that its kernels use.
#[derive(Debug)]
pub struct CudaGraph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    /// Its copies from the host, in the order of recording.
    pub(super) copies: Vec<sys::CUgraphNode>,
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
        let graph = CudaGraph { graph, exec, copies: Vec::new() };
        // SAFETY: both handles are live.
        context.check("cuGraphUpload", unsafe { sys::cuGraphUpload(graph.exec, stream) }.result())?;
        Ok(graph)
    }

    /// The node that was recorded last on a stream; `None` if there is not exactly one.
    pub(super) fn last_node(context: &Context, stream: sys::CUstream) -> Result<Option<sys::CUgraphNode>, DeviceError> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph) = (0, std::ptr::null_mut());
        let (mut nodes, mut count) = (std::ptr::null(), 0);
        // SAFETY: all out pointers are valid; the stream is the context's.
        let info = unsafe {
            sys::cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut count).result()
        };
        context.check("cuStreamGetCaptureInfo", info)?;
        // SAFETY: the driver lists so many nodes there, until the next call on the stream.
        Ok((count == 1 && !nodes.is_null()).then(|| unsafe { *nodes }))
    }

    /// Lets a copy read elsewhere from the next launch on. `false` = the driver refuses.
    pub(super) fn redirect(&self, context: &Context, number: usize, to: u64, from: &[u8]) -> Option<bool> {
        let node = *self.copies.get(number)?;
        let copy = copy_from_host(to, from);
        // SAFETY: the node is one of the graph's; source and target are as in the recorded copy, whose caller vouched
        // for them.
        let set = unsafe { sys::cuGraphExecMemcpyNodeSetParams(self.exec, node, &copy, context.raw()) };
        Some(set.result().is_ok())
    }

    pub(super) fn launch(&self, context: &Context, stream: sys::CUstream) -> Result<(), DeviceError> {
        // SAFETY: both handles are live.
        context.check("cuGraphLaunch", unsafe { result::graph::launch(self.exec, stream) })
    }
}

/// Parameters of a copy of plain bytes.
fn copy_from_host(to: u64, from: &[u8]) -> sys::CUDA_MEMCPY3D {
    let mut copy = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
    let fields = copy.as_mut_ptr();
    // SAFETY: the pointer is valid for writes of single fields. Zero is a value of every field but the two kinds of
    // memory, which are written.
    unsafe {
        (&raw mut (*fields).srcMemoryType).write(sys::CUmemorytype::CU_MEMORYTYPE_HOST);
        (&raw mut (*fields).dstMemoryType).write(sys::CUmemorytype::CU_MEMORYTYPE_DEVICE);
        (&raw mut (*fields).srcHost).write(from.as_ptr().cast());
        (&raw mut (*fields).dstDevice).write(to);
        (&raw mut (*fields).WidthInBytes).write(from.len());
        (&raw mut (*fields).Height).write(1);
        (&raw mut (*fields).Depth).write(1);
        copy.assume_init()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The binding's struct has enums without a value of zero: making one must not panic.
    #[test]
    fn parameters_of_a_copy_are_those_given() {
        let bytes = [1_u8; 48];
        let copy = copy_from_host(4096, &bytes);
        assert_eq!((copy.dstDevice, copy.srcHost.cast()), (4096, bytes.as_ptr()));
        assert_eq!((copy.WidthInBytes, copy.Height, copy.Depth), (48, 1, 1));
        assert_eq!(copy.srcMemoryType, sys::CUmemorytype::CU_MEMORYTYPE_HOST);
        assert_eq!(copy.dstMemoryType, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE);
        assert_eq!((copy.srcXInBytes, copy.dstXInBytes, copy.srcPitch), (0, 0, 0));
    }
}
