//! Streamed weights through the staging area on the simulated GPU: pieces that follow each other through its parts give
//! the same bits whatever is delayed, step by step and recorded; a part is never refilled before it is unpacked, and a
//! slot never read before; what a driver refuses to record is refused here.
#![cfg(not(loom))]

mod support;

use std::sync::Arc;
use std::time::Duration;

use device::DeviceError;
use device::clock::Nanos;
use device::gpu::{CopySource, DevicePtr, DeviceRegion, Gpu, GpuOp, GpuTarget, HostSpan, LaunchArgs, StreamKind};
use device::memory::HostRegion;
use device::sim::{Faults, SimGpu};
use device::timeline::{FillStep, RecordedFill, SlotIndex, StagingPart, Timeline};
use support::{BYTES, Bare, LAYERS, LayerOp, WORDS, launch, layer, set_words, sim, weights, words};

/// Pieces of a layer: an odd number, so that a fill begins in the part in which the one before it ended.
const PIECES: u64 = 3;
const PIECE_BYTES: u64 = 384;
const ROUNDS: usize = 6;

/// Bytes of a piece of a layer.
fn piece(number: u64) -> std::ops::Range<u64> {
    number * PIECE_BYTES..BYTES.min((number + 1) * PIECE_BYTES)
}

/// Writes what has come in another form: every byte turned over.
struct UnpackOp {
    from: DevicePtr,
    to: DevicePtr,
    bytes: u64,
}

impl GpuOp for UnpackOp {
    fn name(&self) -> &str {
        "unpack"
    }
    fn run(&self, target: GpuTarget<'_>, _: LaunchArgs) -> Result<(), DeviceError> {
        let GpuTarget::Simulated(task) = target else { panic!("a simulated GPU runs this") };
        let from = task.read(self.from, self.bytes)?;
        let to = task.write(self.to, self.bytes)?;
        to.iter_mut().zip(from).for_each(|(to, from)| *to = !from);
        Ok(())
    }
}

/// How fills are queued.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    StepByStep,
    /// Recorded per layer.
    Recorded,
    /// Recorded once per slot, with each layer's sources.
    Redirected,
    /// Sometimes so, sometimes so.
    Mixed,
}

struct Model {
    timeline: Timeline,
    weights: Arc<HostRegion>,
    slots: DeviceRegion,
    slot_count: usize,
    staging: DeviceRegion,
    x: DeviceRegion,
    recorded: Vec<Option<RecordedFill>>,
    way: Way,
    is_pageable: bool,
    fills: usize,
    reads: usize,
}

impl Model {
    fn new(gpu: &Arc<SimGpu>, slot_count: usize, way: Way) -> Self {
        let weights = weights();
        gpu.pin(&weights).unwrap();
        let timeline = Timeline::new(gpu.clone(), slot_count, Duration::from_secs(60)).unwrap();
        let slots = gpu.take_memory(slot_count as u64 * BYTES, "slots").unwrap();
        let staging = gpu.take_memory(2 * PIECE_BYTES, "staging").unwrap();
        let x = gpu.take_memory(BYTES, "activations").unwrap();
        let mut first = vec![0; BYTES as usize];
        set_words(&mut first, &(0..WORDS as u32).collect::<Vec<_>>());
        gpu.upload(x.start, &first).unwrap();
        let recorded = vec![None; LAYERS * slot_count];
        Self { timeline, weights, slots, slot_count, staging, x, recorded, way, is_pageable: false, fills: 0, reads: 0 }
    }

    fn slot(&self, number: usize) -> (SlotIndex, DevicePtr) {
        let slot = number % self.slot_count;
        (SlotIndex(slot), self.slots.start.offset(slot as u64 * BYTES))
    }

    /// The last piece needs no unpacking if `l` is even.
    fn steps(&self, l: usize, slot: DevicePtr) -> Vec<FillStep> {
        let source = |bytes: &std::ops::Range<u64>| {
            let start = l * BYTES as usize;
            let range = start + bytes.start as usize..start + bytes.end as usize;
            let span = HostSpan { region: Arc::clone(&self.weights), range };
            if self.is_pageable { CopySource::Pageable(span) } else { CopySource::Span(span) }
        };
        let of_piece = |number: u64| {
            let (bytes, part) = (piece(number), StagingPart(number as usize % 2));
            let (from, to) = (self.staging.start.offset(part.0 as u64 * PIECE_BYTES), slot.offset(bytes.start));
            if number + 1 == PIECES && l.is_multiple_of(2) {
                return vec![FillStep::Copy(to, source(&bytes))];
            }
            let unpack = launch(UnpackOp { from, to, bytes: bytes.end - bytes.start });
            vec![FillStep::Stage(part, from, source(&bytes)), FillStep::Unpack(part, unpack)]
        };
        (0..PIECES).flat_map(of_piece).collect()
    }

    fn fill(&mut self) -> Result<(), DeviceError> {
        let (l, (index, slot)) = (self.fills % LAYERS, self.slot(self.fills));
        let steps = self.steps(l, slot);
        // Fills that are redirected have the same steps but for their sources.
        let key = if self.way == Way::Redirected { l % 2 } else { l } * self.slot_count + index.0;
        let known = self.recorded[key].filter(|_| self.way != Way::Mixed || self.fills % 3 < 2);
        match known {
            Some(recorded) => {
                let redirected = self.way != Way::Redirected || self.timeline.redirect_fill(recorded, &steps)?;
                assert!(redirected);
                self.timeline.fill_recorded(index, recorded, None)?;
            }
            None => self.timeline.fill_in_steps(index, &steps, None)?,
        }
        self.fills += 1;
        Ok(())
    }

    /// Between rounds.
    fn record(&mut self) -> Result<(), DeviceError> {
        let layers = if self.way == Way::Redirected { 2 } else { LAYERS };
        for key in 0..if self.way == Way::StepByStep { 0 } else { layers * self.slot_count } {
            if self.recorded[key].is_none() {
                let steps = self.steps(key / self.slot_count, self.slot(key % self.slot_count).1);
                self.recorded[key] = self.timeline.record_fill(&steps)?;
            }
        }
        Ok(())
    }

    fn round(&mut self) -> Result<(), DeviceError> {
        self.queue_round()?;
        self.end_round()
    }

    fn queue_round(&mut self) -> Result<(), DeviceError> {
        for _ in 0..LAYERS {
            while self.fills < self.reads + self.slot_count {
                self.fill()?;
            }
            let (index, weights) = self.slot(self.reads);
            self.timeline.read(index)?;
            self.timeline.launch(&launch(LayerOp { weights, x: self.x.start }))?;
            self.timeline.release(index)?;
            self.reads += 1;
        }
        Ok(())
    }

    fn end_round(&mut self) -> Result<(), DeviceError> {
        let ticket = self.timeline.gpu_signals_cpu()?;
        self.timeline.cpu_waits_for_gpu(ticket)?;
        self.record()
    }
}

fn expected(rounds: usize) -> Vec<u32> {
    let region = weights();
    let mut x: Vec<u32> = (0..WORDS as u32).collect();
    for l in (0..rounds).flat_map(|_| 0..LAYERS) {
        let mut bytes = region.as_slice()[l * BYTES as usize..][..BYTES as usize].to_vec();
        let turned = if l % 2 == 0 { PIECES - 1 } else { PIECES };
        (0..turned).flat_map(piece).for_each(|byte| bytes[byte as usize] = !bytes[byte as usize]);
        layer(&mut x, &words(&bytes));
    }
    x
}

/// The result, and the virtual time at which the host had it.
fn run(faults: Faults, slots: usize, way: Way) -> (Vec<u32>, Nanos) {
    let gpu = sim(faults.clone());
    let mut model = Model::new(&gpu, slots, way);
    for round in 0..ROUNDS {
        model.round().unwrap_or_else(|error| panic!("{way:?}, {slots} slots, {faults:?}, round {round}: {error}"));
    }
    let time = gpu.clock().now();
    model.timeline.drain().unwrap();
    let mut bytes = vec![0; BYTES as usize];
    gpu.download(&mut bytes, model.x.start).unwrap();
    (words(&bytes), time)
}

#[track_caller]
fn check(way: Way) {
    let expected = expected(ROUNDS);
    for slots in [1, 2] {
        let undelayed = run(Faults::none(), slots, way);
        assert!(undelayed.0 == expected, "{way:?}, {slots} slots");
        for faults in [Faults::late_copies(1), Faults::late_operators(2), Faults::jitter(3)] {
            assert!(run(faults.clone(), slots, way) == undelayed, "{way:?}, {slots} slots, {faults:?}");
        }
    }
}

#[test]
fn pieces_step_by_step_give_equal_bits_and_times_under_any_delays() {
    check(Way::StepByStep);
}

#[test]
fn recorded_fills_give_equal_bits_and_times_under_any_delays() {
    check(Way::Recorded);
}

#[test]
fn redirected_fills_give_equal_bits_and_times_under_any_delays() {
    check(Way::Redirected);
}

#[test]
fn recorded_fills_and_others_in_turn_give_equal_bits_and_times_under_any_delays() {
    check(Way::Mixed);
}

#[test]
fn copies_do_not_wait_for_unpacking() {
    let (fills, pieces) = ((ROUNDS * LAYERS) as u64, (ROUNDS * LAYERS) as u64 * PIECES);
    // A byte takes 10 ns of the link, a copy 500 ns to start; an operator takes 2 us, on one stream after each copy.
    let copies = Nanos(fills * BYTES * 10 + pieces * 500);
    for way in [Way::StepByStep, Way::Recorded] {
        let (_, time) = run(Faults::none(), 2, way);
        assert!(time.since(copies) < Nanos(pieces * 1_000), "{way:?}: {time:?} {copies:?}");
    }
}

/// Pageable memory behind streams that wait for the host: no call waits, and the bits are the same.
#[test]
fn pageable_memory_is_brought_while_the_host_goes_on() {
    let expected = expected(ROUNDS);
    for faults in [Faults::none(), Faults::late_host(1), Faults::late_copies(2)] {
        let gpu = sim(faults);
        let mut model = Model::new(&gpu, 2, Way::StepByStep);
        model.is_pageable = true;
        model.timeline.allow_pageable().unwrap();
        for _ in 0..ROUNDS {
            // All of the round stands behind a part of the host's.
            let ticket = model.timeline.gpu_waits_for_cpu().unwrap();
            model.queue_round().unwrap();
            model.timeline.cpu_done(ticket).unwrap();
            model.end_round().unwrap();
        }
        model.timeline.drain().unwrap();
        let mut bytes = vec![0; BYTES as usize];
        gpu.download(&mut bytes, model.x.start).unwrap();
        assert!(words(&bytes) == expected);
    }
}

#[test]
fn pageable_memory_without_a_thread_is_refused() {
    let mut model = Model::new(&sim(Faults::none()), 1, Way::StepByStep);
    model.is_pageable = true;
    assert!(matches!(model.fill(), Err(DeviceError::Timeline { .. })));
}

#[test]
fn a_part_refilled_before_it_is_unpacked_is_reported() {
    for faults in [Faults::none(), Faults::late_copies(1), Faults::late_operators(2)] {
        let gpu = sim(faults);
        let bare = Bare::new(&gpu);
        let (unpack, copied) = (gpu.new_stream(StreamKind::Unpack).unwrap(), gpu.new_event().unwrap());
        let op = launch(UnpackOp { from: bare.slot, to: bare.x, bytes: BYTES });
        let outcome = gpu
            .copy_to_gpu(bare.transfer, bare.slot, &bare.source)
            .and_then(|()| gpu.record(bare.transfer, copied))
            .and_then(|()| gpu.wait_event(unpack, copied))
            .and_then(|()| gpu.launch(unpack, &op))
            .and_then(|()| gpu.copy_to_gpu(bare.transfer, bare.slot, &bare.source))
            .and_then(|()| gpu.synchronize(unpack))
            .and_then(|()| gpu.synchronize(bare.transfer));
        assert!(outcome.is_err_and(|error| error.to_string().contains("race at GPU address")));
    }
}

#[test]
fn a_fill_that_is_discarded_is_over_before_the_next_one_of_its_slot() {
    for faults in [Faults::none(), Faults::late_operators(5)] {
        let mut model = Model::new(&sim(faults), 1, Way::StepByStep);
        let slot = model.slot(0);
        for l in [1, 0, 3, 2] {
            let mut steps = model.steps(l, slot.1);
            // The last piece first: it writes the slot at once.
            steps.rotate_right(if l % 2 == 0 { 1 } else { 2 });
            model.timeline.fill_in_steps(slot.0, &steps, None).unwrap();
            model.timeline.discard(slot.0).unwrap();
        }
        model.timeline.drain().unwrap();
    }
}

#[test]
fn what_a_driver_would_not_record_is_refused() {
    let gpu = sim(Faults::none());
    let bare = Bare::new(&gpu);
    let (unpack, event) = (gpu.new_stream(StreamKind::Unpack).unwrap(), gpu.new_event().unwrap());
    let op = launch(UnpackOp { from: bare.slot, to: bare.x, bytes: BYTES });
    let refused = |mut work: Box<dyn FnMut() -> Result<(), DeviceError> + '_>| {
        let outcome = gpu.record_graph(bare.transfer, &mut *work);
        assert!(matches!(outcome, Err(DeviceError::Timeline { .. })), "{outcome:?}");
    };
    refused(Box::new(|| gpu.wait_event(bare.transfer, event)));
    refused(Box::new(|| gpu.launch(unpack, &op)));
    refused(Box::new(|| {
        gpu.record(bare.transfer, event)?;
        gpu.wait_event(unpack, event)?;
        gpu.launch(unpack, &op)
    }));
    let mut timeline = Timeline::new(gpu.clone(), 1, Duration::from_secs(60)).unwrap();
    let ticket = timeline.gpu_waits_for_cpu().unwrap();
    assert!(matches!(timeline.record_fill(&[]), Err(DeviceError::Timeline { .. })));
    timeline.cpu_done(ticket).unwrap();
    let recorded = timeline.record_fill(&[]).unwrap().unwrap();
    let other = [FillStep::Copy(bare.slot, bare.source.clone())];
    assert!(timeline.redirect_fill(recorded, &other).is_err());
}
