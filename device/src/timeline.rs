//! Every ordering rule between the CPU, the compute stream and the streams that fill slots, in one place.
//!
//! The rules, each with its method:
//! 1. copy and unpacking done → reader may start: [`fill`](Timeline::fill) records an event after them,
//!    [`read`](Timeline::read) makes the compute stream wait for it;
//! 2. last reader done → slot may be refilled: [`release`](Timeline::release) records an event after the readers, the
//!    next `fill` makes the transfer stream wait for it ([`vacate`](Timeline::vacate) makes all later copies wait);
//!    unpacking done → a part of the staging area may be refilled:
//!    `timeline/staging.rs`;
//! 3. copy done → the host may refill a staging buffer: [`wait_source`](Timeline::wait_source);
//! 4. CPU part done → GPU part may start: [`gpu_waits_for_cpu`](Timeline::gpu_waits_for_cpu) queues the wait ahead of
//!    time, [`cpu_done`](Timeline::cpu_done) lets it pass;
//! 5. GPU part done → CPU part may start: [`gpu_signals_cpu`](Timeline::gpu_signals_cpu) queues the signal,
//!    [`cpu_waits_for_gpu`](Timeline::cpu_waits_for_gpu) polls for it.
//!
//! Invariants: a slot is read only between a fill and its release, and refilled only outside that span, else an error
//! and nothing is queued; hand-overs to the GPU complete in the order in which they were queued; one flag per direction
//! with a growing epoch, so no flag is ever reset; a round that fails ends in [`abandon`](Timeline::abandon), after
//! which all streams are empty. Nothing here waits for a whole device. `fill` aside, allocates nothing after `new`.
//! Not here: what runs (operators), where (placement), when it is worth it (schedules). Next: `timeline/staging.rs`.

mod bounce;
mod staging;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::DeviceError;
use crate::gpu::{CopySource, DevicePtr, Epoch, EventId, FlagId, Gpu, GpuOp, GraphId, Launch, StreamId, StreamKind};
use bounce::Bounce;
use staging::{Lanes, Staging};

pub use staging::{FillStep, STAGING_PARTS, StagingPart};

/// A temporary place for promoted weights, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotIndex(pub usize);

/// The GPU waits for the CPU part with this ticket.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the GPU waits until `cpu_done` gets this ticket"]
pub struct CpuTicket(Epoch);

/// The GPU will tell the CPU when it has come to where this ticket was made.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "only `cpu_waits_for_gpu` makes the GPU's results visible"]
pub struct GpuTicket(Epoch);

/// A fill that can be queued by one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedFill(GraphId);

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    /// Nothing that anybody may read.
    Free,
    /// A part of a copy is queued.
    Filling,
    /// A copy is queued; the compute stream does not know of it yet.
    Filled,
    /// A copy is queued and the compute stream waits for it.
    Readable,
}

#[derive(Debug)]
struct Slot {
    state: SlotState,
    filled: EventId,
    released: EventId,
}

/// One direction of hand-over.
#[derive(Debug)]
struct HandOver {
    flag: FlagId,
    queued: Epoch,
    done: Epoch,
}

impl HandOver {
    fn new(gpu: &dyn Gpu) -> Result<Self, DeviceError> {
        Ok(Self { flag: gpu.new_flag()?, queued: Epoch(0), done: Epoch(0) })
    }
}

/// Polls between two looks at the clock while the CPU waits.
const POLLS_PER_CLOCK: u32 = 256;

/// See the module text.
pub struct Timeline {
    gpu: Arc<dyn Gpu>,
    compute: StreamId,
    lanes: Lanes,
    staging: Staging,
    /// The events of recorded fills.
    recorded: Staging,
    slots: Vec<Slot>,
    to_gpu: HandOver,
    to_cpu: HandOver,
    silence_max: Duration,
}

impl Timeline {
    /// Streams, events and flags for `slots` slots. `silence_max`: how long the CPU waits for the GPU before it gives
    /// up.
    pub fn new(gpu: Arc<dyn Gpu>, slots: usize, silence_max: Duration) -> Result<Self, DeviceError> {
        let compute = gpu.new_stream(StreamKind::Compute)?;
        let lanes =
            Lanes { transfer: gpu.new_stream(StreamKind::Transfer)?, unpack: gpu.new_stream(StreamKind::Unpack)? };
        let (staging, recorded) = (Staging::new(&*gpu)?, Staging::new(&*gpu)?);
        let slot = |_| {
            let (filled, released) = (gpu.new_event()?, gpu.new_event()?);
            Ok(Slot { state: SlotState::Free, filled, released })
        };
        let slots = (0..slots).map(slot).collect::<Result<_, DeviceError>>()?;
        let (to_gpu, to_cpu) = (HandOver::new(&*gpu)?, HandOver::new(&*gpu)?);
        Ok(Self { gpu, compute, lanes, staging, recorded, slots, to_gpu, to_cpu, silence_max })
    }

    /// Makes copies from pageable memory possible, by a thread. Errors: no pinned memory at all.
    pub fn allow_pageable(&mut self) -> Result<(), DeviceError> {
        self.staging.allow_pageable(Bounce::new(&self.gpu)?);
        Ok(())
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// The compute stream, for work that needs no rule of this file (recording graphs, timing events).
    pub fn compute_stream(&self) -> StreamId {
        self.compute
    }

    /// The transfer stream, likewise.
    pub fn transfer_stream(&self) -> StreamId {
        self.lanes.transfer
    }

    /// Queues an operator after all earlier ones.
    pub fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.gpu.launch(self.compute, launch)
    }

    /// Lets an operator do its work between rounds. Errors: the GPU still waits for a CPU part.
    pub fn settle(&mut self, op: &dyn GpuOp) -> Result<(), DeviceError> {
        self.nobody_waits("settled")?;
        self.gpu.settle(self.compute, op)
    }

    /// Queues the copies that fill a slot: they start once its last readers are done. Errors: the slot was filled and
    /// not released or discarded.
    pub fn fill(&mut self, index: SlotIndex, copies: &[(DevicePtr, CopySource)]) -> Result<(), DeviceError> {
        let steps: Vec<FillStep> = copies.iter().map(|(to, from)| FillStep::Copy(*to, from.clone())).collect();
        self.fill_in_steps(index, &steps, None)
    }

    /// The same where what has come is unpacked before it may be read. Copies of the next fill do not wait for this
    /// one's unpacking. `begun`, if given, is recorded when the slot is free and the first step may start.
    pub fn fill_in_steps(
        &mut self,
        index: SlotIndex,
        steps: &[FillStep],
        begun: Option<EventId>,
    ) -> Result<(), DeviceError> {
        self.begin_fill(index, begun)?;
        self.queue_fill(steps)?;
        self.end_fill(index, steps)
    }

    /// The first part of [`fill_in_steps`](Self::fill_in_steps), for whoever queues the steps in pieces.
    pub fn begin_fill(&mut self, index: SlotIndex, begun: Option<EventId>) -> Result<(), DeviceError> {
        let (gpu, transfer) = (Arc::clone(&self.gpu), self.lanes.transfer);
        let slot = self.slot(index, &[SlotState::Free], "filled before it was released")?;
        gpu.wait_event(transfer, slot.released)?;
        if let Some(begun) = begun {
            gpu.record(transfer, begun)?;
        }
        slot.state = SlotState::Filling;
        Ok(())
    }

    /// Queues some steps of the fill that has begun.
    pub fn queue_fill(&mut self, steps: &[FillStep]) -> Result<(), DeviceError> {
        self.staging.queue(&*self.gpu, self.lanes, steps)
    }

    /// The slot may be read when all `steps` of its fill are done, which are queued. Errors: its fill had not begun.
    pub fn end_fill(&mut self, index: SlotIndex, steps: &[FillStep]) -> Result<(), DeviceError> {
        let slot = self.slot(index, &[SlotState::Filling], "filled without a beginning")?;
        slot.state = SlotState::Filled;
        let filled = slot.filled;
        let (gpu, lanes) = (&*self.gpu, self.lanes);
        let last = if steps.iter().any(|step| matches!(step, FillStep::Unpack(..))) {
            if !matches!(steps.last(), Some(FillStep::Unpack(..))) {
                self.staging.follow(gpu, lanes)?;
            }
            lanes.unpack
        } else {
            lanes.transfer
        };
        gpu.record(last, filled)
    }

    /// Records steps that have been queued once, so that one call queues them again. `None` = the GPU records nothing.
    /// Errors: the GPU waits for a CPU part.
    pub fn record_fill(&mut self, steps: &[FillStep]) -> Result<Option<RecordedFill>, DeviceError> {
        self.nobody_waits("recorded")?;
        let (gpu, lanes, staging) = (&*self.gpu, self.lanes, &mut self.recorded);
        let mut work = || {
            staging.queue(gpu, lanes, steps)?;
            staging.join(gpu, lanes)
        };
        let graph = gpu.record_graph(lanes.transfer, &mut work);
        self.recorded.clear();
        Ok(graph?.map(RecordedFill))
    }

    /// Copies of a recorded fill read from now on what these steps read, which are the same but for the sources.
    /// `false` = the GPU refuses; then the recorded fill is of no more use. Errors: another number of copies.
    pub fn redirect_fill(&mut self, fill: RecordedFill, steps: &[FillStep]) -> Result<bool, DeviceError> {
        let copies = steps.iter().filter_map(FillStep::copy).enumerate();
        for (number, (to, from)) in copies {
            if !self.gpu.redirect_copy(fill.0, number, to, from)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// [`Timeline::fill_in_steps`] of recorded steps. What is queued later on the transfer stream waits for its end.
    pub fn fill_recorded(
        &mut self,
        index: SlotIndex,
        fill: RecordedFill,
        begun: Option<EventId>,
    ) -> Result<(), DeviceError> {
        // The sequence begins in any part of the staging area.
        self.slot(index, &[SlotState::Free], "filled before it was released")?;
        self.staging.join(&*self.gpu, self.lanes)?;
        self.begin_fill(index, begun)?;
        self.gpu.launch_graph(self.lanes.transfer, fill.0)?;
        self.end_fill(index, &[])
    }

    /// Operators queued from now on may read the slot. Errors: it was not filled.
    pub fn read(&mut self, index: SlotIndex) -> Result<(), DeviceError> {
        let (gpu, compute) = (Arc::clone(&self.gpu), self.compute);
        let slot = self.slot(index, &[SlotState::Filled, SlotState::Readable], "read before it was filled")?;
        if slot.state == SlotState::Filled {
            gpu.wait_event(compute, slot.filled)?;
            slot.state = SlotState::Readable;
        }
        Ok(())
    }

    /// Operators queued so far were the slot's last readers. Errors: nobody was allowed to read it.
    pub fn release(&mut self, index: SlotIndex) -> Result<(), DeviceError> {
        let (gpu, compute) = (Arc::clone(&self.gpu), self.compute);
        let slot = self.slot(index, &[SlotState::Readable], "released before it was read")?;
        gpu.record(compute, slot.released)?;
        slot.state = SlotState::Free;
        Ok(())
    }

    /// Nobody reads the slot any more, and its bytes serve others from now on: copies queued from now on come after its
    /// readers, or after its fill if it had none. Nothing to do for an empty slot.
    pub fn vacate(&mut self, index: SlotIndex) -> Result<(), DeviceError> {
        let state = self.slots.get(index.0).ok_or_else(|| no_slot(index))?.state;
        match state {
            SlotState::Free => Ok(()),
            SlotState::Filling => {
                Err(DeviceError::Timeline { what: format!("slot {} was vacated while it is being filled", index.0) })
            }
            SlotState::Filled => self.discard(index),
            SlotState::Readable => {
                self.release(index)?;
                self.gpu.wait_event(self.lanes.transfer, self.slots[index.0].released)
            }
        }
    }

    /// The slot's bytes have served others: its next fill starts after all operators queued so far. Errors: the slot
    /// was filled and not vacated.
    pub fn reclaim(&mut self, index: SlotIndex) -> Result<(), DeviceError> {
        let (gpu, compute) = (Arc::clone(&self.gpu), self.compute);
        let slot = self.slot(index, &[SlotState::Free], "reclaimed before it was vacated")?;
        gpu.record(compute, slot.released)
    }

    /// Forgets a fill that nobody has read (the schedule changed). Copies queued from now on come after it.
    pub fn discard(&mut self, index: SlotIndex) -> Result<(), DeviceError> {
        let slot = self.slot(index, &[SlotState::Filled], "discarded though it was not filled, or read already")?;
        slot.state = SlotState::Free;
        let filled = slot.filled;
        self.gpu.wait_event(self.lanes.transfer, filled)
    }

    /// Whether the slot holds a fill that was not released.
    pub fn is_filled(&self, index: SlotIndex) -> bool {
        self.slots.get(index.0).is_some_and(|slot| slot.state != SlotState::Free)
    }

    /// Waits until the slot's last copies have read their source: a staging buffer may be refilled after it.
    pub fn wait_source(&self, index: SlotIndex) -> Result<(), DeviceError> {
        let slot = self.slots.get(index.0).ok_or_else(|| no_slot(index))?;
        self.poll(|gpu| gpu.event_passed(slot.filled))
    }

    /// Operators queued from now on start after the CPU part that ends in `cpu_done` with this ticket.
    pub fn gpu_waits_for_cpu(&mut self) -> Result<CpuTicket, DeviceError> {
        let epoch = self.to_gpu.queued.next();
        self.gpu.wait_flag(self.compute, self.to_gpu.flag, epoch)?;
        self.to_gpu.queued = epoch;
        Ok(CpuTicket(epoch))
    }

    /// The CPU part is done, its writes to mapped memory are made. Errors: an earlier ticket is still open.
    pub fn cpu_done(&mut self, ticket: CpuTicket) -> Result<(), DeviceError> {
        if ticket.0 != self.to_gpu.done.next() {
            let what = format!("CPU part {} ends before part {}", ticket.0.0, self.to_gpu.done.next().0);
            return Err(DeviceError::Timeline { what });
        }
        self.gpu.host_signal(self.to_gpu.flag, ticket.0)?;
        self.to_gpu.done = ticket.0;
        Ok(())
    }

    /// Queues a signal after all operators so far.
    pub fn gpu_signals_cpu(&mut self) -> Result<GpuTicket, DeviceError> {
        let epoch = self.to_cpu.queued.next();
        self.gpu.signal_flag(self.compute, self.to_cpu.flag, epoch)?;
        self.to_cpu.queued = epoch;
        Ok(GpuTicket(epoch))
    }

    /// Whether the GPU has come to the ticket; if so, what it wrote to mapped memory before is visible.
    pub fn cpu_sees_gpu(&self, ticket: &GpuTicket) -> Result<bool, DeviceError> {
        self.gpu.host_sees(self.to_cpu.flag, ticket.0)
    }

    /// Polls until the GPU has come to the ticket. Errors: the GPU is lost, or silent for too long.
    pub fn cpu_waits_for_gpu(&mut self, ticket: GpuTicket) -> Result<(), DeviceError> {
        let flag = self.to_cpu.flag;
        self.poll(|gpu| gpu.host_sees(flag, ticket.0))?;
        self.to_cpu.done = ticket.0;
        Ok(())
    }

    /// Waits until all streams are empty. Between rounds only. Errors: the CPU part of a ticket is still open.
    pub fn drain(&mut self) -> Result<(), DeviceError> {
        self.nobody_waits("drained")?;
        self.gpu.synchronize(self.compute)?;
        self.gpu.synchronize(self.lanes.transfer)?;
        self.gpu.synchronize(self.lanes.unpack)
    }

    /// Ends a round that failed: lets all waits pass, waits for all streams, empties all slots. What the round
    /// computed is garbage. Errors: the GPU is lost.
    pub fn abandon(&mut self) -> Result<(), DeviceError> {
        self.gpu.host_signal(self.to_gpu.flag, self.to_gpu.queued)?;
        self.to_gpu.done = self.to_gpu.queued;
        for slot in &mut self.slots {
            slot.state = SlotState::Free;
        }
        self.staging.clear();
        // Readers whose release was never recorded are behind this.
        self.drain()
    }

    fn nobody_waits(&self, action: &str) -> Result<(), DeviceError> {
        if self.to_gpu.done == self.to_gpu.queued {
            return Ok(());
        }
        let what = format!("{action} while the GPU waits for CPU part {}", self.to_gpu.done.next().0);
        Err(DeviceError::Timeline { what })
    }

    fn slot(&mut self, index: SlotIndex, allowed: &[SlotState], else_it_was: &str) -> Result<&mut Slot, DeviceError> {
        let slot = self.slots.get_mut(index.0).ok_or_else(|| no_slot(index))?;
        if allowed.contains(&slot.state) {
            return Ok(slot);
        }
        Err(DeviceError::Timeline { what: format!("slot {} was {else_it_was}", index.0) })
    }

    fn poll(&self, mut look: impl FnMut(&dyn Gpu) -> Result<bool, DeviceError>) -> Result<(), DeviceError> {
        let mut give_up_at = None;
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                if look(&*self.gpu)? {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now > *give_up_at.get_or_insert(now + self.silence_max) {
                return Err(DeviceError::GpuSilent { seconds: self.silence_max.as_secs() });
            }
        }
    }
}

/// Memory that is not pinned where only pinned memory may be.
pub(crate) fn pageable() -> DeviceError {
    DeviceError::Timeline { what: "memory that is not pinned is copied as if it were".to_owned() }
}

fn no_slot(index: SlotIndex) -> DeviceError {
    DeviceError::Timeline { what: format!("there is no slot {}", index.0) }
}
