//! The CUDA kernels on a real GPU: every case table against the CPU oracles, then how fast they are.
//!
//! `cargo run --release --example cuda_check` checks; `-- --perf` checks and measures; `-- --perf-only` measures.
//! `--dense-tflops X` states the dense F16 rate that another library reaches here, to print shares of it; `--types A,B`
//! leaves out products of other types. Without a GPU it says so in one line. Next file: `machine.rs`, then `perf.rs`.

mod machine;
mod perf;

use std::process::ExitCode;
use std::sync::Arc;

use device::cuda::{CudaGpu, CudaOptions};
use device::gpu::Gpu;
use kernels::cuda::check::{check_operators, check_products, check_rest};
use kernels::quant::WeightType;
use machine::GpuMachine;

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wanted {
    checks: bool,
    perf: bool,
}

fn main() -> ExitCode {
    let (wanted, dense_tflops, types) = arguments();
    let modules = Arc::new(|name: &str| kernels::cuda::ptx(name));
    let gpu = match CudaGpu::open(&CudaOptions { ordinal: 0, ceiling_bytes: None, modules }) {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let description = gpu.description();
    let memory = gpu.memory();
    println!("{description:?}\n{:?}\n{memory:?}", gpu.model());
    let result = run(&gpu, wanted, dense_tflops, &types);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> (Wanted, Option<f64>, String) {
    let mut wanted = Wanted { checks: true, perf: false };
    let (mut dense_tflops, mut types) = (None, String::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--perf" => wanted.perf = true,
            "--perf-only" => wanted = Wanted { checks: false, perf: true },
            "--dense-tflops" => dense_tflops = arguments.next().and_then(|value| value.parse().ok()),
            "--types" => types = arguments.next().unwrap_or_default(),
            other => eprintln!("unknown argument `{other}` is ignored"),
        }
    }
    (wanted, dense_tflops, types)
}

fn run(gpu: &CudaGpu, wanted: Wanted, dense_tflops: Option<f64>, types: &str) -> Result<(), String> {
    let mut failures = Vec::new();
    let start = std::time::Instant::now();
    let modules: Vec<&str> = kernels::cuda::modules().collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    gpu.load_modules(&modules, threads).map_err(|error| error.to_string())?;
    println!("{} modules loaded by {threads} threads in {:.1} s", modules.len(), start.elapsed().as_secs_f64());
    if wanted.checks {
        let mut machine = GpuMachine::new(gpu)?;
        failures.extend(check_all(&mut machine, types));
        machine.free()?;
    }
    if wanted.perf {
        perf::run(gpu, dense_tflops, &|ty| is_chosen(types, ty)).map_err(|error| error.to_string())?;
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Whether a list of types, or all of an empty one, has this one.
fn is_chosen(types: &str, ty: WeightType) -> bool {
    types.is_empty() || types.split(',').any(|name| name.eq_ignore_ascii_case(ty.name()))
}

/// All tables; a failure does not hide the next one.
fn check_all(machine: &mut GpuMachine, types: &str) -> Vec<String> {
    let mut failures = Vec::new();
    let mut note = |what: &str, result: Result<(), String>| match result {
        Ok(()) => println!("ok      {what}"),
        Err(error) => {
            println!("FAILED  {what}: {error}");
            failures.push(error);
        }
    };
    note("rows, caches, movements, flags", check_rest(machine));
    note("operators", check_operators(machine));
    for ty in WeightType::ALL {
        if is_chosen(types, ty) {
            note(&format!("products of {ty}"), check_products(machine, &|candidate| candidate == ty));
        }
    }
    failures
}
