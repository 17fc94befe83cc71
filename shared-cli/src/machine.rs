//! This machine as plans name it: the one place where its fingerprint is taken, so that the program that makes a plan
//! and the one that runs it cannot disagree. Not here: measuring it (`ats-plan profile`), comparing fingerprints
//! (`plan_format::fingerprint`).

use device::DeviceError;
use device::machine::MachineDescription;
use plan_format::fingerprint::{DeviceFingerprint, GpuFingerprint};
use plan_format::verify::MAX_THREADS;

/// The GPU that plans are for.
pub const FIRST_GPU: u32 = 0;

/// This machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// What a plan must be for to run here.
    pub fingerprint: DeviceFingerprint,
    /// Threads of a full CPU team.
    pub cpu_threads: u16,
}

/// This machine as the process found it when it first looked: threads that were pinned since do not count.
///
/// # Errors
/// The kernel does not say what CPUs there are.
pub fn this_machine() -> Result<Machine, DeviceError> {
    let machine = MachineDescription::of_this_process()?;
    let cpu_threads = u16::try_from(machine.threads_at_most).unwrap_or(MAX_THREADS).clamp(1, MAX_THREADS);
    let cpu_cores = u32::try_from(machine.cores).unwrap_or(u32::MAX);
    let fingerprint = DeviceFingerprint { cpu_model: machine.cpu_model, cpu_cores, gpu: gpu() };
    Ok(Machine { fingerprint, cpu_threads })
}

/// The first GPU that this program can use. Why there is none is told by whoever wants one.
fn gpu() -> Option<GpuFingerprint> {
    let driver = device::cuda::probe().ok()?;
    let model = driver.usable(FIRST_GPU).ok()?;
    Some(GpuFingerprint {
        model: model.name.clone(),
        memory_bytes: model.memory_bytes,
        link: device::cuda::link_name(FIRST_GPU).unwrap_or_default(),
        driver: device::cuda::driver_name(driver.version),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::team::{Team, TeamConfig};
    use device::topology::Topology;

    #[test]
    fn a_pinned_thread_sees_the_same_machine() {
        let before = this_machine().unwrap();
        let pinned = std::thread::spawn(|| {
            let topology = Topology::of_this_process().unwrap();
            let _team = Team::new(TeamConfig::on_cores(&topology, 1)).unwrap();
            this_machine().unwrap()
        });
        assert_eq!(pinned.join().unwrap(), before);
    }
}
