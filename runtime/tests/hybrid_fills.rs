//! What filling slots costs the host: operators made at load follow from items and slots, not from the number of
//! schedules, and calls of a round from its fills, not from their pieces.

mod support;

use device::gpu::{DevicePtr, Gpu, GpuOp};
use device::sim::Faults;
use kernels::cpu::Isa;
use plan_format::artifact::Plan;
use plan_format::program::Program;
use plan_format::schedule::{Layout, Phase};
use runtime::exec::{Choices, Executor, HostPlace, KvType, Limits, Precision, WeightStore};
use runtime::hybrid::ops::{Arrival, Move, OpEnv, OpMaker, Sizes, WeightShape};
use runtime::hybrid::sim::SimMaker;
use runtime::hybrid::{GpuSide, HandOver};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{CONTEXT_TOKENS, Mixture, feed, hybrid, model, plan, prompt, sim, team};

/// Counts the unpackers that another maker makes.
struct Counting(SimMaker, Arc<AtomicUsize>);

impl OpMaker for Counting {
    fn scratch_bytes(&self, program: &Program, sizes: &Sizes) -> Result<u64, runtime::Error> {
        self.0.scratch_bytes(program, sizes)
    }
    fn resident_layout(&self, weight: &WeightShape, planned: Layout) -> Layout {
        self.0.resident_layout(weight, planned)
    }
    fn slot_layout(&self, weight: &WeightShape) -> Layout {
        self.0.slot_layout(weight)
    }
    fn unpacks(&self, weight: &WeightShape) -> bool {
        self.0.unpacks(weight)
    }
    fn unpack(&self, piece: &Arrival) -> Result<Arc<dyn GpuOp>, runtime::Error> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.unpack(piece)
    }
    fn prologue(&self, env: &OpEnv<'_>) -> Result<Vec<Arc<dyn GpuOp>>, runtime::Error> {
        self.0.prologue(env)
    }
    fn run(&self, ops: Range<usize>, env: &OpEnv<'_>) -> Result<Vec<Arc<dyn GpuOp>>, runtime::Error> {
        self.0.run(ops, env)
    }
    fn mover(&self, moves: &[Move]) -> Result<Arc<dyn GpuOp>, runtime::Error> {
        self.0.mover(moves)
    }
    fn copier(&self, from: DevicePtr, to: DevicePtr, bytes: u64) -> Result<Arc<dyn GpuOp>, runtime::Error> {
        self.0.copier(from, to, bytes)
    }
}

/// Unpackers that are made when a plan is loaded.
fn unpackers(name: &str, plan: &Plan) -> usize {
    let gpu = sim(Faults::none());
    let (kv_type, precision) = (KvType::F16, Precision::Fast);
    let limits = Limits { context_tokens: CONTEXT_TOKENS, sequences: 1, kv_type, precision, choices: Choices::Unseen };
    let places = HostPlace::of_plan(plan, precision);
    let weights = WeightStore::load_placed(model(name), &plan.program, &places).expect("weights");
    let isa = Isa::detect();
    let maker = SimMaker::new(Arc::clone(&gpu), (&plan.program, &plan.arena), &weights, limits, isa).expect("a maker");
    let made = Arc::new(AtomicUsize::new(0));
    let maker = Box::new(Counting(maker, Arc::clone(&made)));
    let hand_over = HandOver { to_gpu_us: 1.0, to_cpu_us: 0.7 };
    let side = GpuSide { gpu: gpu as Arc<dyn Gpu>, maker, hand_over, pinned_schedule: None };
    Executor::with_gpu(plan, weights, limits, (team(2), isa), side).expect("a good plan");
    made.load(Ordering::Relaxed)
}

#[test]
fn operators_made_at_load_do_not_grow_with_schedules() {
    for (name, mixture) in
        [("qwen3moe", Mixture::RoutedByGpu { slots: 2 }), ("qwen3", Mixture::AllPromoted { slots: 2 })]
    {
        let mut plan = plan(name, mixture);
        let few = unpackers(name, &plan);
        for number in 0..40 {
            let mut other = plan.schedules[0].clone();
            // Some bring less; all to the same places.
            other.promotions.truncate(1 + number % other.promotions.len());
            plan.schedules.push(other);
        }
        assert!(few > 0);
        assert_eq!(unpackers(name, &plan), few, "{name}");
    }
}

/// Calls to the GPU in each of some rounds of one token.
fn calls(name: &str, mixture: Mixture) -> (usize, Vec<u64>) {
    let (plan, gpu, ids) = (plan(name, mixture), sim(Faults::none()), prompt(name));
    let mut executor = hybrid(name, &plan, &gpu).expect("a good plan");
    let decode = plan.schedules.iter().find(|schedule| schedule.phase == Phase::Decode).expect("a schedule");
    let calls = (0..8).map(|position| {
        let before = gpu.calls();
        feed(&mut executor, &ids[position..position + 1], position, 1).expect("a good round");
        gpu.calls() - before
    });
    (decode.promotions.len(), calls.collect())
}

#[test]
fn a_fill_that_comes_again_is_queued_by_few_calls() {
    for (name, mixture) in
        [("qwen3moe", Mixture::RoutedByGpu { slots: 2 }), ("qwen3", Mixture::AllPromoted { slots: 2 })]
    {
        let (fills, calls) = calls(name, mixture);
        let last = calls[calls.len() - 1];
        // Per fill: its operators, a wait and a record on either side of slot and fill, a launch; per round and
        // crossing a move, a signal, a wait.
        assert!(calls[0] > last, "{name}: {calls:?}");
        assert!(last <= 12 * fills as u64 + 24, "{name}: {fills} fills, {calls:?}");
    }
}
