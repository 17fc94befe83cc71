//! The persistent thread team: one pinned thread per physical core, the caller being worker 0.
//!
//! A round (`Team::run`) runs one closure on all active workers; inside, workers meet at barriers and share row blocks.
//! Invariants: a round allocates nothing and makes no system call unless a thread sleeps or must be woken; the closure
//! may borrow; a worker's panic ends the round with an error, never with a deadlock, and leaves the team usable; a
//! change of the number of active workers touches no thread. Not a task scheduler: rayon does planning, loading and
//! repacking. Next: `team/crew.rs` (the protocol), `team/worker.rs` (what a closure sees).

mod barrier;
mod crew;
mod governor;
mod queue;
mod word;
mod worker;

use std::sync::{Arc, mpsc};

use rustix::thread::Pid;

pub use governor::{Placement, Pressure};
pub use queue::{Step, WorkQueue};
pub use worker::Worker;

use crate::DeviceError;
use crate::sync::{self, JoinHandle, Ordering};
use crate::topology::{CpuId, Topology};
use crew::{Crew, Job};
use governor::{Governor, Movable};

/// The most threads a team has: half the barrier's word.
pub const THREADS_MAX: usize = 1024;

/// How long a wait spins before it sleeps, unless the configuration says otherwise. A sleeper costs its team a wake-up
/// of 10 to 300 us (virtual machines halt idle cores). Measured on 16 cores with one busy loop per core and steps of 20
/// us, the speed kept was 0.09 at 2 us, 0.15 at 10, 0.43 at 50, 0.44 to 0.50 at 200, and 0.06 to 0.48 at 1000.
pub const SPIN_US_DEFAULT: u32 = 200;

/// The same while nobody else wants the team's cores: no worker sleeps while another waits for a GPU. With an H200 a
/// wait for a layer of Qwen3-30B-A3B takes 200 us, and the wake-up after it took 75 us, 36 times a token.
pub const SPIN_US_CALM: u32 = 3000;

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
    /// Pin it. Undone when the team is dropped. Threads that it starts meanwhile inherit the pin, so start other pools
    /// before.
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
    /// As configured; see [`spin_ns`] for what is done.
    spin_us: u32,
    /// Only a pinned team can be moved.
    governor: Option<Governor>,
    /// The pinned caller's thread and its mask before.
    caller_before: Option<(Pid, Vec<CpuId>)>,
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
        let spin_us = places.spin_us;
        let crew = Arc::new(Crew::new(threads, spin_ns(spin_us, Pressure::default())));
        let all_cpus = crate::affinity::process_cpus().to_vec();
        let mut governor = (!places.cpus.is_empty()).then(|| Governor::new(places.cpus.clone(), all_cpus));
        let handles = Vec::with_capacity(threads - 1);
        let mut team = Self { crew, handles, active: threads, spin_us, governor: None, caller_before: None };
        if let Some(governor) = &mut governor {
            let movable = if config.caller == CallerPinning::Pin { Movable::Yes } else { Movable::No };
            governor.add(rustix::thread::gettid(), movable);
        }
        for index in 1..threads {
            let tid = team.start(index, places.of(index))?;
            if let (Some(governor), Some(tid)) = (&mut governor, tid) {
                governor.add(tid, Movable::Yes);
            }
        }
        if config.caller == CallerPinning::Pin && places.of(0).is_some() {
            team.caller_before = Some((rustix::thread::gettid(), crate::affinity::thread_cpus()));
            pin(places.of(0));
        }
        team.governor = governor;
        Ok(team)
    }

    /// Starts worker `index`; a pinned one tells its thread id.
    fn start(&mut self, index: usize, place: Option<CpuId>) -> Result<Option<Pid>, DeviceError> {
        let crew = Arc::clone(&self.crew);
        let (tell, told) = mpsc::channel();
        let body = move || {
            pin(place);
            if place.is_some() {
                // The receiver waits below; it cannot be gone.
                let _ = tell.send(rustix::thread::gettid());
            }
            drop(tell);
            crew.serve(index);
        };
        let handle = sync::spawn(format!("team-{index}"), body);
        self.handles.push(handle.map_err(|source| DeviceError::ThreadStart { index, source })?);
        Ok(if place.is_some() { told.recv().ok() } else { None })
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

    /// Sets how long waits of the following rounds spin before they sleep; those of a pinned team that has its cores
    /// for itself spin for [`SPIN_US_CALM`] if that is longer.
    pub fn set_spin_us(&mut self, spin_us: u32) {
        self.spin_us = spin_us;
        self.spin();
    }

    /// Tells the workers how long to spin. Only a change is written: they all read that word in every round.
    fn spin(&self) {
        let spin_ns = spin_ns(self.spin_us, self.pressure());
        if self.crew.spin_ns.load(Ordering::Relaxed) != spin_ns {
            self.crew.spin_ns.store(spin_ns, Ordering::Relaxed);
        }
    }

    /// Runs `work` once on every active worker and returns when all are through. Worker 0 is the calling thread; only
    /// the one that built the team is pinned. Writes of any worker are visible to the caller after it. Errors: a worker
    /// panicked, or the workers did not call the same barriers.
    pub fn run<F>(&mut self, work: F) -> Result<(), DeviceError>
    where
        F: Fn(&Worker<'_>) + Sync,
    {
        let outcome = self.crew.round(Job::new(&work), self.active as u32);
        if let Some(governor) = &mut self.governor {
            governor.after_round(self.active);
            self.spin();
        }
        outcome
    }

    /// Gets sleeping workers of the next round to spin, so that it starts without their wake-up (10 to 300 us). To be
    /// called a little before a wait for the GPU is expected to end; costs a look per worker when none sleeps.
    pub fn rouse(&mut self) {
        self.crew.rouse(self.active as u32);
    }

    /// How much CPU time others took from the active workers lately (looked at every 50 ms while rounds run). All zero
    /// for a team that is not pinned or where the kernel keeps no scheduler statistics.
    pub fn pressure(&self) -> Pressure {
        self.governor.as_ref().map(Governor::pressure).unwrap_or_default()
    }

    /// Whether the workers are on their own cores now. A team shrunk below the machine leaves them when others are
    /// there.
    pub fn placement(&self) -> Placement {
        self.governor.as_ref().map_or(Placement::Free, Governor::placement)
    }
}

/// How long waits spin: as configured where others want the cores or nothing is known, longer where nobody does.
fn spin_ns(configured_us: u32, pressure: Pressure) -> u32 {
    let alone = pressure.free_cores.is_some() && pressure.is_calm();
    let spin_us = if alone && configured_us > 0 { configured_us.max(SPIN_US_CALM) } else { configured_us };
    spin_us.saturating_mul(1000)
}

impl Drop for Team {
    fn drop(&mut self) {
        self.crew.dismiss(self.handles.len());
        for handle in self.handles.drain(..) {
            // A worker's panics are caught in `serve`; there is nothing to report here.
            let _ = handle.join();
        }
        if let Some((caller, cpus)) = self.caller_before.take() {
            crate::affinity::restrict_own_thread(caller, &cpus);
        }
    }
}

/// Which CPU each worker gets, and how long waits may spin there.
struct Places {
    cpus: Vec<CpuId>,
    spin_us: u32,
}

impl Places {
    fn new(config: &TeamConfig) -> Self {
        let spin_us = config.spin_us;
        match &config.pinning {
            Pinning::Free => Self { cpus: Vec::new(), spin_us },
            Pinning::Cpus(cpus) if cpus.len() < config.threads => Self { cpus: Vec::new(), spin_us: 0 },
            Pinning::Cpus(cpus) => Self { cpus: cpus.clone(), spin_us },
        }
    }

    fn of(&self, index: usize) -> Option<CpuId> {
        self.cpus.get(index).copied()
    }
}

/// Puts the calling thread on its place; without one, wherever the process may run (a pinned parent's mask is
/// inherited). A refusal costs speed only; the probe's curves show it.
fn pin(place: Option<CpuId>) {
    match place {
        Some(cpu) => crate::affinity::restrict_thread(None, &[cpu]),
        None => crate::affinity::restrict_thread(None, crate::affinity::process_cpus()),
    };
}

/// Restricts the calling thread, one that belongs to no team, to these CPUs. Returns whether the kernel agreed.
pub fn pin_this_thread(pinning: &Pinning) -> bool {
    match pinning {
        Pinning::Free => true,
        Pinning::Cpus(cpus) => crate::affinity::restrict_thread(None, cpus),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_spin_longer_only_where_the_cores_are_known_to_be_the_teams_own() {
        let pressure = |worst_share, free_cores| Pressure { worst_share, free_cores, ..Pressure::default() };
        for (configured_us, pressure, spin_us) in [
            (SPIN_US_DEFAULT, pressure(0.0, None), SPIN_US_DEFAULT),
            (SPIN_US_DEFAULT, pressure(0.01, Some(16.0)), SPIN_US_CALM),
            (SPIN_US_DEFAULT, pressure(0.3, Some(9.0)), SPIN_US_DEFAULT),
            (SPIN_US_CALM + 1, pressure(0.0, Some(16.0)), SPIN_US_CALM + 1),
            (0, pressure(0.0, Some(16.0)), 0),
        ] {
            assert_eq!(spin_ns(configured_us, pressure), 1000 * spin_us, "{configured_us} {pressure:?}");
        }
    }
}
