//! The timeline on the simulated GPU: a little model whose layers are resident, streamed through slots, or on the CPU
//! gives the same bits as a plain loop, whatever is delayed; its virtual time does not depend on the delays; and every
//! rule, left out, is reported as a race. reports: R02.
//!
//! The model: 8 layers, each with its own constants, so that a swapped or half-copied layer shows at once. The executor
//! here is the smallest that uses all rules; the real one is the runtime's.
#![cfg(not(loom))]

mod support;

use std::sync::Arc;
use std::time::Duration;

use device::DeviceError;
use device::clock::Nanos;
use device::gpu::{Access, CopySource, DevicePtr, DeviceRegion, Epoch, Gpu, HostSpan, MappedRegion};
use device::memory::HostRegion;
use device::sim::{Faults, LoadScript, LoadStep, Resource, SimGpu};
use device::timeline::{SlotIndex, Timeline};
use support::{
    BYTES, Bare, LAYERS, LayerOp, MoveOp, WORDS, launch, layer, set_words, sim, sim_under_load, weights, words,
};

/// Layers 2 and 5 run on the CPU, the other six are streamed.
const ON_CPU: [usize; 2] = [2, 5];

fn layer_weights(region: &HostRegion, l: usize) -> Vec<u32> {
    words(&region.as_slice()[l * BYTES as usize..(l + 1) * BYTES as usize])
}

/// What one step must give.
fn expected(region: &HostRegion, steps: usize) -> Vec<u32> {
    let mut x: Vec<u32> = (0..WORDS as u32).collect();
    for _ in 0..steps {
        (0..LAYERS).for_each(|l| layer(&mut x, &layer_weights(region, l)));
    }
    x
}

struct Model {
    gpu: Arc<SimGpu>,
    timeline: Timeline,
    weights: Arc<HostRegion>,
    slots: DeviceRegion,
    slot_count: usize,
    x: DeviceRegion,
    mapped: MappedRegion,
    /// Fills queued so far, over all rounds: they run ahead of the readers into the next round.
    fills: usize,
    reads: usize,
}

impl Model {
    fn new(gpu: Arc<SimGpu>, slot_count: usize) -> Self {
        let weights = weights();
        gpu.pin(&weights).unwrap();
        let timeline = Timeline::new(gpu.clone(), slot_count, Duration::from_secs(60)).unwrap();
        let slots = gpu.take_memory(slot_count as u64 * BYTES, "slots").unwrap();
        let x = gpu.take_memory(BYTES, "activations").unwrap();
        let mapped = gpu.take_mapped(BYTES, "hand-over").unwrap();
        let mut first = vec![0; BYTES as usize];
        set_words(&mut first, &expected(&weights, 0));
        gpu.upload(x.start, &first).unwrap();
        Self { gpu, timeline, weights, slots, slot_count, x, mapped, fills: 0, reads: 0 }
    }

    fn streamed(number: usize) -> usize {
        let layers: Vec<usize> = (0..LAYERS).filter(|l| !ON_CPU.contains(l)).collect();
        layers[number % layers.len()]
    }

    fn slot(&self, number: usize) -> (SlotIndex, DevicePtr) {
        let slot = number % self.slot_count;
        (SlotIndex(slot), self.slots.start.offset(slot as u64 * BYTES))
    }

    /// Queues fills for every free slot, in the order of their readers.
    fn fill_ahead(&mut self) -> Result<(), DeviceError> {
        while self.fills < self.reads + self.slot_count {
            let (l, (index, place)) = (Self::streamed(self.fills), self.slot(self.fills));
            let range = l * BYTES as usize..(l + 1) * BYTES as usize;
            let source = CopySource::Span(HostSpan { region: Arc::clone(&self.weights), range });
            self.timeline.fill(index, &[(place, source)])?;
            self.fills += 1;
        }
        Ok(())
    }

    fn round(&mut self) -> Result<(), DeviceError> {
        for l in 0..LAYERS {
            if ON_CPU.contains(&l) {
                self.cpu_layer(l)?;
            } else {
                self.streamed_layer()?;
            }
        }
        let ticket = self.timeline.gpu_signals_cpu()?;
        self.timeline.cpu_waits_for_gpu(ticket)
    }

    fn streamed_layer(&mut self) -> Result<(), DeviceError> {
        self.fill_ahead()?;
        let (index, weights) = self.slot(self.reads);
        self.timeline.read(index)?;
        self.timeline.launch(&launch(LayerOp { weights, x: self.x.start }))?;
        self.timeline.release(index)?;
        self.reads += 1;
        Ok(())
    }

    /// GPU to mapped memory, CPU there, back; the way back is queued before the CPU begins.
    fn cpu_layer(&mut self, l: usize) -> Result<(), DeviceError> {
        self.timeline.launch(&launch(MoveOp { from: self.x.start, to: self.mapped.device }))?;
        let there = self.timeline.gpu_signals_cpu()?;
        let back = self.timeline.gpu_waits_for_cpu()?;
        self.timeline.launch(&launch(MoveOp { from: self.mapped.device, to: self.x.start }))?;
        self.timeline.cpu_waits_for_gpu(there)?;
        self.gpu.host_delay();
        self.cpu_part(l)?;
        self.timeline.cpu_done(back)
    }

    fn cpu_part(&self, l: usize) -> Result<(), DeviceError> {
        self.gpu.host_touches(self.mapped.device, BYTES, Access::Write)?;
        // SAFETY: the simulated GPU has just confirmed that nothing else may touch the region now.
        let place = unsafe { std::slice::from_raw_parts_mut(self.mapped.host, BYTES as usize) };
        let mut x = words(place);
        layer(&mut x, &layer_weights(&self.weights, l));
        set_words(place, &x);
        self.gpu.host_worked(Nanos(30_000));
        Ok(())
    }

    fn result(&mut self) -> Vec<u32> {
        self.timeline.drain().unwrap();
        let mut bytes = vec![0; BYTES as usize];
        self.gpu.download(&mut bytes, self.x.start).unwrap();
        words(&bytes)
    }
}

/// The result after `steps`, and the virtual time at which the host had it.
fn run(gpu: Arc<SimGpu>, slots: usize, steps: usize) -> (Vec<u32>, Nanos) {
    let mut model = Model::new(gpu.clone(), slots);
    for step in 0..steps {
        model.round().unwrap_or_else(|error| panic!("step {step}: {error}"));
    }
    let time = gpu.clock().now();
    (model.result(), time)
}

fn check_delays(slots: usize) {
    const STEPS: usize = 200;
    let expected = expected(&weights(), STEPS);
    let undelayed = run(sim(Faults::none()), slots, STEPS);
    assert_eq!(undelayed.0, expected);
    for seed in 0..20 {
        let kinds = [Faults::late_copies, Faults::late_operators, Faults::late_host, Faults::jitter];
        let faults = kinds[seed as usize % kinds.len()](seed);
        assert_eq!(run(sim(faults.clone()), slots, STEPS), undelayed, "{slots} slots, {faults:?}");
    }
}

#[test]
fn one_slot_gives_equal_bits_and_times_under_any_delays() {
    check_delays(1);
}

#[test]
fn two_slots_give_equal_bits_and_times_under_any_delays() {
    check_delays(2);
}

#[test]
fn more_slots_hide_more_of_the_copies() {
    let times = [1, 2, 6].map(|slots| run(sim(Faults::none()), slots, 20).1);
    assert!(times[0] > times[1] && times[1] > times[2], "{times:?}");
}

#[test]
fn load_on_a_resource_slows_the_round_and_another_clock_does_not() {
    let loaded = |resource| {
        let load = LoadScript::new(vec![LoadStep { at: Nanos(0), resource, slowdown: 3.0 }]);
        run(sim_under_load(Faults::none(), load), 2, 20).1
    };
    let alone = run(sim(Faults::none()), 2, 20).1;
    for resource in [Resource::Cpu, Resource::Gpu, Resource::Link] {
        assert!(loaded(resource) > alone, "{resource:?}");
    }
    // The CPU's 40 parts of 30 us lie on the critical path: they cost at least twice as much more.
    assert!(loaded(Resource::Cpu).since(alone) >= Nanos(2 * 40 * 30_000 - 40 * 10_000));
}

/// Runs raw calls without the timeline and expects the race to be found.
#[track_caller]
fn check_race(calls: impl Fn(&SimGpu, &Bare) -> Result<(), DeviceError>) {
    for faults in [Faults::none(), Faults::late_copies(1), Faults::late_operators(2), Faults::late_host(3)] {
        let gpu = sim(faults.clone());
        let bare = Bare::new(&gpu);
        let outcome = calls(&gpu, &bare)
            .and_then(|()| gpu.synchronize(bare.compute))
            .and_then(|()| gpu.synchronize(bare.transfer));
        let message = outcome.expect_err(&format!("a race must be found with {faults:?}")).to_string();
        assert!(message.contains("race at GPU address"), "{message}");
    }
}

#[test]
fn a_reader_that_does_not_wait_for_its_copy_is_reported() {
    check_race(|gpu, bare| {
        gpu.copy_to_gpu(bare.transfer, bare.slot, &bare.source)?;
        gpu.launch(bare.compute, &bare.layer())
    });
}

#[test]
fn a_refill_that_does_not_wait_for_the_last_reader_is_reported() {
    check_race(|gpu, bare| {
        let filled = gpu.new_event()?;
        gpu.copy_to_gpu(bare.transfer, bare.slot, &bare.source)?;
        gpu.record(bare.transfer, filled)?;
        gpu.wait_event(bare.compute, filled)?;
        gpu.launch(bare.compute, &bare.layer())?;
        gpu.copy_to_gpu(bare.transfer, bare.slot, &bare.source)
    });
}

#[test]
fn a_staging_buffer_refilled_during_its_copy_is_reported() {
    check_race(|gpu, bare| {
        let source = CopySource::Mapped { start: bare.mapped, bytes: BYTES };
        gpu.copy_to_gpu(bare.transfer, bare.slot, &source)?;
        gpu.host_touches(bare.mapped, BYTES, Access::Write)?;
        // Where the host came first, the copy finds the race instead.
        gpu.synchronize(bare.transfer)?;
        Ok(())
    });
}

#[test]
fn a_gpu_that_does_not_wait_for_the_cpu_is_reported() {
    check_race(|gpu, bare| {
        gpu.launch(bare.compute, &launch(MoveOp { from: bare.mapped, to: bare.x }))?;
        gpu.host_touches(bare.mapped, BYTES, Access::Write)
    });
}

#[test]
fn a_cpu_that_does_not_wait_for_the_gpu_is_reported() {
    check_race(|gpu, bare| {
        let flag = gpu.new_flag()?;
        gpu.launch(bare.compute, &launch(MoveOp { from: bare.x, to: bare.mapped }))?;
        // A signal that nobody waits for orders nothing.
        gpu.signal_flag(bare.compute, flag, Epoch(1))?;
        gpu.host_touches(bare.mapped, BYTES, Access::Read)
    });
}

#[test]
fn slots_out_of_turn_are_refused_before_anything_is_queued() {
    let gpu = sim(Faults::none());
    let mut timeline = Timeline::new(gpu, 1, Duration::from_secs(60)).unwrap();
    let slot = SlotIndex(0);
    let refused = |outcome: Result<(), DeviceError>| assert!(matches!(outcome, Err(DeviceError::Timeline { .. })));
    refused(timeline.read(slot));
    refused(timeline.release(slot));
    refused(timeline.discard(slot));
    refused(timeline.fill(SlotIndex(1), &[]));
    timeline.fill(slot, &[]).unwrap();
    refused(timeline.fill(slot, &[]));
    refused(timeline.release(slot));
    timeline.discard(slot).unwrap();
    timeline.fill(slot, &[]).unwrap();
    timeline.read(slot).unwrap();
    timeline.read(slot).unwrap();
    refused(timeline.discard(slot));
    timeline.wait_source(slot).unwrap();
    timeline.release(slot).unwrap();
    assert!(!timeline.is_filled(slot));
    timeline.drain().unwrap();
}

#[test]
fn cpu_parts_end_in_order_and_a_failed_round_can_be_abandoned() {
    let gpu = sim(Faults::jitter(4));
    let mut timeline = Timeline::new(gpu, 1, Duration::from_secs(60)).unwrap();
    let (first, second) = (timeline.gpu_waits_for_cpu().unwrap(), timeline.gpu_waits_for_cpu().unwrap());
    assert!(matches!(timeline.cpu_done(second), Err(DeviceError::Timeline { .. })));
    assert!(matches!(timeline.drain(), Err(DeviceError::Timeline { .. })));
    timeline.fill(SlotIndex(0), &[]).unwrap();
    timeline.abandon().unwrap();
    assert!(!timeline.is_filled(SlotIndex(0)));
    assert!(timeline.cpu_done(first).is_err());
    let third = timeline.gpu_waits_for_cpu().unwrap();
    timeline.cpu_done(third).unwrap();
    timeline.drain().unwrap();
}

#[test]
fn operators_settle_only_when_no_stream_waits_for_the_host() {
    let gpu = sim(Faults::none());
    let mut timeline = Timeline::new(gpu, 1, Duration::from_secs(60)).unwrap();
    let op = LayerOp { weights: DevicePtr(0), x: DevicePtr(0) };
    timeline.settle(&op).unwrap();
    let ticket = timeline.gpu_waits_for_cpu().unwrap();
    assert!(matches!(timeline.settle(&op), Err(DeviceError::Timeline { .. })));
    timeline.cpu_done(ticket).unwrap();
    timeline.settle(&op).unwrap();
}

#[test]
fn a_failed_operator_loses_the_gpu_and_nobody_hangs() {
    for fail_launch in [0, 3, 11] {
        let gpu = sim(Faults { fail_launch: Some(fail_launch), ..Faults::jitter(fail_launch) });
        let mut model = Model::new(gpu.clone(), 2);
        let outcome = (0..5).try_for_each(|_| model.round());
        assert!(matches!(outcome, Err(DeviceError::GpuLost { .. })), "{outcome:?}");
        assert!(model.timeline.abandon().is_err() && gpu.memory().is_err());
    }
}

#[test]
fn a_silent_gpu_is_given_up() {
    let mut timeline = Timeline::new(sim(Faults::none()), 0, Duration::from_millis(1)).unwrap();
    let ticket = timeline.gpu_waits_for_cpu().unwrap();
    let behind = timeline.gpu_signals_cpu().unwrap();
    assert!(matches!(timeline.cpu_waits_for_gpu(behind), Err(DeviceError::GpuSilent { .. })));
    timeline.cpu_done(ticket).unwrap();
}

#[test]
fn a_gpu_dropped_while_a_stream_waits_does_not_hang() {
    let mut timeline = Timeline::new(sim(Faults::none()), 0, Duration::from_secs(1)).unwrap();
    let _never_done = timeline.gpu_waits_for_cpu().unwrap();
}
