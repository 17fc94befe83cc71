//! `cargo xtask ptx [--check]`: CUDA sources to PTX, and the proof that the committed PTX is fresh and spill-free.
//!
//! Compiles every module of `kernels/src/cuda/modules.txt` by NVRTC and writes `kernels/src/cuda/ptx/*.ptx.gz` with the
//! table `ptx/mod.rs`. With `--check` nothing is written: the texts must be equal, and `ptxas` must report neither
//! spills nor stack for each architecture of [`PTXAS_ARCHS`]. Neither needs a GPU. NVRTC and `ptxas` come from two
//! pinned wheels that pip puts into `target/`. It does not run kernels: `kernels/tests/cuda_emulated.rs` does, and
//! `device/examples/cuda_check.rs` on a GPU. Next file: `kernels/src/cuda/mod.rs`.

use anyhow::{Context, Result, bail, ensure};
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The wheels: PTX of CUDA 12.4 (ISA 8.4) is accepted by drivers from 550 on; wheels of CUDA 13 would demand 580.
const WHEELS: [&str; 2] = ["nvidia-cuda-nvrtc-cu12==12.4.127", "nvidia-cuda-nvcc-cu12==12.4.131"];
/// Baseline architecture of the PTX; a module may name another in the manifest (`arch=compute_90`).
const PTX_ARCH: &str = "compute_80";
/// Machine code is made for the oldest and the newest architecture that the tool chain's kernels are tuned on; of a
/// module whose instructions only one architecture has (`arch=compute_90a`) for that one.
const PTXAS_ARCHS: [&str; 2] = ["sm_80", "sm_90"];
/// Set in the child process whose loader path contains NVRTC.
const CHILD_MARK: &str = "ATS_PTX_TOOLCHAIN";

/// What to do with the compiled PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Write changed files.
    Write,
    /// Compare with the committed files, then run `ptxas`.
    Check,
}

/// One line of the manifest: a source compiled with some macros gives one module.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Module {
    name: String,
    source: String,
    arch: String,
    defines: Vec<String>,
}

/// Where things are.
struct Paths {
    cuda: PathBuf,
    toolchain: PathBuf,
}

/// Runs the command. `only` restricts writing to modules whose name contains it (for a quick edit loop).
///
/// # Errors
/// A missing tool chain, a compile error, stale PTX, a spill.
pub fn run(arguments: &[String]) -> Result<()> {
    let (mode, only) = parse(arguments)?;
    let paths = paths();
    if std::env::var_os(CHILD_MARK).is_none() {
        install_toolchain(&paths.toolchain)?;
        return rerun_with_loader_path(&paths.toolchain, arguments);
    }
    let manifest = std::fs::read_to_string(paths.cuda.join("modules.txt")).context("reading the module manifest")?;
    let modules = parse_manifest(&manifest)?;
    let chosen: Vec<&Module> = modules.iter().filter(|m| m.name.contains(&only)).collect();
    let compiled = in_parallel(&chosen, |module| compile(&paths.cuda, module))?;
    match mode {
        Mode::Write => write(&paths.cuda, &modules, &chosen, &compiled),
        Mode::Check => check(&paths, &modules, &chosen, &compiled),
    }
}

fn parse(arguments: &[String]) -> Result<(Mode, String)> {
    let mut mode = Mode::Write;
    let mut only = String::new();
    for argument in arguments {
        match argument.as_str() {
            "--check" => mode = Mode::Check,
            name if !name.starts_with('-') => only = name.to_string(),
            other => bail!("unknown argument `{other}`; usage: cargo xtask ptx [--check] [MODULE]"),
        }
    }
    Ok((mode, only))
}

fn paths() -> Paths {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    Paths { cuda: root.join("kernels/src/cuda"), toolchain: root.join("target/ptx-toolchain") }
}

/// Puts the wheels into `directory` unless they are there. A stamp file is written last, so a broken install is redone.
fn install_toolchain(directory: &Path) -> Result<()> {
    let stamp = directory.join("installed.txt");
    let wanted = WHEELS.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    eprintln!("installing {} into {}", WHEELS.join(" and "), directory.display());
    std::fs::create_dir_all(directory)?;
    let status = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade", "--target"])
        .arg(directory)
        .args(WHEELS)
        .status()
        .context("running `python3 -m pip`: Python 3 with pip is needed to fetch NVRTC and ptxas")?;
    ensure!(status.success(), "pip could not install {} ({status})", WHEELS.join(" and "));
    std::fs::write(stamp, wanted)?;
    Ok(())
}

/// The loader reads its search path at process start only, hence a child.
fn rerun_with_loader_path(toolchain: &Path, arguments: &[String]) -> Result<()> {
    let library = toolchain.join("nvidia/cuda_nvrtc/lib").canonicalize().context("NVRTC's folder in the wheel")?;
    let link = library.join("libnvrtc.so");
    if !link.exists() {
        std::os::unix::fs::symlink("libnvrtc.so.12", &link).context("naming NVRTC as the loader looks for it")?;
    }
    let status = Command::new(std::env::current_exe()?)
        .arg("ptx")
        .args(arguments)
        .env("LD_LIBRARY_PATH", &library)
        .env(CHILD_MARK, "1")
        .status()?;
    ensure!(status.success(), "`cargo xtask ptx` failed ({status})");
    Ok(())
}

/// `name source [arch=compute_NN] [MACRO=value ...]` per line, `#` starts a comment.
fn parse_manifest(text: &str) -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let source = words.next().with_context(|| format!("modules.txt, line {}: no source named", number + 1))?;
        let mut module =
            Module { name: name.into(), source: source.into(), arch: PTX_ARCH.into(), defines: Vec::new() };
        for word in words {
            match word.strip_prefix("arch=") {
                Some(arch) => module.arch = arch.into(),
                None => module.defines.push(word.into()),
            }
        }
        modules.push(module);
    }
    Ok(modules)
}

fn compile(cuda: &Path, module: &Module) -> Result<String> {
    let source = std::fs::read_to_string(cuda.join(&module.source))
        .with_context(|| format!("module {}: reading {}", module.name, module.source))?;
    let mut options: Vec<String> = module.defines.iter().map(|define| format!("--define-macro={define}")).collect();
    options.push("--std=c++17".into());
    options.push("--device-as-default-execution-space".into());
    options.push(format!("--gpu-architecture={}", module.arch));
    let options = CompileOptions {
        include_paths: vec![cuda.display().to_string()],
        name: Some(module.source.clone()),
        options,
        ..Default::default()
    };
    match compile_ptx_with_opts(source, options) {
        Ok(ptx) => Ok(ptx.to_src()),
        Err(CompileError::CompileError { log, .. }) => bail!("module {}:\n{}", module.name, log.to_string_lossy()),
        Err(other) => bail!("module {}: {other:?}", module.name),
    }
}

/// Applies `work` to every item on as many threads as the machine offers; results stand in the items' order.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = Mutex::new(0..items.len());
    let results: Mutex<Vec<Option<Result<R>>>> = Mutex::new(items.iter().map(|_| None).collect());
    let take = || next.lock().ok().and_then(|mut range| range.next());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(index) = take() {
                    let result = work(&items[index]);
                    if let Ok(mut results) = results.lock() {
                        results[index] = Some(result);
                    }
                }
            });
        }
    });
    let results = results.into_inner().map_err(|_| anyhow::anyhow!("a worker thread panicked"))?;
    results.into_iter().map(|result| result.unwrap_or_else(|| bail!("a worker thread stopped early"))).collect()
}

fn write(cuda: &Path, modules: &[Module], chosen: &[&Module], compiled: &[String]) -> Result<()> {
    let directory = cuda.join("ptx");
    std::fs::create_dir_all(&directory)?;
    let mut changed = 0;
    for (module, ptx) in chosen.iter().zip(compiled) {
        let path = directory.join(format!("{}.ptx.gz", module.name));
        if decompressed(&path).is_ok_and(|old| old == *ptx) {
            continue;
        }
        std::fs::write(&path, compressed(ptx)?)?;
        changed += 1;
    }
    std::fs::write(directory.join("mod.rs"), table(modules))?;
    for stale in foreign_files(&directory, modules)? {
        std::fs::remove_file(&stale)?;
    }
    println!("{} modules compiled, {changed} files changed", chosen.len());
    Ok(())
}

/// A text as the repository keeps it. The header has no name and no time: the same text gives the same bytes.
fn compressed(text: &str) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes())?;
    Ok(encoder.finish()?)
}

fn decompressed(path: &Path) -> Result<String> {
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(path)?).read_to_string(&mut text)?;
    Ok(text)
}

/// PTX files that no line of the manifest makes.
fn foreign_files(directory: &Path, modules: &[Module]) -> Result<Vec<PathBuf>> {
    let mut foreign = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = name.strip_suffix(".ptx.gz");
        let ours = name == "mod.rs" || modules.iter().any(|module| Some(module.name.as_str()) == stem);
        if !ours {
            foreign.push(path);
        }
    }
    Ok(foreign)
}

/// The generated Rust table of the PTX texts.
fn table(modules: &[Module]) -> String {
    let mut text = String::from(
        "//! PTX of every CUDA module by name, sorted. Generated by `cargo xtask ptx`, never edited by hand; made\n\
         //! from the sources beside it as `../modules.txt` says. Next file: `../mod.rs`.\n\n\
         /// `(module, PTX text, compressed by gzip)`.\n\
         pub const PTX: &[(&str, &[u8])] = &[\n",
    );
    let mut names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
    names.sort_unstable();
    for name in names {
        let _ = writeln!(text, "    (\"{name}\", include_bytes!(\"{name}.ptx.gz\")),");
    }
    text.push_str("];\n");
    text
}

fn check(paths: &Paths, modules: &[Module], chosen: &[&Module], compiled: &[String]) -> Result<()> {
    let directory = paths.cuda.join("ptx");
    let mut stale: Vec<String> = Vec::new();
    for (module, ptx) in chosen.iter().zip(compiled) {
        let committed = decompressed(&directory.join(format!("{}.ptx.gz", module.name)));
        if committed.map_or(true, |committed| committed != *ptx) {
            stale.push(module.name.clone());
        }
    }
    if std::fs::read_to_string(directory.join("mod.rs")).map_or(true, |text| text != table(modules)) {
        stale.push("mod.rs".into());
    }
    stale.extend(foreign_files(&directory, modules)?.iter().map(|path| path.display().to_string()));
    ensure!(stale.is_empty(), "stale PTX: {}; run `cargo xtask ptx` and commit the result", stale.join(", "));
    let jobs: Vec<(&Module, &str, String)> = chosen
        .iter()
        .zip(compiled)
        .flat_map(|(module, ptx)| targets(module).into_iter().map(|arch| (*module, ptx.as_str(), arch)))
        .collect();
    let reports = in_parallel(&jobs, |(module, ptx, arch)| assemble(paths, module, ptx, arch))?;
    let functions: usize = reports.iter().sum();
    println!("{} modules fresh; {functions} kernels for {PTXAS_ARCHS:?} without spills or stack", chosen.len());
    Ok(())
}

/// Architectures that a module's machine code is made for.
fn targets(module: &Module) -> Vec<String> {
    let number = |arch: &str| arch.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(80);
    if module.arch.ends_with('a') {
        return vec![module.arch.replace("compute_", "sm_")];
    }
    let needs: u32 = number(&module.arch);
    PTXAS_ARCHS.iter().filter(|arch| number(arch) >= needs).map(|arch| arch.to_string()).collect()
}

/// Assembles one module and returns its number of kernels. `ptxas` warns where it makes asynchronous products wait for
/// each other; that is a fault.
fn assemble(paths: &Paths, module: &Module, ptx: &str, arch: &str) -> Result<usize> {
    let text = paths.toolchain.join(format!("{}-{arch}.ptx", module.name));
    std::fs::write(&text, ptx)?;
    let output = Command::new(paths.toolchain.join("nvidia/cuda_nvcc/bin/ptxas"))
        .args(["-v", "-o", "/dev/null", &format!("-arch={arch}")])
        .arg(&text)
        .output()
        .context("running ptxas")?;
    std::fs::remove_file(&text)?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ptxas {arch}, module {}:\n{log}", module.name);
    ensure!(!log.contains("serialized"), "ptxas {arch}, module {}:\n{log}", module.name);
    let frames: Vec<&str> = log.lines().filter(|line| line.contains("bytes stack frame")).collect();
    for frame in &frames {
        let clean = frame.trim() == "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
        ensure!(clean, "ptxas {arch}, module {}: {}\n{log}", module.name, frame.trim());
    }
    ensure!(!frames.is_empty(), "ptxas {arch}, module {}: no kernel in its report:\n{log}", module.name);
    Ok(frames.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_lines_name_module_source_architecture_and_macros() {
        let modules =
            parse_manifest("# head\ngemv_q4_k gemv.cu WEIGHT=Q4_K # tail\n\nx y.cu arch=compute_90 A=1 B=2\n");
        let modules = modules.unwrap_or_default();
        assert_eq!(modules.len(), 2);
        assert_eq!(modules[0].defines, ["WEIGHT=Q4_K"]);
        assert_eq!((modules[0].arch.as_str(), modules[1].arch.as_str()), (PTX_ARCH, "compute_90"));
        assert!(parse_manifest("lonely\n").is_err());
    }

    #[test]
    fn the_same_text_is_the_same_bytes_and_comes_back() {
        let text = "// PTX\n".repeat(1000);
        let bytes = compressed(&text).unwrap_or_default();
        assert_eq!(compressed(&text).unwrap_or_default(), bytes);
        assert!(bytes.len() < text.len() / 20, "{} bytes", bytes.len());
        let file = std::env::temp_dir().join(format!("ats-ptx-test-{}.gz", std::process::id()));
        assert!(std::fs::write(&file, bytes).is_ok());
        assert_eq!(decompressed(&file).unwrap_or_default(), text);
        let _ = std::fs::remove_file(file);
    }

    #[test]
    fn results_keep_the_order_of_the_items_and_errors_survive() {
        let doubled = in_parallel(&[1, 2, 3, 4, 5], |x| Ok(x * 2)).unwrap_or_default();
        assert_eq!(doubled, [2, 4, 6, 8, 10]);
        assert!(in_parallel(&[1, 2], |x| if *x == 2 { bail!("two") } else { Ok(()) }).is_err());
    }
}
