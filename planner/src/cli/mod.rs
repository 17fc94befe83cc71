//! The command line of `ats-plan`: what can be typed, and one function per command. I/O and messages live here, the
//! decisions elsewhere (`compile.rs`).
//!
//! Exit codes: 0 done, 1 failed, 2 used wrongly. Next: `compile.rs`, `inspect.rs`.

mod check;
mod compile;
mod diff;
mod explain;
mod export;
mod inspect;
mod machine;
mod options;
mod output;
mod profile;
mod report;
mod routing;
mod simulate;
mod size;
mod subject;

pub use size::{Amount, parse_amount};

use clap::{CommandFactory, Parser, Subcommand};
use shared_cli::manual::{self, CompletionsArgs, ManArgs};
use shared_cli::typed;
use std::process::ExitCode;

/// Plans how a language model runs on this machine: what lies on the GPU, what on the CPU, what is streamed.
#[derive(Debug, Parser)]
#[command(name = "ats-plan", version)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make the plan of a model.
    Compile(compile::CompileArgs),
    /// Print a plan.
    Inspect(inspect::InspectArgs),
    /// Say why an item lies where it lies.
    Explain(explain::ExplainArgs),
    /// Measure this machine.
    Profile(profile::ProfileArgs),
    /// Say what a plan does under another budget, link, load or context.
    Simulate(simulate::SimulateArgs),
    /// Write a plan as one page, and compare it with whole layers.
    Report(report::ReportArgs),
    /// Say what differs between two plans.
    Diff(diff::DiffArgs),
    /// Print the flags of another engine that come closest to a plan.
    Export(export::ExportArgs),
    /// Compare the plans of many models and machines with golden figures.
    Check(check::CheckArgs),
    /// Print completions for a shell.
    Completions(CompletionsArgs),
    /// Write the man pages.
    Man(ManArgs),
}

/// Runs what was typed; the program's exit code.
pub fn main() -> ExitCode {
    let result = match typed::parse::<Args>().command {
        Command::Compile(args) => compile::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Diff(args) => match diff::run(&args) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Export(args) => export::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Completions(args) => manual::completions(&args, Args::command()),
        Command::Man(args) => manual::man(&args, Args::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
