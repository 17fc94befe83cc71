//! Keys and tensors of the model under lowering, each checked when asked for: a key against what is accepted, a tensor
//! against the shape that the keys imply and the types that kernels read. It remembers which tensors were used.
//! Next: `common/mod.rs`.

use super::LowerError;
use gguf::{GgmlType, Model, TensorInfo};
use plan_format::program::Tensor;
use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Types of matrices that every backend's kernels read.
const MATRIX_TYPES: &[GgmlType] = &[
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
];

/// Types of small vectors, which are widened to F32 at load.
const SMALL_TYPES: &[GgmlType] = &[GgmlType::F32, GgmlType::F16, GgmlType::BF16];

/// Most blocks of a model.
pub const MAX_BLOCKS: u32 = 4096;

/// What a tensor is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Multiplied or looked up.
    Matrix,
    /// A vector or filter.
    Small,
}

/// Keys and tensors of one model.
#[derive(Debug)]
pub struct Source<'m> {
    model: &'m Model,
    architecture: &'m str,
    used: RefCell<Vec<bool>>,
}

impl<'m> Source<'m> {
    /// All of a model; `architecture` is the prefix of its keys.
    pub fn new(model: &'m Model, architecture: &'m str) -> Self {
        Source { model, architecture, used: RefCell::new(vec![false; model.tensors().len()]) }
    }

    /// Full name of a key of the family.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Whether a key of the family is there.
    pub fn has_key(&self, name: &str) -> bool {
        self.model.get(&self.key(name)).is_some()
    }

    /// A required number within `range`.
    pub fn u32(&self, name: &str, range: RangeInclusive<u32>) -> Result<u32, LowerError> {
        self.in_range(name, self.model.u32(&self.key(name))?, range)
    }

    /// An optional number within `range`.
    pub fn opt_u32(&self, name: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, LowerError> {
        let found = self.model.opt_u32(&self.key(name))?;
        found.map(|value| self.in_range(name, value, range)).transpose()
    }

    fn in_range(&self, name: &str, value: u32, range: RangeInclusive<u32>) -> Result<u32, LowerError> {
        if range.contains(&value) {
            return Ok(value);
        }
        Err(self.refuse(name, value, format!("a number from {} to {}", range.start(), range.end())))
    }

    /// A required number that is the same for all layers: one number, or an array of equal ones, one per block.
    pub fn u32_of_all(&self, name: &str, range: RangeInclusive<u32>) -> Result<u32, LowerError> {
        let blocks = self.u32("block_count", 1..=MAX_BLOCKS)?;
        let each = self.model.u32_each(&self.key(name), blocks as usize)?;
        // There is one block or more, so the array has a first element.
        let first = each.first().copied().unwrap_or_default();
        if each.iter().any(|&value| value != first) {
            return Err(self.refuse(name, format!("{each:?}"), "one number for all layers"));
        }
        self.in_range(name, first, range)
    }

    /// A required positive number.
    pub fn positive(&self, name: &str) -> Result<f32, LowerError> {
        self.require_positive(name, self.model.f32(&self.key(name))?)
    }

    /// An optional positive number.
    pub fn opt_positive(&self, name: &str) -> Result<Option<f32>, LowerError> {
        self.opt_f32(name)?.map(|value| self.require_positive(name, value)).transpose()
    }

    /// An optional finite number.
    pub fn opt_f32(&self, name: &str) -> Result<Option<f32>, LowerError> {
        match self.model.opt_f32(&self.key(name))? {
            Some(value) if !value.is_finite() => Err(self.refuse(name, value, "a finite number")),
            found => Ok(found),
        }
    }

    fn require_positive(&self, name: &str, value: f32) -> Result<f32, LowerError> {
        if value.is_finite() && value > 0.0 { Ok(value) } else { Err(self.refuse(name, value, "a positive number")) }
    }

    /// An optional text.
    pub fn opt_str(&self, name: &str) -> Result<Option<&'m str>, LowerError> {
        Ok(self.model.opt_str(&self.key(name))?)
    }

    /// An optional truth value.
    pub fn opt_bool(&self, name: &str) -> Result<Option<bool>, LowerError> {
        Ok(self.model.opt_bool(&self.key(name))?)
    }

    /// A truth value per layer: from an array as [`Source::flags`] reads it, or from a period n, of which the last
    /// layer is false; `None` if the key is absent.
    pub fn pattern(&self, name: &str, layers: u32) -> Result<Option<Vec<bool>>, LowerError> {
        match self.model.get(&self.key(name)) {
            Some(value) if value.as_array().is_none() => {
                Ok(Some(all_but_last_of(self.u32(name, 1..=u32::MAX)?, layers)))
            }
            _ => self.flags(name, layers),
        }
    }

    /// A truth value per layer, from an array of at least `layers` of them (more are those of skipped blocks); `None`
    /// if the key is absent.
    pub fn flags(&self, name: &str, layers: u32) -> Result<Option<Vec<bool>>, LowerError> {
        let Some(array) = self.model.opt_array(&self.key(name))? else { return Ok(None) };
        let flags: Vec<bool> = array.iter_bool()?.take(layers as usize).collect();
        match flags.len() == layers as usize {
            true => Ok(Some(flags)),
            false => Err(self.refuse(name, format!("{} values", flags.len()), format!("{layers} or more of them"))),
        }
    }

    /// Numbers of a required array of exactly `len`.
    pub fn numbers(&self, name: &str, len: usize) -> Result<Vec<u32>, LowerError> {
        let numbers: Vec<u32> = self.model.array(&self.key(name))?.iter_u32()?.collect();
        match numbers.len() == len {
            true => Ok(numbers),
            false => Err(self.refuse(name, format!("{numbers:?}"), format!("{len} numbers"))),
        }
    }

    /// An error that names a key of the family, its value and what would be accepted.
    pub fn refuse(&self, name: &str, found: impl Display, accepted: impl Display) -> LowerError {
        LowerError::Key { key: self.key(name), found: found.to_string(), accepted: accepted.to_string() }
    }

    /// Whether a tensor is in the file.
    pub fn has(&self, name: &str) -> bool {
        self.model.tensor_index(name).is_some()
    }

    /// A tensor as it lies in the file, whatever its shape; nothing counts as used by this.
    pub fn peek(&self, name: &str) -> Result<&'m TensorInfo, LowerError> {
        Ok(self.model.require_tensor(name)?)
    }

    /// A required tensor of an expected shape, given without trailing ones.
    pub fn tensor(&self, name: &str, shape: &[u32], usage: Use) -> Result<Tensor, LowerError> {
        let info = self.peek(name)?;
        check_shape(info, shape)?;
        check_type(info, usage)?;
        if let Some(index) = self.model.tensor_index(name) {
            self.used.borrow_mut()[index] = true;
        }
        Ok(Tensor {
            name: info.name.clone(),
            file: u16::try_from(info.file).unwrap_or(u16::MAX),
            offset_bytes: info.file_offset_bytes,
            size_bytes: info.size_bytes()?,
            ggml_type: info.ty.id(),
            dims: info.dims,
        })
    }

    /// A tensor that may be absent.
    pub fn opt_tensor(&self, name: &str, shape: &[u32], usage: Use) -> Result<Option<Tensor>, LowerError> {
        if self.has(name) { self.tensor(name, shape, usage).map(Some) } else { Ok(None) }
    }

    /// Refuses tensors that nothing used, except those of blocks from `layers` on (draft heads).
    pub fn all_used(&self, layers: u32) -> Result<(), LowerError> {
        let used = self.used.borrow();
        let unused = self
            .model
            .tensors()
            .iter()
            .zip(used.iter())
            .filter(|(tensor, used)| !**used && block_of(&tensor.name).is_none_or(|block| block < layers));
        let names: Vec<&str> = unused.map(|(tensor, _)| tensor.name.as_str()).collect();
        match names.as_slice() {
            [] => Ok(()),
            [first, rest @ ..] => Err(LowerError::UnusedTensor {
                tensor: (*first).to_owned(),
                others: if rest.is_empty() { String::new() } else { format!(" (and {} more)", rest.len()) },
                family: self.architecture.to_owned(),
            }),
        }
    }
}

/// True for every layer but the last of each `period`.
pub fn all_but_last_of(period: u32, layers: u32) -> Vec<bool> {
    (0..layers).map(|layer| (layer + 1) % period != 0).collect()
}

/// The number in `blk.N.…`.
fn block_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

fn check_shape(info: &TensorInfo, shape: &[u32]) -> Result<(), LowerError> {
    let mut expected = [1; 4];
    for (dim, &size) in expected.iter_mut().zip(shape) {
        *dim = u64::from(size);
    }
    if info.dims == expected {
        return Ok(());
    }
    Err(LowerError::Shape {
        tensor: info.name.clone(),
        found: info.shape().to_vec(),
        expected: shape.iter().map(|&d| u64::from(d)).collect(),
    })
}

fn check_type(info: &TensorInfo, usage: Use) -> Result<(), LowerError> {
    let accepted = match usage {
        Use::Matrix => MATRIX_TYPES,
        Use::Small => SMALL_TYPES,
    };
    if accepted.contains(&info.ty) {
        return Ok(());
    }
    Err(LowerError::Type {
        tensor: info.name.clone(),
        found: info.ty.to_string(),
        accepted: accepted.iter().map(|ty| ty.name()).collect::<Vec<_>>().join(" "),
    })
}
