//! A CUDA device's half of a profile: what `../gpu.rs` asks any GPU, and what its kernels reach on this one.
//!
//! Every rate is a median over replays of one recorded graph on weights that together exceed the second-level cache;
//! clocks are awake by then, since the link was measured before. `lab` is the device to measure on, `operators` the
//! curves, `shared` what CPU and link take from each other. Without a device there is nothing here to do.
//! Next: `lab.rs`.

mod lab;
mod operators;
mod shared;

use super::cpu::rounded;
use super::figures::{Needs, Pace, Shape, missing, unmeasured};
use super::gpu::{GpuFigures, probe};
use super::{MeasureError, Watch};
use crate::profile::{Backend, Gpu, Profile};
use device::cuda::{CudaGpu, CudaOptions};
use device::gpu::Gpu as _;
use lab::Lab;
use std::sync::Arc;

/// The first CUDA device, if there is one that this program can use; [`device::cuda::probe`] says why there is none.
///
/// # Errors
/// A device is there but cannot be opened.
pub fn open() -> Result<Option<CudaGpu>, MeasureError> {
    let usable = device::cuda::probe().is_ok_and(|driver| driver.usable(0).is_ok());
    if !usable {
        return Ok(None);
    }
    let modules = Arc::new(|name: &str| kernels::cuda::ptx(name));
    Ok(Some(CudaGpu::open(&CudaOptions { ordinal: 0, ceiling_bytes: None, modules })?))
}

/// Adds a GPU with all its curves to a profile of the machine's CPU.
///
/// # Errors
/// The GPU fails, or has too little memory left to measure with.
pub fn add_gpu(profile: &mut Profile, gpu: &CudaGpu, needs: &Needs, watch: &mut Watch<'_>) -> Result<(), MeasureError> {
    let figures = probe(gpu, watch)?;
    shared::contention(profile, gpu, &figures, watch)?;
    let before = gpu.memory()?.free_bytes;
    let mut lab = Lab::new(gpu)?;
    profile.latency.gpu_op_us = rounded(lab.small_kernel_us()?);
    let hand_over_us = rounded(lab.hand_over_us()?);
    (profile.latency.to_gpu_us, profile.latency.to_cpu_us) = (hand_over_us, hand_over_us);
    profile.latency.blocking_switch_us = figures.blocking_switch_us;
    let memory_gb_per_s = rounded(lab.copy_gb_per_s()?);
    let zero_copy_gb_per_s = rounded(lab.zero_copy_gb_per_s()?);
    curves(profile, &mut lab, needs, watch)?;
    let taken = before.saturating_sub(gpu.memory()?.free_bytes);
    let kernels_mib = taken.saturating_sub(lab.arena_bytes()).div_ceil(1 << 20);
    profile.gpu = Some(section(gpu, figures, kernels_mib, memory_gb_per_s, zero_copy_gb_per_s));
    Ok(())
}

/// Adds curves to a profile that has the GPU already.
///
/// # Errors
/// As [`add_gpu`].
pub fn add_curves(
    profile: &mut Profile,
    gpu: &CudaGpu,
    needs: &Needs,
    watch: &mut Watch<'_>,
) -> Result<(), MeasureError> {
    curves(profile, &mut Lab::new(gpu)?, needs, watch)
}

/// Adds measured points of a model's own shapes to a profile that has the GPU: those that it lacks and the GPU has room
/// for.
///
/// # Errors
/// As [`add_gpu`].
pub fn add_points(
    profile: &mut Profile,
    gpu: &CudaGpu,
    shapes: &[Shape],
    pace: Pace,
    watch: &mut Watch<'_>,
) -> Result<(), MeasureError> {
    let shapes = unmeasured(profile, Backend::Gpu, shapes);
    let mut lab = Lab::new(gpu)?;
    for (index, shape) in shapes.iter().enumerate() {
        for &tokens in shape.tokens(&pace) {
            watch(&format!("{shape}, {tokens} tokens on the GPU"), index as f64 / shapes.len() as f64);
            match operators::point(&mut lab, shape, tokens) {
                Ok(point) => profile.points.push(point),
                // The curves answer for what is too large to be tried.
                Err(MeasureError::NoRoom { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Whether a profile lacks a point of its GPU.
pub fn lacks_points(profile: &Profile, shapes: &[Shape]) -> bool {
    profile.gpu.is_some() && !unmeasured(profile, Backend::Gpu, shapes).is_empty()
}

/// Whether a profile lacks a curve of its GPU.
pub fn lacks_curves(profile: &Profile, needs: &Needs) -> bool {
    profile.gpu.is_some() && !missing(profile, Backend::Gpu, needs).is_empty()
}

fn curves(profile: &mut Profile, lab: &mut Lab<'_>, needs: &Needs, watch: &mut Watch<'_>) -> Result<(), MeasureError> {
    let missing = missing(profile, Backend::Gpu, needs);
    for (index, &need) in missing.iter().enumerate() {
        watch(&format!("{} {:?} on the GPU", need.1, need.0), index as f64 / missing.len() as f64);
        profile.curves.push(operators::curve(lab, need)?);
    }
    Ok(())
}

fn section(gpu: &CudaGpu, figures: GpuFigures, kernels_mib: u64, memory_gb_per_s: f64, zero_copy_gb_per_s: f64) -> Gpu {
    let driver = gpu.description().driver;
    Gpu {
        model: figures.model,
        compute_capability: figures.compute_capability,
        link: device::cuda::link_name(0),
        driver: Some(device::cuda::driver_name(driver)),
        memory_mib: figures.memory_mib,
        free_mib: figures.free_mib,
        context_mib: figures.context_mib,
        kernels_mib,
        memory_gb_per_s,
        device_to_host: figures.host_to_device.clone(),
        host_to_device: figures.host_to_device,
        pageable_gb_per_s: figures.pageable_gb_per_s,
        zero_copy_gb_per_s,
    }
}
