//! `cargo xtask test`: everything that CI runs, in the order in which faults are cheapest to find.
//! Not here: the tests themselves (each crate's, and `tests/` for whole programs).

use crate::process::{self, cargo};
use crate::{fetch, instructions, ptx, tidy};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("tidy", tidy::run),
    ("format", format),
    ("lints", lints),
    ("fetch", || fetch::everything().map(|_| ())),
    ("ptx", || ptx::run(&["--check".to_owned()])),
    ("tests", tests),
    ("plans", || plans(None)),
    ("loom", loom),
    ("instructions", || instructions::run(&[])),
    ("references", references),
];

/// Runs all steps, or those whose name contains `only`; stops at the first failure.
pub fn run(only: Option<&str>) -> Result<()> {
    for (name, step) in STEPS.iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only))) {
        println!("==> {name}");
        let start = Instant::now();
        step().with_context(|| format!("step {name}"))?;
        println!("==> {name}: good after {:.0} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

fn format() -> Result<()> {
    process::run(cargo().args(["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    process::run(cargo().args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
}

fn tests() -> Result<()> {
    process::run(
        cargo().args(["test", "--workspace", "--quiet"]).env("INSTA_UPDATE", "no").env("ATS_REQUIRE_MODELS", "1"),
    )
}

/// Models of the golden figures: the paper's, and two more families.
const PLANNED_MODELS: [&str; 10] = [
    "glm-z1-9b",
    "qwen3-14b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
    "llama-3.1-70b",
    "qwen3-next-80b-a3b",
    "qwen3.5-122b-a10b",
    "gpt-oss-120b",
    "llama-4-scout",
    "deepseek-v2-lite",
];

/// Plans every model's headers for every known machine, in the profile that the tests were built in, and compares with
/// the golden figures; with a reason, makes today's the golden ones.
pub fn plans(accept: Option<&str>) -> Result<()> {
    process::run(cargo().args(["build", "--quiet", "--package", "planner", "--package", "fixtures"]))?;
    let binaries = process::target().join("debug");
    let models = process::target().join("planned-models");
    std::fs::create_dir_all(&models)?;
    for name in PLANNED_MODELS {
        let file = models.join(format!("{name}.gguf"));
        process::run(Command::new(binaries.join("fixtures")).args(["write", name, "--sparse", "--out"]).arg(file))?;
    }
    let mut command = Command::new(binaries.join("ats-plan"));
    command.arg("check").arg("--models").arg(models);
    command.arg("--golden").arg(process::root().join("fixtures/golden-plans/plans.csv"));
    process::run(command.args(accept.iter().flat_map(|reason| ["--accept", reason])))
}

/// The thread team's protocol under every interleaving of its threads, up to loom's bounds.
fn loom() -> Result<()> {
    let mut command = cargo();
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", process::target().join("loom"));
    process::run(command.args(["test", "--quiet", "--package", "device", "--test", "loom", "--release"]))
}

/// The simulated machine of the reference checks, and its ceilings: most weights streamed or on the CPU, half of them
/// on the GPU, all.
const SIMULATED: &str = "sim:rtx3060-laptop";
const CEILINGS: [&str; 3] = ["1500K", "2500K", "12M"];

/// The public reference checker over all families, in both modes, and under ceilings of a simulated GPU.
fn references() -> Result<()> {
    let binaries = process::build_binaries()?;
    let ats_run = binaries.join("ats-run");
    let ats_run = ats_run.to_string_lossy();
    let python = python_with_numpy()?;
    let reference = process::root().join("fixtures/reference");
    let check = |folder: &Path, extra: &[&str], flag: &str| {
        // Generation is one token at a time as it is.
        let generate_flag = if flag == " --one-by-one" { "" } else { flag };
        let mut command = Command::new(&python);
        command.arg(reference.join("check_reference.py")).arg(folder);
        command
            .arg("--logits")
            .arg(format!("{ats_run} logits {{model}} --tokens {{tokens}} --out {{out}} --last {{last}}{flag}"));
        command.arg("--greedy").arg(format!(
            "{ats_run} generate {{model}} --tokens {{tokens}} --max-tokens {{n}} \
             --greedy --ids --ignore-eos{generate_flag}"
        ));
        process::run(command.args(extra))
    };
    let tokenize = format!("{ats_run} tokenize {{model}} --add-special={{special}} --parse-special={{parse}}");
    check(&reference, &["--tokenize", &tokenize], "")?;
    check(&reference, &["--no-long"], " --one-by-one").context("one token at a time")?;
    check(&reference, &["--exact", "1e-4"], " --exact").context("exact mode")?;
    for ceiling in CEILINGS {
        let folder = planned_references(&binaries, &reference, ceiling)?;
        let device = format!(" --device {SIMULATED} --plan {{model}}.atsplan");
        check(&folder, &["--no-long"], &device).with_context(|| format!("on {SIMULATED} with {ceiling}"))?;
    }
    Ok(())
}

/// A folder with the reference data and, beside each model, its plan for a ceiling of the simulated GPU.
fn planned_references(binaries: &Path, reference: &Path, ceiling: &str) -> Result<PathBuf> {
    let folder = process::target().join("planned-references").join(ceiling);
    std::fs::create_dir_all(&folder)?;
    for entry in std::fs::read_dir(reference)? {
        let entry = entry?;
        let (from, to) = (entry.path(), folder.join(entry.file_name()));
        if from.is_file() {
            std::fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
        }
        if to.extension().is_some_and(|extension| extension == "gguf") {
            let mut compile = Command::new(binaries.join("ats-plan"));
            compile.arg("compile").arg(&to).args(["--device", SIMULATED, "--vram", ceiling, "--context", "128"]);
            process::run(compile.arg("--out").arg(to.with_extension("gguf.atsplan")).stdout(Stdio::null()))?;
        }
    }
    Ok(folder)
}

/// A Python that has NumPy: the system's, else one in a virtual environment under the build folder.
fn python_with_numpy() -> Result<PathBuf> {
    let system = PathBuf::from("python3");
    if Command::new(&system).args(["-c", "import numpy"]).output()?.status.success() {
        return Ok(system);
    }
    let folder = process::target().join("python");
    let python = folder.join("bin/python");
    if !python.exists() {
        process::run(Command::new(&system).args(["-m", "venv"]).arg(&folder))?;
    }
    process::run(Command::new(&python).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "numpy==2.2.6",
    ]))?;
    Ok(python)
}
