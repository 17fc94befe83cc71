//! What GPU work costs while weights stream over the link: hand-overs, moves of activations and chains of small
//! kernels, beside nothing, the copy engine, and copies by few blocks of a kernel, which keep less under way.
//!
//! `cargo run --release -p device --example link_latency -- [READERS]`: so many threads of the host read memory
//! meanwhile, as a CPU team does. Without a GPU it says so in one line. Not here: what plans expect (`planner`).

use device::DeviceError;
use device::cuda::{CudaGpu, CudaOptions, KernelLaunch};
use device::gpu::{CopySource, DevicePtr, Epoch, EventId, FlagId, Gpu, HostSpan, StreamId, StreamKind};
use device::memory::HostRegion;
use kernels::cuda::ops::add;
use kernels::cuda::transfer::{copy_bytes, move_rows};
use kernels::cuda::{DevicePtr as KernelPtr, Launch, View};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Host memory that is copied, and GPU memory that it goes to.
const BUFFER_BYTES: u64 = 256 << 20;
/// A row of activations.
const COLS: u32 = 5120;
/// Kernels of a chain.
const CHAIN: usize = 20;
/// Tries of each figure.
const TRIES: u32 = 200;

/// What streams meanwhile.
#[derive(Clone, Copy, Debug)]
enum Load {
    Nothing,
    /// The copy engine, in pieces.
    Engine {
        piece_kib: u64,
    },
    /// A kernel of so many blocks, in pieces.
    Kernel {
        piece_kib: u64,
        blocks: u32,
    },
}

const LOADS: [Load; 10] = [
    Load::Nothing,
    Load::Engine { piece_kib: 4096 },
    Load::Engine { piece_kib: 512 },
    Load::Engine { piece_kib: 128 },
    Load::Kernel { piece_kib: 4096, blocks: 4 },
    Load::Kernel { piece_kib: 4096, blocks: 8 },
    Load::Kernel { piece_kib: 4096, blocks: 12 },
    Load::Kernel { piece_kib: 4096, blocks: 16 },
    Load::Kernel { piece_kib: 4096, blocks: 24 },
    Load::Kernel { piece_kib: 4096, blocks: 48 },
];

struct Bench {
    gpu: CudaGpu,
    compute: StreamId,
    transfer: StreamId,
    to_gpu: FlagId,
    to_cpu: FlagId,
    epoch: u32,
    events: [EventId; 4],
    from: Arc<HostRegion>,
    mapped: (DevicePtr, DevicePtr),
    target: DevicePtr,
    row: DevicePtr,
}

fn kernel(launch: &Launch) -> KernelLaunch<'_> {
    let Launch { module, kernel, grid, threads, shared_bytes, .. } = *launch;
    KernelLaunch { module, kernel, grid, threads, shared_bytes, args: launch.args() }
}

fn row(at: DevicePtr) -> View {
    View { data: KernelPtr(at.0), stride: COLS, cols: COLS }
}

fn main() -> ExitCode {
    let readers = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    match run(readers) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(readers: usize) -> Result<(), DeviceError> {
    let modules = Arc::new(|name: &str| kernels::cuda::ptx(name));
    let mut bench = Bench::new(CudaGpu::open(&CudaOptions { ordinal: 0, ceiling_bytes: None, modules })?)?;
    let (stop, read_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let memory = vec![1_u64; (1 << 30) / 8];
    std::thread::scope(|scope| {
        for index in 0..readers {
            let share = &memory[memory.len() / readers * index..memory.len() / readers * (index + 1)];
            scope.spawn(|| read(share, &stop, &read_bytes));
        }
        println!(
            "| while | link GB/s | host reads GB/s | flags us | with moves us | chain of {CHAIN} us | launches us |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        let outcome = LOADS.iter().try_for_each(|&load| bench.row(load, &read_bytes));
        stop.store(true, Ordering::Relaxed);
        outcome
    })
}

/// Reads memory until told to stop.
fn read(share: &[u64], stop: &AtomicBool, bytes: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        for piece in share.chunks(1 << 17) {
            std::hint::black_box(piece.iter().fold(0_u64, |sum, word| sum ^ word));
            bytes.fetch_add(8 << 17, Ordering::Relaxed);
        }
    }
}

impl Bench {
    fn new(gpu: CudaGpu) -> Result<Bench, DeviceError> {
        let mut region = HostRegion::new(BUFFER_BYTES as usize)?;
        region.as_mut_slice().fill(1);
        let from = Arc::new(region);
        gpu.pin(&from)?;
        // The copying kernel reads memory that is mapped for good: pinned regions have no address on the GPU here.
        let big = gpu.take_mapped(BUFFER_BYTES, "copies by a kernel")?;
        let moved = gpu.take_mapped(u64::from(COLS) * 8, "activations")?;
        let target = gpu.take_memory(BUFFER_BYTES, "copies")?.start;
        let row = gpu.take_memory(u64::from(COLS) * 16, "activations")?.start;
        let (compute, transfer) = (gpu.new_stream(StreamKind::Compute)?, gpu.new_stream(StreamKind::Transfer)?);
        let (to_gpu, to_cpu) = (gpu.new_flag()?, gpu.new_flag()?);
        let events = [gpu.new_event()?, gpu.new_event()?, gpu.new_event()?, gpu.new_event()?];
        let mapped = (big.device, moved.device);
        Ok(Bench { compute, transfer, to_gpu, to_cpu, epoch: 0, events, from, mapped, target, row, gpu })
    }

    /// Queues the load for about so long. Returns its bytes.
    fn stream(&self, load: Load, ms: u64) -> Result<u64, DeviceError> {
        let total = ms * 45_000_000;
        let piece = match load {
            Load::Nothing => return Ok(0),
            Load::Engine { piece_kib } | Load::Kernel { piece_kib, .. } => piece_kib << 10,
        };
        let task = self.gpu.task(self.transfer)?;
        for number in 0..total / piece {
            let at = number * piece % BUFFER_BYTES;
            match load {
                Load::Nothing => {}
                Load::Engine { .. } => {
                    let range = at as usize..(at + piece) as usize;
                    let span = HostSpan { region: Arc::clone(&self.from), range };
                    self.gpu.copy_to_gpu(self.transfer, self.target.offset(at), &CopySource::Span(span))?;
                }
                Load::Kernel { blocks, .. } => {
                    let (from, to) = (self.mapped.0.offset(at), self.target.offset(at));
                    task.launch(&kernel(&copy_bytes(KernelPtr(from.0), KernelPtr(to.0), piece, blocks)))?;
                }
            }
        }
        Ok(total / piece * piece)
    }

    fn row(&mut self, load: Load, read_bytes: &AtomicU64) -> Result<(), DeviceError> {
        let (mut rates, mut reads) = (Vec::new(), Vec::new());
        let mut figures = [const { Vec::new() }; 4];
        for _ in 0..TRIES / 20 {
            self.gpu.record(self.transfer, self.events[0])?;
            let bytes = self.stream(load, 6)?;
            self.gpu.record(self.transfer, self.events[1])?;
            let (start, before) = (Instant::now(), read_bytes.load(Ordering::Relaxed));
            for _ in 0..20 {
                if bytes > 0 && self.gpu.event_passed(self.events[1])? {
                    break;
                }
                let tried =
                    [self.hand_over(Moves::None)?, self.hand_over(Moves::Both)?, self.chain()?, self.launches()?];
                figures.iter_mut().zip(tried).for_each(|(list, us)| list.push(us));
            }
            let read = read_bytes.load(Ordering::Relaxed) - before;
            reads.push(read as f64 / start.elapsed().as_secs_f64() / 1e9);
            self.gpu.synchronize(self.transfer)?;
            let us = self.gpu.elapsed(self.events[0], self.events[1])?.as_micros_f64();
            rates.push(bytes as f64 / us.max(1.0) / 1000.0);
        }
        let [flags, moves, chain, launches] = figures.map(median);
        let (link, host) = (median(rates), median(reads));
        println!("| {load:?} | {link:.1} | {host:.0} | {flags:.1} | {moves:.1} | {chain:.1} | {launches:.1} |");
        Ok(())
    }

    /// From the host's signal to its sight of the answer.
    fn hand_over(&mut self, moves: Moves) -> Result<f64, DeviceError> {
        self.epoch += 1;
        let epoch = Epoch(self.epoch);
        self.gpu.wait_flag(self.compute, self.to_gpu, epoch)?;
        if moves == Moves::Both {
            let task = self.gpu.task(self.compute)?;
            let second = self.mapped.1.offset(u64::from(COLS) * 4);
            task.launch(&kernel(&move_rows(row(self.mapped.1), row(self.row), 1, None)))?;
            task.launch(&kernel(&move_rows(row(self.row), row(second), 1, None)))?;
        }
        self.gpu.signal_flag(self.compute, self.to_cpu, epoch)?;
        // The GPU must be waiting by then.
        let queued = Instant::now();
        while queued.elapsed().as_micros() < 60 {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        self.gpu.host_signal(self.to_gpu, epoch)?;
        while !self.gpu.host_sees(self.to_cpu, epoch)? {
            std::hint::spin_loop();
        }
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }

    /// A chain of dependent small kernels, launched one by one behind a wait, so that all are there when it begins.
    fn chain(&mut self) -> Result<f64, DeviceError> {
        self.epoch += 1;
        let epoch = Epoch(self.epoch);
        self.gpu.wait_flag(self.compute, self.to_gpu, epoch)?;
        self.gpu.record(self.compute, self.events[2])?;
        let task = self.gpu.task(self.compute)?;
        let (x, y) = (row(self.row), row(self.row.offset(u64::from(COLS) * 4)));
        for _ in 0..CHAIN {
            task.launch(&kernel(&add(x, y, y, 1)))?;
        }
        self.gpu.record(self.compute, self.events[3])?;
        self.gpu.host_signal(self.to_gpu, epoch)?;
        self.gpu.synchronize(self.compute)?;
        Ok(self.gpu.elapsed(self.events[2], self.events[3])?.as_micros_f64())
    }

    /// The host's time for a launch.
    fn launches(&self) -> Result<f64, DeviceError> {
        let task = self.gpu.task(self.compute)?;
        let (x, y) = (row(self.row), row(self.row.offset(u64::from(COLS) * 4)));
        let start = Instant::now();
        for _ in 0..CHAIN {
            task.launch(&kernel(&add(x, y, y, 1)))?;
        }
        let us = start.elapsed().as_secs_f64() * 1e6 / CHAIN as f64;
        self.gpu.synchronize(self.compute)?;
        Ok(us)
    }
}

/// What the GPU moves between the two signals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    None,
    Both,
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}
