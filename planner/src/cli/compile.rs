//! `ats-plan compile`: opens the model, lowers it, plans, writes the plan.

use super::{Amount, machine, parse_amount};
use crate::compile::{Deciding, HostWeights, PlanError, PlanInputs, Planned, Reasons, plan_model};
use crate::place;
use crate::place::search::{Query, SearchError};
use crate::profile::Gpu;
use crate::regime::{Grid, SolveError};
use clap::{Args, ValueEnum};
use gguf::Model;
use plan_format::arena::RoundLimits;
use plan_format::artifact::{KvType, Options};
use plan_format::fingerprint::{ModelFingerprint, of_model};
use plan_format::program::Program;
use plan_format::{find, sections, text};
use shared_cli::Failure;
use shared_cli::machine::{Machine, this_machine};
use shared_cli::output::{Progress, print, write_whole};
use std::path::{Path, PathBuf};

/// Planned context where none is asked for, if the model allows it.
const DEFAULT_CONTEXT_TOKENS: u32 = 8192;
/// Tokens of a prefill round where nothing is searched.
const DEFAULT_UBATCH_TOKENS: u32 = 512;
/// Rounds that the planner chooses from. The first two are for ceilings that hold no larger round's activations, and
/// for the ends of prompts.
const UBATCH_TOKENS: [u32; 7] = [16, 64, 256, 512, 1024, 2048, 4096];
/// What is left free of GPU memory unless `--vram` says otherwise.
const VRAM_HEADROOM_BYTES: u64 = 256 << 20;
/// Logits of a round: one for generation, a few for speculation.
const DEFAULT_OUTPUT_TOKENS: u32 = 8;

/// What to plan.
#[derive(Debug, Args)]
pub struct CompileArgs {
    /// The model: a .gguf file, or any file of a split one.
    pub model: PathBuf,
    /// Where to write the plan [default: beside the model, .atsplan for .gguf].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Ceiling of everything on the GPU: 6G, 6144M, 0 for none [default: none on a machine without GPU].
    #[arg(long, value_name = "SIZE", value_parser = parse_amount)]
    pub vram: Option<Amount>,
    /// Longest context in tokens [default: the model's, at most 8192].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Most tokens of a prefill round [default: 512, at most the context].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub ubatch: Option<u32>,
    /// Most tokens of a round whose logits are wanted [default: 8, at most the round].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub outputs: Option<u32>,
    /// Prompt tokens of the workload to be fast at.
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub prompt: u32,
    /// Generated tokens of that workload.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub generate: u32,
    /// Type of the caches of keys and values.
    #[arg(long, value_enum, default_value = "f16")]
    pub kv_type: KvTypeArg,
    /// Plan for another machine: a device profile's file, or sim:NAME for a simulated one.
    #[arg(long, value_name = "FILE")]
    pub device: Option<String>,
    /// Plan for the exact kernels: all on the CPU, weights as in the file, F32 caches.
    #[arg(long, conflicts_with_all = ["vram", "kv_type", "device"])]
    pub exact: bool,
}

/// [`KvType`] as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvTypeArg {
    /// 16-bit floats.
    F16,
    /// 32-bit floats.
    F32,
}

/// Compiles the plan and says what it is.
pub fn run(args: &CompileArgs) -> Result<(), Failure> {
    let progress = Progress::start();
    progress.step("reading the model");
    let model = Model::open(&args.model).map_err(Failure::failed)?;
    let out = out_path(args, &model);
    let fingerprint = of_model(&model).map_err(Failure::failed)?;
    progress.step("lowering the model");
    let program = crate::lower_model(&model).map_err(Failure::failed)?;
    progress.step("planning");
    let inputs = inputs(args, program, fingerprint)?;
    let planned = plan_model(inputs).map_err(explain)?;
    let bytes = sections::to_bytes(&planned.plan).map_err(Failure::failed)?;
    write_whole(&out, &bytes)?;
    drop(progress);
    print(&summary(&planned, &out))
}

/// `--out`, else beside the model's first shard.
fn out_path(args: &CompileArgs, model: &Model) -> PathBuf {
    let first_shard = model.files().first().map_or(args.model.as_path(), |file| file.path.as_path());
    args.out.clone().unwrap_or_else(|| find::beside(first_shard))
}

fn inputs(args: &CompileArgs, program: Program, model: ModelFingerprint) -> Result<PlanInputs, Failure> {
    let Some(name) = &args.device else {
        let Machine { fingerprint: device, cpu_threads } = this_machine().map_err(Failure::failed)?;
        let options = options(args, &program, None)?;
        let host_weights = if args.exact { HostWeights::AsInFile } else { HostWeights::Packed };
        let deciding = Deciding::Nothing { cpu_threads, host_weights };
        return Ok(PlanInputs { program, model, device, options, deciding });
    };
    let profile = Box::new(machine::named_profile(name)?);
    let options = options(args, &program, profile.gpu.as_ref())?;
    let ubatch_tokens = ubatches(args, options.context_tokens);
    let device = machine::fingerprint(&profile);
    let deciding = Deciding::Profile { profile, ubatch_tokens, grid: Grid::full() };
    Ok(PlanInputs { program, model, device, options, deciding })
}

/// Ubatches to choose from: the one asked for, else the usual ones that the context holds, else all of it.
fn ubatches(args: &CompileArgs, context_tokens: u32) -> Vec<u32> {
    if let Some(ubatch) = args.ubatch {
        return vec![ubatch.min(context_tokens)];
    }
    let fitting: Vec<u32> = UBATCH_TOKENS.into_iter().filter(|&tokens| tokens <= context_tokens).collect();
    if fitting.is_empty() { vec![context_tokens] } else { fitting }
}

fn options(args: &CompileArgs, program: &Program, gpu: Option<&Gpu>) -> Result<Options, Failure> {
    let context_tokens = args.context.unwrap_or(program.context_tokens.min(DEFAULT_CONTEXT_TOKENS));
    let ubatch_tokens = args.ubatch.unwrap_or(DEFAULT_UBATCH_TOKENS).min(context_tokens);
    let output_tokens = args.outputs.unwrap_or(DEFAULT_OUTPUT_TOKENS).min(ubatch_tokens);
    let kv_type = match (args.exact, args.kv_type) {
        (true, _) | (_, KvTypeArg::F32) => KvType::F32,
        (false, KvTypeArg::F16) => KvType::F16,
    };
    Ok(Options {
        vram_bytes: vram_bytes(args, gpu)?,
        ram_bytes: None,
        context_tokens,
        limits: RoundLimits { ubatch_tokens, output_tokens },
        prompt_tokens: args.prompt,
        generate_tokens: args.generate,
        kv_type,
    })
}

/// The ceiling: as asked, by default what is free of the GPU less headroom.
fn vram_bytes(args: &CompileArgs, gpu: Option<&Gpu>) -> Result<u64, Failure> {
    let free_bytes = gpu.map(|gpu| gpu.free_mib << 20);
    match (args.vram, free_bytes) {
        (Some(Amount::Bytes(bytes)), _) => Ok(bytes),
        (Some(Amount::PercentOfFree(percent)), Some(free_bytes)) => Ok(free_bytes / 100 * u64::from(percent)),
        (Some(Amount::PercentOfFree(percent)), None) => {
            let error = anyhow::anyhow!("--vram {percent}%: no GPU is known of which that is a share");
            Err(Failure::usage(error).hint("leave out --vram, or give --vram 0"))
        }
        (None, free_bytes) => Ok(free_bytes.map_or(0, |free_bytes| free_bytes.saturating_sub(VRAM_HEADROOM_BYTES))),
    }
}

fn explain(error: PlanError) -> Failure {
    match &error {
        PlanError::Context { most, .. } => {
            let hint = format!("give --context at most {most}");
            Failure::usage(error).hint(hint)
        }
        PlanError::NoGpu { .. } => Failure::usage(error).hint("leave out --vram, or give --vram 0"),
        PlanError::Solve(SolveError::Search(SearchError::TooSmall { .. })) => {
            Failure::usage(error).hint("give --vram more, a shorter --context, or --vram 0 for the CPU alone")
        }
        PlanError::Solve(_) | PlanError::Plan(_) => Failure::failed(error),
    }
}

fn summary(planned: &Planned, out: &Path) -> String {
    let (plan, options) = (&planned.plan, &planned.plan.origin.options);
    let mut text = format!(
        "{}: {} with {} items for {}, context {} tokens\n",
        out.display(),
        plan.program.architecture,
        plan.program.items.len(),
        plan.origin.device.gpu.as_ref().map_or(&plan.origin.device.cpu_model, |gpu| &gpu.model),
        options.context_tokens,
    );
    if let Some(Reasons { profile, budget, solved }) = &planned.reasons {
        let query = Query { problem: &solved.problem, profile, budget: *budget };
        text.push_str(&place::summary::summary(&query, &solved.decision, &solved.parts));
        return text;
    }
    for used in plan.report.memory.iter().filter(|used| used.bytes > 0) {
        text.push_str(&format!("  {:<13}{:>11}\n", format!("{:?}", used.region), text::bytes_text(used.bytes)));
    }
    text
}
