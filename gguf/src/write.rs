//! The writer: keys and a tensor table in, the header's bytes and every tensor's place out, then files.
//! Tensor data is streamed or left as a hole, so files of any size need no memory. Not here: what the data is.
//! Next: `layout.rs`.

use std::collections::HashSet;

use crate::error::GgufError;
use crate::header::DEFAULT_ALIGNMENT_BYTES;
use crate::split::{KEY_SPLIT_COUNT, KEY_SPLIT_NO, KEY_SPLIT_TENSORS};
use crate::types::GgmlType;
use crate::value::{ArrayView, Value, ValueType};

/// A metadata value to be written.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say all")]
pub enum MetaValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(MetaArray),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array to be written.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names say all")]
pub enum MetaArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<MetaArray>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

macro_rules! from_rust {
    ($($ty:ty => $variant:ident)*) => {$(
        impl From<$ty> for MetaValue {
            fn from(value: $ty) -> Self {
                MetaValue::$variant(value)
            }
        }

        impl From<Vec<$ty>> for MetaValue {
            fn from(values: Vec<$ty>) -> Self {
                MetaValue::Array(MetaArray::$variant(values))
            }
        }
    )*};
}

from_rust! {
    u8 => U8 i8 => I8 u16 => U16 i16 => I16 u32 => U32 i32 => I32 f32 => F32 bool => Bool String => String
    u64 => U64 i64 => I64 f64 => F64
}

impl From<&str> for MetaValue {
    fn from(text: &str) -> Self {
        MetaValue::String(text.to_owned())
    }
}

macro_rules! from_read {
    ($($variant:ident)*) => {
        /// What was read, to be written again. Bytes of strings that are no UTF-8 are replaced.
        impl From<Value<'_>> for MetaValue {
            fn from(value: Value<'_>) -> Self {
                match value {
                    $(Value::$variant(x) => MetaValue::$variant(x),)*
                    Value::String(bytes) => MetaValue::String(text(bytes)),
                    Value::Array(view) => MetaValue::Array(view.into()),
                }
            }
        }

        impl From<ArrayView<'_>> for MetaArray {
            fn from(view: ArrayView<'_>) -> Self {
                macro_rules! each {
                    ($from:ident, $to:expr) => {
                        view.iter().filter_map(|x| if let Value::$from(x) = x { Some($to(x)) } else { None }).collect()
                    };
                }
                match view.element() {
                    $(ValueType::$variant => MetaArray::$variant(each!($variant, std::convert::identity)),)*
                    ValueType::String => MetaArray::String(each!(String, text)),
                    ValueType::Array => MetaArray::Array(each!(Array, MetaArray::from)),
                }
            }
        }
    };
}

from_read! { U8 I8 U16 I16 U32 I32 F32 Bool U64 I64 F64 }

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

macro_rules! encode_numbers {
    ($out:expr, $value:expr, $enum:ident { $($variant:ident)* }, $one:ident) => {
        match $value {
            $($enum::$variant(x) => $one!($out, x, ValueType::$variant),)*
            $enum::Bool(x) => $one!(bool $out, x),
            $enum::String(x) => $one!(string $out, x),
            $enum::Array(x) => $one!(array $out, x),
        }
    };
}

macro_rules! encode_one {
    (bool $out:expr, $x:expr) => {{
        put_u32($out, ValueType::Bool.id());
        $out.push(u8::from(*$x));
    }};
    (string $out:expr, $x:expr) => {{
        put_u32($out, ValueType::String.id());
        put_string($out, $x);
    }};
    (array $out:expr, $x:expr) => {{
        put_u32($out, ValueType::Array.id());
        encode_array($out, $x);
    }};
    ($out:expr, $x:expr, $ty:expr) => {{
        put_u32($out, $ty.id());
        $out.extend_from_slice(&$x.to_le_bytes());
    }};
}

macro_rules! encode_many {
    (bool $out:expr, $xs:expr) => {{
        put_u32($out, ValueType::Bool.id());
        put_u64($out, $xs.len() as u64);
        $out.extend($xs.iter().map(|&x| u8::from(x)));
    }};
    (string $out:expr, $xs:expr) => {{
        put_u32($out, ValueType::String.id());
        put_u64($out, $xs.len() as u64);
        $xs.iter().for_each(|x| put_string($out, x));
    }};
    (array $out:expr, $xs:expr) => {{
        put_u32($out, ValueType::Array.id());
        put_u64($out, $xs.len() as u64);
        $xs.iter().for_each(|x| encode_array($out, x));
    }};
    ($out:expr, $xs:expr, $ty:expr) => {{
        put_u32($out, $ty.id());
        put_u64($out, $xs.len() as u64);
        $xs.iter().for_each(|x| $out.extend_from_slice(&x.to_le_bytes()));
    }};
}

fn encode_value(out: &mut Vec<u8>, value: &MetaValue) {
    encode_numbers!(out, value, MetaValue { U8 I8 U16 I16 U32 I32 F32 U64 I64 F64 }, encode_one);
}

fn encode_array(out: &mut Vec<u8>, array: &MetaArray) {
    encode_numbers!(out, array, MetaArray { U8 I8 U16 I16 U32 I32 F32 U64 I64 F64 }, encode_many);
}

fn put_u32(out: &mut Vec<u8>, x: u32) {
    out.extend_from_slice(&x.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, x: u64) {
    out.extend_from_slice(&x.to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    put_u64(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// A tensor to be written: its name, type, and dimensions in ggml order (`shape[0]` contiguous).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name.
    pub name: String,
    /// Up to four dimensions.
    pub shape: Vec<u64>,
    /// Element type.
    pub ty: GgmlType,
}

/// What a file is to contain: keys and tensors, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct FileSpec {
    /// GGUF version: 3, or 2 (whose layout is the same).
    pub version: u32,
    metadata: Vec<(String, MetaValue)>,
    tensors: Vec<TensorSpec>,
}

impl Default for FileSpec {
    fn default() -> Self {
        FileSpec { version: 3, metadata: Vec::new(), tensors: Vec::new() }
    }
}

impl FileSpec {
    /// An empty file of version 3.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key: a new one goes to the end, one that is there keeps its place. `general.alignment` (u32) is obeyed.
    pub fn set(&mut self, key: &str, value: impl Into<MetaValue>) -> &mut Self {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, name: &str, shape: &[u64], ty: GgmlType) -> &mut Self {
        self.tensors.push(TensorSpec { name: name.to_owned(), shape: shape.to_vec(), ty });
        self
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// The keys, in order.
    pub fn metadata(&self) -> &[(String, MetaValue)] {
        &self.metadata
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Lays the file out: the header's bytes, and where each tensor goes.
    ///
    /// # Errors
    /// Anything that no reader would accept: a tensor that stands twice, of unknown type, of ragged rows, and so on.
    pub fn layout(&self) -> Result<Layout, GgufError> {
        let alignment_bytes = self.alignment()?;
        let tensors = self.place(alignment_bytes)?;
        let mut header = Vec::new();
        header.extend_from_slice(b"GGUF");
        put_u32(&mut header, self.version);
        put_u64(&mut header, self.tensors.len() as u64);
        put_u64(&mut header, self.metadata.len() as u64);
        for (key, value) in &self.metadata {
            put_string(&mut header, key);
            encode_value(&mut header, value);
        }
        for (spec, placed) in self.tensors.iter().zip(&tensors) {
            put_string(&mut header, &spec.name);
            put_u32(&mut header, spec.shape.len() as u32);
            spec.shape.iter().for_each(|&d| put_u64(&mut header, d));
            put_u32(&mut header, spec.ty.id());
            put_u64(&mut header, placed.offset_bytes);
        }
        let data_offset_bytes = (header.len() as u64).next_multiple_of(alignment_bytes);
        header.resize(data_offset_bytes as usize, 0);
        let data_bytes = tensors.last().map_or(0, |t| t.offset_bytes + t.size_bytes).next_multiple_of(alignment_bytes);
        Ok(Layout { header, tensors, file_bytes: data_offset_bytes + data_bytes })
    }

    fn alignment(&self) -> Result<u64, GgufError> {
        match self.get("general.alignment") {
            None => Ok(DEFAULT_ALIGNMENT_BYTES),
            Some(&MetaValue::U32(n)) if n.is_power_of_two() && n <= 1 << 30 => Ok(n.into()),
            Some(other) => {
                Err(unwritable("general.alignment", &format!("{other:?} is no u32 power of two up to 2^30")))
            }
        }
    }

    fn place(&self, alignment_bytes: u64) -> Result<Vec<Placed>, GgufError> {
        let mut names = HashSet::new();
        let mut next = 0u64;
        let mut placed = Vec::with_capacity(self.tensors.len());
        for spec in &self.tensors {
            if !names.insert(spec.name.as_str()) {
                return Err(GgufError::DuplicateTensor { tensor: spec.name.clone() });
            }
            let mut dims = [1; 4];
            let Some(used) = dims.get_mut(..spec.shape.len()) else {
                return Err(GgufError::TooManyDims { tensor: spec.name.clone(), found: spec.shape.len() as u32 });
            };
            used.copy_from_slice(&spec.shape);
            let size_bytes = spec.ty.tensor_bytes(dims).map_err(|e| unwritable(&spec.name, &e.to_string()))?;
            placed.push(Placed { offset_bytes: next, size_bytes });
            let end = next.checked_add(size_bytes).and_then(|n| n.checked_next_multiple_of(alignment_bytes));
            next = end.filter(|&n| n <= i64::MAX as u64 >> 1).ok_or_else(|| unwritable(&spec.name, "too large"))?;
        }
        Ok(placed)
    }

    /// Cuts the file into parts of at most `most_bytes` of tensor data (one tensor at least), with the keys that
    /// readers want; the first part has all other keys.
    ///
    /// # Errors
    /// A tensor is not writable, or there would be more than 65535 parts.
    pub fn split(&self, most_bytes: u64) -> Result<Vec<FileSpec>, GgufError> {
        let sizes = self.place(self.alignment()?)?;
        let mut groups: Vec<Vec<TensorSpec>> = vec![Vec::new()];
        let mut filled = 0u64;
        for (spec, placed) in self.tensors.iter().zip(&sizes) {
            filled = filled.saturating_add(placed.size_bytes);
            if filled > most_bytes && groups.last().is_some_and(|g| !g.is_empty()) {
                groups.push(Vec::new());
                filled = placed.size_bytes;
            }
            groups.last_mut().into_iter().for_each(|g| g.push(spec.clone()));
        }
        let count = u16::try_from(groups.len()).map_err(|_| unwritable(KEY_SPLIT_COUNT, "more than 65535 parts"))?;
        Ok((0..count).zip(groups).map(|(no, group)| self.part(no, count, group)).collect())
    }

    fn part(&self, no: u16, count: u16, tensors: Vec<TensorSpec>) -> FileSpec {
        let metadata = match no {
            0 => self.metadata.clone(),
            _ => self.metadata.iter().filter(|(key, _)| key == "general.alignment").cloned().collect(),
        };
        let mut part = FileSpec { version: self.version, metadata, tensors };
        part.set(KEY_SPLIT_NO, no).set(KEY_SPLIT_COUNT, count).set(KEY_SPLIT_TENSORS, self.tensors.len() as i32);
        part
    }
}

fn unwritable(what: &str, why: &str) -> GgufError {
    GgufError::Unwritable { what: what.to_owned(), why: why.to_owned() }
}

/// Where a tensor goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Offset in the data section.
    pub offset_bytes: u64,
    /// Size of the data, without padding.
    pub size_bytes: u64,
}

/// A file laid out and ready to be written; see `layout.rs` for the ways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub(crate) header: Vec<u8>,
    pub(crate) tensors: Vec<Placed>,
    pub(crate) file_bytes: u64,
}
