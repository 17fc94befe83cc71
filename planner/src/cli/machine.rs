//! Which machine is planned for: this one, with a profile that is measured once and kept, or that of `--device`.
//!
//! A profile that was measured is a real machine's, and its plans carry that machine's fingerprint. One that was
//! calculated is the simulated machine of its name (`sim:NAME`): no plan of it runs on real hardware.
//! Next: `profile.rs`, which measures on demand.

use super::profile::{Asked, failure, watch};
use crate::cost::needs;
use crate::measure::{self, Pace};
use crate::profile::machines::MACHINES;
use crate::profile::{Profile, ProfileKind, synthetic};
use anyhow::{Context, anyhow};
use device::memory::HostMemoryInfo;
use plan_format::artifact::KvType;
use plan_format::fingerprint::{DeviceFingerprint, DifferenceWeight, GpuFingerprint, SIMULATED};
use plan_format::program::Program;
use shared_cli::input::{TABLE_BYTES_MOST, text_at_most};
use shared_cli::machine::{FIRST_GPU, this_machine};
use shared_cli::output::{Progress, write_whole};
use shared_cli::{Failure, folders};
use std::path::{Path, PathBuf};

/// The machine that is planned for.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its figures.
    pub profile: Profile,
    /// What plans say that they are for.
    pub fingerprint: DeviceFingerprint,
    /// Points that were measured for this plan.
    pub fresh_points: usize,
}

/// The machine that `--device` names, else this one, with every figure that a program needs.
pub fn planned_for(
    device: Option<&str>,
    (program, kv_type): (&Program, KvType),
    progress: &Progress,
) -> Result<Target, Failure> {
    if let Some(name) = device {
        let profile = named_profile(name)?;
        return Ok(Target { fingerprint: fingerprint(&profile), profile, fresh_points: 0 });
    }
    let fingerprint = this_machine().map_err(Failure::failed)?.fingerprint;
    // A machine without a home for caches is measured every time.
    let path = cache_path(&fingerprint).ok();
    let kept = path.as_deref().and_then(|path| kept(path, &fingerprint));
    let before = kept.as_ref().map_or((0, 0), |profile| (profile.curves.len(), profile.points.len()));
    let (needs, shapes) = (needs(program, kv_type), measure::shapes(program));
    let asked = Asked { needs: &needs, shapes: &shapes, pace: Pace::QUICK, shapes_pace: Pace::SHAPES };
    let mut profile = super::profile::measured(kept, &asked, &mut watch(progress)).map_err(failure)?;
    if (profile.curves.len(), profile.points.len()) != before
        && let Some(path) = path
    {
        // The plan is made all the same where the cache cannot be written.
        let _ = keep(&profile, &path);
    }
    refresh(&mut profile)?;
    let fresh_points = profile.points.len() - before.1;
    Ok(Target { profile, fingerprint, fresh_points })
}

/// Memory as of now: what others have taken since the profile was made is not there for a plan.
fn refresh(profile: &mut Profile) -> Result<(), Failure> {
    let now = measure::memory(&HostMemoryInfo::of_this_process().map_err(Failure::failed)?);
    (profile.memory.available_mib, profile.memory.pinned_limit_mib) = (now.available_mib, now.pinned_limit_mib);
    if let (Some(gpu), Some(free_bytes)) = (&mut profile.gpu, device::cuda::memory_free_bytes(FIRST_GPU)) {
        gpu.free_mib = (free_bytes >> 20).min(gpu.memory_mib);
    }
    Ok(())
}

/// Where the profile of a machine is kept: in the user's cache, by its short name.
pub fn cache_path(machine: &DeviceFingerprint) -> Result<PathBuf, Failure> {
    let folder = folders::cache().ok_or_else(|| {
        let error = anyhow!("there is no place for the profile: neither HOME nor XDG_CACHE_HOME is set");
        Failure::failed(error).hint("give --out FILE")
    })?;
    Ok(folder.join(format!("profile-{}.json", machine.slug())))
}

/// Writes a profile, making its folder if need be.
pub fn keep(profile: &Profile, path: &Path) -> Result<(), Failure> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(Failure::failed)?;
    }
    write_whole(path, profile.to_json().as_bytes())
}

/// The profile that was kept, if it can be read, is measured, and is this machine's. Anything else is measured anew.
fn kept(path: &Path, machine: &DeviceFingerprint) -> Option<Profile> {
    let profile = Profile::from_json(&text_at_most(path, TABLE_BYTES_MOST).ok()?).ok()?;
    let of = fingerprint(&profile);
    let differs = of.differences(machine).iter().any(|difference| difference.weight == DifferenceWeight::Refuse);
    let same = !differs && of.gpu.is_some() == machine.gpu.is_some();
    (same && profile.provenance.kind == ProfileKind::Measured).then_some(profile)
}

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
    let text = text_at_most(Path::new(name), TABLE_BYTES_MOST);
    let text = text.with_context(|| format!("cannot read {name}")).map_err(Failure::failed)?;
    Profile::from_json(&text).with_context(|| name.to_owned()).map_err(Failure::failed)
}

/// Whether `--device` names a machine that nobody measured.
pub fn is_synthetic(name: &str) -> bool {
    let plain = name.strip_prefix(SIMULATED).unwrap_or(name);
    MACHINES.iter().any(|machine| machine.name == plain)
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
