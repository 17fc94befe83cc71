//! This machine as plans see it, the team that runs on it, and simulated machines.
//! Not here: measuring it (`ats-plan profile`). Next: `machine/simulated.rs`.

mod simulated;

pub use simulated::SimulatedMachine;

use crate::Error;
use device::team::{Team, TeamConfig};
use device::topology::Topology;
use plan_format::fingerprint::DeviceFingerprint;

/// What a plan must be for to run here.
pub fn fingerprint() -> Result<DeviceFingerprint, Error> {
    Ok(shared_cli::machine::this_machine()?.fingerprint)
}

/// A team of `threads` on this machine's cores.
pub fn team(threads: usize) -> Result<Team, Error> {
    let topology = Topology::of_this_process()?;
    Ok(Team::new(TeamConfig::on_cores(&topology, threads.max(1)))?)
}

/// The largest team that makes sense on this machine.
pub fn threads_at_most() -> Result<usize, Error> {
    Ok(Topology::of_this_process()?.threads_at_most())
}
