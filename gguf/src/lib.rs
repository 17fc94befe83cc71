//! The GGUF container: bounds-checked zero-copy reader, splits, writer, block layouts.
//! It knows no model: keys and tensors are names with values and bytes. Next: `model.rs`, `header.rs`.
//!
//! **Invariant**: no input makes this crate panic, read out of bounds, or take memory out of proportion to the bytes
//! that are present.

mod cursor;
mod error;
mod header;
mod layout;
mod metadata;
mod model;
#[doc(hidden)]
pub mod oracle;
mod split;
mod types;
mod value;
pub mod write;

pub use error::GgufError;
pub use header::{DEFAULT_ALIGNMENT_BYTES, Header, TensorInfo, parse};
pub use metadata::Metadata;
pub use model::{Model, ModelFile};
pub use split::{KEY_SPLIT_COUNT, KEY_SPLIT_NO, KEY_SPLIT_TENSORS, shard_path};
pub use types::{GgmlType, SizeError};
pub use value::{ArrayView, MAX_ARRAY_DEPTH, Value, ValueType};
