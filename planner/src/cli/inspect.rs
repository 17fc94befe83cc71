//! `ats-plan inspect`: prints a plan.

use anyhow::Context;
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
    let name = args.plan.display();
    let file = std::fs::read(&args.plan).with_context(|| format!("cannot read {name}")).map_err(Failure::failed)?;
    let plan = plan_format::sections::from_bytes(&file).with_context(|| format!("{name}"));
    let plan = plan.map_err(|e| Failure::failed(e).hint("make the plan again with `ats-plan compile MODEL`"))?;
    let detail = if args.program { Detail::Program } else { Detail::Summary };
    output::print(&plan_text(&plan, detail))
}
