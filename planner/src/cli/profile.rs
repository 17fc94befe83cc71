//! `ats-plan profile`: measures this machine, or asks a simulated one, and keeps the profile where `compile` finds it.

use super::{machine, routing};
use crate::measure::{self, MeasureError, Needs, Pace, Shape, Watch, cuda};
use crate::profile::{Backend, Gpu, Operator, Profile};
use clap::Args;
use gguf::Model;
use plan_format::fingerprint::SIMULATED;
use shared_cli::Failure;
use shared_cli::machine::{FIRST_GPU, this_machine};
use shared_cli::output::{Progress, print, refuse_places, write_whole};
use std::fmt::Write;
use std::path::PathBuf;

/// What to measure.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Time this model's own shapes too.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Where to write the profile [default: the user's cache, where compile looks].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Measure a simulated machine (sim:NAME) through the interface of real ones, and print its profile.
    #[arg(long, value_name = "sim:NAME", conflicts_with = "model")]
    pub device: Option<String>,
    /// Measure nothing, but count how often --model chooses each of its experts for --text, on the CPU, and write that
    /// for `compile --routing`.
    #[arg(long, value_name = "FILE", requires = "model", requires = "text", conflicts_with_all = ["out", "device"])]
    pub routing: Option<PathBuf>,
    /// The text to count choices for; the more like what the model will read and write, the better.
    #[arg(long, value_name = "FILE", requires = "routing")]
    pub text: Option<PathBuf>,
}

/// Measures and keeps the profile.
pub fn run(args: &ProfileArgs) -> Result<(), Failure> {
    if let (Some(out), Some(model), Some(text)) = (&args.routing, &args.model, &args.text) {
        return routing::count(model, text, out);
    }
    let progress = Progress::start();
    if let Some(out) = &args.out {
        refuse_places(&[out], &args.model.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
    }
    if let Some(name) = &args.device {
        let profile = simulated(name, &progress)?;
        drop(progress);
        return match &args.out {
            Some(out) => write_whole(out, profile.to_json().as_bytes()),
            None => print(&profile.to_json()),
        };
    }
    let mut watch = watch(&progress);
    let shapes = match &args.model {
        Some(path) => {
            let model = Model::open(path).map_err(Failure::failed)?;
            measure::shapes(&crate::lower_model(&model).map_err(Failure::failed)?)
        }
        None => Vec::new(),
    };
    let asked = Asked { needs: &measure::all_needs(), shapes: &shapes, pace: Pace::FULL, shapes_pace: Pace::FULL };
    let profile = measured(None, &asked, &mut watch).map_err(failure)?;
    drop(watch);
    let out = match &args.out {
        Some(out) => out.clone(),
        None => machine::cache_path(&this_machine().map_err(Failure::failed)?.fingerprint)?,
    };
    machine::keep(&profile, &out)?;
    drop(progress);
    print(&format!("{}{}\n", table(&profile), out.display()))
}

/// What a profile of this machine must have.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Curves.
    pub needs: &'a Needs,
    /// Matrices that are timed as they are.
    pub shapes: &'a [Shape],
    /// How thoroughly all but those are measured.
    pub pace: Pace,
    /// How thoroughly those are.
    pub shapes_pace: Pace,
}

/// This machine's profile with everything that is asked for, begun anew or from one that has some of it.
pub fn measured(known: Option<Profile>, asked: &Asked<'_>, watch: &mut Watch<'_>) -> Result<Profile, MeasureError> {
    let Asked { needs, shapes, pace, shapes_pace } = *asked;
    let is_new = known.is_none();
    let mut profile = match known {
        Some(mut profile) => {
            measure::add_curves(&mut profile, needs, pace, watch)?;
            profile
        }
        None => measure::machine(needs, pace, watch)?,
    };
    measure::add_points(&mut profile, shapes, shapes_pace, watch)?;
    if !is_new && !cuda::lacks_curves(&profile, needs) && !cuda::lacks_points(&profile, shapes) {
        return Ok(profile);
    }
    let Some(gpu) = cuda::open()? else { return Ok(profile) };
    if is_new {
        cuda::add_gpu(&mut profile, &gpu, needs, watch)?;
    } else if cuda::lacks_curves(&profile, needs) {
        cuda::add_curves(&mut profile, &gpu, needs, watch)?;
    }
    if cuda::lacks_points(&profile, shapes) {
        cuda::add_points(&mut profile, &gpu, shapes, shapes_pace, watch)?;
    }
    Ok(profile)
}

/// Names what is measured, and how much of it is done.
pub fn watch(progress: &Progress) -> impl FnMut(&str, f64) + Send + '_ {
    |what, done| progress.step(format!("measuring {what} ({:.0} %)", 100.0 * done))
}

/// What to do about it.
pub fn failure(error: MeasureError) -> Failure {
    let hint = match &error {
        MeasureError::Device(_) | MeasureError::NoRoom { .. } | MeasureError::Interrupted(_) => {
            "close what takes the memory or the GPU, or plan with --device FILE"
        }
        MeasureError::Kernel(_) | MeasureError::UnknownType(_) => "please report it with the model's name",
    };
    Failure::failed(error).hint(hint)
}

/// The profile of a simulated machine, its link and hand-overs as measured through the interface.
fn simulated(name: &str, progress: &Progress) -> Result<Profile, Failure> {
    if !name.starts_with(SIMULATED) {
        let error = anyhow::anyhow!("--device {name}: only simulated machines can be measured from here");
        return Err(Failure::usage(error).hint(format!("give {SIMULATED}NAME, or run `ats-plan profile` there")));
    }
    let mut profile = machine::named_profile(name)?;
    let Some(gpu) = measure::simulated(&profile) else { return Ok(profile) };
    let mut watch = watch(progress);
    let watch: &mut Watch<'_> = &mut watch;
    let found = measure::probe_gpu(&gpu, watch).map_err(failure)?;
    (profile.latency.to_gpu_us, profile.latency.to_cpu_us) = (found.hand_over_us, found.hand_over_us);
    profile.latency.blocking_switch_us = found.blocking_switch_us;
    profile.provenance.sources.push("Link and hand-overs: measured on the simulated GPU".to_owned());
    profile.gpu = profile.gpu.map(|gpu| Gpu {
        memory_mib: found.memory_mib,
        free_mib: gpu.free_mib.min(found.free_mib),
        context_mib: found.context_mib,
        host_to_device: found.host_to_device,
        pageable_gb_per_s: found.pageable_gb_per_s,
        ..gpu
    });
    Ok(profile)
}

/// What people ask first of a profile.
fn table(profile: &Profile) -> String {
    let mut text = format!(
        "{}: {} cores, {} MiB of memory available\n",
        profile.cpu.model,
        profile.cores(),
        profile.memory.available_mib
    );
    text.push_str(&gpu_line(profile));
    for entry in &profile.contention {
        let _ = writeln!(text, "  {:>3} threads read {:.1} GB/s", entry.threads, entry.cpu_alone_gb_per_s);
    }
    for note in profile.provenance.assumptions.iter().filter(|note| note.starts_with(measure::DISTURBANCE)) {
        let _ = writeln!(text, "  {note}: measure again when the machine is calm");
    }
    for note in profile.provenance.assumptions.iter().filter(|note| note.starts_with(measure::AGAIN)) {
        let _ = writeln!(text, "  {note}");
    }
    let _ = writeln!(text, "  an operator's barriers take {:.1} us", profile.latency.cpu_op_us);
    let most = profile.contention.last().map_or(0, |entry| entry.threads);
    let of_team = |curve: &&crate::profile::Curve| {
        (curve.backend, curve.operator, curve.threads) == (Backend::Cpu, Operator::Matmul, most)
    };
    for curve in profile.curves.iter().filter(of_team) {
        let first = curve.gb_per_s.first().copied().unwrap_or_default();
        let points = curve.tokens.iter().zip(&curve.gb_per_s);
        let prefill = points.rev().nth(1).map(|(&tokens, &rate)| (tokens, rate * f64::from(tokens) / first));
        let (tokens, gain) = prefill.unwrap_or((1, 1.0));
        let _ = writeln!(
            text,
            "  {:<7} decodes at {first:.1} GB/s; {tokens} tokens at once are {gain:.0} times as fast",
            curve.weight_type
        );
    }
    text
}

/// The GPU, or why there is none.
fn gpu_line(profile: &Profile) -> String {
    if let Some(gpu) = &profile.gpu {
        let link = gpu.host_to_device.last().map_or(0.0, |size| size.gb_per_s);
        return format!(
            "{}: {} of {} MiB free, link {link:.1} GB/s, context and kernels {} MiB\n",
            gpu.model,
            gpu.free_mib,
            gpu.memory_mib,
            gpu.context_mib + gpu.kernels_mib
        );
    }
    let absence = device::cuda::probe().and_then(|driver| driver.usable(FIRST_GPU).cloned()).err();
    absence.map_or_else(String::new, |absence| format!("  {absence}\n"))
}
