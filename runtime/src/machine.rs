//! This machine as plans see it, and the team that runs on it. Not here: measuring it (`ats-plan profile`).

use crate::Error;
use device::team::{Team, TeamConfig};
use device::topology::Topology;
use plan_format::fingerprint::DeviceFingerprint;

/// What a plan must be for to run here.
pub fn fingerprint() -> Result<DeviceFingerprint, Error> {
    let topology = Topology::of_this_process()?;
    let cores = u32::try_from(topology.cores.len()).unwrap_or(u32::MAX);
    Ok(DeviceFingerprint { cpu_model: cpu_model(), cpu_cores: cores, gpu: None })
}

/// A team of `threads` on this machine's cores.
pub fn team(threads: usize) -> Result<Team, Error> {
    let topology = Topology::of_this_process()?;
    Ok(Team::new(TeamConfig::on_cores(&topology, threads.max(1)))?)
}

/// The CPU's name for itself; not every kernel and CPU has one.
fn cpu_model() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    name.filter(|name| !name.is_empty()).unwrap_or("unnamed CPU").to_owned()
}
