//! Host memory that the driver did not pin, on its way to the GPU: a thread brings it into a small pinned ring, from
//! where the copy engine takes it.
//!
//! Left to the driver, such a copy may hold up whoever queues it until the stream comes to it; and where the stream
//! waits for a part of the round that the same thread is to run, for ever. Here every call only queues. The thread
//! waits for room in the ring, the stream for the bytes; both move on as long as the stream does. Rules: an entry is
//! read only after it was written, and written only after its last reader. Next: `staging.rs`.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::DeviceError;
use crate::gpu::{CopySource, DevicePtr, Epoch, FlagId, Gpu, HostSpan, MappedRegion, StreamId};

/// Entries of the ring: one is written while others are read.
const ENTRIES: u32 = 4;
/// Size of each: large enough for the link, small enough to be in the cache.
const ENTRY_BYTES: usize = 1 << 20;
/// Looks at a flag before the thread sleeps.
const LOOKS_BEFORE_SLEEP: u32 = 256;
/// How long it sleeps: less than an entry takes to come.
const SLEEP: Duration = Duration::from_micros(20);

/// A piece to bring into the ring. Numbers are consecutive.
struct Job {
    number: Epoch,
    from: HostSpan,
}

/// See the module text.
pub(super) struct Bounce {
    ring: MappedRegion,
    written: FlagId,
    read: FlagId,
    queued: Epoch,
    jobs: Option<Sender<Job>>,
    carrier: Option<JoinHandle<()>>,
}

/// The thread's side.
struct Carrier {
    gpu: Arc<dyn Gpu>,
    ring: MappedRegion,
    written: FlagId,
    read: FlagId,
}

impl Bounce {
    /// A ring and its thread. Errors: no mapped memory, no thread.
    pub(super) fn new(gpu: &Arc<dyn Gpu>) -> Result<Self, DeviceError> {
        let ring = gpu.take_mapped(u64::from(ENTRIES) * ENTRY_BYTES as u64, "a ring for memory that is not pinned")?;
        let (written, read) = (gpu.new_flag()?, gpu.new_flag()?);
        let (jobs, queue) = channel();
        let carrier = Carrier { gpu: Arc::clone(gpu), ring, written, read };
        let builder = std::thread::Builder::new().name("bounce".to_owned());
        let thread = builder.spawn(move || carrier.serve(&queue));
        let thread = thread.map_err(|source| DeviceError::ThreadStart { index: 0, source })?;
        Ok(Self { ring, written, read, queued: Epoch(0), jobs: Some(jobs), carrier: Some(thread) })
    }

    /// Queues a copy. Errors: the GPU is lost.
    pub(super) fn copy(
        &mut self,
        gpu: &dyn Gpu,
        stream: StreamId,
        to: DevicePtr,
        from: &HostSpan,
    ) -> Result<(), DeviceError> {
        for first in from.range.clone().step_by(ENTRY_BYTES) {
            let range = first..from.range.end.min(first + ENTRY_BYTES);
            let bytes = range.len() as u64;
            let number = self.queued.next();
            self.queued = number;
            if let Some(jobs) = &self.jobs {
                // The thread ends early only when the GPU is lost, which the calls below report.
                let _ = jobs.send(Job { number, from: HostSpan { region: Arc::clone(&from.region), range } });
            }
            gpu.wait_flag(stream, self.written, number)?;
            let start = self.ring.device.offset(entry_offset(number));
            gpu.copy_to_gpu(
                stream,
                to.offset((first - from.range.start) as u64),
                &CopySource::Mapped { start, bytes },
            )?;
            gpu.signal_flag(stream, self.read, number)?;
        }
        Ok(())
    }
}

/// Where an entry begins.
fn entry_offset(number: Epoch) -> u64 {
    u64::from(number.0 % ENTRIES) * ENTRY_BYTES as u64
}

impl Drop for Bounce {
    /// What was queued is still brought: streams wait for it.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(carrier) = self.carrier.take() {
            let _ = carrier.join();
        }
    }
}

impl Carrier {
    fn serve(&self, jobs: &Receiver<Job>) {
        // A lost GPU ends it; its streams wait for nobody.
        for job in jobs {
            if self.carry(&job).is_err() {
                return;
            }
        }
    }

    fn carry(&self, job: &Job) -> Result<(), DeviceError> {
        let last_reader = Epoch(job.number.0.wrapping_sub(ENTRIES));
        let mut looks = 0_u32;
        while !self.gpu.carrier_sees(self.read, last_reader)? {
            looks = looks.saturating_add(1);
            if looks > LOOKS_BEFORE_SLEEP { std::thread::sleep(SLEEP) } else { std::hint::spin_loop() }
        }
        let offset = entry_offset(job.number);
        let (address, bytes) = (job.from.range.start as u64, job.from.range.len() as u64);
        let from = job.from.bytes().ok_or(DeviceError::GpuAddress { address, bytes })?;
        self.gpu.carrier_writes(self.ring.device.offset(offset), bytes)?;
        // SAFETY: the entry lies in the ring, which lives as long as the GPU; its last reader is done, and the next one
        // waits for the signal below.
        unsafe {
            let to = self.ring.host.add(offset as usize);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
        self.gpu.carrier_signals(self.written, job.number)
    }
}
