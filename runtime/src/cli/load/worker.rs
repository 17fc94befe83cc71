//! `ats-run load-worker`: a process that takes a share of one resource, told line by line on its standard input (`0.6`;
//! 0 = rest), and ends with it. Its first line of output says that it is ready. Not here: GPU and link (`gpu.rs`).

use super::gpu;
use super::pace::{Next, Pace};
use super::processes::Resource;
use crate::cli::Failure;
use clap::Args;
use device::clock::thread_cpu_time;
use device::topology::Topology;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Memory that each thread reads in turn: more than its part of any cache.
const BUFFER_WORDS: usize = 128 << 17;
/// Memory read between two looks at the time.
const PIECE_WORDS: usize = 1 << 16;
/// A look at the share while there is none.
const REST: Duration = Duration::from_millis(2);

/// Which resource.
#[derive(Debug, Args)]
pub struct LoadWorkerArgs {
    /// The resource.
    #[arg(value_enum)]
    resource: Resource,
}

/// The share that is wanted now; not a number = the end.
#[derive(Clone, Default)]
pub struct Wanted(Arc<AtomicU64>);

impl Wanted {
    /// The share, `None` at the end.
    pub fn share(&self) -> Option<f64> {
        let share = f64::from_bits(self.0.load(Ordering::Relaxed));
        share.is_finite().then_some(share)
    }

    fn set(&self, share: f64) {
        self.0.store(share.to_bits(), Ordering::Relaxed);
    }
}

/// Works until standard input ends.
pub fn run(args: &LoadWorkerArgs) -> Result<(), Failure> {
    let wanted = Wanted::default();
    let told = wanted.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            told.set(line.ok().and_then(|line| line.trim().parse().ok()).unwrap_or(f64::NAN));
        }
        told.set(f64::NAN);
    });
    match args.resource {
        Resource::Cpu => cpu(&wanted),
        Resource::Gpu => gpu::kernels(&wanted),
        Resource::Link => gpu::copies(&wanted),
    }
}

/// Says that the process is ready, and with what.
pub fn ready(what: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    writeln!(out, "{what}")?;
    Ok(out.flush()?)
}

/// One thread a core, of which as many work as the share asks for: whole cores, and the last one in part.
fn cpu(wanted: &Wanted) -> Result<(), Failure> {
    let topology = Topology::of_this_process().map_err(crate::Error::from)?;
    let cores = topology.threads_at_most();
    let mut buffers = vec![vec![0_u64; BUFFER_WORDS]; cores];
    // Pages of zeroes would all be one page until they are written.
    buffers.iter_mut().flatten().step_by(512).for_each(|word| *word = 1);
    ready(&format!("load: {cores} threads that read {} MiB each", BUFFER_WORDS >> 17))?;
    std::thread::scope(|scope| {
        for (index, buffer) in buffers.iter().enumerate() {
            scope.spawn(move || read_memory(wanted, buffer, index, cores));
        }
    });
    Ok(())
}

/// The share of one core that thread `index` of `cores` takes.
pub fn thread_share(share: f64, index: usize, cores: usize) -> f64 {
    let threads = (share * cores as f64 - 1e-6).ceil().max(0.0);
    if index as f64 >= threads { 0.0 } else { share * cores as f64 / threads }
}

fn read_memory(wanted: &Wanted, buffer: &[u64], index: usize, cores: usize) {
    let (start, mut pace, mut place, mut sum) = (Instant::now(), Pace::default(), 0, 0_u64);
    while let Some(share) = wanted.share() {
        let share = thread_share(share, index, cores);
        if share <= 0.0 {
            std::thread::sleep(REST);
            pace = Pace::default();
            pace.next(start.elapsed(), 0.0);
            continue;
        }
        match pace.next(start.elapsed(), share) {
            Next::Work => {
                let before = thread_cpu_time();
                let piece = &buffer[place..place + PIECE_WORDS];
                sum = black_box(piece.iter().fold(sum, |sum, word| sum.wrapping_add(*word)));
                place = (place + PIECE_WORDS) % buffer.len();
                pace.done(Duration::from_nanos(thread_cpu_time().since(before).0));
            }
            Next::Rest(rest) => std::thread::sleep(rest.clamp(Duration::from_micros(200), REST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_machine_are_whole_cores_and_a_part() {
        for (share, cores, threads) in [(0.6, 16, 10), (0.5, 2, 1), (0.6, 2, 2), (0.0, 4, 0), (0.95, 8, 8)] {
            let each: Vec<f64> = (0..cores).map(|index| thread_share(share, index, cores)).collect();
            let working = each.iter().filter(|share| **share > 0.0).count();
            assert_eq!(working, threads, "{share} of {cores}");
            let sum: f64 = each.iter().sum();
            assert!((sum - share * cores as f64).abs() < 1e-9 && each.iter().all(|share| *share <= 1.0 + 1e-9));
        }
    }
}
