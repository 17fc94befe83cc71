//! What the CUDA driver takes on the GPU, step by step: context, limits, streams, kernels, graphs, pinned memory.
//!
//! `cargo run --release -p device --example gpu_memory -- [options]`. Without a GPU it says so in one line.
//! `--load MODE`: `separate` (each module an image of its own, as the runtime loads them), `stripped` (the same without
//! the unused constants that the compiler leaves in PTX), `linked` (one image by the driver's linker), `joined` (one
//! image of one text). `--stack-bytes N`, `--fifo-bytes N`, `--heap-bytes N`: limits set before anything is loaded.
//! `--types A,B`: types of the weights whose kernels are loaded. `--write FILE`: write the joined text instead. A
//! process shows one way, since what a driver has taken it keeps. Next file: `driver.rs`, then `join.rs`.

mod driver;
mod join;

use std::process::ExitCode;
use std::time::Instant;

use driver::Driver;
use join::{Merged, joined, renamed, stripped};
use kernels::cuda::{Chip, GpuLayout};
use kernels::quant::WeightType;

/// How kernels reach the GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Separate,
    Stripped,
    Linked,
    Joined,
}

/// What was asked for.
struct Arguments {
    load: Load,
    types: String,
    stack_bytes: Option<usize>,
    fifo_bytes: Option<usize>,
    heap_bytes: Option<usize>,
    write: Option<String>,
}

fn main() -> ExitCode {
    let done = arguments().and_then(|arguments| run(&arguments));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Arguments, String> {
    let mut wanted = Arguments {
        load: Load::Separate,
        types: "Q4_K,Q6_K".to_string(),
        stack_bytes: None,
        fifo_bytes: None,
        heap_bytes: None,
        write: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let value = given.next().ok_or_else(|| format!("`{argument}` wants a value"))?;
        let bytes = || value.parse().map(Some).map_err(|_| format!("`{argument} {value}`: not a number"));
        match argument.as_str() {
            "--load" => wanted.load = load_mode(&value)?,
            "--write" => wanted.write = Some(value),
            "--types" => wanted.types = value,
            "--stack-bytes" => wanted.stack_bytes = bytes()?,
            "--fifo-bytes" => wanted.fifo_bytes = bytes()?,
            "--heap-bytes" => wanted.heap_bytes = bytes()?,
            other => return Err(format!("unknown argument `{other}`")),
        }
    }
    Ok(wanted)
}

fn load_mode(name: &str) -> Result<Load, String> {
    match name {
        "separate" => Ok(Load::Separate),
        "stripped" => Ok(Load::Stripped),
        "linked" => Ok(Load::Linked),
        "joined" => Ok(Load::Joined),
        other => Err(format!("`--load {other}`: separate, stripped, linked or joined")),
    }
}

/// The modules that a program of these types loads.
fn modules(types: &str, chip: Chip) -> Result<Vec<&'static str>, String> {
    let place = |name: &str| {
        let ty = WeightType::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(name));
        ty.map(|ty| (ty, GpuLayout::preferred(ty))).ok_or_else(|| format!("no type `{name}`"))
    };
    let products = types.split(',').map(place).collect::<Result<Vec<_>, _>>()?;
    let lookups = products.first().copied();
    Ok(kernels::cuda::modules_for(chip, products, lookups))
}

fn run(wanted: &Arguments) -> Result<(), String> {
    if let Some(path) = &wanted.write {
        let text = joined(&texts(&modules(&wanted.types, Chip::Sm90)?)?)?.text;
        return std::fs::write(path, text).map_err(|error| format!("{path}: {error}"));
    }
    let mut driver = Driver::open()?;
    for (limit, bytes) in driver::LIMITS.into_iter().zip([wanted.stack_bytes, wanted.fifo_bytes, wanted.heap_bytes]) {
        driver.limit(limit, bytes)?;
    }
    driver.streams(3)?;
    let names = modules(&wanted.types, Chip::of(driver.capability()))?;
    let images = images(wanted.load, &names, &mut driver)?;
    driver.note(&format!("{} images made of {} modules", images.len(), names.len()));
    for (name, image) in &images {
        driver.load(name, image)?;
    }
    driver.describe_kernels()?;
    driver.launches_and_graphs(200)?;
    driver.pin(1 << 30)?;
    driver.pin(3 << 30)?;
    driver.finish();
    Ok(())
}

/// PTX by module.
fn texts(names: &[&str]) -> Result<Vec<(String, String)>, String> {
    let text = |name: &&str| {
        kernels::cuda::ptx(name).map(|text| (name.to_string(), text)).ok_or_else(|| format!("no module `{name}`"))
    };
    names.iter().map(text).collect()
}

/// Machine code to load, by name.
fn images(load: Load, names: &[&str], driver: &mut Driver) -> Result<Vec<(String, Vec<u8>)>, String> {
    let texts = texts(names)?;
    let start = Instant::now();
    let images = match load {
        Load::Separate => each(texts, driver, |text| text)?,
        Load::Stripped => each(texts, driver, |text| stripped(&text))?,
        Load::Linked => {
            let texts: Vec<String> = texts.iter().map(|(name, text)| renamed(name, text)).collect();
            vec![("all".to_string(), driver.machine_code(&texts)?)]
        }
        Load::Joined => {
            let Merged { text, kernels } = joined(&texts)?;
            println!("{kernels} kernels in {} bytes of PTX", text.len());
            vec![("all".to_string(), driver.machine_code(&[text])?)]
        }
    };
    println!("machine code made in {:.1} s", start.elapsed().as_secs_f64());
    Ok(images)
}

/// One image per module.
fn each(
    texts: Vec<(String, String)>,
    driver: &mut Driver,
    change: impl Fn(String) -> String,
) -> Result<Vec<(String, Vec<u8>)>, String> {
    texts.into_iter().map(|(name, text)| Ok((name, driver.machine_code(&[change(text)])?))).collect()
}
