//! What must hold of any bytes given as a plan: for the fuzz target and the test that replays its corpus.
//! This file asserts, so it is no part of reading a plan.

use crate::container::{ENTRY_BYTES, HEADER_BYTES};
use crate::sections::{from_bytes, to_bytes};

/// Reads the bytes as they are, and again with the checksums made right, so that damage reaches the decoders.
///
/// # Panics
/// Something was accepted that cannot be written and read again.
pub fn check_plan(bytes: &[u8]) {
    for file in [bytes.to_vec(), with_right_checksums(bytes)] {
        let Ok(plan) = from_bytes(&file) else { continue };
        let written = to_bytes(&plan);
        assert!(written.is_ok(), "a plan that was read cannot be written: {written:?}");
        let again = written.and_then(|file| from_bytes(&file));
        assert_eq!(again, Ok(plan), "a plan is another one after writing and reading");
    }
}

/// The file with the checksums of header, table and sections recomputed where they can be.
fn with_right_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut file = bytes.to_vec();
    if file.len() < HEADER_BYTES {
        return file;
    }
    let sections = number(&file, 24, 4).min(64);
    let table_end = HEADER_BYTES + sections * ENTRY_BYTES;
    if file.len() >= table_end {
        for entry in (HEADER_BYTES..table_end).step_by(ENTRY_BYTES) {
            let (begin, length) = (number(&file, entry + 16, 8), number(&file, entry + 24, 8));
            let content = begin.checked_add(length).and_then(|end| file.get(begin..end));
            if let Some(crc) = content.map(crc32fast::hash) {
                file[entry + 12..entry + 16].copy_from_slice(&crc.to_le_bytes());
            }
        }
        let crc = crc32fast::hash(&file[HEADER_BYTES..table_end]);
        file[28..32].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32fast::hash(&file[..HEADER_BYTES - 4]);
    file[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    file
}

fn number(bytes: &[u8], at: usize, length: usize) -> usize {
    bytes[at..at + length].iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte))
}
