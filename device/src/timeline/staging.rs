//! Streamed weights through the staging area: the copy engine brings pieces to its parts in turn, and a kernel on a
//! stream of its own writes each to its slot while the next piece comes. So the link never waits for a kernel.
//!
//! The rule of this file: a part is refilled only when the kernel that reads it is done. Not here: slots and their
//! readers (`timeline.rs`).

use super::bounce::Bounce;
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
    /// The copy engine brings bytes to an address in a part of the staging area.
    Stage(StagingPart, DevicePtr, CopySource),
    /// An operator writes what has come to a part to its place. What comes to the part later waits for it, so parts
    /// should take turns.
    Unpack(StagingPart, Launch),
}

impl FillStep {
    /// Where a copy goes and what it reads.
    pub fn copy(&self) -> Option<(DevicePtr, &CopySource)> {
        match self {
            FillStep::Copy(to, from) | FillStep::Stage(_, to, from) => Some((*to, from)),
            FillStep::Unpack(..) => None,
        }
    }
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
pub(super) struct Staging {
    parts: Vec<Part>,
    /// After copies that need no unpacking.
    copied: EventId,
    /// For memory that is not pinned.
    bounce: Option<Bounce>,
}

impl Staging {
    pub(super) fn new(gpu: &dyn Gpu) -> Result<Self, DeviceError> {
        let part = |_| Ok(Part { copied: gpu.new_event()?, unpacked: gpu.new_event()?, is_read: false });
        let parts = (0..STAGING_PARTS).map(part).collect::<Result<_, DeviceError>>()?;
        Ok(Self { parts, copied: gpu.new_event()?, bounce: None })
    }

    pub(super) fn allow_pageable(&mut self, bounce: Bounce) {
        self.bounce = Some(bounce);
    }

    /// Queues steps.
    pub(super) fn queue(&mut self, gpu: &dyn Gpu, lanes: Lanes, steps: &[FillStep]) -> Result<(), DeviceError> {
        steps.iter().try_for_each(|step| match step {
            FillStep::Copy(to, from) => self.copy(gpu, lanes, *to, from),
            FillStep::Stage(part, to, from) => {
                let part = self.part(*part)?;
                if std::mem::take(&mut part.is_read) {
                    gpu.wait_event(lanes.transfer, part.unpacked)?;
                }
                self.copy(gpu, lanes, *to, from)
            }
            FillStep::Unpack(part, launch) => {
                let part = self.part(*part)?;
                gpu.record(lanes.transfer, part.copied)?;
                gpu.wait_event(lanes.unpack, part.copied)?;
                gpu.launch(lanes.unpack, launch)?;
                part.is_read = true;
                gpu.record(lanes.unpack, part.unpacked)
            }
        })
    }

    fn copy(&mut self, gpu: &dyn Gpu, lanes: Lanes, to: DevicePtr, from: &CopySource) -> Result<(), DeviceError> {
        match (from, &mut self.bounce) {
            (CopySource::Pageable(span), Some(bounce)) => bounce.copy(gpu, lanes.transfer, to, span),
            _ => gpu.copy_to_gpu(lanes.transfer, to, from),
        }
    }

    fn part(&mut self, part: StagingPart) -> Result<&mut Part, DeviceError> {
        let no_part = || DeviceError::Timeline { what: format!("there is no part {} of the staging area", part.0) };
        self.parts.get_mut(part.0).ok_or_else(no_part)
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
