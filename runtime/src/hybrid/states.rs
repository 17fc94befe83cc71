//! States of resident items between rounds: cleared, saved and put back through the driver, while no round runs.
//! Not here: which bytes make a snapshot (`exec/states.rs`). Next: `driver.rs`.

use super::memory::GpuMap;
use super::ops::GpuState;
use crate::Error;
use crate::exec::states::Piece;
use device::gpu::{DevicePtr, Gpu};

/// Reads a piece's bytes. Errors: the GPU is lost, the state is not there.
pub fn read(gpu: &dyn Gpu, map: &GpuMap, piece: &Piece, into: &mut [u8]) -> Result<(), Error> {
    Ok(gpu.download(into, find(map, piece)?)?)
}

fn find(map: &GpuMap, piece: &Piece) -> Result<DevicePtr, Error> {
    let found = map.state_bytes(piece.state, piece.region, &piece.bytes);
    found.ok_or(Error::Program { what: "a state that is neither on the host nor on the GPU" })
}

/// Writes a piece's bytes, and which positions its slots hold. Errors: as [`read`].
pub fn write(gpu: &dyn Gpu, map: &GpuMap, piece: &Piece, from: &[u8]) -> Result<(), Error> {
    let start = find(map, piece)?;
    gpu.upload(start, from)?;
    if let (Some(GpuState::Kv(kv)), Some(held)) = (&map.states[piece.state.index()], piece.slots) {
        let positions: Vec<u32> = (held.first_position..held.first_position + held.count).collect();
        gpu.upload(kv.slot_positions.offset(u64::from(held.first_slot) * 4), bytemuck::cast_slice(&positions))?;
    }
    Ok(())
}
