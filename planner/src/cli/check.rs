//! `ats-plan check`: plans models for every known machine and compares with golden figures. CI runs it on header-only
//! models; on a reduced grid of loads, since the placement and the unloaded schedules are what figures tell.

use super::machine;
use crate::compile::{Deciding, PlanInputs, plan_model};
use crate::profile::machines::MACHINES;
use crate::profile::{Profile, synthetic};
use crate::regime::Grid;
use crate::report::golden::{Figures, Finding, Golden, accept, compare, parse, text};
use anyhow::{Context, anyhow};
use clap::Args;
use gguf::Model;
use plan_format::arena::RoundLimits;
use plan_format::artifact::{KvType, Options, Plan};
use plan_format::fingerprint::{Fingerprinter, ModelFingerprint};
use plan_format::program::Program;
use plan_format::schedule::Phase;
use shared_cli::Failure;
use shared_cli::input::{TABLE_BYTES_MOST, text_at_most};
use shared_cli::output::{Progress, print, write_whole};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What to check.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Folder of models; headers are enough, as `fixtures write NAME --sparse` makes them.
    #[arg(long, value_name = "FOLDER")]
    pub models: PathBuf,
    /// The golden figures.
    #[arg(long, value_name = "FILE")]
    pub golden: PathBuf,
    /// Make today's figures the golden ones; changed rows record the reason.
    #[arg(long, value_name = "REASON")]
    pub accept: Option<String>,
}

/// Demand of every pair.
const CONTEXT_TOKENS: u32 = 4096;
const UBATCH_TOKENS: u32 = 512;
const OUTPUT_TOKENS: u32 = 8;
const PROMPT_TOKENS: u32 = 512;
const GENERATE_TOKENS: u32 = 256;
/// What is left free on every GPU.
const VRAM_HEADROOM_MIB: u64 = 256;

/// Plans all pairs, compares or accepts.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let reason = args.accept.as_deref().map(str::trim);
    if reason.is_some_and(str::is_empty) {
        return Err(Failure::usage(anyhow!("--accept needs a reason")).hint("say in a few words why plans changed"));
    }
    let golden = read_golden(&args.golden, reason)?;
    let progress = Progress::start();
    progress.step("planning");
    let models = models(&args.models)?;
    let start = Instant::now();
    let planned = plan_all(&models)?;
    let seconds = start.elapsed().as_secs_f64();
    drop(progress);
    let slowest = planned.iter().map(|(_, pair_s)| *pair_s).fold(0.0, f64::max);
    let now: Vec<Figures> = planned.into_iter().map(|(figures, _)| figures).collect();
    let timing = format!("{} plans in {seconds:.1} s, the slowest in {slowest:.1} s", now.len());
    let findings = compare(&golden, &now);
    print(&findings.iter().map(|finding| format!("{finding}\n")).collect::<String>())?;
    if let Some(reason) = reason {
        write_whole(&args.golden, text(&accept(&golden, &now, reason)).as_bytes())?;
        return print(&format!("{timing}; {} golden figures accepted\n", now.len()));
    }
    verdict(&findings, &timing)
}

fn verdict(findings: &[Finding], timing: &str) -> Result<(), Failure> {
    if findings.is_empty() {
        return print(&format!("{timing}; all as the golden figures\n"));
    }
    let worse = findings.iter().filter(|finding| matches!(finding, Finding::Worse { .. })).count();
    let error = anyhow!("{} findings against the golden figures, {worse} of them worse; {timing}", findings.len());
    Err(Failure::failed(error).hint("if that is meant, run again with --accept REASON and commit the golden figures"))
}

/// The golden figures; none yet if they are about to be accepted for the first time.
fn read_golden(path: &Path, reason: Option<&str>) -> Result<Vec<Golden>, Failure> {
    if reason.is_some() && !path.exists() {
        return Ok(Vec::new());
    }
    let name = path.display();
    let text = text_at_most(path, TABLE_BYTES_MOST).with_context(|| format!("cannot read {name}"));
    let text = text.map_err(|error| Failure::failed(error).hint("--accept REASON writes the first golden figures"))?;
    parse(&text).with_context(|| format!("{name}")).map_err(Failure::failed)
}

/// A model that was lowered.
struct Lowered {
    name: String,
    fingerprint: ModelFingerprint,
    program: Program,
}

/// All models of a folder by name.
fn models(folder: &Path) -> Result<Vec<Lowered>, Failure> {
    let cannot = || format!("cannot read {}", folder.display());
    let entries = std::fs::read_dir(folder).with_context(cannot).map_err(Failure::failed)?;
    let paths: Result<Vec<PathBuf>, std::io::Error> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.with_context(cannot).map_err(Failure::failed)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    paths.sort();
    if paths.is_empty() {
        let error = anyhow!("{} holds no .gguf", folder.display());
        return Err(Failure::failed(error).hint("`fixtures write NAME --sparse --out FILE` writes a model's headers"));
    }
    paths.iter().map(|path| lowered(path)).collect()
}

fn lowered(path: &Path) -> Result<Lowered, Failure> {
    let model = Model::open(path).map_err(Failure::failed)?;
    let fingerprint = of_headers(&model);
    let program = crate::lower_model(&model).map_err(Failure::failed)?;
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    Ok(Lowered { name, fingerprint, program })
}

/// The fingerprint without samples of weights: plans do not read them, and made-up models have none.
fn of_headers(model: &Model) -> ModelFingerprint {
    let mut print = Fingerprinter::new();
    for (index, file) in model.files().iter().enumerate() {
        let bytes = model.file_bytes(index);
        let header = usize::try_from(file.header_bytes).unwrap_or(usize::MAX).min(bytes.len());
        print.file(file.len_bytes, &bytes[..header]);
    }
    print.finish()
}

/// Figures of every pair and the seconds that it took, devices outermost.
fn plan_all(models: &[Lowered]) -> Result<Vec<(Figures, f64)>, Failure> {
    let profiles: Vec<Profile> = MACHINES.iter().map(synthetic::profile).collect();
    let pairs: Vec<(&Profile, &Lowered)> =
        profiles.iter().flat_map(|profile| models.iter().map(move |model| (profile, model))).collect();
    let timed = |&(profile, model): &(&Profile, &Lowered)| {
        let start = Instant::now();
        figures(profile, model).map(|figures| (figures, start.elapsed().as_secs_f64()))
    };
    // One after the other, so that the times are the pairs' own; each uses all threads.
    pairs.iter().map(timed).collect()
}

fn figures(profile: &Profile, model: &Lowered) -> Result<Figures, Failure> {
    let vram_mib = profile.gpu.as_ref().map_or(0, |gpu| gpu.free_mib.saturating_sub(VRAM_HEADROOM_MIB));
    let failed = |error: anyhow::Error| Failure::failed(error.context(format!("{} on {}", model.name, profile.name)));
    let inputs = PlanInputs {
        program: model.program.clone(),
        model: model.fingerprint.clone(),
        device: machine::fingerprint(profile),
        options: options(vram_mib << 20),
        deciding: Deciding::Profile {
            profile: Box::new(profile.clone()),
            ubatch_tokens: vec![UBATCH_TOKENS],
            grid: Grid::reduced(),
        },
    };
    let mut plan = plan_model(inputs).map_err(|error| failed(error.into()))?.plan;
    above_floors(&plan).map_err(failed)?;
    // Another version of the program is not another plan.
    plan.origin.tool_version = String::new();
    let bytes = plan_format::sections::to_bytes(&plan).map_err(|error| failed(error.into()))?;
    let time_us = |wanted: fn(&Phase) -> bool| unloaded_us(&plan, wanted);
    let (decode_us, prefill_us) =
        (time_us(|phase| *phase == Phase::Decode), time_us(|phase| matches!(phase, Phase::Prefill { .. })));
    let limits = plan.origin.options.limits;
    let rounds = f64::from(PROMPT_TOKENS.div_ceil(limits.ubatch_tokens));
    Ok(Figures {
        device: profile.name.clone(),
        model: model.name.clone(),
        vram_mib,
        ubatch_tokens: limits.ubatch_tokens,
        decode_us,
        prefill_us,
        workload_us: f64::from(GENERATE_TOKENS) * decode_us + rounds * prefill_us + plan.placement.held.load_us,
        plan: blake3::hash(&bytes).to_hex()[..16].to_owned(),
    })
}

/// A time below what memory and link allow is no prediction.
fn above_floors(plan: &Plan) -> anyhow::Result<()> {
    // Times are kept in single precision.
    let below = plan.report.predictions.iter().find(|p| p.round_us < p.floor_us * (1.0 - 1e-5));
    below.map_or(Ok(()), |p| {
        let (phase, context) = (p.phase, p.context_tokens);
        Err(anyhow!("{phase:?} at {context} cached: {:.1} us are below the floor of {:.1} us", p.round_us, p.floor_us))
    })
}

fn options(vram_bytes: u64) -> Options {
    Options {
        vram_bytes,
        ram_bytes: None,
        context_tokens: CONTEXT_TOKENS,
        limits: RoundLimits { ubatch_tokens: UBATCH_TOKENS, output_tokens: OUTPUT_TOKENS },
        prompt_tokens: PROMPT_TOKENS,
        generate_tokens: GENERATE_TOKENS,
        kv_type: KvType::F16,
    }
}

/// Predicted latency of a kind of round in the workload, whose rounds come first.
fn unloaded_us(plan: &Plan, wanted: impl Fn(&Phase) -> bool) -> f64 {
    plan.report.predictions.iter().find(|p| wanted(&p.phase)).map_or(0.0, |p| p.round_us)
}
