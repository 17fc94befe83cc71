//! An emulator of CUDA devices for tests: kernels compiled as plain C++ (`src/cuda/emulate.h`), run by this process.
//!
//! Each module's source is compiled by the system's C++ compiler once and kept in the target folder under a hash of
//! what it was made of. Threads of a block are fibres, run forwards or backwards, so that a missing barrier shows.
//! Other packages' tests include this file by its path. Next file: `../cuda_emulated.rs`.
#![allow(dead_code, reason = "each test program uses its part")]

use kernels::cuda::Launch;
use libloading::{Library, Symbol};
use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Symbols are bound inside the library: kernels have names that the C library has too.
const COMPILER_OPTIONS: [&str; 9] =
    ["-x", "c++", "-std=c++17", "-O1", "-fPIC", "-shared", "-Wl,-Bsymbolic", "-DATS_EMULATE", "-Wno-unknown-pragmas"];

/// `emulate_KERNEL(dims, shared_bytes, order, args)`.
type Entry = unsafe extern "C" fn(*const u32, u32, u32, *const *const c_void);

/// The emulator's state is that of its library, which all tests share.
static ONE_LAUNCH_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Kernels by module. Device memory is this process's.
pub struct Kernels {
    modules: Mutex<HashMap<String, Library>>,
    /// 0: threads and blocks in rising order, 1: in falling order.
    order: u32,
}

/// A launch in plain terms.
pub struct Call<'a> {
    pub module: &'a str,
    pub kernel: &'a str,
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared_bytes: u32,
    pub args: &'a [u8],
}

impl<'a> From<&'a Launch> for Call<'a> {
    fn from(launch: &'a Launch) -> Self {
        let Launch { module, kernel, grid, threads, shared_bytes, .. } = *launch;
        Call { module, kernel, grid, threads, shared_bytes, args: launch.args() }
    }
}

impl Kernels {
    pub fn new(order: u32) -> Kernels {
        Kernels { modules: Mutex::default(), order }
    }

    /// Runs a launch to its end.
    pub fn run(&self, call: &Call) -> Result<(), String> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let module = modules.entry(call.module.to_string()).or_insert_with(|| load(call.module));
        let name = format!("emulate_{}", call.kernel);
        // SAFETY: `EXPORT` of emulate.h declares the entry with this signature.
        let entry: Symbol<Entry> = unsafe { module.get(name.as_bytes()) }.map_err(|error| error.to_string())?;
        let [x, y, z] = call.grid;
        let dims = [x, y, z, call.threads, 1, 1];
        // The kernel reads its structure as a C++ object: give it aligned memory.
        let mut args = [0u64; 32];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut args);
        bytes[..call.args.len()].copy_from_slice(call.args);
        let pointers = [args.as_ptr().cast::<c_void>()];
        let _alone = ONE_LAUNCH_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: one structure argument, as all kernels have; whoever made it vouches for the pointers in it.
        unsafe { entry(dims.as_ptr(), call.shared_bytes, self.order, pointers.as_ptr()) };
        Ok(())
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/src/cuda")
}

/// Source and macros of a module, from the manifest.
fn manifest_line(module: &str) -> (String, Vec<String>) {
    let manifest = std::fs::read_to_string(sources().join("modules.txt")).unwrap();
    let line = manifest.lines().find(|line| line.split_whitespace().next() == Some(module));
    let mut words = line.unwrap_or_else(|| panic!("no module {module}")).split_whitespace().skip(1);
    let source = words.next().unwrap().to_string();
    (source, words.filter(|word| !word.starts_with("arch=")).map(|word| format!("-D{word}")).collect())
}

/// Compiles a module unless that was done before, and loads it.
fn load(module: &str) -> Library {
    let (source, macros) = manifest_line(module);
    let mut hasher = DefaultHasher::new();
    (COMPILER_OPTIONS, &source, &macros).hash(&mut hasher);
    let mut files: Vec<PathBuf> = std::fs::read_dir(sources()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files.iter().filter(|f| f.ends_with(&source) || f.extension().is_some_and(|e| e == "cuh" || e == "h")) {
        std::fs::read(file).unwrap().hash(&mut hasher);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda_emulated");
    std::fs::create_dir_all(&folder).unwrap();
    let library = folder.join(format!("{module}-{:016x}.so", hasher.finish()));
    if !library.exists() {
        compile(&source, &macros, &library);
    }
    // SAFETY: the library has no initialisers that do more than set up its own variables.
    unsafe { Library::new(&library) }.unwrap()
}

fn compile(source: &str, macros: &[String], library: &Path) {
    let partial = library.with_extension(format!("{}.part", std::process::id()));
    let output = Command::new("c++")
        .args(COMPILER_OPTIONS)
        .args(macros)
        .arg(sources().join(source))
        .arg("-o")
        .arg(&partial)
        .output()
        .expect("a C++ compiler named c++ is needed to check the CUDA kernels without a GPU");
    assert!(output.status.success(), "{source} {macros:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    // Tests of several processes may compile the same module: the last rename wins, all are the same.
    std::fs::rename(partial, library).unwrap();
}
