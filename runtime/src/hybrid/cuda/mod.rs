//! Operators for NVIDIA GPUs: a run of the program's operators becomes kernel launches, recorded as a CUDA graph.
//!
//! `scratch.rs` lays out the maker's memory, `acts.rs` says which forms of which activations products read and who
//! writes them, `lower.rs` turns operators into launches, fusing what follows each other, and `op.rs` enqueues them.
//! Kernels and their launches are `kernels::cuda`, streams and modules `device::cuda`. Not here: what runs when
//! (`driver.rs`). Next: `scratch.rs`.

mod acts;
mod experts;
mod heads;
mod lower;
mod mixers;
mod op;
mod scratch;

use super::ops::{Arrival, Move, OpEnv, OpMaker, RoundArgs, Sizes, WeightShape};
use crate::Error;
use device::cuda::{CudaGpu, CudaOptions};
use device::gpu::{DevicePtr, Gpu, GpuOp};
use kernels::cpu::ops::elementwise::ColGroups;
use kernels::cuda::transfer::{copy_bytes, move_rows};
use kernels::cuda::{Chip, GpuLayout, Launch, View, ops, unpack_panels};
use kernels::quant::WeightType;
use op::{CudaOp, Recording};
use plan_format::artifact::MachineCode;
use plan_format::program::Program;
use plan_format::schedule::Layout;
use scratch::Scratch;
use shared_cli::gpu_code;
use std::ops::Range;
use std::sync::Arc;

/// Makes operators for a CUDA device.
pub struct CudaMaker {
    gpu: Arc<dyn Gpu>,
    multiprocessors: u32,
    chip: Chip,
}

/// Opens a device with this program's kernels. `ceiling_bytes` bounds all GPU memory of the process.
///
/// # Errors
/// Why there is no device to use.
pub fn open(ordinal: u32, ceiling_bytes: Option<u64>) -> Result<CudaGpu, Error> {
    let modules = Arc::new(|name: &str| kernels::cuda::ptx(name));
    Ok(CudaGpu::open(&CudaOptions { ordinal, ceiling_bytes, modules })?)
}

/// Loads the modules that the program needs: from stored machine code where it was made of the same PTX and this driver
/// takes it, else from PTX on `threads` threads. Returns how many had to be compiled.
///
/// # Errors
/// A module that does not load.
pub fn load(gpu: &CudaGpu, program: &Program, code: &[MachineCode], threads: usize) -> Result<usize, Error> {
    let chip = Chip::of(gpu.description().capability);
    Ok(gpu_code::load(gpu, &gpu_code::modules(program, chip), code, threads)?)
}

impl CudaMaker {
    /// A maker of operators for a GPU that runs CUDA kernels.
    pub fn new(gpu: Arc<dyn Gpu>) -> CudaMaker {
        let description = gpu.description();
        let (multiprocessors, chip) = (description.multiprocessors, Chip::of(description.capability));
        CudaMaker { gpu, multiprocessors, chip }
    }

    /// An operator of launches that do not depend on the round.
    fn fixed(name: &str, launches: Vec<Launch>) -> Arc<dyn GpuOp> {
        let emit: lower::Emit = Box::new(move |_, out| {
            out.extend_from_slice(&launches);
            Ok(())
        });
        Arc::new(CudaOp::new(name.to_string(), vec![emit], u32::MAX, Recording::Never))
    }
}

/// GPU memory that the operators of a program work in.
///
/// # Errors
/// A weight of a type without kernels.
pub fn scratch_bytes(program: &Program, sizes: &Sizes) -> Result<u64, Error> {
    Ok(Scratch::new(program, sizes)?.total_bytes)
}

/// The layout in the words of the kernels.
fn gpu_layout(layout: Layout) -> Result<GpuLayout, Error> {
    match layout {
        Layout::Gguf => Ok(GpuLayout::Gguf),
        Layout::GpuTiled => Ok(GpuLayout::Tiled),
        Layout::CpuPanel16 => Err(Error::Program { what: "a weight in the CPU's order of bytes on a GPU" }),
    }
}

fn preferred(ty: WeightType) -> Layout {
    match GpuLayout::preferred(ty) {
        GpuLayout::Gguf => Layout::Gguf,
        GpuLayout::Tiled => Layout::GpuTiled,
    }
}

/// An address in the words of the kernels.
fn at(address: DevicePtr) -> kernels::cuda::DevicePtr {
    kernels::cuda::DevicePtr(address.0)
}

impl OpMaker for CudaMaker {
    fn scratch_bytes(&self, program: &Program, sizes: &Sizes) -> Result<u64, Error> {
        scratch_bytes(program, sizes)
    }

    fn resident_layout(&self, weight: &WeightShape, planned: Layout) -> Layout {
        if planned == Layout::Gguf { Layout::Gguf } else { preferred(weight.ty) }
    }

    fn slot_layout(&self, weight: &WeightShape) -> Layout {
        preferred(weight.ty)
    }

    fn unpack(&self, piece: &Arrival) -> Result<Arc<dyn GpuOp>, Error> {
        let layout = gpu_layout(self.slot_layout(&piece.shape))?;
        let (ty, cols) = (piece.shape.ty, piece.shape.cols);
        let row_bytes = layout.row_bytes(ty, cols)? as u64;
        let to = at(piece.to).offset(row_bytes * u64::from(piece.rows.0));
        let rows = piece.rows.1 - piece.rows.0;
        let launch = unpack_panels(ty, layout, cols as u32, rows, at(piece.from), to)?;
        Ok(CudaMaker::fixed("unpack", vec![launch]))
    }

    fn prologue(&self, env: &OpEnv<'_>) -> Result<Vec<Arc<dyn GpuOp>>, Error> {
        let emits = lower::prologue(env, &*self.gpu)?;
        let recording = Recording::WhenRepeated;
        Ok(vec![Arc::new(CudaOp::new("angles".to_string(), emits, env.sizes.context_tokens, recording))])
    }

    fn run(&self, ops: Range<usize>, env: &OpEnv<'_>) -> Result<Vec<Arc<dyn GpuOp>>, Error> {
        let name = env.program.ops.get(ops.start).map_or("nothing", |op| op.kind.name()).to_string();
        let emits = lower::lower(ops, env, self.chip)?;
        // Shapes that no kernel takes are found now, not in a round.
        let limits = env.sizes.limits;
        for tokens in [1, limits.ubatch_tokens] {
            let outputs = limits.output_tokens.min(tokens);
            let args = RoundArgs { tokens, outputs, context_tokens: env.sizes.context_tokens };
            emits.iter().try_for_each(|emit| emit(args, &mut Vec::new()))?;
        }
        Ok(vec![Arc::new(CudaOp::new(name, emits, env.sizes.context_tokens, Recording::WhenRepeated))])
    }

    fn mover(&self, moves: &[Move]) -> Result<Arc<dyn GpuOp>, Error> {
        let moves = moves.to_vec();
        let emit: lower::Emit = Box::new(move |args, out| {
            out.extend(moves.iter().map(|columns| moving(columns, args.rows(columns.rows))));
            Ok(())
        });
        Ok(Arc::new(CudaOp::new("move".to_string(), vec![emit], u32::MAX, Recording::Never)))
    }

    fn copier(&self, from: DevicePtr, to: DevicePtr, bytes: u64) -> Result<Arc<dyn GpuOp>, Error> {
        // As many blocks as hide the link's latency; more would only take multiprocessors from others.
        let blocks = bytes.div_ceil(512 * 16).clamp(1, u64::from(self.multiprocessors.max(1))) as u32;
        Ok(CudaMaker::fixed("copy", vec![copy_bytes(at(from), at(to), bytes, blocks)]))
    }
}

/// The launch that copies columns of so many rows.
fn moving(columns: &Move, rows: u32) -> Launch {
    let cols = if columns.groups == 1 { columns.width } else { columns.group_stride * columns.groups };
    let view = |address| View { data: at(address), stride: columns.stride, cols };
    let (from, to) = (view(columns.from), view(columns.to));
    if columns.groups == 1 {
        return move_rows(from, to, rows, None);
    }
    let stride = columns.group_stride as usize;
    let groups = ColGroups {
        x_stride: stride,
        out_stride: stride,
        width: columns.width as usize,
        groups: columns.groups as usize,
    };
    ops::copy_cols(from, to, groups, rows)
}
