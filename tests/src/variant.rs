//! Reference models with other keys and tensors, for faults that only a changed model shows. Not here: models that say
//! what a script says (`scripted.rs`).

use gguf::write::{FileSpec, MetaValue, TensorSpec};
use gguf::{GgmlType, Model};
use std::path::Path;

/// A model's keys and tensors with their data, to be changed.
#[derive(Clone, Debug)]
pub struct Variant {
    keys: Vec<(String, MetaValue)>,
    tensors: Vec<(TensorSpec, Vec<u8>)>,
}

impl Variant {
    /// All of a model.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn of(path: &Path) -> Self {
        let model = Model::open(path).expect("a model");
        let keys = model.metadata().iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        let tensors = model.tensors().iter().map(|tensor| {
            let spec = TensorSpec { name: tensor.name.clone(), shape: tensor.shape().to_vec(), ty: tensor.ty };
            (spec, model.bytes(tensor).expect("inside").to_vec())
        });
        Variant { keys, tensors: tensors.collect() }
    }

    /// All of a reference model.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn tiny(name: &str) -> Self {
        Self::of(&fixtures::reference_dir().join(format!("tiny-{name}.gguf")))
    }

    /// Sets a key.
    pub fn key(mut self, key: &str, value: impl Into<MetaValue>) -> Self {
        self.keys.retain(|(known, _)| known != key);
        self.keys.push((key.to_owned(), value.into()));
        self
    }

    /// The type, shape and data of a tensor.
    ///
    /// # Panics
    /// When it is not there.
    #[track_caller]
    pub fn get(&self, name: &str) -> (GgmlType, &[u64], &[u8]) {
        let (spec, bytes) = self.tensors.iter().find(|(spec, _)| spec.name == name).expect(name);
        (spec.ty, &spec.shape, bytes)
    }

    /// Whether a tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.iter().any(|(spec, _)| spec.name == name)
    }

    /// The names of all tensors.
    pub fn names(&self) -> Vec<String> {
        self.tensors.iter().map(|(spec, _)| spec.name.clone()).collect()
    }

    /// Adds a tensor or replaces it.
    pub fn tensor(mut self, name: &str, (ty, shape, bytes): (GgmlType, &[u64], &[u8])) -> Self {
        self.tensors.retain(|(spec, _)| spec.name != name);
        self.tensors.push((TensorSpec { name: name.to_owned(), shape: shape.to_vec(), ty }, bytes.to_vec()));
        self
    }

    /// The same with numbers as data.
    pub fn floats(self, name: &str, shape: &[u64], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, (GgmlType::F32, shape, &bytes))
    }

    /// Takes away the tensors whose names begin so.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn without(mut self, prefix: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|(spec, _)| !spec.name.starts_with(prefix));
        assert!(self.tensors.len() < before, "no tensor begins with {prefix}");
        self
    }

    /// Repeats the tensors of block `from` as block `to`.
    pub fn repeat_block(mut self, from: u32, to: u32) -> Self {
        let (from, to) = (format!("blk.{from}."), format!("blk.{to}."));
        let repeated = self.tensors.iter().filter_map(|(spec, bytes)| {
            let name = format!("{to}{}", spec.name.strip_prefix(&from)?);
            Some((TensorSpec { name, ..spec.clone() }, bytes.clone()))
        });
        let repeated: Vec<_> = repeated.collect();
        self.tensors.extend(repeated);
        self
    }

    /// Writes the model.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, path: &Path) {
        let mut spec = FileSpec::new();
        for (key, value) in &self.keys {
            spec.set(key, value.clone());
        }
        for (tensor, _) in &self.tensors {
            spec.tensor(&tensor.name, &tensor.shape, tensor.ty);
        }
        let mut data = self.tensors.iter();
        let file = std::fs::File::create(path).expect("creates");
        let next = |_: &TensorSpec, out: &mut dyn std::io::Write| out.write_all(&data.next().expect("a tensor").1);
        spec.write_to(std::io::BufWriter::new(file), next).expect("writes");
    }
}
