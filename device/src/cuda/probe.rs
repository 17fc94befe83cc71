//! Whether there is a driver and a GPU that this program can use, found out without ever panicking.
//!
//! cudarc panics where the library or one of its symbols is missing, so both are looked for first. Next: `context.rs`.

use cudarc::driver::{DriverError, result, sys};

/// Oldest driver that accepts the PTX in this program (ISA 8.4 came with CUDA 12.4).
const DRIVER_MIN: u32 = 12_040;
/// Oldest architecture that the PTX is for.
const CAPABILITY_MIN: (u32, u32) = (8, 0);

/// Every driver function that this crate calls; a driver without one of them is not used.
pub const DRIVER_FUNCTIONS: [&str; 60] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxSetFlags_v2",
    "cuCtxSetCurrent",
    "cuCtxSetLimit",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyAsync",
    "cuStreamCreateWithPriority",
    "cuCtxGetStreamPriorityRange",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamGetCaptureInfo_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventElapsedTime",
    "cuEventDestroy_v2",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuModuleGetFunctionCount",
    "cuModuleEnumerateFunctions",
    "cuFuncLoad",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphUpload",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuLinkCreate_v2",
    "cuLinkAddData_v2",
    "cuLinkComplete",
    "cuLinkDestroy",
];

/// Why there is no GPU to use. Each message is one line for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuAbsence {
    /// The library cannot be opened.
    #[error("no NVIDIA driver: libcuda.so.1 is not installed")]
    NoDriver,
    /// The library lacks a function.
    #[error("the NVIDIA driver lacks {symbol}; update it to 550 or later")]
    MissingSymbol {
        /// The function's name.
        symbol: &'static str,
    },
    /// The driver does not know the PTX version.
    #[error("the NVIDIA driver supports CUDA {}.{}, this program needs {}.{}: update the driver to 550 or later",
        have / 1000, have % 1000 / 10, DRIVER_MIN / 1000, DRIVER_MIN % 1000 / 10)]
    OldDriver {
        /// As the driver numbers it: 12080 is 12.8.
        have: u32,
    },
    /// The driver is there, a device is not.
    #[error("the NVIDIA driver sees no GPU; is one installed, and is CUDA_VISIBLE_DEVICES not empty?")]
    NoDevice,
    /// There are fewer devices than asked for.
    #[error("there is no GPU number {ordinal}, only {count}")]
    NoSuchDevice {
        /// Asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The device is too old.
    #[error("{name} has compute capability {}.{}, this program needs {}.{}",
        capability.0, capability.1, CAPABILITY_MIN.0, CAPABILITY_MIN.1)]
    OldDevice {
        /// Its name.
        name: String,
        /// Its capability.
        capability: (u32, u32),
    },
    /// The driver answers with an error.
    #[error(
        "the NVIDIA driver does not work: {call} failed with {error}; try `nvidia-smi`, reload the driver or restart"
    )]
    Broken {
        /// The call.
        call: &'static str,
        /// Its error.
        error: String,
    },
}

/// A driver that works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaDriver {
    /// As the driver numbers it: 12080 is 12.8.
    pub version: u32,
    /// Its devices, by ordinal.
    pub devices: Vec<GpuModel>,
}

/// What a device says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuModel {
    /// `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Second-level cache.
    pub l2_bytes: u64,
    /// Most shared memory of a block.
    pub shared_bytes_max: u32,
}

/// Opens the driver and lists its devices. Cheap when there is none; creates no context.
///
/// # Errors
/// Why there is nothing to use.
pub fn probe() -> Result<CudaDriver, GpuAbsence> {
    check_library()?;
    let broken = |call| move |error: DriverError| GpuAbsence::Broken { call, error: describe(error) };
    let mut version = 0;
    // SAFETY: the library has the function; it writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(broken("cuDriverGetVersion"))?;
    let version = version.max(0) as u32;
    if version < DRIVER_MIN {
        return Err(GpuAbsence::OldDriver { have: version });
    }
    match result::init() {
        Ok(()) => {}
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Err(GpuAbsence::NoDevice),
        Err(error) => return Err(broken("cuInit")(error)),
    }
    let count = result::device::get_count().map_err(broken("cuDeviceGetCount"))?;
    if count == 0 {
        return Err(GpuAbsence::NoDevice);
    }
    let devices = (0..count).map(model).collect::<Result<_, _>>()?;
    Ok(CudaDriver { version, devices })
}

impl CudaDriver {
    /// The device of that number, if this program can use it.
    ///
    /// # Errors
    /// No such device, or one that is too old.
    pub fn usable(&self, ordinal: u32) -> Result<&GpuModel, GpuAbsence> {
        let count = self.devices.len() as u32;
        let model = self.devices.get(ordinal as usize).ok_or(GpuAbsence::NoSuchDevice { ordinal, count })?;
        if model.capability < CAPABILITY_MIN {
            return Err(GpuAbsence::OldDevice { name: model.name.clone(), capability: model.capability });
        }
        Ok(model)
    }
}

/// The library opens under one of the names that cudarc tries, and has every function.
fn check_library() -> Result<(), GpuAbsence> {
    let names = ["cuda", "nvcuda"].into_iter().flat_map(cudarc::get_lib_name_candidates);
    // SAFETY: the driver's library is made to be opened; it stays open, since cudarc opens it again.
    let library = names.into_iter().find_map(|name| unsafe { libloading::Library::new(name) }.ok());
    let library = library.ok_or(GpuAbsence::NoDriver)?;
    let missing = DRIVER_FUNCTIONS.into_iter().find(|symbol| {
        // SAFETY: only whether the symbol exists is asked.
        unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_err()
    });
    missing.map_or(Ok(()), |symbol| Err(GpuAbsence::MissingSymbol { symbol }))
}

fn model(ordinal: i32) -> Result<GpuModel, GpuAbsence> {
    use sys::CUdevice_attribute as Attribute;
    let broken = |call| move |error: DriverError| GpuAbsence::Broken { call, error: describe(error) };
    let device = result::device::get(ordinal).map_err(broken("cuDeviceGet"))?;
    // SAFETY: the device was just given by the driver.
    let memory = unsafe { result::device::total_mem(device) }.map_err(broken("cuDeviceTotalMem"))?;
    let attribute = |which| {
        // SAFETY: as above.
        let value = unsafe { result::device::get_attribute(device, which) };
        value.map(|value| value.max(0) as u32).map_err(broken("cuDeviceGetAttribute"))
    };
    Ok(GpuModel {
        name: result::device::get_name(device).map_err(broken("cuDeviceGetName"))?,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes: memory as u64,
        l2_bytes: u64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        shared_bytes_max: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    })
}

/// Name, number and text of a driver error.
pub(super) fn describe(error: DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy().into_owned());
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    format!("{} ({}): {}", name.unwrap_or_default(), error.0 as u32, text.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_driver_gets_one_line_and_no_panic() {
        match probe() {
            Ok(driver) => assert!(driver.version >= DRIVER_MIN && !driver.devices.is_empty()),
            Err(absence) => assert_eq!(absence.to_string().lines().count(), 1),
        }
    }

    #[test]
    fn every_driver_function_that_is_called_by_name_is_looked_for_first() {
        let sources = [
            include_str!("context.rs"),
            include_str!("gpu.rs"),
            include_str!("graph.rs"),
            include_str!("mapped.rs"),
            include_str!("module.rs"),
            include_str!("probe.rs"),
        ];
        for call in sources.iter().flat_map(|source| source.split("sys::").skip(1)) {
            let name = call.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            let is_call = name.starts_with("cu") && call[name.len()..].starts_with('(');
            assert!(!is_call || DRIVER_FUNCTIONS.contains(&name), "{name}");
        }
    }

    #[test]
    fn messages_name_what_is_there_and_what_is_needed() {
        let cases = [
            (GpuAbsence::OldDriver { have: 11_080 }, "supports CUDA 11.8, this program needs 12.4"),
            (GpuAbsence::OldDevice { name: "GTX 1080".into(), capability: (6, 1) }, "6.1, this program needs 8.0"),
            (GpuAbsence::NoSuchDevice { ordinal: 3, count: 1 }, "no GPU number 3, only 1"),
            (GpuAbsence::MissingSymbol { symbol: "cuGraphLaunch" }, "lacks cuGraphLaunch"),
        ];
        for (absence, part) in cases {
            assert!(absence.to_string().contains(part), "{absence}");
        }
    }

    #[test]
    fn devices_that_are_missing_or_old_are_refused() {
        let model = |capability| GpuModel {
            name: "x".into(),
            capability,
            multiprocessors: 1,
            memory_bytes: 1,
            l2_bytes: 1,
            shared_bytes_max: 1,
        };
        let driver = CudaDriver { version: 12_080, devices: vec![model((8, 6)), model((7, 5))] };
        assert!(driver.usable(0).is_ok());
        assert!(matches!(driver.usable(1), Err(GpuAbsence::OldDevice { .. })));
        assert!(matches!(driver.usable(2), Err(GpuAbsence::NoSuchDevice { count: 2, .. })));
    }
}
