//! `ats-plan profile --routing`: has the sibling program `ats-run` read a text with a model, all on the CPU, where
//! every choice of experts is seen, and keeps the counts. Not here: counting (the runtime), what follows from the
//! counts (`plan_format::routing`, `cost`).

use anyhow::{Context, anyhow};
use plan_format::routing::RoutingCounts;
use shared_cli::Failure;
use shared_cli::output::{Progress, print, refuse_places};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Context of the plan that counts: chunks of the text are this long.
const CHUNK_TOKENS: &str = "512";

/// Counts the choices of `model` for `text`, writes them to `out`, and says what they are.
pub fn count(model: &Path, text: &Path, out: &Path) -> Result<(), Failure> {
    refuse_places(&[out], &[model, text])?;
    let folder = tempfile::tempdir().context("no temporary folder").map_err(Failure::failed)?;
    let plan = folder.path().join("cpu.atsplan");
    let progress = Progress::start();
    progress.step("planning for the CPU");
    let here = std::env::current_exe().context("this program's place").map_err(Failure::failed)?;
    let compile = ["compile", "--vram", "0", "--context", CHUNK_TOKENS, "--out"];
    run(Command::new(&here).args(compile).arg(&plan).arg(model))?;
    progress.step("reading the text");
    let sibling = here.parent().map(|folder| folder.join("ats-run")).filter(|path| path.is_file());
    let program = sibling.unwrap_or_else(|| PathBuf::from("ats-run"));
    let mut read = Command::new(program);
    read.args(["perplexity", "--chunk", CHUNK_TOKENS, "--plan"]).arg(&plan).arg("--file").arg(text);
    run(read.arg("--routing").arg(out).arg(model))?;
    drop(progress);
    let written = std::fs::read_to_string(out).with_context(|| format!("cannot read {}", out.display()));
    let counts = RoutingCounts::from_json(&written.map_err(Failure::failed)?).map_err(Failure::failed)?;
    print(&format!("{}{}\n", summary(&counts), out.display()))
}

/// Runs a program that says itself what went wrong.
fn run(command: &mut Command) -> Result<(), Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status.with_context(|| format!("cannot start {program}")) {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::failed(anyhow!("{program} ended with {status}"))),
        Err(error) => Err(Failure::failed(error).hint("install ats-run beside ats-plan")),
    }
}

/// How many choices were seen, and how uneven they are.
fn summary(counts: &RoutingCounts) -> String {
    let tokens = counts.layers.iter().map(|layer| layer.tokens()).fold(0.0, f64::max);
    let share = |layer: &plan_format::routing::LayerHits| layer.share_of_hottest(layer.hits.len().div_ceil(4));
    let shares: Vec<f64> = counts.layers.iter().map(share).collect();
    let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    let most = shares.iter().copied().fold(0.0, f64::max);
    format!(
        "{} layers, {tokens:.0} tokens: a quarter of the experts takes {:.0} % of the choices, {:.0} % in the steepest \
         layer\n",
        counts.layers.len(),
        100.0 * mean,
        100.0 * most
    )
}
