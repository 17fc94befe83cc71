//! Where everything lies in GPU memory. Filled once at load. Next: `ops.rs`, which makers see of it.

use super::ops::{GpuSmall, GpuState, GpuWeight};
use device::gpu::DevicePtr;

/// Addresses by index into the program's tables.
#[derive(Debug)]
pub struct GpuMap {
    /// First byte of the activation arena.
    pub arena: DevicePtr,
    /// Where each value lies in it.
    pub value_offsets_bytes: Vec<u64>,
    /// Resident large weights.
    pub weights: Vec<Option<GpuWeight>>,
    /// Small weights that any operator on the GPU may read.
    pub smalls: Vec<Option<GpuSmall>>,
    /// States of resident items.
    pub states: Vec<Option<GpuState>>,
    /// Angles of each rotary table.
    pub trig: Vec<DevicePtr>,
}
