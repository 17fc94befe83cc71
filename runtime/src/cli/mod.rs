//! The command line of `ats-run`: what can be typed, one function per command. Exit codes: 0 done, 1 failed, 2 used
//! wrongly. Not here: running models (`engine.rs`). Next: `common.rs`, then any command.

mod bench;
mod bench_kernels;
mod chat;
mod common;
mod devices;
mod failure;
mod generate;
mod interrupt;
mod load;
mod logits;
mod npy;
mod perplexity;
mod residence;
mod sampling;
mod terminal;
mod timeline;
mod tokenize;
mod verify;

use clap::{CommandFactory, Parser, Subcommand};
use shared_cli::manual::{self, CompletionsArgs, ManArgs};
use shared_cli::typed;
use std::process::ExitCode;

use shared_cli::Failure;

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
    /// Talk with a model.
    ///
    /// On a terminal: line editing, history, and commands, which /help lists. From a pipe: each line is a message or a
    /// command, answers go to standard output, and the first thing that goes wrong ends the chat with its exit code.
    ///
    /// What a user writes never becomes a control token. Of the conversation so far only what is new is computed for an
    /// answer; --no-reuse computes all of it, with the same result. When the context is full the answer ends; nothing
    /// is ever dropped from the front. Ctrl-C stops an answer after the present token (or the present round of the
    /// prompt), a second one leaves with exit code 130.
    Chat(chat::ChatArgs),
    /// Continue a prompt.
    ///
    /// The prompt comes from --prompt, --file, --tokens, or standard input. One BOS is put in front if the model wants
    /// it and the prompt does not begin with it. Special tokens in the text, such as <|im_start|>, are read as such, so
    /// that a conversation can be written out by hand; `ats-run chat` reads what a user writes as plain text.
    ///
    /// The text ends when the model ends it, at a --stop text, after --max-tokens, or when prompt and text together
    /// fill the plan's context. Nothing is ever dropped from the front to make room: a full context ends the text with
    /// the reason `context`, and a prompt that is longer than the context is an error.
    ///
    /// Ctrl-C ends the text after the present token, prints the speed and exits with code 130; a second one leaves at
    /// once.
    Generate(generate::GenerateArgs),
    /// Measure prefill and decode.
    ///
    /// With --kernels: the CPU's products of each weight type, with the share that they reach of a plain read of memory
    /// (decode) or of the multiplications that the instruction set can do (prefill).
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
    /// Print completions for a shell.
    Completions(CompletionsArgs),
    /// Write the man pages.
    Man(ManArgs),
    /// Take a share of a resource, as `bench --load` asks on standard input.
    #[command(hide = true)]
    LoadWorker(load::LoadWorkerArgs),
}

/// Runs what was typed; the program's exit code.
pub fn main() -> ExitCode {
    let result = match typed::parse::<Args>().command {
        Command::Chat(args) => chat::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Devices => devices::run(),
        Command::Logits(args) => logits::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Completions(args) => manual::completions(&args, Args::command()),
        Command::Man(args) => manual::man(&args, Args::command()),
        Command::LoadWorker(args) => load::run_worker(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
