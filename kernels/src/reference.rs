//! Reads the reference blocks (raw blocks and their exact values) for tests.

use std::path::PathBuf;

use crate::quant::WeightType;

/// Raw blocks of a type and their 4096 values; `None` for the types that have no file.
pub(crate) fn blocks(ty: WeightType) -> Option<(Vec<u8>, Vec<f32>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/reference/blocks");
    let raw = std::fs::read(dir.join(format!("{ty}.bin"))).ok()?;
    let npy = std::fs::read(dir.join(format!("{ty}.f32.npy"))).expect("values beside the blocks");
    let header = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    Some((raw, npy[header..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
}
