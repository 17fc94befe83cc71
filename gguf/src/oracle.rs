//! What must hold of everything that the parser accepts: for the fuzz target and the test that replays its corpus.
//! Not here: the checks themselves (`header.rs`). This file asserts, so it is no part of reading a model.

use std::io::Write as _;

use crate::header::{TensorInfo, parse};
use crate::value::Value;

/// Parses any bytes; walks and checks what was accepted.
///
/// # Panics
/// The parser accepted something that it should have refused.
pub fn check_parse(bytes: &[u8]) {
    let Ok(header) = parse(bytes) else { return };
    assert!(header.header_bytes() <= bytes.len() as u64);
    assert!(header.data_offset_bytes().is_multiple_of(header.alignment_bytes()));
    let metadata = header.metadata();
    assert_eq!(metadata.iter().count(), metadata.len());
    for (key, value) in metadata.iter() {
        assert!(metadata.get(key).is_some());
        walk(value);
    }
    header.tensors().iter().for_each(|t| check_tensor(t, bytes.len() as u64));
    check_disjoint(header.tensors());
}

/// Visits every element by every getter that may take it; none may panic.
fn walk(value: Value<'_>) {
    let mut sink = std::io::sink();
    // Writing to a sink cannot fail.
    write!(sink, "{value}").unwrap_or_default();
    let Some(array) = value.as_array() else { return };
    assert_eq!(array.iter().count(), array.len());
    array.iter().for_each(walk);
    for count in [
        array.iter_u32().map(Iterator::count),
        array.iter_i32().map(Iterator::count),
        array.iter_f32().map(Iterator::count),
        array.iter_bool().map(Iterator::count),
        array.iter_str().map(Iterator::count),
        array.iter_bytes().map(Iterator::count),
    ] {
        assert!(count.is_err() || count.is_ok_and(|n| n == array.len()));
    }
}

fn check_tensor(tensor: &TensorInfo, len_bytes: u64) {
    assert!(tensor.n_dims <= 4);
    match tensor.size_bytes() {
        Ok(0) => {}
        Ok(size) => assert!(tensor.file_offset_bytes.checked_add(size).is_some_and(|end| end <= len_bytes)),
        Err(_) => assert!(tensor.file_offset_bytes <= len_bytes && tensor.ty.block().is_none()),
    }
}

/// No byte belongs to two tensors, checked pair by pair where there are few.
fn check_disjoint(tensors: &[TensorInfo]) {
    let range = |t: &TensorInfo| t.size_bytes().map_or(0..0, |n| t.file_offset_bytes..t.file_offset_bytes + n);
    for (i, a) in tensors.iter().take(64).enumerate() {
        for b in tensors.iter().take(i) {
            let (a_bytes, b_bytes) = (range(a), range(b));
            let apart = a_bytes.end <= b_bytes.start || b_bytes.end <= a_bytes.start;
            assert!(apart || a_bytes.is_empty() || b_bytes.is_empty(), "{} and {} overlap", a.name, b.name);
            assert!(a.name != b.name);
        }
    }
}
