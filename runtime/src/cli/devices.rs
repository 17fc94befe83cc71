//! `ats-run devices`: what this machine offers.

use super::Failure;
use crate::machine;
use device::cuda::{CudaDriver, GpuAbsence, probe};
use device::topology::Topology;
use kernels::cpu::Isa;
use std::io::Write;

/// Prints the CPU with its cores and instruction set, and the GPUs or, in one line, why there is none.
pub fn run() -> Result<(), Failure> {
    let topology = Topology::of_this_process().map_err(crate::Error::from)?;
    let fingerprint = machine::fingerprint()?;
    let mut out = std::io::stdout();
    writeln!(out, "CPU  {}", fingerprint.cpu_model)?;
    writeln!(out, "     {} cores, team of {}", fingerprint.cpu_cores, topology.threads_at_most())?;
    writeln!(out, "     kernels: {}", Isa::detect().name())?;
    gpu_lines(probe()).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(())
}

fn gpu_lines(found: Result<CudaDriver, GpuAbsence>) -> Vec<String> {
    let driver = match found {
        Ok(driver) => driver,
        Err(absence) => return vec![format!("GPU  none, everything runs on the CPU: {absence}")],
    };
    let line = |(ordinal, model): (usize, &device::cuda::GpuModel)| {
        let (major, minor) = model.capability;
        let usable = driver.usable(ordinal as u32).map_or_else(|absence| format!("; {absence}"), |_| String::new());
        format!(
            "GPU  {ordinal}: {}, {:.1} GiB, compute capability {major}.{minor}, driver for CUDA {}.{}{usable}",
            model.name,
            model.memory_bytes as f64 / f64::from(1 << 30),
            driver.version / 1000,
            driver.version % 1000 / 10,
        )
    };
    driver.devices.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::cuda::GpuModel;

    #[test]
    fn each_gpu_has_a_line_and_their_absence_one() {
        let model = GpuModel {
            name: "NVIDIA X".into(),
            capability: (8, 9),
            multiprocessors: 1,
            memory_bytes: 12 << 30,
            l2_bytes: 1,
            shared_bytes_max: 1,
        };
        let old = GpuModel { capability: (7, 5), ..model.clone() };
        let lines = gpu_lines(Ok(CudaDriver { version: 12_080, devices: vec![model, old] }));
        assert_eq!(lines[0], "GPU  0: NVIDIA X, 12.0 GiB, compute capability 8.9, driver for CUDA 12.8");
        assert!(lines[1].contains("needs 8.0"), "{}", lines[1]);
        assert_eq!(gpu_lines(Err(GpuAbsence::NoDriver)).len(), 1);
    }
}
