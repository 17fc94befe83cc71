//! Streamed weights through the staging area: the copy engine brings pieces to its parts in turn, and a kernel on a
//! stream of its own writes each to its slot while the next piece comes. So the link never waits for a kernel.
//!
//! The rule of this file: a part is refilled only when the kernel that reads it is done. Not here: slots and their
//! readers (`timeline.rs`).

use crate::DeviceError;
use crate::gpu::{CopySource, DevicePtr, EventId, Gpu, Launch, StreamId};

/// Parts of the staging area: one is filled while the other is unpacked.
pub const STAGING_PARTS: usize = 2;

/// A part of the staging area, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StagingPart(pub usize);

/// A step of filling a slot.
#[derive(Clone)]
pub enum FillStep {
    /// The copy engine brings bytes to their place in the slot.
    Copy(DevicePtr, CopySource),
    /// The copy engine brings bytes to a part of the staging area, and an operator writes them to their place.
    Unpack(Arrival),
}

/// A piece that is unpacked.
#[derive(Clone)]
pub struct Arrival {
    /// Which part it comes to. Pieces that follow each other take different ones, else the link waits.
    pub part: StagingPart,
    /// The part's first byte.
    pub to: DevicePtr,
    /// What comes.
    pub from: CopySource,
    /// What writes it to the slot.
    pub unpack: Launch,
}

/// The two streams that fill slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes {
    /// Copies.
    pub(super) transfer: StreamId,
    /// Unpacking.
    pub(super) unpack: StreamId,
}

#[derive(Debug)]
struct Part {
    copied: EventId,
    unpacked: EventId,
    /// An operator that reads the part is queued, and later copies do not wait for it yet.
    is_read: bool,
}

/// The parts with the events that order their use.
#[derive(Debug)]
pub(super) struct Staging {
    parts: Vec<Part>,
    /// After copies that need no unpacking.
    copied: EventId,
}

impl Staging {
    pub(super) fn new(gpu: &dyn Gpu) -> Result<Self, DeviceError> {
        let part = |_| Ok(Part { copied: gpu.new_event()?, unpacked: gpu.new_event()?, is_read: false });
        let parts = (0..STAGING_PARTS).map(part).collect::<Result<_, DeviceError>>()?;
        Ok(Self { parts, copied: gpu.new_event()? })
    }

    /// Queues steps.
    pub(super) fn queue(&mut self, gpu: &dyn Gpu, lanes: Lanes, steps: &[FillStep]) -> Result<(), DeviceError> {
        steps.iter().try_for_each(|step| match step {
            FillStep::Copy(to, from) => gpu.copy_to_gpu(lanes.transfer, *to, from),
            FillStep::Unpack(arrival) => self.arrive(gpu, lanes, arrival),
        })
    }

    fn arrive(&mut self, gpu: &dyn Gpu, lanes: Lanes, arrival: &Arrival) -> Result<(), DeviceError> {
        let number = arrival.part.0;
        let part = self.parts.get_mut(number).ok_or_else(|| no_part(number))?;
        if std::mem::take(&mut part.is_read) {
            gpu.wait_event(lanes.transfer, part.unpacked)?;
        }
        gpu.copy_to_gpu(lanes.transfer, arrival.to, &arrival.from)?;
        gpu.record(lanes.transfer, part.copied)?;
        gpu.wait_event(lanes.unpack, part.copied)?;
        gpu.launch(lanes.unpack, &arrival.unpack)?;
        gpu.record(lanes.unpack, part.unpacked)?;
        part.is_read = true;
        Ok(())
    }

    /// Copies queued from now on wait for all unpacking so far.
    pub(super) fn join(&mut self, gpu: &dyn Gpu, lanes: Lanes) -> Result<(), DeviceError> {
        for part in self.parts.iter_mut().filter(|part| part.is_read) {
            gpu.wait_event(lanes.transfer, part.unpacked)?;
            part.is_read = false;
        }
        Ok(())
    }

    /// Makes unpacking wait for all copies so far.
    pub(super) fn follow(&self, gpu: &dyn Gpu, lanes: Lanes) -> Result<(), DeviceError> {
        gpu.record(lanes.transfer, self.copied)?;
        gpu.wait_event(lanes.unpack, self.copied)
    }

    /// Nothing is under way any more.
    pub(super) fn clear(&mut self) {
        self.parts.iter_mut().for_each(|part| part.is_read = false);
    }
}

fn no_part(number: usize) -> DeviceError {
    DeviceError::Timeline { what: format!("there is no part {number} of the staging area") }
}
