//! What this machine is, as far as a plan without a GPU needs to know.

use super::Failure;
use device::machine::MachineDescription;
use plan_format::fingerprint::DeviceFingerprint;
use plan_format::verify::MAX_THREADS;

/// This machine without its GPUs, and the threads of a full CPU team.
pub fn this_machine() -> Result<(DeviceFingerprint, u16), Failure> {
    let machine = MachineDescription::of_this_process().map_err(Failure::failed)?;
    let threads = u16::try_from(machine.threads_at_most).unwrap_or(MAX_THREADS).clamp(1, MAX_THREADS);
    let cpu_cores = u32::try_from(machine.cores).unwrap_or(u32::MAX);
    Ok((DeviceFingerprint { cpu_model: machine.cpu_model, cpu_cores, gpu: None }, threads))
}
