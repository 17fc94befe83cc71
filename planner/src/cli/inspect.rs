//! `ats-plan inspect`: prints a plan.

use super::subject::read_plan;
use clap::Args;
use plan_format::text::{Detail, plan_text};
use shared_cli::{Failure, output};
use std::path::PathBuf;

/// What to print.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The plan file.
    pub plan: PathBuf,
    /// Print every operator too.
    #[arg(long)]
    pub program: bool,
}

/// Prints the plan.
pub fn run(args: &InspectArgs) -> Result<(), Failure> {
    let plan = read_plan(&args.plan)?;
    let detail = if args.program { Detail::Program } else { Detail::Summary };
    output::print(&plan_text(&plan, detail))
}
