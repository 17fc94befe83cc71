//! Damaged, foreign and hostile files: each is refused with an error that names what is wrong, and none panics.
//! Not here: good files (`real.rs`, `round_trip.rs`).

use gguf::write::FileSpec;
use gguf::{GgmlType, GgufError, Header, Model, parse};
use proptest::prelude::*;

/// A file's bytes put together by hand, so that they can be wrong.
#[derive(Clone, Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(n_tensors: u64, n_keys: u64) -> Self {
        Raw::default().bytes(b"GGUF").u32(3).u64(n_tensors).u64(n_keys)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, x: u32) -> Self {
        self.bytes(&x.to_le_bytes())
    }

    fn u64(self, x: u64) -> Self {
        self.bytes(&x.to_le_bytes())
    }

    fn string(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    /// One tensor table entry of name `t`.
    fn tensor(self, dims: &[u64], ty: u32, offset: u64) -> Self {
        self.named(b"t", dims, ty, offset)
    }

    fn named(self, name: &[u8], dims: &[u64], ty: u32, offset: u64) -> Self {
        let head = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(head, |raw, &d| raw.u64(d)).u32(ty).u64(offset)
    }

    /// The header padded to the default alignment, then `len` bytes of data.
    fn data(mut self, len: usize) -> Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + len, 7);
        self
    }
}

#[track_caller]
fn refused(raw: &Raw, words: &[&str]) {
    let message = parse(&raw.0).expect_err("must be refused").to_string();
    for word in words {
        assert!(message.contains(word), "`{word}` not in: {message}");
    }
}

#[track_caller]
fn accepted(raw: &Raw) -> Header<'_> {
    parse(&raw.0).expect("must be accepted")
}

fn small_file() -> Vec<u8> {
    let mut spec = FileSpec::new();
    spec.set("general.architecture", "toy")
        .set("toy.block_count", 3u32)
        .set("toy.eps", 1e-5f32)
        .set("toy.flags", vec![true, false])
        .set("tokenizer.ggml.tokens", vec!["a".to_owned(), "bc".to_owned(), String::new()])
        .set("toy.table", vec![1i32, -2, 3])
        .tensor("a.weight", &[32, 3], GgmlType::Q4_0)
        .tensor("b.weight", &[5], GgmlType::F32)
        .tensor("empty", &[0, 7], GgmlType::F32);
    let mut out = Vec::new();
    let write = spec.write_to(&mut out, |t, w| match t.name.as_str() {
        "a.weight" => w.write_all(&[1; 54]),
        "b.weight" => w.write_all(&[2; 20]),
        _ => Ok(()),
    });
    write.expect("writable");
    out
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = small_file();
    let header_bytes = parse(&whole).expect("whole").header_bytes() as usize;
    for len in 0..whole.len() {
        let result = parse(&whole[..len]);
        // The last tensor is followed by padding that nobody needs.
        let needed = whole.len() - 12;
        match len {
            0 => assert!(matches!(result, Err(GgufError::Empty))),
            _ if len < header_bytes => {
                assert!(
                    matches!(result, Err(GgufError::Truncated { .. } | GgufError::Count { .. })),
                    "{len}: {result:?}"
                );
            }
            _ if len < needed => assert!(matches!(result, Err(GgufError::BeyondEnd { .. })), "{len}: {result:?}"),
            _ => assert!(result.is_ok(), "{len}"),
        }
    }
}

#[test]
fn foreign_files_are_named() {
    let cases: [(&[u8], &str); 9] = [
        (b"GG", "truncated"),
        (b"GGUF\x01\0\0\0aaaaaaaaaaaaaaaa", "version 1"),
        (b"GGUF\x00\0\0\x03aaaaaaaaaaaaaaaa", "big-endian GGUF file (its version reads as 50331648)"),
        (b"GGUF\x00\0\0\0aaaaaaaaaaaaaaaa", "version 0 is not supported"),
        (b"GGUF\x04\0\0\0aaaaaaaaaaaaaaaa", "version 4 is not supported; versions 2 and 3 are"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"<!DOCTYPE html>", "web page"),
        (b"\x10\0\0\0\0\0\0\0{\"a\":1}", "safetensors"),
        (b"\x80\x02}q\0", "not a GGUF file: it begins with \"\\x80\\x02}q\""),
    ];
    for (bytes, words) in cases {
        refused(&Raw(bytes.to_vec()), &[words]);
    }
    let dir = tempfile::tempdir().expect("temporary folder");
    let error = Model::open(dir.path()).expect_err("a directory").to_string();
    assert!(error.contains("is a directory, not a model file"), "{error}");
    let error = Model::open(&dir.path().join("none.gguf")).expect_err("nothing there").to_string();
    assert!(error.contains("none.gguf"), "{error}");
    let error = Model::open("/dev/null".as_ref()).expect_err("a device").to_string();
    assert!(error.contains("is a device"), "{error}");
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, b"").expect("written");
    let error = Model::open(&empty).expect_err("empty").to_string();
    assert!(error.contains("empty.gguf: the file is empty"), "{error}");
}

#[test]
fn version_2_reads_as_version_3() {
    let mut bytes = small_file();
    let expected = parse(&bytes).expect("3").tensors().to_vec();
    bytes[4] = 2;
    let header = parse(&bytes).expect("2");
    assert_eq!((header.version(), header.tensors()), (2, &expected[..]));
}

#[test]
fn impossible_counts_and_lengths_are_refused_before_memory_is_taken() {
    refused(&Raw::new(0, 1 << 60).data(64), &["number of metadata keys", "1152921504606846976"]);
    refused(&Raw::new(1 << 60, 0).data(64), &["number of tensors"]);
    refused(&Raw::new(0, 1).u64(1 << 63).data(64), &["metadata key number 0", "truncated"]);
    refused(&Raw::new(0, 1).u64(u64::MAX).data(64), &["metadata key number 0"]);
    let array = |element: u32, len: u64| Raw::new(0, 1).string(b"k").u32(9).u32(element).u64(len).data(640);
    for element in [0, 4, 7, 8, 9, 10] {
        refused(&array(element, 1 << 40), &["`k`", "1099511627776"]);
        refused(&array(element, u64::MAX), &["`k`"]);
    }
    refused(&Raw::new(0, 1).string(b"k").u32(8).u64(1 << 63).data(64), &["`k`", "truncated"]);
    let deep = (0..10_000).fold(Raw::new(0, 1).string(b"k").u32(9), |raw, _| raw.u32(9).u64(1));
    refused(&deep, &["`k`", "nests arrays more than 8 deep"]);
}

#[test]
fn wrong_keys_and_values_are_named() {
    let key = |key: &[u8]| Raw::new(0, 1).string(key);
    refused(&key(b"k").u32(13).data(64), &["`k`", "value type 13"]);
    refused(&key(b"k").u32(7).bytes(&[2]).data(64), &["`k`", "truth value 2"]);
    refused(&key(b"k").u32(9).u32(7).u64(2).bytes(&[1, 9]).data(64), &["`k`", "truth value 9"]);
    refused(&key(b"\xff").u32(0).bytes(&[2]).data(64), &["metadata key number 0", "UTF-8"]);
    let twice = Raw::new(0, 2).string(b"k").u32(0).bytes(&[1]).string(b"k").u32(0).bytes(&[2]).data(64);
    refused(&twice, &["`k` stands twice"]);
    for bad in [0u32, 3, 48, 1 << 31] {
        refused(&key(b"general.alignment").u32(4).u32(bad).data(64), &["general.alignment", "power of two"]);
    }
    refused(&key(b"general.alignment").u32(8).string(b"32").data(64), &["general.alignment", "of type string"]);
}

#[test]
fn wrong_tensor_tables_are_named() {
    let one = |dims: &[u64], ty, offset| Raw::new(1, 0).tensor(dims, ty, offset).data(64);
    refused(&one(&[1 << 62, 4], 0, 0), &["`t`", "too large"]);
    refused(&one(&[u64::MAX, 2], 0, 0), &["`t`", "too large"]);
    refused(&one(&[u64::MAX], 24, 0), &["`t`", "too large"]);
    refused(&one(&[1 << 62, 4], 777, 0), &["`t`", "too large"]);
    refused(&one(&[1 << 32, 1 << 32, 1 << 32, 1 << 32], 0, 0), &["`t`", "too large"]);
    refused(&one(&[1, 1, 1, 1, 1], 0, 0), &["`t` has 5 dimensions; at most 4"]);
    refused(&Raw::new(1, 0).string(b"t").u32(u32::MAX).data(64), &["`t` has 4294967295 dimensions"]);
    refused(&one(&[33], 2, 0), &["`t`: rows of 33 values", "32, the block of Q4_0"]);
    refused(&one(&[17], 0, 0), &["`t` needs the file to have 132 bytes, it has 128"]);
    refused(&one(&[1], 0, 1 << 63), &["`t`", "truncated"]);
    refused(&one(&[1], 0, u64::MAX - 31), &["`t`", "truncated"]);
    refused(&one(&[1], 0, 8), &["`t` starts at byte 8", "alignment 32"]);
    let two = |a: &[u8], b: &[u8], at| Raw::new(2, 0).named(a, &[9], 0, 0).named(b, &[1], 0, at).data(64);
    refused(&two(b"t", b"t", 64), &["`t` stands twice"]);
    refused(&two(b"a", b"b", 0), &["overlap"]);
    refused(&two(b"a", b"b", 32), &["`a` and `b` overlap"]);
    refused(&two(b"a", b"\xff", 32), &["name of tensor number 1", "UTF-8"]);
}

#[test]
fn legal_oddities_are_accepted() {
    let one = |dims: &[u64], ty, offset| Raw::new(1, 0).tensor(dims, ty, offset).data(64);
    for dims in [&[4u64, 0][..], &[0], &[0, 1 << 62, 4], &[1 << 62, 4, 0]] {
        let raw = one(dims, 0, 0);
        let header = accepted(&raw);
        assert_eq!((header.tensors()[0].size_bytes().expect("known"), header.tensors()[0].elems()), (0, 0));
    }
    let scalar = one(&[], 0, 0);
    let header = accepted(&scalar);
    assert_eq!((header.tensors()[0].size_bytes().expect("known"), header.tensors()[0].shape().len()), (4, 0));
    let unknown = one(&[64, 2], 777, 0);
    let header = accepted(&unknown);
    assert_eq!((header.tensors()[0].ty, header.tensors()[0].elems()), (GgmlType::Unknown(777), 128));
    let error = header.tensors()[0].size_bytes().expect_err("unknown").to_string();
    assert!(error.contains("`t` has the unknown type 777"), "{error}");
    assert!(accepted(&Raw::new(0, 0)).tensors().is_empty());
}

proptest! {
    #[test]
    fn no_damage_makes_it_panic(damage in prop::collection::vec((0usize..700, any::<u8>()), 1..6)) {
        let mut bytes = small_file();
        let len = bytes.len();
        for (at, byte) in damage {
            bytes[at % len] = byte;
        }
        if let Ok(header) = parse(&bytes) {
            header.metadata().iter().for_each(|(_, value)| drop(value.to_string()));
            header.tensors().iter().for_each(|t| drop(t.size_bytes()));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(tail in prop::collection::vec(any::<u8>(), 0..200), n in 0u64..3, k in 0u64..3) {
        drop(parse(&Raw::new(n, k).bytes(&tail).0));
    }
}
