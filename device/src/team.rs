//! The persistent thread team: one pinned thread per physical core, the caller being worker 0.
//!
//! A round (`Team::run`) runs one closure on all active workers; inside, workers meet at barriers and share row blocks.
//! Invariants: a round allocates nothing and makes no system call unless a thread sleeps or must be woken; the closure may
//! borrow; a worker's panic ends the round with an error, never with a deadlock, and leaves the team usable; a change of
//! the number of active workers touches no thread. Not a task scheduler: rayon does planning, loading and repacking.
//! Next: `team/crew.rs` (the protocol), `team/worker.rs` (what a closure sees).

mod barrier;
mod crew;
mod queue;
mod word;
mod worker;

use std::sync::Arc;

pub use queue::{Step, WorkQueue};
pub use worker::Worker;

use crate::DeviceError;
use crate::sync::{self, JoinHandle, Ordering};
use crate::topology::{CpuId, Topology};
use crew::{Crew, Job};

/// The most threads a team has: half the barrier's word.
pub const THREADS_MAX: usize = 1024;

/// How long a wait spins before it sleeps, unless the configuration says otherwise: twice a typical step.
pub const SPIN_US_DEFAULT: u32 = 50;

/// Where a team's threads run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pinning {
    /// Wherever the kernel puts them.
    Free,
    /// Worker i on the i-th CPU. With fewer CPUs than threads this falls back to `Free` without spinning.
    Cpus(Vec<CpuId>),
}

/// Whether worker 0, which is the thread that calls [`Team::run`], is pinned too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerPinning {
    /// Pin it. Threads that it starts later inherit the pin, so start other pools before.
    Pin,
    /// Leave it alone.
    Leave,
}

/// How to build a team.
#[derive(Debug, Clone)]
pub struct TeamConfig {
    /// Workers, the caller included; at least 1.
    pub threads: usize,
    /// Where they run.
    pub pinning: Pinning,
    /// Whether that holds for the caller.
    pub caller: CallerPinning,
    /// How long waits spin before they sleep, in microseconds.
    pub spin_us: u32,
}

impl TeamConfig {
    /// `threads` workers on cores of their own, fastest cores first.
    pub fn on_cores(topology: &Topology, threads: usize) -> Self {
        let pinning = Pinning::Cpus(topology.team_cpus());
        Self { threads, pinning, caller: CallerPinning::Pin, spin_us: SPIN_US_DEFAULT }
    }
}

/// The team; see the module text.
pub struct Team {
    crew: Arc<Crew>,
    handles: Vec<JoinHandle>,
    active: usize,
}

impl Team {
    /// Starts the threads. They sleep until the first round.
    /// Errors: no threads or too many asked for; the system refuses to start one.
    pub fn new(config: TeamConfig) -> Result<Self, DeviceError> {
        let threads = config.threads;
        if threads == 0 || threads > THREADS_MAX {
            return Err(DeviceError::TeamSize { threads, limit: THREADS_MAX });
        }
        let places = Places::new(&config);
        let crew = Arc::new(Crew::new(threads, places.spin_ns));
        let mut team = Self { crew, handles: Vec::with_capacity(threads - 1), active: threads };
        for index in 1..threads {
            team.start(index, places.of(index))?;
        }
        if config.caller == CallerPinning::Pin {
            pin(places.of(0));
        }
        Ok(team)
    }

    fn start(&mut self, index: usize, place: Option<CpuId>) -> Result<(), DeviceError> {
        let crew = Arc::clone(&self.crew);
        let body = move || {
            pin(place);
            crew.serve(index, || {});
        };
        let handle = sync::spawn(format!("team-{index}"), body);
        self.handles.push(handle.map_err(|source| DeviceError::ThreadStart { index, source })?);
        Ok(())
    }

    /// Workers that exist, the caller included.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Workers of the next round.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Sets the workers of the following rounds, cut to 1..=[`threads`](Self::threads). The others sleep.
    pub fn set_active(&mut self, workers: usize) {
        self.active = workers.clamp(1, self.threads());
    }

    /// Sets how long waits of the following rounds spin before they sleep.
    pub fn set_spin_us(&mut self, spin_us: u32) {
        self.crew.spin_ns.store(spin_us.saturating_mul(1000), Ordering::Relaxed);
    }

    /// Runs `work` once on every active worker and returns when all are through. Writes of any worker are visible to the
    /// caller after it. Errors: a worker panicked, or the workers did not call the same barriers.
    pub fn run<F>(&mut self, work: F) -> Result<(), DeviceError>
    where
        F: Fn(&Worker<'_>) + Sync,
    {
        self.crew.round(Job::new(&work), self.active as u32)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.crew.dismiss(self.handles.len());
        for handle in self.handles.drain(..) {
            // A worker's panics are caught in `serve`; there is nothing to report here.
            let _ = handle.join();
        }
    }
}

/// Which CPU each worker gets, and how long waits may spin there.
struct Places {
    cpus: Vec<CpuId>,
    spin_ns: u32,
}

impl Places {
    fn new(config: &TeamConfig) -> Self {
        let spin_ns = config.spin_us.saturating_mul(1000);
        match &config.pinning {
            Pinning::Free => Self { cpus: Vec::new(), spin_ns },
            Pinning::Cpus(cpus) if cpus.len() < config.threads => Self { cpus: Vec::new(), spin_ns: 0 },
            Pinning::Cpus(cpus) => Self { cpus: cpus.clone(), spin_ns },
        }
    }

    fn of(&self, index: usize) -> Option<CpuId> {
        self.cpus.get(index).copied()
    }
}

fn pin(place: Option<CpuId>) {
    if let Some(cpu) = place {
        // A refused pin costs speed only; the probe's curves show it.
        crate::affinity::restrict_this_thread(&[cpu]);
    }
}
