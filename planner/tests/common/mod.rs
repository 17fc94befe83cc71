//! Reference models, and copies of them with edited keys and tensors (headers only: their data is a hole).

#![allow(dead_code, reason = "each test program uses a part")]

use gguf::write::{FileSpec, MetaArray, MetaValue};
use gguf::{GgmlType, Model, Value};
use plan_format::program::Program;
use std::path::PathBuf;

/// A reference model by name.
pub fn open(name: &str) -> Model {
    Model::open(&path(name)).unwrap()
}

/// Its file.
pub fn path(name: &str) -> PathBuf {
    fixtures::reference_dir().join(format!("tiny-{name}.gguf"))
}

/// Its program.
pub fn lowered(name: &str) -> Program {
    planner::lower_model(&open(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The program of a model of the catalogue, from its header.
pub fn full_size(name: &str) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fixtures::catalog::model(name).and_then(|model| model.write_sparse(&path)).unwrap();
    planner::lower_model(&Model::open(&path).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A model's keys (but for the tokenizer) and tensors, to be changed.
pub struct Edit {
    keys: Vec<(String, MetaValue)>,
    tensors: Vec<(String, Vec<u64>, GgmlType)>,
}

impl Edit {
    /// All of a reference model.
    pub fn of(name: &str) -> Self {
        let model = open(name);
        let keys = model.metadata();
        let keys = keys.iter().filter(|(key, _)| !key.starts_with("tokenizer."));
        let keys = keys.map(|(key, value)| (key.to_owned(), owned(value))).collect();
        let tensors = model.tensors().iter().map(|t| (t.name.clone(), t.shape().to_vec(), t.ty)).collect();
        Edit { keys, tensors }
    }

    /// Sets a key.
    pub fn set(mut self, key: &str, value: impl Into<MetaValue>) -> Self {
        self.keys.retain(|(k, _)| k != key);
        self.keys.push((key.to_owned(), value.into()));
        self
    }

    /// Removes a key, which must be there.
    pub fn unset(mut self, key: &str) -> Self {
        let before = self.keys.len();
        self.keys.retain(|(k, _)| k != key);
        assert!(self.keys.len() < before, "{key}");
        self
    }

    /// Adds a tensor, or gives it another shape or type.
    pub fn tensor(mut self, name: &str, shape: &[u64], ty: GgmlType) -> Self {
        self.tensors.retain(|(n, ..)| n != name);
        self.tensors.push((name.to_owned(), shape.to_vec(), ty));
        self
    }

    /// Removes a tensor, which must be there.
    pub fn drop_tensor(mut self, name: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|(n, ..)| n != name);
        assert!(self.tensors.len() < before, "{name}");
        self
    }

    /// The edited model. The file is gone from its folder, its mapping stays.
    pub fn open(self) -> Model {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("edited.gguf");
        let mut spec = FileSpec::new();
        for (key, value) in self.keys {
            spec.set(&key, value);
        }
        for (name, shape, ty) in &self.tensors {
            spec.tensor(name, shape, *ty);
        }
        spec.layout().unwrap().write_sparse(&file).unwrap();
        Model::open(&file).unwrap()
    }
}

fn owned(value: Value<'_>) -> MetaValue {
    match value {
        Value::U32(x) => x.into(),
        Value::I32(x) => x.into(),
        Value::U64(x) => x.into(),
        Value::F32(x) => x.into(),
        Value::Bool(x) => x.into(),
        Value::Array(array) if array.element() == gguf::ValueType::Bool => {
            MetaValue::Array(MetaArray::Bool(array.iter_bool().unwrap().collect()))
        }
        Value::Array(array) if array.element() == gguf::ValueType::I32 => {
            MetaValue::Array(MetaArray::I32(array.iter_i32().unwrap().collect()))
        }
        Value::Array(array) if array.element() == gguf::ValueType::String => {
            MetaValue::Array(MetaArray::String(array.iter_str().unwrap().map(str::to_owned).collect()))
        }
        Value::Array(array) => MetaValue::Array(MetaArray::U32(array.iter_u32().unwrap().collect())),
        other => other.as_str().unwrap_or_else(|| panic!("{other:?}")).into(),
    }
}
