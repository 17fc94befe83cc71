//! A run of launches as one operator: enqueued one by one the first time, recorded as a graph when the same numbers of
//! rows come again, replayed from then on. Next: `mod.rs`.

use super::lower::Emit;
use crate::hybrid::ops::RoundArgs;
use device::DeviceError;
use device::cuda::{CudaGraph, CudaTask, KernelLaunch};
use device::gpu::{GpuOp, GpuTarget, LaunchArgs};
use kernels::KernelError;
use kernels::cuda::Launch;
use std::sync::{Mutex, PoisonError};

/// Graphs that a run keeps: decoding, verification batches, prefill, each in a few buckets of context.
const GRAPHS_MAX: usize = 12;
/// Context of the smallest bucket.
const CONTEXT_MIN: u32 = 1024;

/// Whether launches are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// When the same numbers of rows come a second time.
    WhenRepeated,
    /// A graph of one kernel gains nothing.
    Never,
}

/// What is known of a round's numbers.
enum Known {
    Seen,
    Recorded(CudaGraph),
}

/// See the module text.
pub struct CudaOp {
    name: String,
    emits: Vec<Emit>,
    context_max: u32,
    recording: Recording,
    /// Most recently met last.
    known: Mutex<Vec<(RoundArgs, Known)>>,
}

impl CudaOp {
    /// An operator of what `emits` give. Contexts are rounded up to buckets, the last of which is `context_max`.
    pub fn new(name: String, emits: Vec<Emit>, context_max: u32, recording: Recording) -> CudaOp {
        CudaOp { name, emits, context_max, recording, known: Mutex::default() }
    }

    /// The launches of a round.
    ///
    /// # Errors
    /// A shape without kernel.
    pub fn launches(&self, args: RoundArgs) -> Result<Vec<Launch>, KernelError> {
        let mut launches = Vec::new();
        self.emits.iter().try_for_each(|emit| emit(args, &mut launches))?;
        launches.retain(|launch| !launch.is_empty());
        Ok(launches)
    }

    /// The same round with its context rounded up, so that neighbouring rounds share a graph.
    pub fn bucket(&self, args: RoundArgs) -> RoundArgs {
        let rounded = args.context_tokens.max(CONTEXT_MIN).checked_next_power_of_two().unwrap_or(u32::MAX);
        RoundArgs { context_tokens: rounded.min(self.context_max), ..args }
    }

    fn enqueue(
        &self,
        args: RoundArgs,
        put: impl Fn(&KernelLaunch) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let launches = self.launches(args).map_err(|error| self.refuse(&error.to_string()))?;
        launches.iter().try_for_each(|launch| put(&kernel(launch)))
    }

    fn enqueue_on(&self, task: &CudaTask, args: RoundArgs) -> Result<(), DeviceError> {
        self.enqueue(args, |launch| task.launch(launch))
    }

    fn refuse(&self, reason: &str) -> DeviceError {
        DeviceError::GpuKernel { module: self.name.clone(), kernel: String::new(), reason: reason.to_string() }
    }
}

/// A launch as the device layer takes it.
fn kernel(launch: &Launch) -> KernelLaunch<'_> {
    let Launch { module, kernel, grid, threads, shared_bytes, .. } = *launch;
    KernelLaunch { module, kernel, grid, threads, shared_bytes, args: launch.args() }
}

impl GpuOp for CudaOp {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, target: GpuTarget<'_>, args: LaunchArgs) -> Result<(), DeviceError> {
        let args = self.bucket(RoundArgs::from(args));
        let task = match target {
            GpuTarget::Cuda(task) => task,
            GpuTarget::Kernels(queue) => return self.enqueue(args, |launch| queue.launch(launch)),
            _ => return Err(self.refuse("it runs on CUDA devices only")),
        };
        if self.recording == Recording::Never {
            return self.enqueue_on(task, args);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let place = known.iter().position(|(of, _)| *of == args);
        let entry = match place.map(|index| known.remove(index).1) {
            None => {
                self.enqueue_on(task, args)?;
                Known::Seen
            }
            Some(Known::Seen) => {
                let graph = task.record(|task| self.enqueue_on(task, args))?;
                task.replay(&graph)?;
                Known::Recorded(graph)
            }
            Some(Known::Recorded(graph)) => {
                task.replay(&graph)?;
                Known::Recorded(graph)
            }
        };
        if known.len() == GRAPHS_MAX {
            known.remove(0);
        }
        known.push((args, entry));
        Ok(())
    }
}
