//! The model's weights in memory, in the layout that the operators read.
//!
//! Matrices are packed once at load into regions (`Layout::Panel16`) by all cores; small vectors become F32; embedding
//! rows that no product reads stay in the file's mapping, and so do weights that live on a GPU, and everything in exact
//! mode. A simulated GPU's operators have a store of their own, whose weights lie in the GPU's memory.
//! Not here: where they lie on a GPU (`hybrid/memory.rs`). Next: `prepare.rs`.

use super::shared::Shared;
use crate::Error;
use crate::hybrid::ops::WeightShape;
use device::gpu::HostSpan;
use device::memory::HostRegion;
use gguf::{GgmlType, Model};
use kernels::cpu::matmul::{Layout, Matrix};
use kernels::quant::{WeightType, dequantise_row, pack_panels, packed_bytes, panels};
use plan_format::WeightId;
use plan_format::artifact::Plan;
use plan_format::program::{Program, Tensor, Weight, WeightRole};
use plan_format::schedule::{Home, HostMemory};
use plan_format::sizes::experts_in;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// How products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 8-bit activations, packed weights.
    Fast,
    /// F32 activations on exactly dequantised weights, by the oracle kernels.
    Exact,
}

/// Where a large weight is kept on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPlace {
    /// Packed, in the region that a GPU may copy from at full speed.
    Pinned,
    /// Packed, in ordinary memory.
    Pageable,
    /// In the model file's own pages: rows are only looked up, or memory is short, or the weight is resident on a GPU.
    File,
}

impl HostPlace {
    /// Where a plan keeps each weight on the host: those of resident items are not needed there, but for rows that are
    /// looked up.
    pub fn of_plan(plan: &Plan, precision: Precision) -> Vec<HostPlace> {
        let packed = |role| role != WeightRole::EmbeddingRows && precision == Precision::Fast;
        let mut places: Vec<HostPlace> = plan.program.weights.iter().map(|_| HostPlace::Pageable).collect();
        for (item, home) in plan.program.items.iter().zip(&plan.placement.homes) {
            let place = match home {
                Home::Resident | Home::Host(HostMemory::Mapped) => HostPlace::File,
                Home::Host(HostMemory::Pinned) => HostPlace::Pinned,
                Home::Host(HostMemory::Pageable) => HostPlace::Pageable,
            };
            item.weights.iter().for_each(|weight| places[weight.index()] = place);
        }
        for (place, weight) in places.iter_mut().zip(&plan.program.weights) {
            if !packed(weight.role) {
                *place = HostPlace::File;
            }
        }
        places
    }
}

/// One weight.
#[derive(Clone, Debug)]
enum Stored {
    /// A stack of matrices in a region, `stride_bytes` apart.
    Placed { region: usize, layout: Layout, offset_bytes: usize, stride_bytes: usize },
    /// The same where a table says at which place each matrix of the stack lies, −1 for one that is not there.
    Scattered { region: usize, layout: Layout, stride_bytes: usize, table: usize },
    /// As in the file.
    Mapped,
    /// Decoded.
    Small(Arc<Vec<f32>>),
    /// Decoded, F32 in a region.
    SmallAt { region: usize, len: usize },
}

/// Memory that weights lie in.
#[derive(Clone, Debug)]
enum Region {
    /// This store's own, written only while weights are packed.
    Host(Arc<HostRegion>),
    /// The memory of a simulated GPU.
    Other(Arc<Shared>),
}

/// All weights of a program. Holds the model's mapping open.
#[derive(Clone, Debug)]
pub struct WeightStore {
    model: Arc<Model>,
    stored: Vec<Stored>,
    shapes: Arc<Vec<Shape>>,
    regions: Vec<Region>,
}

/// Where a large weight lies in other memory: at the start of a region, by number.
#[derive(Clone, Copy, Debug)]
pub struct Elsewhere {
    /// The region.
    pub region: usize,
    /// Order of the bytes.
    pub layout: Layout,
    /// Bytes from one matrix to the next.
    pub stride_bytes: usize,
    /// Region of the table of places, if matrices lie where it says.
    pub table: Option<usize>,
}

/// Regions of packed weights, by number.
const PINNED: usize = 0;
const PAGEABLE: usize = 1;

/// Type and dimensions of a weight's matrices.
#[derive(Clone, Debug)]
struct Shape {
    ty: WeightType,
    rows: usize,
    cols: usize,
    stack: usize,
    file: usize,
    offset_bytes: usize,
    size_bytes: usize,
    /// Which of the tensor's experts it holds, and how many there are, if not all.
    held: Option<(Arc<[u32]>, usize)>,
}

/// Panels that a packing task takes at once.
const PACK_PANELS: usize = 64;

/// Some panels of a matrix on their way into a region.
struct PackTask<'a> {
    shape: &'a Shape,
    slice: usize,
    panels: Range<usize>,
    region: usize,
    offset_bytes: usize,
    bytes: usize,
}

impl WeightStore {
    /// Loads what the program refers to, all of it for the CPU. Errors: a tensor of a type that no kernel computes
    /// with, no memory.
    pub fn load(model: Model, program: &Program, precision: Precision) -> Result<Self, Error> {
        let place = |weight: &Weight| match (weight.role, precision) {
            (WeightRole::EmbeddingRows, _) | (_, Precision::Exact) => HostPlace::File,
            (_, Precision::Fast) => HostPlace::Pageable,
        };
        let places: Vec<HostPlace> = program.weights.iter().map(place).collect();
        Self::load_placed(model, program, &places)
    }

    /// Loads what the program refers to, large weights as `places` says. Errors: as [`WeightStore::load`].
    pub fn load_placed(model: Model, program: &Program, places: &[HostPlace]) -> Result<Self, Error> {
        let shape = |weight: &Weight| Shape::new(program, weight);
        let shapes = program.weights.iter().map(shape).collect::<Result<Vec<_>, _>>()?;
        let mut sizes = [0; 2];
        let mut stored = Vec::with_capacity(shapes.len());
        for ((weight, shape), place) in program.weights.iter().zip(&shapes).zip(places) {
            let region = match (weight.role, place) {
                (WeightRole::Small, _) => {
                    stored.push(Stored::Small(Arc::new(shape.decode(shape.bytes(&model))?)));
                    continue;
                }
                (_, HostPlace::File) => {
                    stored.push(Stored::Mapped);
                    continue;
                }
                (_, HostPlace::Pinned) => PINNED,
                (_, HostPlace::Pageable) => PAGEABLE,
            };
            let (offset_bytes, stride_bytes) = (sizes[region], shape.panel_stride()?);
            sizes[region] += stride_bytes * shape.stack;
            stored.push(Stored::Placed { region, layout: Layout::Panel16, offset_bytes, stride_bytes });
        }
        let regions = pack_all(&model, &stored, &shapes, sizes)?;
        let regions = regions.into_iter().map(|region| Region::Host(Arc::new(region))).collect();
        Ok(Self { model: Arc::new(model), stored, shapes: Arc::new(shapes), regions })
    }

    /// Matrix `slice` of a weight's stack (0 for a plain matrix).
    pub fn matrix(&self, weight: WeightId, slice: usize) -> Result<Matrix<'_>, Error> {
        let shape = &self.shapes[weight.index()];
        let (layout, bytes) = match self.stored[weight.index()] {
            Stored::Placed { region, layout, offset_bytes, stride_bytes } => {
                (layout, self.regions[region].bytes(offset_bytes + slice * stride_bytes, stride_bytes))
            }
            Stored::Scattered { region, layout, stride_bytes, table } => {
                let place = bytemuck::pod_read_unaligned::<i32>(self.regions[table].bytes(slice * 4, 4));
                let place = usize::try_from(place);
                let place = place.map_err(|_| Error::Program { what: "an expert that was not streamed" })?;
                (layout, self.regions[region].bytes(place * stride_bytes, stride_bytes))
            }
            _ => (Layout::Gguf, shape.slice(shape.bytes(&self.model), slice)),
        };
        Ok(Matrix::new(shape.ty, layout, shape.rows, shape.cols, bytes)?)
    }

    /// A small weight's values; empty for others, which the program's verifier excludes.
    pub fn small(&self, weight: WeightId) -> &[f32] {
        match &self.stored[weight.index()] {
            Stored::Small(values) => values,
            Stored::SmallAt { region, len } => bytemuck::cast_slice(self.regions[*region].bytes(0, len * 4)),
            _ => &[],
        }
    }

    /// Type of a weight.
    pub fn ty(&self, weight: WeightId) -> WeightType {
        self.shapes[weight.index()].ty
    }

    /// Rows (outputs) and columns (inputs) of each matrix of a weight.
    pub fn dims(&self, weight: WeightId) -> (usize, usize) {
        let shape = &self.shapes[weight.index()];
        (shape.rows, shape.cols)
    }

    /// Type and dimensions of a weight.
    pub fn shape(&self, weight: WeightId) -> WeightShape {
        let Shape { ty, rows, cols, stack, .. } = self.shapes[weight.index()];
        WeightShape { ty, rows, cols, stack }
    }

    /// Matrix `slice` of a weight as the file has it.
    pub fn file_matrix(&self, weight: WeightId, slice: usize) -> &[u8] {
        let shape = &self.shapes[weight.index()];
        shape.slice(shape.bytes(&self.model), slice)
    }

    /// Packed matrices of a weight, in memory that copy engines read; `None` if it is used in the file's pages.
    pub fn span(&self, weight: WeightId) -> Option<HostSpan> {
        let Stored::Placed { region, offset_bytes, stride_bytes, .. } = self.stored[weight.index()] else {
            return None;
        };
        let Region::Host(region) = &self.regions[region] else { return None };
        let bytes = stride_bytes * self.shapes[weight.index()].stack;
        Some(HostSpan { region: Arc::clone(region), range: offset_bytes..offset_bytes + bytes })
    }

    /// The region that is to be pinned; `None` if nothing lies in it.
    pub fn pinned(&self) -> Option<&Arc<HostRegion>> {
        match self.regions.get(PINNED) {
            Some(Region::Host(region)) if !region.is_empty() => Some(region),
            _ => None,
        }
    }

    /// The same weights in other memory: large ones as `large` says, small ones at the start of a region. Others stay
    /// where they are.
    pub fn elsewhere(
        &self,
        regions: &[Arc<Shared>],
        large: impl Fn(WeightId) -> Option<Elsewhere>,
        small: impl Fn(WeightId) -> Option<usize>,
    ) -> Self {
        let own = self.regions.len();
        let others = regions.iter().map(|region| Region::Other(Arc::clone(region)));
        let regions = self.regions.iter().cloned().chain(others).collect();
        let place = |(index, stored): (usize, &Stored)| {
            let weight = WeightId(index as u32);
            if let Some(Elsewhere { region, layout, stride_bytes, table }) = large(weight) {
                let region = own + region;
                return match table {
                    None => Stored::Placed { region, layout, offset_bytes: 0, stride_bytes },
                    Some(table) => Stored::Scattered { region, layout, stride_bytes, table: own + table },
                };
            }
            match small(weight) {
                Some(region) => {
                    let shape = &self.shapes[index];
                    let len = shape.rows * shape.cols * shape.stack;
                    Stored::SmallAt { region: own + region, len }
                }
                None => stored.clone(),
            }
        };
        let stored = self.stored.iter().enumerate().map(place).collect();
        Self { model: Arc::clone(&self.model), stored, shapes: Arc::clone(&self.shapes), regions }
    }

    /// Bytes of the packed regions.
    pub fn packed_bytes(&self) -> usize {
        self.regions.iter().map(Region::len).sum()
    }

    /// The model that the weights come from.
    pub fn model(&self) -> &Model {
        &self.model
    }
}

impl Region {
    fn len(&self) -> usize {
        match self {
            Region::Host(region) => region.len(),
            Region::Other(region) => region.size_bytes(),
        }
    }

    fn bytes(&self, offset_bytes: usize, len: usize) -> &[u8] {
        match self {
            Region::Host(region) => &region.as_slice()[offset_bytes..offset_bytes + len],
            // SAFETY: an operator declares what it reads before it does, so nobody writes there meanwhile.
            Region::Other(region) => unsafe { region.slice(offset_bytes, len) },
        }
    }
}

/// Packs every placed matrix, in tasks of some panels on all cores.
fn pack_all(model: &Model, stored: &[Stored], shapes: &[Shape], sizes: [usize; 2]) -> Result<[HostRegion; 2], Error> {
    let mut regions = [HostRegion::new(sizes[PINNED])?, HostRegion::new(sizes[PAGEABLE])?];
    let mut tasks = Vec::new();
    for (stored, shape) in stored.iter().zip(shapes) {
        let Stored::Placed { region, offset_bytes, stride_bytes, .. } = *stored else { continue };
        let panel_bytes = packed_bytes(shape.ty, 1, shape.cols)?;
        for slice in 0..shape.stack {
            for first in (0..panels(shape.rows)).step_by(PACK_PANELS) {
                let panels = first..panels(shape.rows).min(first + PACK_PANELS);
                let offset_bytes = offset_bytes + slice * stride_bytes + first * panel_bytes;
                let bytes = panels.len() * panel_bytes;
                tasks.push(PackTask { shape, slice, panels, region, offset_bytes, bytes });
            }
        }
    }
    for (index, region) in regions.iter_mut().enumerate() {
        let own = tasks.iter().filter(|task| task.region == index);
        // Tasks come in the order of their targets.
        let (mut rest, mut at) = (region.as_mut_slice(), 0);
        let mut jobs = Vec::new();
        for task in own {
            let (target, tail) = rest[task.offset_bytes - at..].split_at_mut(task.bytes);
            jobs.push((task, target));
            (rest, at) = (tail, task.offset_bytes + task.bytes);
        }
        jobs.into_par_iter().try_for_each(|(task, target)| task.run(model, target))?;
    }
    Ok(regions)
}

impl PackTask<'_> {
    fn run(&self, model: &Model, target: &mut [u8]) -> Result<(), Error> {
        let Self { shape, slice, panels, .. } = self;
        let source = shape.slice(shape.bytes(model), *slice);
        Ok(pack_panels(shape.ty, source, shape.rows, shape.cols, panels.clone(), target)?)
    }
}

impl Shape {
    fn new(program: &Program, weight: &Weight) -> Result<Self, Error> {
        let all = &program.tensors[weight.tensor.index()];
        let held = weight.experts().map(|held| (experts_in(held).collect(), all.dims[weight.experts_dim()] as usize));
        let shape = Self::of_tensor(&program.held_by(weight))?;
        Ok(Self { size_bytes: all.size_bytes as usize, held, ..shape })
    }

    fn of_tensor(tensor: &Tensor) -> Result<Self, Error> {
        let ty = WeightType::try_from(GgmlType::from_id(tensor.ggml_type))
            .map_err(|_| Error::TensorType { tensor: tensor.name.clone(), ggml_type: tensor.ggml_type })?;
        let [cols, rows, stack, more] = tensor.dims.map(|dim| dim as usize);
        Ok(Self {
            ty,
            rows,
            cols,
            stack: stack * more,
            file: tensor.file as usize,
            offset_bytes: tensor.offset_bytes as usize,
            size_bytes: tensor.size_bytes as usize,
            held: None,
        })
    }

    /// Bytes from one packed matrix of the stack to the next.
    fn panel_stride(&self) -> Result<usize, Error> {
        Ok(packed_bytes(self.ty, self.rows, self.cols)?.next_multiple_of(64))
    }

    /// All bytes of the tensor in the mapping.
    fn bytes<'a>(&self, model: &'a Model) -> &'a [u8] {
        let file = model.file_bytes(self.file);
        file.get(self.offset_bytes..self.offset_bytes + self.size_bytes).unwrap_or(&[])
    }

    fn slice<'a>(&self, bytes: &'a [u8], slice: usize) -> &'a [u8] {
        let (slice, stack) = match &self.held {
            Some((held, all)) => (held[slice] as usize, *all),
            None => (slice, self.stack),
        };
        let size = bytes.len() / stack.max(1);
        &bytes[slice * size..(slice + 1) * size]
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<f32>, Error> {
        let mut values = vec![0.0; self.cols * self.rows * self.stack];
        match &self.held {
            None => dequantise_row(self.ty, bytes, &mut values)?,
            Some((held, _)) => values.chunks_exact_mut(self.cols).zip(0..held.len()).try_for_each(|(row, place)| {
                // Rows of biases are sliced like the matrices of a stack.
                dequantise_row(self.ty, self.slice(bytes, place), row)
            })?,
        }
        Ok(values)
    }
}
