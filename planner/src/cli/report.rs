//! `ats-plan report`: a plan as one page, and its comparison with whole layers as text and CSV.

use super::compile::inputs;
use super::options::PlanArgs;
use super::simulate::explain;
use super::subject::{self, Anew, Subject};
use crate::compile::{Planned, Reasons};
use crate::regime::Grid;
use crate::report::claims::{Comparison, compare};
use crate::report::claims_text::{CSV_HEADER, csv, phases, sentences, workload};
use crate::report::page::{Study, page};
use clap::Args;
use plan_format::artifact::Plan;
use shared_cli::Failure;
use shared_cli::output::{Progress, print, refuse_places, write_whole};
use std::path::{Path, PathBuf};

/// What to report on.
#[derive(Debug, Args)]
#[command(mut_arg("model", |arg| arg.value_name("PLAN_OR_MODEL")
    .help("A plan, or a model to plan in memory (any file of a split one)")))]
pub struct ReportArgs {
    /// What to plan for.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// Write the page here: self-contained, no script, nothing from elsewhere.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write the comparison with whole layers as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// Writes what was asked for and prints the comparison.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let progress = Progress::start();
    let places: Vec<&Path> = [&args.out, &args.csv].into_iter().flatten().map(PathBuf::as_path).collect();
    refuse_places(&places, &inputs(&args.plan))?;
    let anew = Anew { link_gb_per_s: None, grid: Grid::full() };
    let subject = subject::open(&args.plan, &anew, &progress)?;
    let mut notes = Vec::new();
    let reasons = reasons(args, &subject, &progress, &mut notes);
    progress.step("comparing with whole layers");
    let compared = reasons.as_ref().map(|reasons| (reasons, compare(&reasons.query(), &reasons.solved.decision)));
    let study = compared.as_ref().map(|(reasons, comparison)| Study {
        machine: &reasons.profile.name,
        read_gb_per_s: reasons.profile.memory.read_gb_per_s,
        hot: reasons.hot.as_ref(),
        comparison: comparison.as_ref(),
    });
    if let Some(path) = &args.out {
        let html = page(&subject.name, &subject.plan, study).map_err(explain)?;
        write_whole(path, html.as_bytes())?;
        notes.push(format!("{}: written", path.display()));
    }
    let comparison = compared.as_ref().and_then(|(reasons, comparison)| Some((*reasons, comparison.as_ref()?)));
    if let Some(path) = &args.csv {
        write_whole(path, csv_file(&subject, comparison)?.as_bytes())?;
        notes.push(format!("{}: written", path.display()));
    }
    drop(progress);
    print(&text(comparison, &notes))
}

/// What led to the plan: known for a fresh one, found again for one from its file.
fn reasons(args: &ReportArgs, subject: &Subject, progress: &Progress, notes: &mut Vec<String>) -> Option<Reasons> {
    if let Some(reasons) = &subject.reasons {
        return Some(reasons.clone());
    }
    match decided_again(args, &subject.plan, progress) {
        Ok(planned) => {
            if planned.plan.placement != subject.plan.placement {
                notes.push("the comparison is of a fresh plan, whose placement differs from the file's".to_owned());
            }
            planned.reasons
        }
        Err(failure) => {
            notes.push(format!("no comparison with whole layers: {}", failure.text().replace('\n', "; ")));
            None
        }
    }
}

/// The plan made again; with its own ubatch alone if the planner would now choose another.
fn decided_again(args: &ReportArgs, plan: &Plan, progress: &Progress) -> Result<Planned, Failure> {
    let anew = Anew { link_gb_per_s: None, grid: Grid::reduced() };
    let planned = subject::again(&args.plan, plan, &anew, progress)?;
    if planned.plan.placement == plan.placement {
        return Ok(planned);
    }
    let ubatch = Some(plan.origin.options.limits.ubatch_tokens);
    subject::again(&PlanArgs { ubatch, ..args.plan.clone() }, plan, &anew, progress)
}

fn csv_file(subject: &Subject, comparison: Option<(&Reasons, &Comparison)>) -> Result<String, Failure> {
    let Some((reasons, comparison)) = comparison else {
        let error = anyhow::anyhow!("there is no comparison to write: no GPU is used, or no device profile is at hand");
        return Err(Failure::usage(error).hint("leave out --csv, or give --device and --vram"));
    };
    let model = subject.name.trim_end_matches(".gguf").trim_end_matches(".atsplan");
    let vram_mib = reasons.budget.vram_bytes >> 20;
    Ok(format!("{CSV_HEADER}\n{}", csv(model, &reasons.profile.name, vram_mib, comparison)))
}

fn text(comparison: Option<(&Reasons, &Comparison)>, notes: &[String]) -> String {
    let mut lines = Vec::new();
    if let Some((reasons, comparison)) = comparison {
        lines.push(format!("against whole layers ({}) at equal GPU memory, simulated:", comparison.base));
        for row in &comparison.rows {
            let (prefill, decode) = (row.prefill_tokens_per_s(), row.decode_tokens_per_s());
            lines.push(format!("  {:<45} prefill {prefill:>8.1}  decode {decode:>7.2} tokens/s", row.name));
        }
        lines.push(workload(comparison));
        for (name, claim) in phases(comparison) {
            lines.extend(sentences(name, claim, reasons.profile.memory.read_gb_per_s));
        }
    }
    lines.extend(notes.iter().cloned());
    lines.iter().map(|line| format!("{line}\n")).collect()
}
