//! What can be wrong with a GGUF file, each error naming the place, the reason and what to do.
//! Not here: how the checks are made (`header.rs`, `model.rs`). Next: `types.rs`.

use std::path::PathBuf;

/// Any reason why a GGUF file, a key in it or a tensor of it was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file could not be opened, mapped or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file concerned.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The path is no regular file.
    #[error("{}: is {what}, not a model file; give the path of a .gguf file", path.display())]
    NotAFile {
        /// The path given.
        path: PathBuf,
        /// What it is instead, with its article.
        what: &'static str,
    },
    /// An error inside one file of a model.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file concerned.
        path: PathBuf,
        /// What is wrong in it.
        source: Box<GgufError>,
    },
    /// There are no bytes at all.
    #[error("the file is empty; fetch or copy it again")]
    Empty,
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it begins with {found}, not \"GGUF\"{hint}")]
    Magic {
        /// The first bytes, printable.
        found: String,
        /// What the file probably is, or nothing.
        hint: &'static str,
    },
    /// GGUF version 1, whose counts are 32 bits wide.
    #[error("GGUF version 1 (of 2023) is not supported; convert the model again with current tools")]
    VersionOne,
    /// A big-endian file: its version reads as a multiple of 65536.
    #[error(
        "this is a big-endian GGUF file (its version reads as {found}); convert it to little-endian with \
         gguf-py's gguf_convert_endian.py, or fetch the little-endian file"
    )]
    BigEndian {
        /// The version as read.
        found: u32,
    },
    /// Neither version 2 nor 3.
    #[error("GGUF version {found} is not supported; versions 2 and 3 are")]
    Version {
        /// The version as read.
        found: u32,
    },
    /// The bytes end inside the header.
    #[error(
        "the file ends at byte {len_bytes} inside its header, while reading {what} at byte {at_byte} \
         ({needed_bytes} bytes needed); it is truncated or damaged, fetch it again"
    )]
    Truncated {
        /// What was being read.
        what: String,
        /// Where.
        at_byte: u64,
        /// How many bytes it needs.
        needed_bytes: u64,
        /// How many bytes there are in all.
        len_bytes: u64,
    },
    /// A count so large that the bytes left cannot hold that many.
    #[error(
        "{what} is given as {count}, but the {left_bytes} bytes that follow hold at most {most}; \
         the file is truncated or damaged, fetch it again"
    )]
    Count {
        /// What is counted.
        what: String,
        /// The number in the file.
        count: u64,
        /// The number that could be there.
        most: u64,
        /// Bytes left after the count.
        left_bytes: u64,
    },
    /// A key or tensor name that is no UTF-8.
    #[error("{what} at byte {at_byte} is not valid UTF-8; the file is damaged")]
    NotUtf8 {
        /// What should have been text.
        what: String,
        /// Where it stands.
        at_byte: u64,
    },
    /// A metadata value type that does not exist.
    #[error("metadata key `{key}` has the value type {found}; types 0 to 12 exist")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type id in the file.
        found: u32,
    },
    /// A truth value other than 0 and 1.
    #[error("metadata key `{key}` holds the truth value {found}; 0 and 1 are accepted")]
    NotABool {
        /// The key.
        key: String,
        /// The byte in the file.
        found: u8,
    },
    /// Arrays of arrays beyond the limit.
    #[error("metadata key `{key}` nests arrays more than {most} deep; the file is damaged or hostile")]
    Nesting {
        /// The key.
        key: String,
        /// The limit.
        most: u32,
    },
    /// A key that stands twice in one file.
    #[error("metadata key `{key}` stands twice in the file; write the file again with each key once")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A key that the caller needs is not there.
    #[error("metadata key `{key}` is missing; expected {accepted}")]
    MissingKey {
        /// The key.
        key: String,
        /// What would be accepted.
        accepted: String,
    },
    /// A key has a value that the caller cannot use.
    #[error("metadata key `{key}` is {found}; expected {accepted}")]
    WrongValue {
        /// The key.
        key: String,
        /// What stands there.
        found: String,
        /// What would be accepted.
        accepted: String,
    },
    /// `general.alignment` is no power of two.
    #[error("metadata key `general.alignment` is {found}; expected a power of two from 1 to 2^30")]
    Alignment {
        /// The number in the file.
        found: u64,
    },
    /// A tensor with more dimensions than ggml has.
    #[error("tensor `{tensor}` has {found} dimensions; at most 4 are accepted")]
    TooManyDims {
        /// The tensor.
        tensor: String,
        /// Its number of dimensions.
        found: u32,
    },
    /// A tensor whose size does not fit 63 bits.
    #[error("tensor `{tensor}` with dimensions {dims:?} is too large for any file; the file is damaged or hostile")]
    TensorOverflow {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: [u64; 4],
    },
    /// Rows that are no whole number of blocks.
    #[error("tensor `{tensor}`: rows of {cols} values are not a multiple of {block_elems}, the block of {ty}")]
    RaggedRow {
        /// The tensor.
        tensor: String,
        /// Its row length.
        cols: u64,
        /// Values in a block.
        block_elems: u32,
        /// The type.
        ty: String,
    },
    /// A tensor type without a known block size.
    #[error("tensor `{tensor}` has the unknown type {type_id}; convert the model to a type that is known here")]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The type id in the file.
        type_id: u32,
    },
    /// A tensor name that occurs twice.
    #[error("tensor `{tensor}` stands twice in the model; write the file again with each tensor once")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that does not start on the file's alignment.
    #[error(
        "tensor `{tensor}` starts at byte {offset_bytes} of the data, no multiple of the alignment {alignment_bytes}"
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data section.
        offset_bytes: u64,
        /// The file's alignment.
        alignment_bytes: u64,
    },
    /// A tensor that reaches beyond the end of the file.
    #[error(
        "tensor `{tensor}` needs the file to have {end_byte} bytes, it has {len_bytes}; \
         the file is truncated (an unfinished download?), fetch it again"
    )]
    BeyondEnd {
        /// The tensor.
        tensor: String,
        /// The byte after its last, from the start of the file.
        end_byte: u64,
        /// The file's length.
        len_bytes: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors `{first}` and `{second}` overlap in the file; it is damaged or hostile")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
    },
    /// A tensor that the caller needs is not there.
    #[error("tensor `{tensor}` is missing from the model")]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// The model is split, but the file's name does not say which part it is.
    #[error(
        "{}: is part {number} of a model in {count} files, but its name does not end in \
         `-{number:05}-of-{count:05}.gguf`; give the files the names they were made with",
        path.display()
    )]
    SplitName {
        /// The file given.
        path: PathBuf,
        /// The part's number, from 1.
        number: u32,
        /// How many parts there are.
        count: u32,
    },
    /// A part of a split model is not there.
    #[error("{}: part {number} of {count} of the model is missing; put all parts into one folder", path.display())]
    MissingShard {
        /// The file looked for.
        path: PathBuf,
        /// The part's number, from 1.
        number: u32,
        /// How many parts there are.
        count: u32,
    },
    /// A part of a split model says something else than the others.
    #[error("{}: `{key}` is {found}, but this model needs {expected}; the parts are not of one model", path.display())]
    ShardMismatch {
        /// The part.
        path: PathBuf,
        /// The key that differs.
        key: &'static str,
        /// Its value, or that it is missing.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// What the writer was asked to write is no valid GGUF file.
    #[error("cannot write `{what}`: {why}")]
    Unwritable {
        /// The key or tensor.
        what: String,
        /// The reason.
        why: String,
    },
}
