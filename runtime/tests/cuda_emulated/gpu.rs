//! A GPU whose kernels run in the emulator: streams are threads, memory is this process's. Just enough of the driver's
//! semantics for the executor: order inside a stream, events, flags, and the loss of everything after a failure.

use super::emulator::{Call, Kernels};
use device::DeviceError;
use device::clock::{Clock, Nanos};
use device::cuda::KernelLaunch;
use device::gpu::*;
use device::memory::HostRegion;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

const MEMORY_BYTES: u64 = 1 << 30;
const ALIGNMENT_WORDS: usize = 16;

type Work = Box<dyn FnOnce(&Shared) -> Result<(), DeviceError> + Send>;

/// What stream threads see.
struct Shared {
    kernels: Kernels,
    lost: OnceLock<String>,
}

impl KernelQueue for Shared {
    fn launch(&self, launch: &KernelLaunch<'_>) -> Result<(), DeviceError> {
        let KernelLaunch { module, kernel, grid, threads, shared_bytes, args } = *launch;
        let call = Call { module, kernel, grid, threads, shared_bytes, args };
        self.kernels.run(&call).map_err(|reason| DeviceError::GpuKernel {
            module: module.to_string(),
            kernel: kernel.to_string(),
            reason,
        })
    }
}

struct Stream {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    submitted: u64,
    done: Arc<AtomicU64>,
}

#[derive(Default)]
struct Event {
    recorded: u64,
    passed: Arc<AtomicU64>,
}

pub struct EmulatedGpu {
    shared: Arc<Shared>,
    description: GpuDescription,
    clock: Clock,
    memory: Mutex<Vec<Box<[u128]>>>,
    streams: Mutex<Vec<Stream>>,
    events: Mutex<Vec<Event>>,
    flags: Mutex<Vec<Arc<AtomicU32>>>,
}

impl EmulatedGpu {
    pub fn new(order: u32) -> EmulatedGpu {
        let shared = Arc::new(Shared { kernels: Kernels::new(order), lost: OnceLock::new() });
        let description = GpuDescription {
            name: "emulated CUDA".into(),
            capability: (8, 0),
            driver: 12_080,
            memory_bytes: MEMORY_BYTES,
            multiprocessors: 4,
        };
        EmulatedGpu {
            shared,
            description,
            clock: Clock::wall(),
            memory: Mutex::default(),
            streams: Mutex::default(),
            events: Mutex::default(),
            flags: Mutex::default(),
        }
    }

    fn check(&self) -> Result<(), DeviceError> {
        let lost = self.shared.lost.get();
        lost.map_or(Ok(()), |message| Err(DeviceError::GpuLost { message: message.clone() }))
    }

    /// Memory that begins at a multiple of 256 bytes.
    fn take(&self, bytes: u64) -> u64 {
        let mut words =
            vec![0xffff_ffff_ffff_ffff_u128; bytes.div_ceil(16) as usize + ALIGNMENT_WORDS].into_boxed_slice();
        let start = (words.as_mut_ptr() as u64).next_multiple_of(256);
        self.memory.lock().expect("no panic").push(words);
        start
    }

    fn submit(&self, stream: StreamId, work: Work) -> Result<(), DeviceError> {
        self.check()?;
        let mut streams = self.streams.lock().expect("no panic");
        let stream = &mut streams[stream.0 as usize];
        stream.submitted += 1;
        stream.work.as_ref().expect("alive").send(work).expect("a stream's thread ends last");
        Ok(())
    }

    fn flag(&self, flag: FlagId) -> Arc<AtomicU32> {
        Arc::clone(&self.flags.lock().expect("no panic")[flag.0 as usize])
    }
}

/// Waits unless the GPU is lost.
fn spin(shared: &Shared, passed: impl Fn() -> bool) -> Result<(), DeviceError> {
    while !passed() {
        if let Some(message) = shared.lost.get() {
            return Err(DeviceError::GpuLost { message: message.clone() });
        }
        std::thread::yield_now();
    }
    Ok(())
}

impl Gpu for EmulatedGpu {
    fn description(&self) -> &GpuDescription {
        &self.description
    }

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn memory(&self) -> Result<GpuMemory, DeviceError> {
        let all = MEMORY_BYTES;
        Ok(GpuMemory { total_bytes: all, free_bytes: all, ours_bytes: 0, unclaimed_bytes: all })
    }

    fn take_memory(&self, bytes: u64, _: &str) -> Result<DeviceRegion, DeviceError> {
        Ok(DeviceRegion { start: DevicePtr(self.take(bytes)), bytes })
    }

    fn take_mapped(&self, bytes: u64, _: &str) -> Result<MappedRegion, DeviceError> {
        let start = self.take(bytes);
        let host = start as *mut u8;
        // SAFETY: so many bytes were just taken there.
        unsafe { host.write_bytes(0, bytes as usize) };
        Ok(MappedRegion { host, device: DevicePtr(start), bytes })
    }

    fn pin(&self, _: &Arc<HostRegion>) -> Result<(), DeviceError> {
        Ok(())
    }

    fn upload(&self, to: DevicePtr, from: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for the range, which is this process's memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.0 as *mut u8, from.len()) };
        self.check()
    }

    fn download(&self, to: &mut [u8], from: DevicePtr) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.as_mut_ptr(), to.len()) };
        self.check()
    }

    fn new_stream(&self, _: StreamKind) -> Result<StreamId, DeviceError> {
        let (work, queue) = channel::<Work>();
        let (shared, done) = (Arc::clone(&self.shared), Arc::new(AtomicU64::new(0)));
        let counter = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            for work in queue {
                if let Err(error) = work(&shared) {
                    let _ = shared.lost.set(error.to_string());
                }
                counter.fetch_add(1, Ordering::Release);
            }
        });
        let mut streams = self.streams.lock().expect("no panic");
        streams.push(Stream { work: Some(work), thread: Some(thread), submitted: 0, done });
        Ok(StreamId(streams.len() as u32 - 1))
    }

    fn new_event(&self) -> Result<EventId, DeviceError> {
        let mut events = self.events.lock().expect("no panic");
        events.push(Event::default());
        Ok(EventId(events.len() as u32 - 1))
    }

    fn new_flag(&self) -> Result<FlagId, DeviceError> {
        let mut flags = self.flags.lock().expect("no panic");
        flags.push(Arc::default());
        Ok(FlagId(flags.len() as u32 - 1))
    }

    fn record(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let mut events = self.events.lock().expect("no panic");
        let event = &mut events[event.0 as usize];
        event.recorded += 1;
        let (number, passed) = (event.recorded, Arc::clone(&event.passed));
        self.submit(
            stream,
            Box::new(move |_| {
                passed.store(number, Ordering::Release);
                Ok(())
            }),
        )
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let events = self.events.lock().expect("no panic");
        let event = &events[event.0 as usize];
        let (number, passed) = (event.recorded, Arc::clone(&event.passed));
        self.submit(stream, Box::new(move |shared| spin(shared, || passed.load(Ordering::Acquire) >= number)))
    }

    fn event_passed(&self, event: EventId) -> Result<bool, DeviceError> {
        let events = self.events.lock().expect("no panic");
        let event = &events[event.0 as usize];
        self.check()?;
        Ok(event.passed.load(Ordering::Acquire) >= event.recorded)
    }

    fn elapsed(&self, _: EventId, _: EventId) -> Result<Nanos, DeviceError> {
        Ok(Nanos(1000))
    }

    fn signal_flag(&self, stream: StreamId, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        let flag = self.flag(flag);
        self.submit(
            stream,
            Box::new(move |_| {
                flag.store(epoch.0, Ordering::Release);
                Ok(())
            }),
        )
    }

    fn wait_flag(&self, stream: StreamId, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        let flag = self.flag(flag);
        let passed = move || Epoch(flag.load(Ordering::Acquire)).reaches(epoch);
        self.submit(stream, Box::new(move |shared| spin(shared, passed)))
    }

    fn host_signal(&self, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        self.flag(flag).store(epoch.0, Ordering::Release);
        Ok(())
    }

    fn host_sees(&self, flag: FlagId, epoch: Epoch) -> Result<bool, DeviceError> {
        self.check()?;
        Ok(Epoch(self.flag(flag).load(Ordering::Acquire)).reaches(epoch))
    }

    fn copy_to_gpu(&self, stream: StreamId, to: DevicePtr, from: &CopySource) -> Result<(), DeviceError> {
        let from = from.clone();
        self.submit(
            stream,
            Box::new(move |_| {
                let bytes = match &from {
                    CopySource::Span(span) => span.bytes().expect("inside the region"),
                    CopySource::Pageable(_) => panic!("memory that is not pinned"),
                    // SAFETY: mapped memory lives as long as the GPU.
                    CopySource::Mapped { start, bytes } => unsafe {
                        std::slice::from_raw_parts(start.0 as *const u8, *bytes as usize)
                    },
                };
                // SAFETY: the caller vouches for the range.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.0 as *mut u8, bytes.len()) };
                Ok(())
            }),
        )
    }

    fn launch(&self, stream: StreamId, launch: &Launch) -> Result<(), DeviceError> {
        let (op, args) = (Arc::clone(&launch.op), launch.args);
        self.submit(stream, Box::new(move |shared| op.run(GpuTarget::Kernels(shared), args)))
    }

    fn synchronize(&self, stream: StreamId) -> Result<(), DeviceError> {
        let (wanted, done) = {
            let streams = self.streams.lock().expect("no panic");
            let stream = &streams[stream.0 as usize];
            (stream.submitted, Arc::clone(&stream.done))
        };
        spin(&self.shared, || done.load(Ordering::Acquire) >= wanted)
    }
}

impl Drop for EmulatedGpu {
    fn drop(&mut self) {
        let mut streams = self.streams.lock().expect("no panic");
        streams.iter_mut().for_each(|stream| drop(stream.work.take()));
        for stream in streams.iter_mut() {
            let _ = stream.thread.take().map(JoinHandle::join);
        }
    }
}
