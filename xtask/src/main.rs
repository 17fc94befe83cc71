//! Project chores: `cargo xtask demo` shows the tool on a real model, `cargo xtask test` is what CI runs.
//! Not here: anything that a user of the binaries needs. Next: `demo.rs`, `test.rs`, `fetch.rs`,
//! `tidy.rs`, `ptx.rs`, `instructions.rs`.

mod demo;
mod fetch;
mod instructions;
mod process;
mod ptx;
mod test;
mod tidy;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Project chores")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Fetch a real model, plan it, generate text with it and print the measured speed
    Demo,
    /// Everything that CI runs
    Test {
        /// Run only the steps whose name contains this
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
    },
    /// Check the house rules: module docs, lengths, banned words
    Tidy,
    /// Compile the CUDA sources to PTX; with --check prove that the committed PTX is fresh and spill-free
    Ptx {
        /// --check, and --only TEXT to compile some modules
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Compare plans with the golden figures; with --accept make today's plans the golden ones
    Plans {
        /// Why plans changed
        #[arg(long, value_name = "REASON")]
        accept: Option<String>,
    },
    /// Count the CPU kernels' instructions under callgrind and compare with the committed table; --write renews it
    Instructions {
        /// --write
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Fetch models and vocabularies that tests use into the cache, and print its folder
    Fetch,
}

fn main() -> ExitCode {
    match run(Args::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::Demo => demo::run(),
        Task::Test { only } => test::run(only.as_deref()),
        Task::Tidy => tidy::run(),
        Task::Plans { accept } => test::plans(accept.as_deref()),
        Task::Ptx { arguments } => ptx::run(&arguments),
        Task::Instructions { arguments } => instructions::run(&arguments),
        Task::Fetch => fetch::everything().map(|folder| println!("{}", folder.display())),
    }
}
