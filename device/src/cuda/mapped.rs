//! Host memory that both sides reach, and the flags in it. Next: `module.rs`.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{result, sys};

use super::context::Context;
use crate::DeviceError;
use crate::gpu::{DevicePtr, Epoch, FlagId, MappedRegion};

/// Bytes between flags: each has a cache line (and its neighbour, which prefetchers fetch too) to itself.
const FLAG_STRIDE_BYTES: u64 = 128;
/// Flags of a GPU.
const FLAGS_MAX: u32 = 1024;

/// Zeroed, page-locked and mapped memory. Never write-combined: the CPU reads it.
pub(super) fn take_mapped(context: &Context, bytes: u64) -> Result<MappedRegion, DeviceError> {
    context.enter()?;
    let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
    let size = bytes.max(1) as usize;
    // SAFETY: a fresh allocation aliases nothing.
    let host = context.check("cuMemHostAlloc", unsafe { result::malloc_host(size, flags) })?.cast::<u8>();
    // SAFETY: `size` bytes were just allocated there.
    unsafe { host.write_bytes(0, size) };
    let mut device = 0;
    // SAFETY: the memory is mapped, and the out pointer is valid.
    let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, host.cast::<c_void>(), 0) };
    context.check("cuMemHostGetDevicePointer", mapped.result())?;
    Ok(MappedRegion { host, device: DevicePtr(device), bytes })
}

/// Flags in one mapped region.
#[derive(Debug)]
pub(super) struct Flags {
    region: MappedRegion,
    taken: AtomicU32,
}

impl Flags {
    pub(super) fn new(context: &Context) -> Result<Flags, DeviceError> {
        let region = take_mapped(context, FLAG_STRIDE_BYTES * u64::from(FLAGS_MAX))?;
        Ok(Flags { region, taken: AtomicU32::new(0) })
    }

    /// The memory, for whoever frees it.
    pub(super) fn region(&self) -> MappedRegion {
        self.region
    }

    pub(super) fn take(&self) -> Result<FlagId, DeviceError> {
        let id = self.taken.fetch_add(1, Ordering::Relaxed);
        if id >= FLAGS_MAX {
            return Err(DeviceError::GpuHandle { kind: "flag", id });
        }
        Ok(FlagId(id))
    }

    fn check(&self, flag: FlagId) -> Result<(), DeviceError> {
        if flag.0 < self.taken.load(Ordering::Relaxed).min(FLAGS_MAX) {
            return Ok(());
        }
        Err(DeviceError::GpuHandle { kind: "flag", id: flag.0 })
    }

    /// The flag as the CPU sees it.
    fn cell(&self, flag: FlagId) -> Result<&AtomicU32, DeviceError> {
        self.check(flag)?;
        let offset = FLAG_STRIDE_BYTES as usize * flag.0 as usize;
        // SAFETY: the cell lies in the region, is aligned, lives as long as it, and is only accessed as an atomic here
        // and by the device in whole words.
        Ok(unsafe { AtomicU32::from_ptr(self.region.host.add(offset).cast::<u32>()) })
    }

    /// The flag as the GPU sees it.
    pub(super) fn address(&self, flag: FlagId) -> Result<DevicePtr, DeviceError> {
        self.check(flag)?;
        Ok(self.region.device.offset(FLAG_STRIDE_BYTES * u64::from(flag.0)))
    }

    pub(super) fn signal(&self, flag: FlagId, epoch: Epoch) -> Result<(), DeviceError> {
        self.cell(flag)?.store(epoch.0, Ordering::Release);
        Ok(())
    }

    pub(super) fn sees(&self, flag: FlagId, epoch: Epoch) -> Result<bool, DeviceError> {
        Ok(Epoch(self.cell(flag)?.load(Ordering::Acquire)).reaches(epoch))
    }
}
