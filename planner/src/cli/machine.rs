//! What this machine is, as far as a plan without a GPU needs to know.

use super::Failure;
use device::topology::Topology;
use plan_format::fingerprint::DeviceFingerprint;

/// This machine without its GPUs, and the threads of a full CPU team.
pub fn this_machine() -> Result<(DeviceFingerprint, u16), Failure> {
    let topology = Topology::of_this_process().map_err(Failure::failed)?;
    let threads =
        u16::try_from(topology.threads_at_most()).unwrap_or(u16::MAX).clamp(1, plan_format::verify::MAX_THREADS);
    let cores = u32::try_from(topology.cores.len()).unwrap_or(u32::MAX);
    Ok((DeviceFingerprint { cpu_model: cpu_model(), cpu_cores: cores, gpu: None }, threads))
}

/// The CPU's name for itself; not every kernel and CPU has one.
fn cpu_model() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    name.filter(|name| !name.is_empty()).unwrap_or("unnamed CPU").to_owned()
}
