//! The model's weights in memory, in the layout that the operators read.
//!
//! Matrices are packed once at load into one region (`Layout::Panel16`) by all cores; small vectors become F32;
//! embedding rows that no product reads stay in the file's mapping, and so does everything in exact mode.
//! Not here: where they live on a GPU. Next: `prepare.rs`.

use super::shared::Shared;
use crate::Error;
use gguf::{GgmlType, Model};
use kernels::cpu::matmul::{Layout, Matrix};
use kernels::quant::{WeightType, dequantise_row, pack_panels, packed_bytes, panels};
use plan_format::WeightId;
use plan_format::program::{Program, Tensor, WeightRole};
use rayon::prelude::*;

/// How products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 8-bit activations, packed weights.
    Fast,
    /// F32 activations on exactly dequantised weights, by the oracle kernels.
    Exact,
}

/// One weight.
#[derive(Debug)]
enum Stored {
    /// A stack of matrices in the packed region, `stride_bytes` apart.
    Packed { offset_bytes: usize, stride_bytes: usize },
    /// As in the file.
    Mapped,
    /// Decoded.
    Small(Vec<f32>),
}

/// All weights of a program. Holds the model's mapping open.
#[derive(Debug)]
pub struct WeightStore {
    model: Model,
    stored: Vec<Stored>,
    shapes: Vec<Shape>,
    packed: Shared,
}

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
}

/// Panels that a packing task takes at once.
const PACK_PANELS: usize = 64;

impl WeightStore {
    /// Loads what the program refers to. Errors: a tensor of a type that no kernel computes with.
    pub fn load(model: Model, program: &Program, precision: Precision) -> Result<Self, Error> {
        let shape = |weight: &plan_format::program::Weight| Shape::new(&program.tensors[weight.tensor.index()]);
        let shapes = program.weights.iter().map(shape).collect::<Result<Vec<_>, _>>()?;
        let mut packed_size = 0usize;
        let mut stored = Vec::with_capacity(shapes.len());
        for (weight, shape) in program.weights.iter().zip(&shapes) {
            stored.push(match (weight.role, precision) {
                (WeightRole::Small, _) => Stored::Small(shape.decode(shape.bytes(&model))?),
                (WeightRole::EmbeddingRows, _) | (_, Precision::Exact) => Stored::Mapped,
                (_, Precision::Fast) => {
                    let stride_bytes = packed_bytes(shape.ty, shape.rows, shape.cols)?.next_multiple_of(64);
                    let offset_bytes = packed_size;
                    packed_size += stride_bytes * shape.stack;
                    Stored::Packed { offset_bytes, stride_bytes }
                }
            });
        }
        let store = Self { model, stored, shapes, packed: Shared::new(packed_size) };
        store.pack_all()?;
        Ok(store)
    }

    /// Packs every matrix, in tasks of some panels on all cores.
    fn pack_all(&self) -> Result<(), Error> {
        let tasks = self.stored.iter().zip(&self.shapes).flat_map(|(stored, shape)| {
            let Stored::Packed { offset_bytes, stride_bytes } = *stored else { return Vec::new() };
            let firsts = (0..panels(shape.rows)).step_by(PACK_PANELS);
            let all = (0..shape.stack).flat_map(|slice| firsts.clone().map(move |first| (slice, first)));
            all.map(|(slice, first)| (shape, offset_bytes + slice * stride_bytes, slice, first)).collect()
        });
        let tasks: Vec<_> = tasks.collect();
        tasks.into_par_iter().try_for_each(|(shape, offset_bytes, slice, first)| {
            let last = panels(shape.rows).min(first + PACK_PANELS);
            let panel = packed_bytes(shape.ty, 1, shape.cols)?;
            let source = shape.slice(shape.bytes(&self.model), slice);
            // SAFETY: tasks write disjoint panel ranges, and nothing reads the region before all are done.
            let target = unsafe { self.packed.slice_mut(offset_bytes + first * panel, (last - first) * panel) };
            pack_panels(shape.ty, source, shape.rows, shape.cols, first..last, target).map_err(Error::from)
        })
    }

    /// Matrix `slice` of a weight's stack (0 for a plain matrix).
    pub fn matrix(&self, weight: WeightId, slice: usize) -> Result<Matrix<'_>, Error> {
        let shape = &self.shapes[weight.index()];
        let (layout, bytes) = match self.stored[weight.index()] {
            Stored::Packed { offset_bytes, stride_bytes } => {
                // SAFETY: the region is written only while it is packed, before the store is handed out.
                let bytes = unsafe { self.packed.slice(offset_bytes + slice * stride_bytes, stride_bytes) };
                (Layout::Panel16, bytes)
            }
            Stored::Mapped | Stored::Small(_) => (Layout::Gguf, shape.slice(shape.bytes(&self.model), slice)),
        };
        Ok(Matrix::new(shape.ty, layout, shape.rows, shape.cols, bytes)?)
    }

    /// A small weight's values; empty for others, which the program's verifier excludes.
    pub fn small(&self, weight: WeightId) -> &[f32] {
        match &self.stored[weight.index()] {
            Stored::Small(values) => values,
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

    /// Bytes of the packed region.
    pub fn packed_bytes(&self) -> usize {
        self.packed.size_bytes()
    }

    /// The model that the weights come from.
    pub fn model(&self) -> &Model {
        &self.model
    }
}

impl Shape {
    fn new(tensor: &Tensor) -> Result<Self, Error> {
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
        })
    }

    /// All bytes of the tensor in the mapping.
    fn bytes<'a>(&self, model: &'a Model) -> &'a [u8] {
        let file = model.file_bytes(self.file);
        file.get(self.offset_bytes..self.offset_bytes + self.size_bytes).unwrap_or(&[])
    }

    fn slice<'a>(&self, bytes: &'a [u8], slice: usize) -> &'a [u8] {
        let size = bytes.len() / self.stack.max(1);
        &bytes[slice * size..(slice + 1) * size]
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<f32>, Error> {
        let mut values = vec![0.0; self.cols * self.rows * self.stack];
        dequantise_row(self.ty, bytes, &mut values)?;
        Ok(values)
    }
}
