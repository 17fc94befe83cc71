//! The CUDA kernels as plain C++ on the CPU (`src/cuda/emulate.h`), held to the same oracles as on a GPU.
//!
//! Each module's source is compiled by the system's C++ compiler once and kept in the target folder under a hash of
//! what it was made of. Threads of a block are fibres, run forwards and backwards, so that a missing barrier shows.
//! Device memory ends at an inaccessible page. What only a GPU can show (races inside a warp, speed) is left to
//! `device/examples/cuda_check.rs`.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot run has failed")]

use kernels::cuda::check::{Machine, check_operators, check_products, check_rest};
use kernels::cuda::{DevicePtr, Launch};
use kernels::quant::WeightType;
use libloading::{Library, Symbol};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const PAGE: usize = 4096;

/// Symbols are bound inside the library: kernels have names that the C library has too.
const COMPILER_OPTIONS: [&str; 9] =
    ["-x", "c++", "-std=c++17", "-O1", "-fPIC", "-shared", "-Wl,-Bsymbolic", "-DATS_EMULATE", "-Wno-unknown-pragmas"];

/// `emulate_KERNEL(dims, shared_bytes, order, args)`.
type Entry = unsafe extern "C" fn(*const u32, u32, u32, *const *const c_void);

/// The emulator's state is that of its library, which all tests share.
static ONE_LAUNCH_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A machine whose device is this process.
struct Emulator {
    modules: HashMap<&'static str, Library>,
    memory: Vec<(*mut c_void, usize)>,
    /// 0: threads and blocks in rising order, 1: in falling order.
    order: u32,
}

impl Emulator {
    fn new(order: u32) -> Emulator {
        Emulator { modules: HashMap::new(), memory: Vec::new(), order }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.clear().unwrap();
    }
}

impl Machine for Emulator {
    fn name(&self) -> String {
        format!("emulated CUDA, order {}", self.order)
    }

    fn alloc(&mut self, bytes: usize) -> Result<DevicePtr, String> {
        let room = bytes.next_multiple_of(PAGE) + PAGE;
        let null = std::ptr::null_mut();
        // SAFETY: a fresh private mapping disturbs nothing.
        let base = unsafe { mmap_anonymous(null, room, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
            .map_err(|error| error.to_string())?;
        self.memory.push((base, room));
        let guard = base.wrapping_byte_add(room - PAGE);
        // SAFETY: the last page of the mapping made above, which nobody uses yet.
        unsafe { mprotect(guard, PAGE, MprotectFlags::empty()) }.map_err(|error| error.to_string())?;
        Ok(DevicePtr(guard as u64 - bytes.next_multiple_of(16) as u64))
    }

    fn write(&mut self, to: DevicePtr, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: `to` is memory of `alloc` with at least so many bytes, as every caller of a machine promises.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.0 as *mut u8, bytes.len()) };
        Ok(())
    }

    fn read(&mut self, from: DevicePtr, bytes: &mut [u8]) -> Result<(), String> {
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), String> {
        let module = self.modules.entry(launch.module).or_insert_with(|| load(launch.module));
        let name = format!("emulate_{}", launch.kernel);
        // SAFETY: `EXPORT` of emulate.h declares the entry with this signature.
        let entry: Symbol<Entry> = unsafe { module.get(name.as_bytes()) }.map_err(|error| error.to_string())?;
        let [x, y, z] = launch.grid;
        let dims = [x, y, z, launch.threads, 1, 1];
        // The kernel reads its structure as a C++ object: give it aligned memory.
        let mut args = [0u64; 32];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut args);
        bytes[..launch.args().len()].copy_from_slice(launch.args());
        let pointers = [args.as_ptr().cast::<c_void>()];
        let _alone = ONE_LAUNCH_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: one structure argument, as all kernels have; pointers in it come from `alloc`.
        unsafe { entry(dims.as_ptr(), launch.shared_bytes, self.order, pointers.as_ptr()) };
        Ok(())
    }

    fn clear(&mut self) -> Result<(), String> {
        for (base, room) in self.memory.drain(..) {
            // SAFETY: made by `alloc`, and nothing points into it any more once a machine is cleared.
            unsafe { munmap(base, room) }.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda")
}

/// Source and macros of a module, from the manifest.
fn manifest_line(module: &str) -> (String, Vec<String>) {
    let manifest = std::fs::read_to_string(sources().join("modules.txt")).unwrap();
    let line = manifest.lines().find(|line| line.split_whitespace().next() == Some(module));
    let mut words = line.unwrap_or_else(|| panic!("no module {module}")).split_whitespace().skip(1);
    let source = words.next().unwrap().to_string();
    (source, words.map(|word| format!("-D{word}")).collect())
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

#[track_caller]
fn check(run: impl Fn(&mut Emulator) -> Result<(), String>) {
    for order in [0, 1] {
        if let Err(error) = run(&mut Emulator::new(order)) {
            panic!("{error}");
        }
    }
}

#[test]
fn operators_agree_with_the_oracle() {
    check(|machine| check_operators(machine));
}

#[test]
fn rows_caches_sequences_movements_and_flags() {
    check(|machine| check_rest(machine));
}

/// One type of each build: pairs of groups 32 and 64 columns apart, a block of 32 in BF16 and badly aligned, plain.
const TELLING: [WeightType; 4] = [WeightType::Q4_K, WeightType::Q6_K, WeightType::MXFP4, WeightType::F16];

#[test]
fn products_agree_with_the_oracle() {
    check(|machine| check_products(machine, &|ty| TELLING.contains(&ty)));
}

#[test]
#[ignore = "two minutes, mostly compiling; row look-up above decodes every type. Run it when weights.cuh changes"]
fn products_of_all_other_types_agree_with_the_oracle() {
    check(|machine| check_products(machine, &|ty| !TELLING.contains(&ty)));
}
