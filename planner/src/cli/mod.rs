//! The command line of `ats-plan`: what can be typed, and one function per command. I/O and messages live here, the
//! decisions elsewhere (`compile.rs`).
//!
//! Exit codes: 0 done, 1 failed, 2 used wrongly. Next: `compile.rs`, `inspect.rs`.

mod compile;
mod inspect;
mod machine;
mod output;
mod size;

pub use size::{Amount, parse_amount};

use clap::{Parser, Subcommand};
use std::io::Write;
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
}

/// What went wrong, and what to do about it.
#[derive(Debug)]
pub struct Failure {
    error: anyhow::Error,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// The command failed.
    fn failed(error: impl Into<anyhow::Error>) -> Self {
        Failure { error: error.into(), hint: None, code: 1 }
    }

    /// The command was used wrongly.
    fn usage(error: impl Into<anyhow::Error>) -> Self {
        Failure { code: 2, ..Failure::failed(error) }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Failure { hint: Some(hint.into()), ..self }
    }
}

/// Runs what was typed; the program's exit code.
pub fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Compile(args) => compile::run(&args),
        Command::Inspect(args) => inspect::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

/// Writes a failure to standard error. A reader that went away (`| head`) is no failure.
fn report(failure: &Failure) -> ExitCode {
    let broken_pipe = failure.error.downcast_ref::<std::io::Error>();
    if broken_pipe.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let mut text = format!("error: {:#}\n", failure.error);
    if let Some(hint) = &failure.hint {
        text.push_str(&format!("hint: {hint}\n"));
    }
    // There is nobody left to tell if standard error is gone.
    let _ = std::io::stderr().write_all(text.as_bytes());
    ExitCode::from(failure.code)
}
