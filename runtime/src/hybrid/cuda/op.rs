//! A run of launches as one operator: enqueued one by one at first, recorded as a graph after the round in which the
//! same numbers of rows came again, replayed from then on. Never recorded inside a round: the driver would wait there
//! for a device that waits for the host. Next: `mod.rs`.

use super::lower::Emit;
use crate::hybrid::ops::RoundArgs;
use device::DeviceError;
use device::cuda::{CudaGraph, CudaTask, KernelLaunch};
use device::gpu::{GpuOp, GpuTarget, LaunchArgs};
use kernels::KernelError;
use kernels::cuda::Launch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    /// They came once.
    Seen,
    /// They came again: to be recorded after the round.
    Repeated,
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
    is_unsettled: AtomicBool,
}

impl CudaOp {
    /// An operator of what `emits` give. Contexts are rounded up to buckets, the last of which is `context_max`.
    pub fn new(name: String, emits: Vec<Emit>, context_max: u32, recording: Recording) -> CudaOp {
        CudaOp { name, emits, context_max, recording, known: Mutex::default(), is_unsettled: AtomicBool::new(false) }
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

/// A lock whose poison does not matter: a list of what may be forgotten.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut known = lock(&self.known);
        let place = known.iter().position(|(of, _)| *of == args);
        let entry = match place.map(|index| known.remove(index).1) {
            Some(Known::Recorded(graph)) => {
                task.replay(&graph)?;
                Known::Recorded(graph)
            }
            other => {
                self.enqueue_on(task, args)?;
                other.map_or(Known::Seen, |_| Known::Repeated)
            }
        };
        let is_settled = known.len() < GRAPHS_MAX && !matches!(entry, Known::Repeated);
        self.is_unsettled.fetch_or(!is_settled, Ordering::Relaxed);
        known.push((args, entry));
        Ok(())
    }

    fn is_unsettled(&self) -> bool {
        self.is_unsettled.load(Ordering::Relaxed)
    }

    fn settle(&self, target: GpuTarget<'_>) -> Result<(), DeviceError> {
        let GpuTarget::Cuda(task) = target else { return Ok(()) };
        let mut known = lock(&self.known);
        let surplus = known.len().saturating_sub(GRAPHS_MAX);
        known.drain(..surplus);
        for (args, entry) in known.iter_mut().filter(|(_, entry)| matches!(entry, Known::Repeated)) {
            *entry = Known::Recorded(task.record(|task| self.enqueue_on(task, *args))?);
        }
        self.is_unsettled.store(false, Ordering::Relaxed);
        Ok(())
    }
}
