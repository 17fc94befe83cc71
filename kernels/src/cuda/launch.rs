//! One kernel launch as plain data. Next: `args.rs`.

use bytemuck::NoUninit;

/// An address in device memory (or of mapped host memory as the device sees it); 0 is null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// No memory.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// The address `bytes` further on.
    pub fn offset(self, bytes: u64) -> DevicePtr {
        DevicePtr(self.0.wrapping_add(bytes))
    }

    /// Whether there is memory.
    pub fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// Room for the largest argument structure.
const ARGS_BYTES: usize = 256;

/// A kernel, its grid and its one argument, a structure passed by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Name of the module ([`super::ptx`]).
    pub module: &'static str,
    /// Name of the kernel in it.
    pub kernel: &'static str,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    args: [u8; ARGS_BYTES],
    args_bytes: u16,
}

impl Launch {
    /// A launch without dynamic shared memory.
    pub(super) fn new<A: NoUninit>(
        module: &'static str,
        kernel: &'static str,
        grid: [u32; 3],
        threads: u32,
        args: &A,
    ) -> Launch {
        const { assert!(size_of::<A>() <= ARGS_BYTES) };
        let mut bytes = [0; ARGS_BYTES];
        bytes[..size_of::<A>()].copy_from_slice(bytemuck::bytes_of(args));
        Launch { module, kernel, grid, threads, shared_bytes: 0, args: bytes, args_bytes: size_of::<A>() as u16 }
    }

    /// The same with dynamic shared memory.
    pub(super) fn with_shared(self, shared_bytes: u32) -> Launch {
        Launch { shared_bytes, ..self }
    }

    /// The argument structure's bytes.
    pub fn args(&self) -> &[u8] {
        &self.args[..usize::from(self.args_bytes)]
    }

    /// Whether the grid has no block: nothing is to be done (and CUDA refuses such launches).
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

/// Blocks along x for `items` that a block takes `per_block` at a time, at most `most`.
pub(super) fn blocks(items: u32, per_block: u32, most: u32) -> u32 {
    items.div_ceil(per_block).min(most)
}
