//! What the workers of a team share, and the life of a round: post, work, leave, collect.
//!
//! Protocol of a round (caller = worker 0): the caller, alone, resets queue, barrier and failure, writes the job and
//! the number of absent workers, then publishes each active worker's `go` word. A worker sees its word change, runs the
//! job, and decrements `absent`. The caller runs the job too, then waits for `absent` to reach zero. Hence the job,
//! which borrows from the caller's stack, outlives every use of it. Next: `../team.rs` (threads), `worker.rs` (what a
//! job sees).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use super::barrier::{Barrier, BarrierBroken};
use super::queue::WorkQueue;
use super::word::WaitWord;
use super::worker::Worker;
use crate::DeviceError;
use crate::sync::{AtomicU32, CachePadded, Ordering, SharedCell};

/// The unit of the `absent` word, above the sleep bit.
const ONE: u32 = 2;

/// Bits of the `go` word above the sleep bit: one that flips to get a sleeper spinning, and the count of rounds.
const ROUSE: u32 = 2;
const ROUND_ONE: u32 = 4;

/// A closure of the caller with its lifetime erased; valid while its round lasts.
#[derive(Clone, Copy)]
pub struct Job {
    data: *const (),
    call: unsafe fn(*const (), &Worker<'_>),
}

impl Job {
    /// Erases `work`. The job must not be called after `work` is gone.
    pub fn new<F: Fn(&Worker<'_>) + Sync>(work: &F) -> Self {
        /// # Safety
        /// `data` points to a live `F`.
        unsafe fn call<F: Fn(&Worker<'_>) + Sync>(data: *const (), worker: &Worker<'_>) {
            // SAFETY: by this function's contract.
            let work = unsafe { &*data.cast::<F>() };
            work(worker);
        }
        Self { data: std::ptr::from_ref(work).cast(), call: call::<F> }
    }
}

/// What the caller writes before it publishes the `go` words.
#[derive(Clone, Copy)]
pub struct Orders {
    /// `None` tells the worker to end.
    pub job: Option<Job>,
    /// Workers of this round, the caller included.
    pub count: u32,
}

/// Shared state of one team; see the module text.
pub struct Crew {
    orders: SharedCell<Orders>,
    go: Vec<CachePadded<WaitWord>>,
    absent: CachePadded<WaitWord>,
    /// The barrier of the round under way.
    pub barrier: Barrier,
    /// The row counters of the round under way.
    pub queue: WorkQueue,
    /// How long waits spin before they sleep.
    pub spin_ns: CachePadded<AtomicU32>,
    failure: Mutex<Option<DeviceError>>,
}

// SAFETY: `orders` is the only part that is not Sync by itself. It is written by the caller while no worker is in a
// round and read by workers after they saw their `go` word change (release/acquire); the job's closure is Sync.
unsafe impl Sync for Crew {}
// SAFETY: as above; a job's pointer is only used during its round.
unsafe impl Send for Crew {}

/// Thrown through the closures of workers that can no longer pass a barrier; `attend` catches it.
struct Abandoned(BarrierBroken);

impl Crew {
    /// State for `count` workers, the caller included.
    pub fn new(count: usize, spin_ns: u32) -> Self {
        Self {
            orders: SharedCell::new(Orders { job: None, count: 0 }),
            go: (0..count).map(|_| CachePadded(WaitWord::default())).collect(),
            absent: CachePadded(WaitWord::default()),
            barrier: Barrier::new(),
            queue: WorkQueue::new(count),
            spin_ns: CachePadded(AtomicU32::new(spin_ns)),
            failure: Mutex::new(None),
        }
    }

    /// Runs `job` on workers `0..count`, this thread being worker 0. Returns when all have left it.
    pub fn round(&self, job: Job, count: u32) -> Result<(), DeviceError> {
        self.barrier.reset();
        self.queue.reset();
        self.absent.reset((count - 1) * ONE);
        let orders = Orders { job: Some(job), count };
        self.post(orders);
        self.attend(0, orders);
        let spin_ns = self.spin_ns.load(Ordering::Relaxed);
        self.absent.wait_until(spin_ns, |absent| absent == 0);
        match self.failure_slot().take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Tells workers `1..=started` to end. Only between rounds.
    pub fn dismiss(&self, started: usize) {
        self.post(Orders { job: None, count: started as u32 + 1 });
    }

    fn post(&self, orders: Orders) {
        // SAFETY: no worker is in a round, so none reads the orders; only the caller writes them.
        self.orders.with_mut(|slot| unsafe { *slot = orders });
        for go in &self.go[1..orders.count as usize] {
            go.publish(|word| word.wrapping_add(ROUND_ONE));
        }
    }

    /// Gets sleeping workers below `count` to spin again. Orders are not touched: a roused worker does not look at
    /// them.
    pub fn rouse(&self, count: u32) {
        for go in &self.go[1..count as usize] {
            go.publish_to_sleepers(|word| word ^ ROUSE);
        }
    }

    /// The life of worker `index` > 0: rounds until dismissed.
    pub fn serve(&self, index: usize) {
        let mut last = 0;
        loop {
            let spin_ns = self.spin_ns.load(Ordering::Relaxed);
            let word = self.go[index].wait_until(spin_ns, |word| word != last);
            let roused_only = (word ^ last) == ROUSE;
            last = word;
            if roused_only {
                continue;
            }
            // SAFETY: the caller published `go` after it wrote the orders and writes again only after this worker left.
            let orders = self.orders.with(|slot| unsafe { *slot });
            if orders.job.is_none() {
                return;
            }
            self.attend(index, orders);
            self.absent.publish_quietly(|absent| absent - ONE, |absent| absent == 0);
        }
    }

    /// Runs the job as worker `index`; a panic becomes the round's failure and releases the others.
    fn attend(&self, index: usize, orders: Orders) {
        let Some(job) = orders.job else { return };
        let worker = Worker::new(self, index, orders.count);
        // SAFETY: `round` keeps the closure alive until every worker of the round has left.
        let run = || unsafe { (job.call)(job.data, &worker) };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(()) => {
                if self.barrier.leave().is_err() {
                    self.fail(DeviceError::BarrierMismatch { worker: index });
                }
            }
            Err(payload) => self.abandon(index, payload.as_ref()),
        }
    }

    fn abandon(&self, index: usize, payload: &(dyn Any + Send)) {
        match payload.downcast_ref::<Abandoned>() {
            Some(Abandoned(BarrierBroken::Poisoned)) => return,
            Some(Abandoned(BarrierBroken::Mismatch)) => self.fail(DeviceError::BarrierMismatch { worker: index }),
            None => self.fail(DeviceError::WorkerPanicked { worker: index, message: panic_message(payload) }),
        }
        self.barrier.poison();
    }

    /// The barrier as a worker meets it: unwinds out of the job when it is broken.
    pub fn pass_barrier(&self, count: u32) {
        let spin_ns = self.spin_ns.load(Ordering::Relaxed);
        if let Err(broken) = self.barrier.arrive(count, spin_ns) {
            std::panic::resume_unwind(Box::new(Abandoned(broken)));
        }
    }

    /// The first failure of a round is the one that is reported.
    fn fail(&self, failure: DeviceError) {
        self.failure_slot().get_or_insert(failure);
    }

    fn failure_slot(&self) -> std::sync::MutexGuard<'_, Option<DeviceError>> {
        self.failure.lock().unwrap_or_else(|broken| broken.into_inner())
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
