//! The header of one file, from bytes alone: magic, version, keys, tensor table, and every check on them.
//! Not here: files, mappings and splits (`model.rs`). Next: `model.rs`.

use std::collections::HashMap;

use crate::cursor::Cursor;
use crate::error::GgufError;
use crate::metadata::{KeyIndex, Metadata};
use crate::types::{GgmlType, SizeError};

/// The alignment of tensor data where `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT_BYTES: u64 = 32;

/// The largest alignment accepted.
const MAX_ALIGNMENT_BYTES: u64 = 1 << 30;

/// One entry of a tensor table, with its place in the file made absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The tensor's name, unique in the model.
    pub name: String,
    /// Dimensions in ggml order (`dims[0]` contiguous), unused ones 1.
    pub dims: [u64; 4],
    /// How many dimensions the file gives (0 to 4).
    pub n_dims: u32,
    /// Element type.
    pub ty: GgmlType,
    /// Offset in the file's data section.
    pub offset_bytes: u64,
    /// Offset from the start of the file.
    pub file_offset_bytes: u64,
    /// Which of the model's files holds it (0 for a single file).
    pub file: usize,
    /// Size of the data; `None` for unknown types.
    pub(crate) size_bytes: Option<u64>,
}

impl TensorInfo {
    /// Size of the data.
    ///
    /// # Errors
    /// The type is unknown.
    pub fn size_bytes(&self) -> Result<u64, GgufError> {
        let unknown = || GgufError::UnknownType { tensor: self.name.clone(), type_id: self.ty.id() };
        self.size_bytes.ok_or_else(unknown)
    }

    /// Number of values; 0 if a dimension is 0. It fits, or the table would have been refused.
    pub fn elems(&self) -> u64 {
        self.dims.iter().fold(1, |n: u64, &d| n.saturating_mul(d))
    }

    /// The dimensions that the file gives.
    pub fn shape(&self) -> &[u64] {
        &self.dims[..(self.n_dims as usize).min(4)]
    }
}

/// The parsed part of a header that owns no bytes.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) version: u32,
    pub(crate) keys: KeyIndex,
    pub(crate) alignment_bytes: u64,
    pub(crate) header_bytes: u64,
    pub(crate) data_offset_bytes: u64,
    pub(crate) tensors: Vec<TensorInfo>,
}

/// A checked header over the bytes that it was parsed from.
#[derive(Debug)]
pub struct Header<'a> {
    bytes: &'a [u8],
    index: Index,
}

impl Header<'_> {
    /// GGUF version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.index.version
    }

    /// The keys and their values.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(self.bytes, &self.index.keys)
    }

    /// Alignment of tensor data.
    pub fn alignment_bytes(&self) -> u64 {
        self.index.alignment_bytes
    }

    /// Bytes of magic, counts, keys and tensor table, before padding.
    pub fn header_bytes(&self) -> u64 {
        self.index.header_bytes
    }

    /// Where the data section starts.
    pub fn data_offset_bytes(&self) -> u64 {
        self.index.data_offset_bytes
    }

    /// The tensor table, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.index.tensors
    }
}

/// Parses and checks the header of a whole file in memory (or mapped). Touches no tensor data.
///
/// # Errors
/// Anything that is wrong with the header, or tensors that do not lie in `bytes`.
pub fn parse(bytes: &[u8]) -> Result<Header<'_>, GgufError> {
    Ok(Header { bytes, index: parse_index(bytes)? })
}

pub(crate) fn parse_index(bytes: &[u8]) -> Result<Index, GgufError> {
    let mut cursor = Cursor::new(bytes, 0);
    let version = read_version(&mut cursor)?;
    let n_tensors = cursor.u64(|| "the number of tensors".to_owned())?;
    let n_keys = cursor.u64(|| "the number of metadata keys".to_owned())?;
    let keys = KeyIndex::parse(&mut cursor, n_keys)?;
    let alignment_bytes = read_alignment(Metadata::new(bytes, &keys))?;
    let mut tensors = read_tensors(&mut cursor, n_tensors)?;
    let header_bytes = cursor.at() as u64;
    // Neither addition can overflow: a slice is shorter than 2^63, the alignment at most 2^30.
    let data_offset_bytes = header_bytes.next_multiple_of(alignment_bytes);
    place(&mut tensors, data_offset_bytes, alignment_bytes, bytes.len() as u64)?;
    check_overlap(&tensors)?;
    Ok(Index { version, keys, alignment_bytes, header_bytes, data_offset_bytes, tensors })
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    if cursor.left() == 0 {
        return Err(GgufError::Empty);
    }
    let mut start = cursor.clone();
    let first = start.take(start.left().min(16), String::new)?;
    if !first.starts_with(&b"GGUF"[..first.len().min(4)]) {
        return Err(GgufError::Magic { found: printable(&first[..first.len().min(4)]), hint: foreign_hint(first) });
    }
    cursor.take(4, || "the magic number".to_owned())?;
    match cursor.u32(|| "the version".to_owned())? {
        version @ (2 | 3) => Ok(version),
        1 => Err(GgufError::VersionOne),
        found if found != 0 && found & 0xffff == 0 => Err(GgufError::BigEndian { found }),
        found => Err(GgufError::Version { found }),
    }
}

fn printable(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

/// What people most often take for a GGUF file, told by its first bytes.
fn foreign_hint(first: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 7] = [
        (b"FUGG", "; this is a GGUF file of swapped bytes, fetch the little-endian file"),
        (b"version https:", "; this is a Git LFS pointer, fetch the file itself with `git lfs pull`"),
        (b"<", "; this looks like a web page, the download went wrong"),
        (b"PK", "; this is a zip archive (a PyTorch checkpoint?), convert the model to GGUF"),
        (b"lmgg", "; this is a GGML file of before 2023, convert the model again"),
        (b"tjgg", "; this is a GGJT file of before 2023, convert the model again"),
        (b"fmgg", "; this is a GGMF file of before 2023, convert the model again"),
    ];
    if first.get(8) == Some(&b'{') {
        return "; this looks like a safetensors file, convert the model to GGUF";
    }
    KNOWN.iter().find(|(magic, _)| first.starts_with(magic)).map_or("", |(_, hint)| hint)
}

fn read_alignment(metadata: Metadata<'_>) -> Result<u64, GgufError> {
    let Some(found) = metadata.opt_u64("general.alignment")? else { return Ok(DEFAULT_ALIGNMENT_BYTES) };
    if !found.is_power_of_two() || found > MAX_ALIGNMENT_BYTES {
        return Err(GgufError::Alignment { found });
    }
    Ok(found)
}

fn read_tensors(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorInfo>, GgufError> {
    // An entry is at least: name length 8, dimension count 4, type 4, offset 8.
    cursor.check_count(count, 24, || "the number of tensors".to_owned())?;
    let mut tensors = Vec::new();
    for i in 0..count {
        tensors.push(read_tensor(cursor, i)?);
    }
    let mut seen = HashMap::with_capacity(tensors.len());
    for tensor in &tensors {
        if seen.insert(tensor.name.as_str(), ()).is_some() {
            return Err(GgufError::DuplicateTensor { tensor: tensor.name.clone() });
        }
    }
    Ok(tensors)
}

fn read_tensor(cursor: &mut Cursor<'_>, number: u64) -> Result<TensorInfo, GgufError> {
    let raw = cursor.string(|| format!("the name of tensor number {number}"))?;
    let at_byte = (cursor.at() - raw.len()) as u64;
    let name = std::str::from_utf8(raw)
        .map_err(|_| GgufError::NotUtf8 { what: format!("the name of tensor number {number}"), at_byte })?
        .to_owned();
    let what = || format!("the table entry of tensor `{name}`");
    let n_dims = cursor.u32(what)?;
    if n_dims > 4 {
        return Err(GgufError::TooManyDims { tensor: name, found: n_dims });
    }
    let mut dims = [1; 4];
    for dim in &mut dims[..n_dims as usize] {
        *dim = cursor.u64(what)?;
    }
    let ty = GgmlType::from_id(cursor.u32(what)?);
    let offset_bytes = cursor.u64(what)?;
    let size_bytes = tensor_size(&name, ty, dims)?;
    Ok(TensorInfo { name, dims, n_dims, ty, offset_bytes, file_offset_bytes: 0, file: 0, size_bytes })
}

/// The size in bytes; `None` for unknown types, whose element count must be sane all the same.
fn tensor_size(name: &str, ty: GgmlType, dims: [u64; 4]) -> Result<Option<u64>, GgufError> {
    let overflow = || GgufError::TensorOverflow { tensor: name.to_owned(), dims };
    let elems = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).filter(|&n| n <= i64::MAX as u64);
    if elems.is_none() && !dims.contains(&0) {
        return Err(overflow());
    }
    match ty.tensor_bytes(dims) {
        Ok(size) => Ok(Some(size)),
        Err(SizeError::UnknownType(_)) => Ok(None),
        Err(SizeError::Overflow(_)) => Err(overflow()),
        Err(SizeError::RaggedRow { cols, block_elems, ty }) => {
            Err(GgufError::RaggedRow { tensor: name.to_owned(), cols, block_elems, ty: ty.to_string() })
        }
    }
}

/// Makes offsets absolute and refuses tensors that are misaligned or not wholly in the file.
fn place(tensors: &mut [TensorInfo], data: u64, alignment_bytes: u64, len_bytes: u64) -> Result<(), GgufError> {
    for tensor in tensors {
        let offset_bytes = tensor.offset_bytes;
        if !offset_bytes.is_multiple_of(alignment_bytes) {
            return Err(GgufError::Misaligned { tensor: tensor.name.clone(), offset_bytes, alignment_bytes });
        }
        let size = tensor.size_bytes.unwrap_or(0);
        let start = data.saturating_add(offset_bytes);
        let end_byte = start.saturating_add(size);
        // A tensor without values has no byte that could lie beyond the end.
        if end_byte > len_bytes && tensor.size_bytes != Some(0) {
            return Err(GgufError::BeyondEnd { tensor: tensor.name.clone(), end_byte, len_bytes });
        }
        tensor.file_offset_bytes = start;
    }
    Ok(())
}

/// Refuses tensors that share bytes. A tensor of unknown size must not start inside another.
fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut sorted: Vec<&TensorInfo> = tensors.iter().filter(|t| t.size_bytes != Some(0)).collect();
    sorted.sort_by_key(|t| (t.offset_bytes, t.size_bytes));
    for pair in sorted.windows(2) {
        let end = pair[0].offset_bytes.saturating_add(pair[0].size_bytes.unwrap_or(1));
        if pair[1].offset_bytes < end {
            return Err(GgufError::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() });
        }
    }
    Ok(())
}
