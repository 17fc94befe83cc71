//! The driver calls of the example, each followed by a line that says what it took.

use std::ffi::{CString, c_void};

use cudarc::driver::{DriverError, result, sys};

/// Limits whose memory a context may hold.
pub const LIMITS: [(&str, sys::CUlimit); 3] = [
    ("stack", sys::CUlimit::CU_LIMIT_STACK_SIZE),
    ("printf fifo", sys::CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE),
    ("heap", sys::CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE),
];

/// One context, and how much was free when it was last looked at.
pub struct Driver {
    device: sys::CUdevice,
    stream: sys::CUstream,
    modules: Vec<(String, sys::CUmodule)>,
    first_used: u64,
    used: u64,
}

fn said<T>(call: &str, result: Result<T, DriverError>) -> Result<T, String> {
    result.map_err(|error| format!("{call}: {error:?}"))
}

/// Memory in use on the device by everybody.
fn nvml_used() -> Option<u64> {
    let nvml = nvml_wrapper::Nvml::init().ok()?;
    Some(nvml.device_by_index(0).ok()?.memory_info().ok()?.used)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Driver {
    /// The first device's primary context, with the runtime's flags.
    pub fn open() -> Result<Driver, String> {
        device::cuda::probe().map_err(|absence| absence.to_string())?;
        let before = nvml_used().ok_or("the management library does not say how much memory is used")?;
        let device = said("cuDeviceGet", result::device::get(0))?;
        let spin = sys::CUctx_flags_enum::CU_CTX_SCHED_SPIN as u32;
        // SAFETY: the device is the driver's.
        said("flags", unsafe { sys::cuDevicePrimaryCtxSetFlags_v2(device, spin) }.result())?;
        // SAFETY: as above; the context is released by the end of the process.
        let context = said("retain", unsafe { result::primary_ctx::retain(device) })?;
        // SAFETY: just retained.
        said("set current", unsafe { result::ctx::set_current(context) })?;
        let mut driver =
            Driver { device, stream: std::ptr::null_mut(), modules: Vec::new(), first_used: before, used: before };
        driver.note("context");
        Ok(driver)
    }

    /// Compute capability.
    pub fn capability(&self) -> (u32, u32) {
        use sys::CUdevice_attribute as Attribute;
        let attribute = |which| {
            // SAFETY: the device is the driver's.
            unsafe { result::device::get_attribute(self.device, which) }.map_or(0, |value| value.max(0) as u32)
        };
        (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
    }

    /// Says what the step before took.
    pub fn note(&mut self, step: &str) {
        let used = nvml_used().unwrap_or(self.used);
        let (free, _) = result::mem_get_info().unwrap_or((0, 0));
        let change = mib(used) - mib(self.used);
        println!(
            "{change:+9.2} MiB {:9.2} in all, {:11.2} free  {step}",
            mib(used - self.first_used),
            mib(free as u64)
        );
        self.used = used;
    }

    /// Sets a limit, or only says what it is.
    pub fn limit(&mut self, (name, limit): (&str, sys::CUlimit), bytes: Option<usize>) -> Result<(), String> {
        if let Some(bytes) = bytes {
            // SAFETY: the context is current.
            said("cuCtxSetLimit", unsafe { sys::cuCtxSetLimit(limit, bytes) }.result())?;
        }
        let mut value = 0;
        // SAFETY: it writes one integer.
        said("cuCtxGetLimit", unsafe { sys::cuCtxGetLimit(&mut value, limit) }.result())?;
        self.note(&format!("limit of the {name}: {value} bytes"));
        Ok(())
    }

    /// Makes streams as the runtime does.
    pub fn streams(&mut self, count: usize) -> Result<(), String> {
        for _ in 0..count {
            let stream = result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, 0);
            self.stream = said("cuStreamCreate", stream)?;
        }
        self.note(&format!("{count} streams"));
        Ok(())
    }

    /// One image of PTX texts.
    pub fn machine_code(&mut self, texts: &[String]) -> Result<Vec<u8>, String> {
        let (mut state, mut code, mut bytes) = (std::ptr::null_mut(), std::ptr::null_mut(), 0usize);
        let none: *mut c_void = std::ptr::null_mut();
        let mut log = vec![0u8; 16 << 10];
        let mut options = [
            sys::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        // SAFETY: options and values pair up and outlive the state; texts end in a zero byte that counts.
        let result = unsafe {
            let create = sys::cuLinkCreate_v2(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut state).result();
            create.and_then(|()| {
                for text in texts {
                    let text = CString::new(text.as_str()).unwrap_or_default();
                    let (data, kind) = (text.as_bytes_with_nul(), sys::CUjitInputType_enum::CU_JIT_INPUT_PTX);
                    let start = data.as_ptr().cast_mut().cast::<c_void>();
                    let name = c"module".as_ptr();
                    sys::cuLinkAddData_v2(state, kind, start, data.len(), name, 0, none.cast(), none.cast())
                        .result()?;
                }
                sys::cuLinkComplete(state, &mut code, &mut bytes).result()?;
                Ok(std::slice::from_raw_parts(code.cast::<u8>(), bytes).to_vec())
            })
        };
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        result.map_err(|error| format!("linking: {error:?} {}", String::from_utf8_lossy(&log[..end])))
    }

    /// Loads an image, then all of its kernels.
    pub fn load(&mut self, name: &str, image: &[u8]) -> Result<(), String> {
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is what the driver's linker made.
        said(name, unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) }.result())?;
        self.note(&format!("module {name}, {} bytes", image.len()));
        let functions = functions(module)?;
        for &function in &functions {
            // SAFETY: the module is loaded.
            said("cuFuncLoad", unsafe { sys::cuFuncLoad(function) }.result())?;
        }
        self.note(&format!("    its {} kernels", functions.len()));
        self.modules.push((name.to_string(), module));
        Ok(())
    }

    /// Says which kernels have local memory.
    pub fn describe_kernels(&self) -> Result<(), String> {
        for (name, module) in &self.modules {
            for function in functions(*module)? {
                let which = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
                let mut local = 0;
                // SAFETY: the function is loaded; it writes one integer.
                said("attribute", unsafe { sys::cuFuncGetAttribute(&mut local, which, function) }.result())?;
                let mut text = std::ptr::null();
                // SAFETY: as above; the name lives as long as the module.
                said("cuFuncGetName", unsafe { sys::cuFuncGetName(&mut text, function) }.result())?;
                if local > 0 {
                    // SAFETY: the driver gave a text that ends in a zero byte.
                    let kernel = unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy();
                    println!("{name} {kernel}: {local} bytes of local memory per thread");
                }
            }
        }
        Ok(())
    }

    /// Launches a kernel by itself, then in so many graphs of 50 launches each.
    pub fn launches_and_graphs(&mut self, graphs: usize) -> Result<(), String> {
        let function = self.find("copy_bytes")?;
        // SAFETY: a fresh allocation aliases nothing.
        let memory = said("cuMemAlloc", unsafe { result::malloc_sync(2 << 20) })?;
        self.note("2 MiB of memory");
        self.launch(function, memory)?;
        self.note("a launch");
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let mut made = Vec::new();
        for _ in 0..graphs {
            // SAFETY: the stream is ours, and nothing else is put on it.
            said("capture", unsafe { result::stream::begin_capture(self.stream, mode) })?;
            (0..50).try_for_each(|_| self.launch(function, memory))?;
            // SAFETY: as above.
            let graph = said("end of capture", unsafe { result::stream::end_capture(self.stream) })?;
            // SAFETY: the graph was just made.
            let exec = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
            made.push(said("instantiate", exec)?);
        }
        self.note(&format!("{graphs} graphs of 50 kernels"));
        for exec in made {
            // SAFETY: instantiated above.
            said("cuGraphLaunch", unsafe { result::graph::launch(exec, self.stream) })?;
        }
        // SAFETY: the stream is ours.
        said("synchronize", unsafe { result::stream::synchronize(self.stream) })?;
        self.note("each launched");
        Ok(())
    }

    fn find(&self, kernel: &str) -> Result<sys::CUfunction, String> {
        for (name, module) in &self.modules {
            for text in [kernel.to_string(), format!("move__{kernel}")] {
                let text = CString::new(text).unwrap_or_default();
                // SAFETY: the module is loaded.
                if let Ok(function) = unsafe { result::module::get_function(*module, text) } {
                    println!("{kernel} is in {name}");
                    return Ok(function);
                }
            }
        }
        Err(format!("no module has `{kernel}`"))
    }

    /// Copies half a MiB of a region of 2 MiB to its middle.
    fn launch(&self, function: sys::CUfunction, memory: sys::CUdeviceptr) -> Result<(), String> {
        let (from, to) = (kernels::cuda::DevicePtr(memory), kernels::cuda::DevicePtr(memory).offset(1 << 20));
        let launch = kernels::cuda::transfer::copy_bytes(from, to, 1 << 19, 8);
        let mut aligned = [0u64; 64];
        for (word, bytes) in aligned.iter_mut().zip(launch.args().chunks(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        let mut params = [aligned.as_mut_ptr().cast::<c_void>()];
        let grid = (launch.grid[0], launch.grid[1], launch.grid[2]);
        // SAFETY: the kernel takes the structure; both ranges lie in the allocation.
        let launched =
            unsafe { result::launch_kernel(function, grid, (launch.threads, 1, 1), 0, self.stream, &mut params) };
        said("launch", launched)
    }

    /// Registers so much of huge pages.
    pub fn pin(&mut self, bytes: usize) -> Result<(), String> {
        let memory = vec![1u8; bytes].leak();
        // SAFETY: the memory is leaked, so it stays.
        let registered =
            unsafe { sys::cuMemHostRegister_v2(memory.as_mut_ptr().cast(), bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) };
        said("cuMemHostRegister", registered.result())?;
        self.note(&format!("{} MiB pinned", bytes >> 20));
        Ok(())
    }

    /// Says what it came to.
    pub fn finish(&self) {
        println!("{:.2} MiB in all", mib(self.used - self.first_used));
    }
}

/// All kernels of a module.
fn functions(module: sys::CUmodule) -> Result<Vec<sys::CUfunction>, String> {
    let mut count = 0;
    // SAFETY: the module is loaded; the list has room for as many functions as the driver counts in it.
    unsafe {
        said("count", sys::cuModuleGetFunctionCount(&mut count, module).result())?;
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        said("functions", sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module).result())?;
        Ok(functions)
    }
}
