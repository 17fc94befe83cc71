//! The command line of `ats-run`: what can be typed, one function per command. Exit codes: 0 done, 1 failed, 2 used wrongly.
//! Not here: running models (`engine.rs`). Next: `common.rs`, then any command.

mod bench;
mod common;
mod devices;
mod failure;
mod generate;
mod logits;
mod npy;
mod perplexity;
mod tokenize;
mod verify;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

pub use failure::Failure;

/// Runs language models on CPU and GPU at once, by a plan that `ats-plan` made.
#[derive(Debug, Parser)]
#[command(name = "ats-run", version)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a prompt.
    Generate(generate::GenerateArgs),
    /// Measure prefill and decode.
    Bench(bench::BenchArgs),
    /// Compare the planned run's logits with exact ones.
    Verify(verify::VerifyArgs),
    /// Say what this machine offers.
    Devices,
    /// Write the logits of given tokens to a NumPy file.
    Logits(logits::LogitsArgs),
    /// Turn standard input into token ids.
    Tokenize(tokenize::TokenizeArgs),
    /// Measure how well the model predicts a text.
    Perplexity(perplexity::PerplexityArgs),
}

/// Runs what was typed; the program's exit code.
pub fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Generate(args) => generate::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Devices => devices::run(),
        Command::Logits(args) => logits::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
