//! `ats-plan export`: the flags of another engine that come closest to a plan, and what is lost.

use super::subject::read_plan;
use crate::report::llama_cpp;
use clap::{Args, ValueEnum};
use shared_cli::Failure;
use shared_cli::output::{print, say};
use std::path::PathBuf;

/// What to export.
#[derive(Debug, Args)]
#[command(after_help = "Flags go to standard output, what is lost to standard error:\n  \
                        eval llama-server -m MODEL $(ats-plan export PLAN --to llama.cpp)")]
pub struct ExportArgs {
    /// The plan.
    pub plan: PathBuf,
    /// The engine.
    #[arg(long, value_enum)]
    pub to: Engine,
}

/// Engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Build b11434 or newer; older ones call `-lm none` `--no-mmap`.
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

/// Prints the flags.
pub fn run(args: &ExportArgs) -> Result<(), Failure> {
    let plan = read_plan(&args.plan)?;
    let export = match args.to {
        Engine::LlamaCpp => llama_cpp::export(&plan),
    };
    print(&format!("{}\n", export.shell()))?;
    for lost in &export.lost {
        say(format!("lost: {lost}"));
    }
    Ok(())
}
