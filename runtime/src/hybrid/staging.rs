//! The staging area behind the slots, and the pieces in which streamed weights pass through its parts.
//! Not here: the order between copies and unpacking (`device::timeline`). Next: `routed.rs`.

use super::ops::{Arrival, GpuWeight, OpMaker};
use crate::Error;
use device::clock::Nanos;
use device::gpu::{CopySource, DevicePtr, HostSpan, Launch, LaunchArgs};
use device::memory::HostRegion;
use device::timeline::{self, FillStep, STAGING_PARTS, StagingPart};
use kernels::quant::packed_bytes;
use std::ops::Range;
use std::sync::Arc;

/// Alignment of a part.
const ALIGNMENT_BYTES: u64 = 256;

/// The area, cut into parts of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingArea {
    start: DevicePtr,
    part_bytes: u64,
    parts: usize,
}

/// Which part is next: each has been left longest when its turn comes.
#[derive(Debug)]
pub struct PartCycle {
    next: usize,
    parts: usize,
}

/// A piece of a matrix: bytes of it, where they arrive, and what unpacks them.
#[derive(Clone)]
pub struct Unpacker {
    /// Bytes of the matrix on the host.
    pub bytes: Range<usize>,
    part: StagingPart,
    to: DevicePtr,
    unpack: Launch,
}

impl StagingArea {
    /// An area of so many bytes for pieces of at least `panel_bytes`: one part where two would not hold them.
    pub fn new(start: DevicePtr, bytes: u64, panel_bytes: u64) -> StagingArea {
        let part_bytes = bytes / STAGING_PARTS as u64 / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
        match part_bytes >= panel_bytes {
            true => StagingArea { start, part_bytes, parts: STAGING_PARTS },
            false => StagingArea { start, part_bytes: bytes, parts: 1 },
        }
    }

    /// Parts in turn, from the first on.
    pub fn cycle(&self) -> PartCycle {
        PartCycle { next: 0, parts: self.parts }
    }

    /// The pieces in which a matrix goes through the area to place `slice` of its slot.
    /// Errors: a type without unpacking kernel, an area that does not hold a panel.
    pub fn unpackers(
        &self,
        maker: &dyn OpMaker,
        place: &GpuWeight,
        slice: usize,
        cycle: &mut PartCycle,
    ) -> Result<Vec<Unpacker>, Error> {
        let panel_bytes = packed_bytes(place.shape.ty, 1, place.shape.cols)?;
        let panels_at_once = self.part_bytes as usize / panel_bytes;
        if panels_at_once == 0 {
            return Err(Error::Program { what: "a staging area smaller than a panel of weights" });
        }
        let panels = place.shape.rows.div_ceil(16);
        let piece = |first: usize| {
            let last = panels.min(first + panels_at_once);
            let rows = (first as u32 * 16, (last * 16).min(place.shape.rows) as u32);
            let to: DevicePtr = place.start.offset(slice as u64 * place.stride_bytes);
            let part = cycle.take();
            let from = self.start.offset(part.0 as u64 * self.part_bytes);
            let op = maker.unpack(&Arrival { shape: place.shape, rows, from, to })?;
            let unpack = Launch { op, args: LaunchArgs::default(), expected: Nanos(0) };
            Ok(Unpacker { bytes: first * panel_bytes..last * panel_bytes, part, to: from, unpack })
        };
        (0..panels).step_by(panels_at_once).map(piece).collect()
    }
}

impl PartCycle {
    fn take(&mut self) -> StagingPart {
        let part = self.next;
        self.next = (part + 1) % self.parts.max(1);
        StagingPart(part)
    }
}

impl Unpacker {
    /// The step that brings the piece of a matrix which begins at byte `start` of a region.
    pub fn step(&self, region: &Arc<HostRegion>, start: usize) -> FillStep {
        let range = start + self.bytes.start..start + self.bytes.end;
        let from = CopySource::Span(HostSpan { region: Arc::clone(region), range });
        FillStep::Unpack(timeline::Arrival { part: self.part, to: self.to, from, unpack: self.unpack.clone() })
    }
}
