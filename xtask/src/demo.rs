//! `cargo xtask demo`: from nothing to streamed text in one command. Not a benchmark (`ats-run bench` is).

use crate::{fetch, process};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROMPT: &str = "The capital of France is";

/// Fetches a model, or writes a tiny one where there is no pip or network; compiles a plan; generates text.
pub fn run() -> Result<()> {
    let binaries = process::build_binaries()?;
    let model = match fetch::smollm2() {
        Ok(path) => path,
        Err(reason) => tiny_model(&binaries, &reason)?,
    };
    let plan = model.with_extension("atsplan");
    println!("\n$ ats-plan compile {}", model.display());
    process::run(Command::new(binaries.join("ats-plan")).arg("compile").arg(&model).arg("--out").arg(&plan))?;
    println!("\n$ ats-run generate {} --prompt \"{PROMPT}\" --max-tokens 64", model.display());
    let mut generate = Command::new(binaries.join("ats-run"));
    generate.arg("generate").arg(&model).arg("--plan").arg(&plan);
    process::run(generate.args(["--prompt", PROMPT, "--max-tokens", "64", "--greedy", "--stats"]))
}

fn tiny_model(binaries: &Path, reason: &anyhow::Error) -> Result<PathBuf> {
    println!("no real model ({reason:#}):\nwriting a tiny one with random weights instead; ITS TEXT IS NOISE");
    let path = process::target().join("demo/tiny-llama.gguf");
    std::fs::create_dir_all(path.parent().expect("has a folder"))?;
    let mut write = Command::new(binaries.join("fixtures"));
    process::run(write.args(["write", "tiny-llama", "--random", "--out"]).arg(&path))?;
    Ok(path)
}
