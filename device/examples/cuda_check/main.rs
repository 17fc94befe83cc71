//! The CUDA kernels on a real GPU: every case table against the CPU oracles, then how fast they are.
//!
//! `cargo run --release --example cuda_check` checks; `-- --perf` checks and measures; `-- --perf-only` measures.
//! `--dense-tflops X` states the dense F16 rate that another library reaches here, to print shares of it; `--types A,B`
//! leaves out products of other types, `--sections A,B` other measurements (bandwidth is always there) than those of
//! chains, prefill, experts, attention, small. Without a GPU it says so in one line. Next file: `machine.rs`, then
//! `perf.rs`.

mod machine;
mod perf;

use std::process::ExitCode;
use std::sync::Arc;

use device::cuda::{CudaGpu, CudaOptions};
use device::gpu::Gpu;
use kernels::cuda::check::{check_operators, check_products, check_rest};
use kernels::cuda::product::Chip;
use kernels::quant::WeightType;
use machine::GpuMachine;

/// What was asked for.
struct Arguments {
    checks: bool,
    perf: bool,
    dense_tflops: Option<f64>,
    /// Empty: all.
    types: String,
    /// Empty: all.
    sections: String,
}

impl Arguments {
    fn has_type(&self, ty: WeightType) -> bool {
        is_listed(&self.types, ty.name())
    }

    /// Whether a module belongs to no type, or to one that was asked for.
    fn has_module(&self, name: &str) -> bool {
        let stem = name.strip_suffix("_tiled").unwrap_or(name);
        let of = |ty: WeightType| stem.ends_with(&format!("_{}", ty.name().to_lowercase()));
        // The name of one type ends that of another: BF16 is none of F16, so the underscore counts.
        WeightType::ALL.into_iter().find(|&ty| of(ty)).is_none_or(|ty| self.has_type(ty))
    }
}

/// Whether a list, or an empty one for all, has this name.
fn is_listed(list: &str, name: &str) -> bool {
    list.is_empty() || list.split(',').any(|listed| listed.eq_ignore_ascii_case(name))
}

fn main() -> ExitCode {
    let arguments = arguments();
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
    let result = run(&gpu, &arguments);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Arguments {
    let mut wanted =
        Arguments { checks: true, perf: false, dense_tflops: None, types: String::new(), sections: String::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--perf" => wanted.perf = true,
            "--perf-only" => (wanted.checks, wanted.perf) = (false, true),
            "--dense-tflops" => wanted.dense_tflops = arguments.next().and_then(|value| value.parse().ok()),
            "--types" => wanted.types = arguments.next().unwrap_or_default(),
            "--sections" => wanted.sections = arguments.next().unwrap_or_default(),
            other => eprintln!("unknown argument `{other}` is ignored"),
        }
    }
    wanted
}

fn run(gpu: &CudaGpu, wanted: &Arguments) -> Result<(), String> {
    let mut failures = Vec::new();
    let start = std::time::Instant::now();
    let chip = Chip::of(gpu.model().capability);
    let modules: Vec<&str> = kernels::cuda::modules_on(chip).filter(|name| wanted.has_module(name)).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    gpu.load_modules(&modules, threads).map_err(|error| error.to_string())?;
    println!("{} modules loaded by {threads} threads in {:.1} s", modules.len(), start.elapsed().as_secs_f64());
    if wanted.checks {
        let mut machine = GpuMachine::new(gpu)?;
        failures.extend(check_all(&mut machine, wanted));
        machine.free()?;
    }
    if wanted.perf {
        perf::run(gpu, wanted).map_err(|error| error.to_string())?;
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// All tables; a failure does not hide the next one.
fn check_all(machine: &mut GpuMachine, wanted: &Arguments) -> Vec<String> {
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
        if wanted.has_type(ty) {
            note(&format!("products of {ty}"), check_products(machine, &|candidate| candidate == ty));
        }
    }
    failures
}
