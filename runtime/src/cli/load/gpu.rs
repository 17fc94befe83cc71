//! Load on GPU and link: kernels that copy GPU memory, and copies from pinned memory, each in bursts of half a
//! millisecond whose time alone is known, so that a share can be kept beside others. Not here: pacing (`pace.rs`).

use super::pace::{Next, Pace};
use super::worker::{Wanted, ready};
use crate::Error;
use crate::cli::Failure;
use crate::hybrid::cuda::{self, CudaMaker};
use crate::hybrid::ops::OpMaker;
use device::clock::Nanos;
use device::gpu::{CopySource, EventId, Gpu, HostSpan, Launch, LaunchArgs, StreamId, StreamKind};
use device::memory::HostRegion;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory that a kernel copies, and a copy.
const KERNEL_BYTES: u64 = 64 << 20;
const COPY_BYTES: usize = 8 << 20;
/// Pinned memory that copies read in turn.
const COPIES_APART: usize = 8;
/// How long a burst is to take alone, and pieces of work that are timed to know that.
const BURST: Duration = Duration::from_micros(500);
const TIMED: u32 = 64;
/// Between two looks whether a burst has ended, and at the share while there is none.
const LOOK: Duration = Duration::from_micros(50);
const REST: Duration = Duration::from_millis(2);

/// A stream that work is put on.
struct Bench {
    gpu: Arc<dyn Gpu>,
    stream: StreamId,
    done: EventId,
}

impl Bench {
    fn open(kind: StreamKind) -> Result<Self, Error> {
        let gpu: Arc<dyn Gpu> = Arc::new(cuda::open(0, None)?);
        let (stream, done) = (gpu.new_stream(kind)?, gpu.new_event()?);
        Ok(Bench { gpu, stream, done })
    }

    /// What a piece takes with nothing else to do.
    fn time(&self, put: &dyn Fn() -> Result<(), Error>) -> Result<Duration, Error> {
        let mut took = Duration::ZERO;
        // The first pass wakes the clocks.
        for _ in 0..2 {
            let start = Instant::now();
            (0..TIMED).try_for_each(|_| put())?;
            self.gpu.synchronize(self.stream)?;
            took = start.elapsed() / TIMED;
        }
        Ok(took)
    }

    /// Bursts at the wanted share until the end. A wait looks now and then: spinning would load a core.
    fn keep(&self, wanted: &Wanted, each: Duration, put: &dyn Fn() -> Result<(), Error>) -> Result<(), Error> {
        let pieces = (BURST.as_secs_f64() / each.as_secs_f64().max(1e-7)).ceil().clamp(1.0, 64.0) as u32;
        let (start, mut pace) = (Instant::now(), Pace::default());
        while let Some(share) = wanted.share() {
            match pace.next(start.elapsed(), share) {
                _ if share <= 0.0 => std::thread::sleep(REST),
                Next::Work => {
                    (0..pieces).try_for_each(|_| put())?;
                    self.gpu.record(self.stream, self.done)?;
                    std::thread::sleep((each * pieces).saturating_sub(LOOK));
                    while !self.gpu.event_passed(self.done)? {
                        std::thread::sleep(LOOK);
                    }
                    pace.done(each * pieces);
                }
                Next::Rest(rest) => std::thread::sleep(rest.clamp(LOOK, REST)),
            }
        }
        Ok(())
    }
}

/// Keeps the GPU's multiprocessors and memory busy.
pub fn kernels(wanted: &Wanted) -> Result<(), Failure> {
    let bench = Bench::open(StreamKind::Compute)?;
    let maker = CudaMaker::new(Arc::clone(&bench.gpu));
    let take = || bench.gpu.take_memory(KERNEL_BYTES, "load").map_err(Error::from);
    let (from, to) = (take()?, take()?);
    let op = maker.copier(from.start, to.start, KERNEL_BYTES)?;
    let launch = Launch { op, args: LaunchArgs::default(), expected: Nanos(0) };
    let put = || Ok(bench.gpu.launch(bench.stream, &launch)?);
    let each = bench.time(&put)?;
    ready(&format!("load: kernels of {:.0} us on the GPU", each.as_secs_f64() * 1e6))?;
    Ok(bench.keep(wanted, each, &put)?)
}

/// Keeps the link to the GPU busy.
pub fn copies(wanted: &Wanted) -> Result<(), Failure> {
    let bench = Bench::open(StreamKind::Transfer)?;
    let mut region = HostRegion::new(COPY_BYTES * COPIES_APART).map_err(Error::from)?;
    region.as_mut_slice().iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let region = Arc::new(region);
    bench.gpu.pin(&region).map_err(Error::from)?;
    let to = bench.gpu.take_memory(COPY_BYTES as u64, "load").map_err(Error::from)?.start;
    let place = std::cell::Cell::new(0);
    let put = || {
        let start = place.replace((place.get() + 1) % COPIES_APART) * COPY_BYTES;
        let span = HostSpan { region: Arc::clone(&region), range: start..start + COPY_BYTES };
        Ok(bench.gpu.copy_to_gpu(bench.stream, to, &CopySource::Span(span))?)
    };
    let each = bench.time(&put)?;
    let rate = COPY_BYTES as f64 / each.as_secs_f64() / 1e9;
    ready(&format!("load: copies of {} MiB over the link, {rate:.1} GB/s alone", COPY_BYTES >> 20))?;
    Ok(bench.keep(wanted, each, &put)?)
}
