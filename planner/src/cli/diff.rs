//! `ats-plan diff`: what differs between two plans, in words. Exit codes as of `diff`: 0 the same, 1 different (or a
//! plan that cannot be read, with its error), 2 used wrongly.

use super::subject::read_plan;
use crate::report::differences::differences;
use clap::Args;
use shared_cli::Failure;
use shared_cli::output::print;
use std::path::PathBuf;
use std::process::ExitCode;

/// What to compare.
#[derive(Debug, Args)]
#[command(after_help = "Exit code: 0 the plans are the same, 1 they differ.")]
pub struct DiffArgs {
    /// A plan.
    pub was: PathBuf,
    /// Another.
    pub is: PathBuf,
}

/// Prints the differences.
pub fn run(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let list = differences(&read_plan(&args.was)?, &read_plan(&args.is)?);
    if list.is_empty() {
        print("the plans are the same\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&list.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    Ok(ExitCode::FAILURE)
}
