//! `ats-plan compile`: opens the model, lowers it, plans, writes the plan.

use super::options::PlanArgs;
use super::{machine, output};
use crate::compile::{Deciding, HostWeights, PlanError, PlanInputs, Planned, plan_model};
use crate::cost::PriceError;
use crate::place::search::{SearchError, size_text};
use crate::profile::Profile;
use crate::regime::{Grid, SolveError};
use clap::Args;
use gguf::Model;
use kernels::cuda::Chip;
use plan_format::artifact::{KvType, Options, Plan};
use plan_format::fingerprint::{DeviceFingerprint, ModelFingerprint, full_hash, of_model};
use plan_format::program::Program;
use plan_format::text::bytes_text;
use plan_format::{find, sections};
use shared_cli::Failure;
use shared_cli::gpu_code;
use shared_cli::machine::{Machine, this_machine};
use shared_cli::output::{Progress, print, refuse_inputs, write_whole};
use std::path::{Path, PathBuf};

/// What to compile.
#[derive(Debug, Args)]
pub struct CompileArgs {
    /// What to plan for.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Where to write the plan [default: beside the model, .atsplan for .gguf].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Read all of the model, and keep its hash in the plan for `ats-run verify --full-hash`.
    #[arg(long)]
    pub full_hash: bool,
    /// Plan for the exact kernels: all on the CPU, weights as in the file, F32 caches.
    #[arg(long, conflicts_with_all = ["vram", "ram", "kv_type", "device"])]
    pub exact: bool,
}

/// Compiles the plan and says what it is.
pub fn run(args: &CompileArgs) -> Result<(), Failure> {
    let progress = Progress::start();
    if let Some(out) = &args.out {
        refuse_inputs(out, inputs(&args.plan)).map_err(elsewhere)?;
    }
    let Decided { mut planned, model, here, fresh_points } = match args.exact {
        true => exact(&args.plan, &progress)?,
        false => decided(&args.plan, &progress)?,
    };
    store_code(&mut planned.plan, here.as_ref(), &progress)?;
    let out = args.out.clone().unwrap_or_else(|| out_path(&args.plan, &model));
    refuse_inputs(&out, model.files().iter().map(|file| file.path.as_path())).map_err(elsewhere)?;
    if args.full_hash {
        let read = |done, total| progress.step(format!("reading {} of {}", bytes_text(done), bytes_text(total)));
        planned.plan.full_hash = Some(full_hash(&model, read));
    }
    let bytes = sections::to_bytes(&planned.plan).map_err(Failure::failed)?;
    write_whole(&out, &bytes).map_err(elsewhere)?;
    let text = output::summary(&planned, &output::Made { out: &out, here: here.as_ref(), fresh_points }, &progress);
    drop(progress);
    print(&text)
}

/// What to do where the plan cannot be written.
fn elsewhere(failure: Failure) -> Failure {
    failure.hint("choose another place with --out")
}

/// Has this machine's GPU driver compile the kernels of a plan for it, so that the first run compiles nothing.
fn store_code(plan: &mut Plan, here: Option<&DeviceFingerprint>, progress: &Progress) -> Result<(), Failure> {
    if plan.origin.options.vram_bytes == 0 {
        return Ok(());
    }
    let asked = || this_machine().map(|machine| machine.fingerprint);
    let here = here.cloned().map_or_else(asked, Ok).map_err(Failure::failed)?;
    if here != plan.origin.device {
        return Ok(());
    }
    let Some(gpu) = crate::measure::cuda::open().map_err(Failure::failed)? else { return Ok(()) };
    let modules = gpu_code::modules(&plan.program, Chip::of(gpu.model().capability));
    progress.step(format!("compiling {} modules of GPU kernels", modules.len()));
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    plan.code = gpu_code::machine_code(&gpu, &modules, threads).map_err(Failure::failed)?;
    Ok(())
}

/// Files that are read: the model or plan, the profile that `--device` names, counts of experts.
pub fn inputs(args: &PlanArgs) -> Vec<&Path> {
    let device = args.device.as_deref().map(Path::new);
    std::iter::once(args.model.as_path()).chain(device).chain(args.routing.as_deref()).collect()
}

/// Beside the model's first shard.
fn out_path(args: &PlanArgs, model: &Model) -> PathBuf {
    let first_shard = model.files().first().map_or(args.model.as_path(), |file| file.path.as_path());
    find::beside(first_shard)
}

/// Model, fingerprint and program.
fn opened(args: &PlanArgs, progress: &Progress) -> Result<(Model, ModelFingerprint, Program), Failure> {
    progress.step("reading the model");
    let model = Model::open(&args.model).map_err(Failure::failed)?;
    let fingerprint = of_model(&model).map_err(Failure::failed)?;
    progress.step("lowering the model");
    let program = crate::lower_model(&model).map_err(Failure::failed)?;
    Ok((model, fingerprint, program))
}

/// A plan that was just made.
#[derive(Debug)]
pub struct Decided {
    /// The plan, and what led to it.
    pub planned: Planned,
    /// Its model.
    pub model: Model,
    /// This machine, if it was asked what it is.
    pub here: Option<DeviceFingerprint>,
    /// Points that were measured for this plan.
    pub fresh_points: usize,
}

/// The plan of the exact kernels, whose times nobody measured: nothing is decided.
fn exact(args: &PlanArgs, progress: &Progress) -> Result<Decided, Failure> {
    let (file, model, program) = opened(args, progress)?;
    let Machine { fingerprint: device, cpu_threads } = this_machine().map_err(Failure::failed)?;
    let options = args.options(program.context_tokens, None)?;
    let options = Options { kv_type: KvType::F32, ..options };
    let deciding = Deciding::Nothing { cpu_threads, host_weights: HostWeights::AsInFile };
    let here = Some(device.clone());
    let planned = plan_model(PlanInputs { program, model, device, options, deciding });
    let planned = planned.map_err(|error| explain(error, None))?;
    Ok(Decided { planned, model: file, here, fresh_points: 0 })
}

/// The plan that a device profile decides.
pub fn decided(args: &PlanArgs, progress: &Progress) -> Result<Decided, Failure> {
    let (file, model, program) = opened(args, progress)?;
    let machine::Target { profile, fingerprint: device, fresh_points } =
        machine::planned_for(args.device.as_deref(), (&program, args.kv_type.into()), progress)?;
    let profile = Profile { routing: args.routing(&program)?, ..profile };
    let options = args.options(program.context_tokens, Some(&profile))?;
    let ubatch_tokens = args.ubatches(options.context_tokens, &profile)?;
    progress.step("planning");
    let deciding = Deciding::Profile { profile: Box::new(profile), ubatch_tokens, grid: Grid::full() };
    let here = args.device.is_none().then(|| device.clone());
    let planned = plan_model(PlanInputs { program, model, device, options, deciding });
    let planned = planned.map_err(|error| explain(error, args.device.as_deref()))?;
    Ok(Decided { planned, model: file, here, fresh_points })
}

/// What to do about it, with the profile that `device` names or with this machine's.
pub fn explain(error: PlanError, device: Option<&str>) -> Failure {
    match &error {
        PlanError::Context { most, .. } => {
            let hint = format!("give --context at most {most}");
            Failure::usage(error).hint(hint)
        }
        PlanError::NoGpu { .. } => Failure::usage(error).hint("leave out --vram, or give --vram 0"),
        PlanError::Solve(SolveError::Search(SearchError::TooSmall { needed_bytes, .. })) => {
            let least = size_text(*needed_bytes);
            let other = "a smaller --ubatch or --outputs, a shorter --context, or --vram 0 for the CPU alone";
            Failure::usage(error).hint(format!("give --vram {least} or more, {other}"))
        }
        PlanError::Solve(SolveError::Price(PriceError::NotMeasured(_))) => Failure::failed(error).hint(match device {
            None => "measure it with `ats-plan profile --model MODEL`",
            Some(name) if machine::is_synthetic(name) => "calculated profiles have the usual types only",
            Some(_) => "measure it on that machine with `ats-plan profile --model MODEL --out FILE`",
        }),
        PlanError::Solve(_) | PlanError::Plan(_) => Failure::failed(error),
    }
}
