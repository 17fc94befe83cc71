//! Which machine a device profile is of.
//!
//! A profile that was measured is a real machine's, and its plans carry that machine's fingerprint. One that was
//! calculated is the simulated machine of its name (`sim:NAME`): no plan of it runs on real hardware.

use crate::profile::machines::MACHINES;
use crate::profile::{Profile, ProfileKind, synthetic};
use anyhow::{Context, anyhow};
use plan_format::fingerprint::{DeviceFingerprint, GpuFingerprint, SIMULATED};
use shared_cli::Failure;
use std::path::Path;

/// The profile that `--device` names: a file, or one of the synthetic machines as `NAME` or `sim:NAME`.
pub fn named_profile(name: &str) -> Result<Profile, Failure> {
    let plain = name.strip_prefix(SIMULATED).unwrap_or(name);
    if let Some(machine) = MACHINES.iter().find(|machine| machine.name == plain) {
        return Ok(synthetic::profile(machine));
    }
    if name.starts_with(SIMULATED) || !Path::new(name).exists() {
        let known: Vec<&str> = MACHINES.iter().map(|machine| machine.name).collect();
        let error = anyhow!("there is no device profile `{name}`: neither a file nor a known machine");
        let hint = format!("give a file that `ats-plan profile --out FILE` wrote, or sim:NAME of {}", known.join(", "));
        return Err(Failure::usage(error).hint(hint));
    }
    let text = std::fs::read_to_string(name).with_context(|| format!("cannot read {name}")).map_err(Failure::failed)?;
    Profile::from_json(&text).with_context(|| name.to_owned()).map_err(Failure::failed)
}

/// What a plan of a profile is for.
pub fn fingerprint(profile: &Profile) -> DeviceFingerprint {
    let (cpu_model, cpu_cores) = (profile.cpu.model.clone(), u32::from(profile.cores()));
    let gpu_bytes = |gpu: &crate::profile::Gpu| gpu.memory_mib << 20;
    if profile.provenance.kind == ProfileKind::Synthetic {
        let gpu_memory_bytes = profile.gpu.as_ref().map(gpu_bytes);
        return DeviceFingerprint::simulated(&profile.name, &cpu_model, cpu_cores, gpu_memory_bytes);
    }
    let gpu = profile.gpu.as_ref().map(|gpu| GpuFingerprint {
        model: gpu.model.clone(),
        memory_bytes: gpu_bytes(gpu),
        link: gpu.link.clone().unwrap_or_default(),
        driver: gpu.driver.clone().unwrap_or_default(),
    });
    DeviceFingerprint { cpu_model, cpu_cores, gpu }
}
