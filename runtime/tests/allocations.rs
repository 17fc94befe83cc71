//! A round allocates nothing: neither the thread that asks for it nor a worker, in decode and in prefill, once the
//! executor is made. Counted by the allocator of this program, so this file has one test. Not here: what a round
//! computes (`reference_logits.rs`).

use device::team::{CallerPinning, Pinning, Team, TeamConfig};
use fixtures::REFERENCE_MODELS;
use kernels::cpu::Isa;
use plan_format::arena::{Arena, RoundLimits};
use runtime::exec::{Choices, Executor, KvType, Limits, Precision, Round, Span, WeightStore};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The system's allocator; counts what any thread asks for while a round runs.
struct Counting;

static IS_ROUND: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

fn note() {
    if IS_ROUND.load(Ordering::SeqCst) {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note();
        // SAFETY: the caller's contract.
        unsafe { System.realloc(start, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tokens of the rounds: a prompt's, and single ones after it.
const ROUNDS: [usize; 6] = [64, 7, 2, 1, 1, 1];

fn executor(name: &str) -> Executor {
    let path = fixtures::reference_dir().join(format!("tiny-{name}.gguf"));
    let model = gguf::Model::open(&path).expect("reference model");
    let program = planner::lower_model(&model).expect("known family");
    let arena = Arena::new(&program, RoundLimits { ubatch_tokens: 64, output_tokens: 1 });
    let weights = WeightStore::load(model, &program, Precision::Fast).expect("weights");
    let limits = Limits {
        context_tokens: 128,
        sequences: 1,
        kv_type: KvType::F16,
        precision: Precision::Fast,
        choices: Choices::Unseen,
    };
    let config = TeamConfig { threads: 2, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 20 };
    let mut team = Team::new(config).expect("threads");
    // A thread's start allocates, and may come later than the team.
    team.run(|_| {}).expect("workers start");
    Executor::new(&program, &arena, weights, limits, (team, Isa::detect())).expect("prepared")
}

/// Allocations of each round.
fn allocations(name: &str) -> Vec<usize> {
    let (mut executor, mut first) = (executor(name), 0);
    let mut counts = Vec::new();
    for count in ROUNDS {
        let tokens: Vec<u32> = (0..count as u32).map(|i| 3 + (first + i) * 7 % 200).collect();
        let positions: Vec<u32> = (first..first + count as u32).collect();
        let (spans, outputs) = ([Span { sequence: 0, tokens: 0..count }], [count as u32 - 1]);
        let round = Round { tokens: &tokens, positions: &positions, spans: &spans, outputs: &outputs };
        ALLOCATIONS.store(0, Ordering::SeqCst);
        IS_ROUND.store(true, Ordering::SeqCst);
        let rows = executor.run(&round).map(|view| view.rows());
        IS_ROUND.store(false, Ordering::SeqCst);
        assert_eq!(rows.expect("a good round"), 1, "{name}");
        counts.push(ALLOCATIONS.load(Ordering::SeqCst));
        first += count as u32;
    }
    counts
}

#[test]
fn a_round_allocates_nothing() {
    for name in REFERENCE_MODELS {
        assert_eq!(allocations(name), [0; ROUNDS.len()], "{name}: allocations in rounds of {ROUNDS:?} tokens");
    }
}
