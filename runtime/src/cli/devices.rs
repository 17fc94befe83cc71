//! `ats-run devices`: what this machine offers.

use super::Failure;
use crate::machine;
use device::topology::Topology;
use kernels::cpu::Isa;
use std::io::Write;

/// Prints the CPU with its cores and instruction set.
pub fn run() -> Result<(), Failure> {
    let topology = Topology::of_this_process().map_err(crate::Error::from)?;
    let fingerprint = machine::fingerprint()?;
    let mut out = std::io::stdout();
    writeln!(out, "CPU  {}", fingerprint.cpu_model)?;
    writeln!(out, "     {} cores, team of {}", fingerprint.cpu_cores, topology.threads_at_most())?;
    writeln!(out, "     kernels: {}", Isa::detect().name())?;
    Ok(())
}
