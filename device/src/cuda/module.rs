//! Modules and launches: PTX (or stored machine code) by name, loaded once, kernels by name. Next: `graph.rs`.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{DriverError, result, sys};

use super::context::{Context, lock};
use super::graph::{CudaGraph, KernelPriority};
use super::probe::describe;
use crate::DeviceError;

/// PTX text of a module by name.
pub type ModuleSource = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Dynamic shared memory that a kernel has before it asks. The driver grants up to 48 KiB unasked, but static shared
/// memory counts against that (`attention64`: 48 KiB and a few static bytes), so every dynamic byte is asked for.
const SHARED_BYTES_UNASKED: u32 = 0;
/// Room for the compiler's complaint.
const LOG_BYTES: usize = 8 << 10;

/// One kernel launch; the kernel takes one structure by value.
#[derive(Debug, Clone, Copy)]
pub struct KernelLaunch<'a> {
    /// Module.
    pub module: &'a str,
    /// Kernel in it.
    pub kernel: &'a str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// The structure's bytes.
    pub args: &'a [u8],
}

/// A loaded kernel and the dynamic shared memory that it has been allowed.
#[derive(Clone, Copy)]
struct Kernel {
    function: sys::CUfunction,
    shared_bytes: u32,
}

struct Module {
    module: sys::CUmodule,
    kernels: HashMap<String, Kernel>,
}

/// The modules of one context.
pub(super) struct Modules {
    context: Arc<Context>,
    source: ModuleSource,
    loaded: Mutex<HashMap<String, Module>>,
}

// SAFETY: driver handles may be used from any thread; the map is behind a lock.
unsafe impl Send for Modules {}
// SAFETY: as above.
unsafe impl Sync for Modules {}

impl Modules {
    pub(super) fn new(context: Arc<Context>, source: ModuleSource) -> Modules {
        Modules { context, source, loaded: Mutex::default() }
    }

    /// Loads a module from machine code that [`Modules::machine_code`] made, or does nothing if it is loaded.
    pub(super) fn load_machine_code(&self, name: &str, code: &[u8]) -> Result<(), DeviceError> {
        self.context.enter()?;
        let mut loaded = lock(&self.loaded);
        if !loaded.contains_key(name) {
            let module = load_image(name, code)?;
            loaded.insert(name.to_string(), Module { module, kernels: HashMap::new() });
        }
        Ok(())
    }

    /// The machine code that this driver makes of a module for this device.
    pub(super) fn machine_code(&self, name: &str) -> Result<Vec<u8>, DeviceError> {
        self.context.enter()?;
        let ptx = CString::new(self.ptx(name)?).map_err(|_| bad(name, "", "its PTX holds a zero byte".into()))?;
        link(name, &ptx)
    }

    fn ptx(&self, name: &str) -> Result<String, DeviceError> {
        (self.source)(name).ok_or_else(|| bad(name, "", "there is no PTX of that name".into()))
    }

    /// Loads modules from PTX on several threads: the driver's compiler takes up to seconds for each.
    pub(super) fn load_all(&self, names: &[&str], threads: usize) -> Result<(), DeviceError> {
        self.on_threads(names, threads, |name| self.load(name)).map(|_| ())
    }

    /// [`Modules::machine_code`] of several modules, in their order.
    pub(super) fn machine_codes(&self, names: &[&str], threads: usize) -> Result<Vec<Vec<u8>>, DeviceError> {
        self.on_threads(names, threads, |name| self.machine_code(name))
    }

    /// Calls `work` for each name, several at once; results stand in the names' order. The first error ends it.
    fn on_threads<T: Send>(
        &self,
        names: &[&str],
        threads: usize,
        work: impl Fn(&str) -> Result<T, DeviceError> + Sync,
    ) -> Result<Vec<T>, DeviceError> {
        let next = Mutex::new(names.iter().enumerate());
        let outcome = Mutex::new(Ok(Vec::with_capacity(names.len())));
        let take = || if lock(&outcome).is_ok() { lock(&next).next() } else { None };
        let run = || {
            while let Some((index, name)) = take() {
                let result = self.context.enter().and_then(|()| work(name));
                let mut outcome = lock(&outcome);
                match (&mut *outcome, result) {
                    (Ok(done), Ok(value)) => done.push((index, value)),
                    (Ok(_), Err(error)) => *outcome = Err(error),
                    (Err(_), _) => {}
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(run);
            }
        });
        let mut done = outcome.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        done.sort_unstable_by_key(|&(index, _): &(usize, T)| index);
        Ok(done.into_iter().map(|(_, value)| value).collect())
    }

    /// Loads a module from PTX unless it is loaded. The lock is not held while the driver compiles.
    fn load(&self, name: &str) -> Result<(), DeviceError> {
        if lock(&self.loaded).contains_key(name) {
            return Ok(());
        }
        let ptx = CString::new(self.ptx(name)?).map_err(|_| bad(name, "", "its PTX holds a zero byte".into()))?;
        let module = load_image(name, ptx.as_bytes_with_nul())?;
        // Two threads may both have loaded it: the second copy is dropped with the context.
        lock(&self.loaded).entry(name.to_string()).or_insert(Module { module, kernels: HashMap::new() });
        Ok(())
    }

    /// The kernel, loaded if it was not, and allowed its shared memory.
    fn kernel(&self, launch: &KernelLaunch) -> Result<sys::CUfunction, DeviceError> {
        self.load(launch.module)?;
        let mut loaded = lock(&self.loaded);
        let no_kernel = |reason| bad(launch.module, launch.kernel, reason);
        let module = loaded.get_mut(launch.module).ok_or_else(|| no_kernel("the module did not load".into()))?;
        let mut kernel = match module.kernels.get(launch.kernel) {
            Some(kernel) => *kernel,
            None => Kernel { function: find(module.module, launch)?, shared_bytes: SHARED_BYTES_UNASKED },
        };
        if launch.shared_bytes > kernel.shared_bytes {
            allow_shared(kernel.function, launch, self.context.model.shared_bytes_max)?;
            kernel.shared_bytes = launch.shared_bytes;
        }
        module.kernels.insert(launch.kernel.to_string(), kernel);
        Ok(kernel.function)
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            for module in lock(&self.loaded).values() {
                // SAFETY: loaded by us, and no stream runs its kernels once the GPU is dropped.
                let _ = unsafe { result::module::unload(module.module) };
            }
        }
    }
}

fn bad(module: &str, kernel: &str, reason: String) -> DeviceError {
    DeviceError::GpuKernel { module: module.to_string(), kernel: kernel.to_string(), reason }
}

fn find(module: sys::CUmodule, launch: &KernelLaunch) -> Result<sys::CUfunction, DeviceError> {
    let refuse = |reason| bad(launch.module, launch.kernel, reason);
    let name = CString::new(launch.kernel).map_err(|_| refuse("its name holds a zero byte".into()))?;
    // SAFETY: the module is loaded.
    unsafe { result::module::get_function(module, name) }.map_err(|error| refuse(describe(error)))
}

fn allow_shared(function: sys::CUfunction, launch: &KernelLaunch, most: u32) -> Result<(), DeviceError> {
    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is loaded.
    unsafe { result::function::set_function_attribute(function, attribute, launch.shared_bytes as i32) }.map_err(
        |error| {
            let need = launch.shared_bytes;
            let reason = format!("{need} bytes of shared memory, the device has {most}: {}", describe(error));
            bad(launch.module, launch.kernel, reason)
        },
    )
}

/// Loads PTX (with its zero byte) or machine code. The driver's compiler says what it dislikes.
fn load_image(name: &str, image: &[u8]) -> Result<sys::CUmodule, DeviceError> {
    use sys::CUjit_option_enum as Option_;
    let mut log = vec![0u8; LOG_BYTES];
    let mut options = [Option_::CU_JIT_ERROR_LOG_BUFFER, Option_::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: the image ends as its format says (a zero byte, or a length within); options and values pair up.
    let loaded = unsafe {
        let image = image.as_ptr().cast::<c_void>();
        sys::cuModuleLoadDataEx(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
    };
    loaded.result().map_err(|error| bad(name, "", complaint(error, &log)))?;
    load_functions(module).map_err(|error| bad(name, "", describe(error)))?;
    Ok(module)
}

/// Loads all kernels of a module now. Left to itself the driver loads each at its first launch, and for that it may
/// wait until the device is idle: a launch behind a stream that waits for the host would then wait for ever.
fn load_functions(module: sys::CUmodule) -> Result<(), DriverError> {
    let mut count = 0;
    // SAFETY: the module is loaded; the list has room for as many functions as the driver counts in it.
    unsafe {
        sys::cuModuleGetFunctionCount(&mut count, module).result()?;
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module).result()?;
        functions.into_iter().try_for_each(|function| sys::cuFuncLoad(function).result())
    }
}

fn complaint(error: DriverError, log: &[u8]) -> String {
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    format!("{} {}", describe(error), String::from_utf8_lossy(&log[..end]))
}

/// PTX to machine code by the driver's linker.
fn link(name: &str, ptx: &CString) -> Result<Vec<u8>, DeviceError> {
    let fail = |error: DriverError| bad(name, "", format!("linking: {}", describe(error)));
    let (mut state, mut code, mut bytes) = (std::ptr::null_mut(), std::ptr::null_mut(), 0usize);
    let none = std::ptr::null_mut();
    // SAFETY: no options are given; the PTX ends in a zero byte that counts; `code` belongs to the linker's state,
    // which lives until after the copy.
    unsafe {
        sys::cuLinkCreate_v2(0, none, std::ptr::null_mut(), &mut state).result().map_err(fail)?;
        let data = ptx.as_bytes_with_nul();
        let kind = sys::CUjitInputType_enum::CU_JIT_INPUT_PTX;
        let image = data.as_ptr().cast_mut().cast::<c_void>();
        let file = c"module".as_ptr();
        let added =
            sys::cuLinkAddData_v2(state, kind, image, data.len(), file, 0, std::ptr::null_mut(), std::ptr::null_mut());
        let linked = added.result().and_then(|()| sys::cuLinkComplete(state, &mut code, &mut bytes).result());
        let copy = linked.map(|()| std::slice::from_raw_parts(code.cast::<u8>(), bytes).to_vec());
        let _ = sys::cuLinkDestroy(state);
        copy.map_err(fail)
    }
}

/// What a task does with launches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Puts them on the stream.
    Enqueue,
    /// Loads their kernels only, which must not happen while a graph is recorded.
    Load,
}

/// A stream for an operator to put kernels on.
pub struct CudaTask<'a> {
    context: &'a Context,
    modules: &'a Modules,
    stream: sys::CUstream,
    mode: Mode,
}

impl<'a> CudaTask<'a> {
    pub(super) fn new(context: &'a Context, modules: &'a Modules, stream: sys::CUstream) -> CudaTask<'a> {
        CudaTask { context, modules, stream, mode: Mode::Enqueue }
    }

    /// Multiprocessors of the device.
    pub fn multiprocessors(&self) -> u32 {
        self.context.model.multiprocessors
    }

    /// Enqueues a kernel; one with an empty grid is nothing to do.
    ///
    /// # Errors
    /// An unknown module or kernel, one that the driver refuses, or a lost GPU.
    pub fn launch(&self, launch: &KernelLaunch) -> Result<(), DeviceError> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        let function = self.modules.kernel(launch)?;
        if self.mode == Mode::Load {
            return Ok(());
        }
        // The driver copies the structure; it wants it aligned as the kernel's parameter is.
        let mut aligned = [0u64; 64];
        let bytes: &mut [u8] = bytemuck_slice(&mut aligned);
        let refuse = |reason| bad(launch.module, launch.kernel, reason);
        let target = bytes.get_mut(..launch.args.len()).ok_or_else(|| refuse("arguments too long".into()))?;
        target.copy_from_slice(launch.args);
        let [x, y, z] = launch.grid;
        let mut params = [aligned.as_mut_ptr().cast::<c_void>()];
        let threads = (launch.threads, 1, 1);
        // SAFETY: the function takes one structure of these bytes; whoever made them vouches for the addresses in it.
        let launched = unsafe {
            result::launch_kernel(function, (x, y, z), threads, launch.shared_bytes, self.stream, &mut params)
        };
        launched.map_err(|error| refuse(describe(error)))
    }

    /// Copies between device addresses on the stream.
    ///
    /// # Errors
    /// A lost GPU.
    pub fn copy(&self, to: crate::gpu::DevicePtr, from: crate::gpu::DevicePtr, bytes: u64) -> Result<(), DeviceError> {
        if self.mode == Mode::Load {
            return Ok(());
        }
        // SAFETY: whoever calls vouches for the ranges, as for the addresses in kernel arguments.
        let copied = unsafe { sys::cuMemcpyAsync(to.0, from.0, bytes as usize, self.stream) };
        self.context.check("cuMemcpyAsync", copied.result())
    }

    /// Records what `work` enqueues into a graph instead of running it. `work` is called twice: first only to load the
    /// kernels. It must not wait for anything.
    ///
    /// # Errors
    /// What `work` fails with, or the driver.
    pub fn record(&self, work: impl Fn(&CudaTask) -> Result<(), DeviceError>) -> Result<CudaGraph, DeviceError> {
        work(&CudaTask { mode: Mode::Load, ..*self })?;
        CudaGraph::capture(self.context, self.stream, KernelPriority::OfLaunch, || work(self))
    }

    /// Runs a recorded graph on the stream.
    ///
    /// # Errors
    /// A lost GPU.
    pub fn replay(&self, graph: &CudaGraph) -> Result<(), DeviceError> {
        if self.mode == Mode::Load { Ok(()) } else { graph.launch(self.context, self.stream) }
    }
}

/// Words as bytes.
fn bytemuck_slice(words: &mut [u64; 64]) -> &mut [u8] {
    // SAFETY: every byte of an integer is initialised, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(words)) }
}
