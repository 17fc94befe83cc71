//! What the writer writes, the reader reads: values of every type, splits, holes, and types' sizes.
//! Not here: damaged files (`damage.rs`).

use std::path::Path;

use gguf::write::{FileSpec, MetaArray, MetaValue};
use gguf::{GgmlType, Model, Value, parse, shard_path};
use proptest::prelude::*;

/// As text, since numbers that are none equal nothing.
fn same(read: &Value<'_>, written: &MetaValue) -> bool {
    format!("{:?}", MetaValue::from(*read)) == format!("{written:?}")
}

fn any_array() -> impl Strategy<Value = MetaArray> {
    let leaf = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..5).prop_map(MetaArray::U8),
        prop::collection::vec(any::<i16>(), 0..5).prop_map(MetaArray::I16),
        prop::collection::vec(any::<u32>(), 0..5).prop_map(MetaArray::U32),
        prop::collection::vec(any::<f32>(), 0..5).prop_map(MetaArray::F32),
        prop::collection::vec(any::<bool>(), 0..5).prop_map(MetaArray::Bool),
        prop::collection::vec(any::<String>(), 0..5).prop_map(MetaArray::String),
        prop::collection::vec(any::<i64>(), 0..5).prop_map(MetaArray::I64),
        prop::collection::vec(any::<f64>(), 0..5).prop_map(MetaArray::F64),
    ];
    leaf.prop_recursive(6, 24, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(same_kind))
}

/// An array of arrays; GGUF lets the inner ones differ in type.
fn same_kind(arrays: Vec<MetaArray>) -> MetaArray {
    MetaArray::Array(arrays)
}

fn any_value() -> impl Strategy<Value = MetaValue> {
    prop_oneof![
        any::<u8>().prop_map(MetaValue::U8),
        any::<i8>().prop_map(MetaValue::I8),
        any::<u16>().prop_map(MetaValue::U16),
        any::<i16>().prop_map(MetaValue::I16),
        any::<u32>().prop_map(MetaValue::U32),
        any::<i32>().prop_map(MetaValue::I32),
        any::<f32>().prop_map(MetaValue::F32),
        any::<bool>().prop_map(MetaValue::Bool),
        any::<String>().prop_map(MetaValue::String),
        any::<u64>().prop_map(MetaValue::U64),
        any::<i64>().prop_map(MetaValue::I64),
        any::<f64>().prop_map(MetaValue::F64),
        any_array().prop_map(MetaValue::Array),
    ]
}

proptest! {
    #[test]
    fn values_of_every_type_come_back(
        values in prop::collection::vec(any_value(), 0..12),
        sizes in prop::collection::vec((0u64..4, 0u64..3), 0..6),
    ) {
        let mut spec = FileSpec::new();
        for (i, value) in values.iter().enumerate() {
            spec.set(&format!("key.{i}"), value.clone());
        }
        for (i, &(blocks, rows)) in sizes.iter().enumerate() {
            spec.tensor(&format!("t.{i}"), &[blocks * 32, rows], GgmlType::Q8_0);
        }
        let mut bytes = Vec::new();
        let filling = |name: &str, shape: &[u64]| vec![name.as_bytes()[2]; (shape[0] / 32 * 34 * shape[1]) as usize];
        spec.write_to(&mut bytes, |t, w| w.write_all(&filling(&t.name, &t.shape))).expect("writable");
        prop_assert_eq!(bytes.len() as u64, spec.layout().expect("writable").file_bytes());
        let header = parse(&bytes).expect("readable");
        prop_assert_eq!(header.metadata().len(), values.len());
        for ((_, read), written) in header.metadata().iter().zip(&values) {
            prop_assert!(same(&read, written), "{:?} {:?}", read, written);
        }
        for (tensor, i) in header.tensors().iter().zip(0u8..) {
            let at = tensor.file_offset_bytes as usize;
            let data = &bytes[at..at + tensor.size_bytes().expect("known") as usize];
            prop_assert!(data.iter().all(|&b| b == b'0' + i));
        }
    }
}

fn split_spec() -> FileSpec {
    let mut spec = FileSpec::new();
    spec.set("general.architecture", "toy").set("general.alignment", 64u32);
    for i in 0..5 {
        spec.tensor(&format!("t.{i}"), &[100], GgmlType::F32);
    }
    spec
}

fn write_split(dir: &Path) -> Vec<std::path::PathBuf> {
    let parts = split_spec().split(900).expect("splits");
    let count = parts.len() as u32;
    let write = |(part, number): (&FileSpec, u32)| {
        let path = shard_path(&dir.join("my.model"), number, count);
        let fill = |t: &gguf::write::TensorSpec, w: &mut dyn std::io::Write| w.write_all(&[t.name.as_bytes()[2]; 400]);
        part.write_file(&path, fill).expect("written");
        path
    };
    parts.iter().zip(1..).map(write).collect()
}

#[test]
fn a_split_model_opens_by_any_of_its_parts() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let paths = write_split(dir.path());
    assert_eq!(paths.len(), 3);
    assert!(paths[2].ends_with("my.model-00003-of-00003.gguf"));
    for path in &paths {
        let model = Model::open(path).expect("opens");
        assert_eq!(model.files().iter().map(|f| f.path.clone()).collect::<Vec<_>>(), paths);
        assert_eq!(model.str("general.architecture").expect("in the first part"), "toy");
        let files: Vec<usize> = model.tensors().iter().map(|t| t.file).collect();
        assert_eq!(files, [0, 0, 1, 1, 2]);
        for (i, tensor) in model.tensors().iter().enumerate() {
            assert_eq!(model.bytes(tensor).expect("there"), [b'0' + i as u8; 400]);
            assert_eq!(tensor.file_offset_bytes % 64, 0);
        }
        assert_eq!(model.tensor_index("t.4"), Some(4));
    }
}

#[test]
fn a_split_model_with_wrong_parts_is_refused() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let paths = write_split(dir.path());
    let error = |path: &Path| Model::open(path).expect_err("refused").to_string();
    let alone = dir.path().join("alone.gguf");
    std::fs::copy(&paths[1], &alone).expect("copied");
    let message = error(&alone);
    assert!(message.contains("part 2 of a model in 3 files") && message.contains("-00002-of-00003.gguf"), "{message}");
    let kept = std::fs::read(&paths[2]).expect("read");
    std::fs::copy(&paths[1], &paths[2]).expect("copied");
    let message = error(&paths[0]);
    assert!(message.contains("00003-of-00003.gguf: `split.no` is 1, but this model needs 2"), "{message}");
    std::fs::write(&paths[2], &kept[..kept.len() - 200]).expect("written");
    let message = error(&paths[0]);
    assert!(message.contains("00003-of-00003.gguf: tensor `t.4`") && message.contains("truncated"), "{message}");
    std::fs::remove_file(&paths[2]).expect("removed");
    let message = error(&paths[0]);
    assert!(message.contains("part 3 of 3 of the model is missing"), "{message}");
}

#[test]
fn a_split_with_a_missing_or_repeated_tensor_is_refused() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let part = |no: u16, names: &[&str]| {
        let mut spec = FileSpec::new();
        spec.set("split.no", no).set("split.count", 2u16).set("split.tensors.count", 3i32);
        for name in names {
            spec.tensor(name, &[8], GgmlType::F32);
        }
        let path = shard_path(&dir.path().join("m"), u32::from(no) + 1, 2);
        spec.write_file(&path, |_, w| w.write_all(&[0; 32])).expect("written");
        path
    };
    let first = part(0, &["a", "b"]);
    part(1, &["b"]);
    let message = Model::open(&first).expect_err("repeated").to_string();
    assert!(message.contains("tensor `b` stands twice"), "{message}");
    part(1, &["c", "d"]);
    let message = Model::open(&first).expect_err("one too many").to_string();
    assert!(message.contains("`split.tensors.count` is 3, but this model needs 4"), "{message}");
}

#[test]
fn a_sparse_file_has_its_full_length_and_reads_as_zeros() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("sparse.gguf");
    let mut spec = FileSpec::new();
    spec.tensor("big", &[1 << 20, 1 << 14], GgmlType::F16);
    let layout = spec.layout().expect("lays out");
    drop(layout.write_sparse(&path).expect("written"));
    let model = Model::open(&path).expect("opens");
    assert_eq!(model.files()[0].len_bytes, layout.file_bytes());
    let data = model.bytes(&model.tensors()[0]).expect("there");
    assert_eq!((data.len(), data[data.len() - 1]), (1 << 35, 0));
}

#[test]
fn the_writer_refuses_what_no_reader_would_take() {
    let layout = |f: &dyn Fn(&mut FileSpec)| {
        let mut spec = FileSpec::new();
        f(&mut spec);
        spec.layout().expect_err("refused").to_string()
    };
    assert!(layout(&|s| _ = s.tensor("t", &[1], GgmlType::Unknown(99))).contains("`t`"));
    assert!(layout(&|s| _ = s.tensor("t", &[31], GgmlType::Q8_0)).contains("31"));
    assert!(layout(&|s| _ = s.tensor("t", &[1; 5], GgmlType::F32)).contains("5 dimensions"));
    assert!(layout(&|s| _ = s.set("general.alignment", 33u32)).contains("general.alignment"));
    let twice = |s: &mut FileSpec| _ = s.tensor("t", &[1], GgmlType::F32).tensor("t", &[1], GgmlType::F32);
    assert!(layout(&twice).contains("twice"));
    let mut spec = FileSpec::new();
    spec.tensor("t", &[4], GgmlType::F32);
    let dir = tempfile::tempdir().expect("temporary folder");
    let error = spec.write_file(&dir.path().join("t.gguf"), |_, w| w.write_all(&[0; 15])).expect_err("short");
    assert!(error.to_string().contains("15 bytes, its shape and type need 16"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0, "nothing is left behind");
}

#[test]
fn sizes_of_types_are_ggmls() {
    assert_eq!(GgmlType::Q4_K.row_bytes(4096).expect("whole"), 2304);
    assert_eq!(GgmlType::Q6_K.tensor_bytes([5120, 151_936, 1, 1]).expect("whole"), 638_131_200);
    assert_eq!(GgmlType::MXFP4.tensor_bytes([2880, 2880, 32, 1]).expect("whole"), 141_004_800);
    assert_eq!(GgmlType::F32.row_bytes(0).expect("empty"), 0);
    assert!(GgmlType::Q4_K.row_bytes(255).is_err() && GgmlType::Unknown(5).row_bytes(0).is_err());
    for &ty in GgmlType::KNOWN {
        assert_eq!(GgmlType::from_id(ty.id()), ty);
        assert_eq!(GgmlType::from_name(&ty.name().to_lowercase()), Some(ty));
        let bits = 8.0 * f64::from(ty.block_bytes().expect("known")) / f64::from(ty.block_elems().expect("known"));
        assert!((1.0..=64.0).contains(&bits), "{ty}: {bits} bits per weight");
    }
    assert_eq!(GgmlType::from_id(31), GgmlType::Unknown(31));
}
