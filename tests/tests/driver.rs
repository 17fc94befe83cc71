//! Drivers that cannot be used: the same programs run, say so in one line, and refuse a plan that needs the GPU.
//!
//! Each case is a made-up driver library that the system's C compiler builds from a few lines.

use device::cuda::DRIVER_FUNCTIONS;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::{Outcome, command, run};

/// A driver library: what it lacks and what its functions answer.
struct Stub {
    name: &'static str,
    lacks: &'static str,
    version: u32,
    init: u32,
    says: &'static str,
}

const STUBS: [Stub; 4] = [
    Stub { name: "no_graphs", lacks: "cuGraphLaunch", version: 12_080, init: 0, says: "lacks cuGraphLaunch" },
    Stub { name: "old", lacks: "", version: 11_080, init: 0, says: "supports CUDA 11.8, this program needs 12.4" },
    Stub { name: "no_device", lacks: "", version: 12_080, init: 100, says: "sees no GPU" },
    Stub { name: "broken", lacks: "", version: 12_080, init: 999, says: "cuInit failed" },
];

/// Builds the library in a folder of its own, which it returns.
fn build(folder: &Path, stub: &Stub) -> PathBuf {
    let own = folder.join(stub.name);
    std::fs::create_dir(&own).expect("a folder");
    let mut source = String::new();
    for function in DRIVER_FUNCTIONS.into_iter().filter(|function| *function != stub.lacks) {
        let body = match function {
            "cuInit" => format!("return {};", stub.init),
            "cuDriverGetVersion" => format!("*(int *)a = {}; return 0;", stub.version),
            "cuGetErrorName" | "cuGetErrorString" => "*(const char **)b = \"made up\"; return 0;".to_string(),
            _ => "return 999;".to_string(),
        };
        let _ = writeln!(source, "int {function}(void *a, void *b) {{ (void)a; (void)b; {body} }}");
    }
    let file = own.join("driver.c");
    std::fs::write(&file, source).expect("writes");
    let library = own.join("libcuda.so.1");
    let status = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&file).status();
    assert!(status.expect("a C compiler named cc makes the drivers").success(), "{}", stub.name);
    own
}

fn with_driver(folder: &Path, driver: Option<&Path>, arguments: &[&str]) -> Outcome {
    let mut program = command("ats-run", folder);
    if let Some(driver) = driver {
        program.env("LD_LIBRARY_PATH", driver);
    }
    program.args(arguments).output().expect("starts").into()
}

#[test]
fn each_driver_that_cannot_be_used_is_explained_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    for stub in &STUBS {
        let driver = build(folder.path(), stub);
        let text = with_driver(folder.path(), Some(&driver), &["devices"]).good();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("GPU")).collect();
        assert_eq!(lines.len(), 1, "{}: {text}", stub.name);
        assert!(lines[0].contains(stub.says), "{}: {text}", stub.name);
        assert!(text.contains("CPU  "), "{}: {text}", stub.name);
    }
}

#[test]
fn a_plan_that_needs_the_gpu_is_refused_with_the_drivers_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model.gguf");
    std::fs::copy(fixtures::reference_dir().join("tiny-qwen3.gguf"), &model).expect("copies");
    let (model, plan) = (model.to_str().expect("UTF-8"), folder.path().join("gpu.atsplan"));
    let plan = plan.to_str().expect("UTF-8");
    let compile = ["compile", model, "--device", "sim:h200-16core", "--vram", "4G", "--out", plan];
    run("ats-plan", folder.path(), &compile).good();
    let generate = ["generate", model, "--plan", plan, "--force-device", "--prompt", "a", "--max-tokens", "1"];
    for stub in &STUBS {
        let driver = build(folder.path(), stub);
        let outcome = with_driver(folder.path(), Some(&driver), &generate);
        outcome.fails(1, &[stub.says, "--vram 0"]);
    }
    // Without the plan the same program runs on the CPU, whatever the driver.
    let driver = folder.path().join("broken");
    let alone = ["generate", model, "--prompt", "a", "--max-tokens", "1"];
    with_driver(folder.path(), Some(&driver), &alone).good();
}
