//! The CUDA kernels as plain C++ on the CPU (`src/cuda/emulate.h`), held to the same oracles as on a GPU.
//!
//! Device memory ends at an inaccessible page. What only a GPU can show (races inside a warp, speed) is left to
//! `device/examples/cuda_check`. Next file: `emulator/mod.rs`.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot run has failed")]

mod emulator;

use emulator::Kernels;
use kernels::cuda::check::{Machine, check_operators, check_products, check_rest};
use kernels::cuda::product::Chip;
use kernels::cuda::{DevicePtr, Launch};
use kernels::quant::WeightType;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;

const PAGE: usize = 4096;

/// A machine whose device is this process.
struct Emulator {
    kernels: Kernels,
    memory: Vec<(*mut c_void, usize)>,
    order: u32,
}

impl Emulator {
    fn new(order: u32) -> Emulator {
        Emulator { kernels: Kernels::new(order), memory: Vec::new(), order }
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

    fn chips(&self) -> Vec<Chip> {
        vec![Chip::Portable, Chip::Sm90]
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
        self.kernels.run(&launch.into())
    }

    fn clear(&mut self) -> Result<(), String> {
        for (base, room) in self.memory.drain(..) {
            // SAFETY: made by `alloc`, and nothing points into it any more once a machine is cleared.
            unsafe { munmap(base, room) }.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
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
