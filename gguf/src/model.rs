//! A model on disk: its file or files, mapped and checked, seen as one set of keys and tensors.
//! Not here: the header's checks (`header.rs`). Next: `split.rs`, `write.rs`.
//!
//! The files are mapped, not read. A file that another process truncates or replaces in place while it is mapped
//! makes the operating system deliver SIGBUS at the next access to the lost pages: no library can turn that into an
//! error. Replace model files by renaming a new file over them, never by writing into them.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::GgufError;
use crate::header::{Index, TensorInfo, parse_index};
use crate::metadata::Metadata;
use crate::split;
use crate::value::{ArrayView, Value};

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// Its path, as it was opened.
    pub path: PathBuf,
    /// Its length.
    pub len_bytes: u64,
    /// Bytes of its header, before padding: everything but tensor data.
    pub header_bytes: u64,
    /// Where its data section starts.
    pub data_offset_bytes: u64,
}

/// A mapped model: one file, or all files of a split one. Can be shared between threads.
#[derive(Debug)]
pub struct Model {
    shards: Vec<Shard>,
    files: Vec<ModelFile>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

/// One mapped and parsed file.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    map: Mmap,
    index: Index,
}

impl Shard {
    pub(crate) fn open(path: &Path) -> Result<Self, GgufError> {
        let map = map_file(path)?;
        let index =
            parse_index(&map).map_err(|source| GgufError::InFile { path: path.into(), source: Box::new(source) })?;
        Ok(Shard { path: path.into(), map, index })
    }

    pub(crate) fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.map, &self.index.keys)
    }

    pub(crate) fn tensor_count(&self) -> usize {
        self.index.tensors.len()
    }

    fn file(&self) -> ModelFile {
        ModelFile {
            path: self.path.clone(),
            len_bytes: self.map.len() as u64,
            header_bytes: self.index.header_bytes,
            data_offset_bytes: self.index.data_offset_bytes,
        }
    }
}

fn map_file(path: &Path) -> Result<Mmap, GgufError> {
    let io = |source| GgufError::Io { path: path.into(), source };
    // Asked before opening, since opening a FIFO would wait for its writer.
    let kind = std::fs::metadata(path).map_err(io)?.file_type();
    if kind.is_dir() {
        return Err(GgufError::NotAFile { path: path.into(), what: "a directory" });
    }
    if !kind.is_file() {
        return Err(GgufError::NotAFile { path: path.into(), what: "a device, socket or pipe" });
    }
    let file = File::open(path).map_err(io)?;
    // SAFETY: the mapping is read-only and private to this value. The bytes are treated as untrusted: they may change
    // under us when another process writes the file, which the module's documentation states; no reference into them
    // is assumed to be valid UTF-8 or otherwise stable without being checked at use.
    unsafe { Mmap::map(&file) }.map_err(io)
}

macro_rules! delegate_getters {
    ($($name:ident $opt:ident $ty:ty;)*) => {$(
        #[doc = concat!("See [`Metadata::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// The key is missing or has another value.
        pub fn $name(&self, key: &str) -> Result<$ty, GgufError> {
            self.metadata().$name(key)
        }

        #[doc = concat!("See [`Metadata::", stringify!($opt), "`].")]
        ///
        /// # Errors
        /// The key has another value.
        pub fn $opt(&self, key: &str) -> Result<Option<$ty>, GgufError> {
            self.metadata().$opt(key)
        }
    )*};
}

impl Model {
    /// Opens a model by the path of its file, or of any file of a split one; the other parts must lie beside it.
    ///
    /// # Errors
    /// A file is missing, no regular file, no GGUF, damaged, or of another model than its siblings.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let shards = split::open_all(Shard::open(path)?)?;
        let files = shards.iter().map(Shard::file).collect();
        let mut tensors = Vec::new();
        for (file, shard) in shards.iter().enumerate() {
            tensors.extend(shard.index.tensors.iter().cloned().map(|t| TensorInfo { file, ..t }));
        }
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (i, tensor) in tensors.iter().enumerate() {
            if by_name.insert(tensor.name.clone(), i).is_some() {
                return Err(GgufError::DuplicateTensor { tensor: tensor.name.clone() });
            }
        }
        Ok(Model { shards, files, tensors, by_name })
    }

    /// The files, in the order of the split.
    pub fn files(&self) -> &[ModelFile] {
        &self.files
    }

    /// GGUF version of the first file.
    pub fn version(&self) -> u32 {
        self.shards.first().map_or(0, |s| s.index.version)
    }

    /// The whole mapped bytes of a file; empty if there is no such file.
    pub fn file_bytes(&self, file: usize) -> &[u8] {
        self.shards.get(file).map_or(&[], |s| &s.map)
    }

    /// The keys of the first file, which are the model's.
    pub fn metadata(&self) -> Metadata<'_> {
        // `open` makes at least one shard, so the index is always good.
        self.shards[0].metadata()
    }

    /// The value of a key, of whatever type.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.metadata().get(key)
    }

    delegate_getters! {
        u32 opt_u32 u32;
        u64 opt_u64 u64;
        i32 opt_i32 i32;
        f32 opt_f32 f32;
        bool opt_bool bool;
        str opt_str &str;
        array opt_array ArrayView<'_>;
    }

    /// See [`Metadata::u32_each`].
    ///
    /// # Errors
    /// The key is missing, of another type, or an array of another length.
    pub fn u32_each(&self, key: &str, len: usize) -> Result<Vec<u32>, GgufError> {
        self.metadata().u32_each(key, len)
    }

    /// See [`Metadata::opt_u32_each`].
    ///
    /// # Errors
    /// The key is of another type, or an array of another length.
    pub fn opt_u32_each(&self, key: &str, len: usize) -> Result<Option<Vec<u32>>, GgufError> {
        self.metadata().opt_u32_each(key, len)
    }

    /// All tensors, file by file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of a name, if there is one.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index(name).and_then(|i| self.tensors.get(i))
    }

    /// The tensor of a name.
    ///
    /// # Errors
    /// There is none.
    pub fn require_tensor(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        self.tensor(name).ok_or_else(|| GgufError::MissingTensor { tensor: name.to_owned() })
    }

    /// The index in [`Model::tensors`] of a name.
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// A tensor's data. Reading it may take SIGBUS if the file was truncated since; see the module's documentation.
    ///
    /// # Errors
    /// The type is unknown, or `tensor` is not of this model and does not lie in its files.
    pub fn bytes(&self, tensor: &TensorInfo) -> Result<&[u8], GgufError> {
        let size = tensor.size_bytes()?;
        if size == 0 {
            return Ok(&[]);
        }
        let file = self.file_bytes(tensor.file);
        let end_byte = tensor.file_offset_bytes.saturating_add(size);
        // Both fit a usize where they lie inside a mapping; where not, `get` finds nothing.
        let range = tensor.file_offset_bytes as usize..end_byte as usize;
        file.get(range).ok_or_else(|| GgufError::BeyondEnd {
            tensor: tensor.name.clone(),
            end_byte,
            len_bytes: file.len() as u64,
        })
    }
}
