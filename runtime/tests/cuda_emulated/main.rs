//! Whole models with their CUDA kernels emulated: every family under mixtures of resident, streamed and host items.
//!
//! The logits are near those of the CPU alone (other kernels, other sums), and near themselves under another order of
//! threads and in other ubatches. On a machine with a GPU `cargo test -- --ignored` runs the same on it.

#[path = "../../../kernels/tests/emulator/mod.rs"]
mod emulator;
mod gpu;
#[path = "../support/mod.rs"]
mod support;

use device::gpu::Gpu;
use fixtures::REFERENCE_MODELS;
use gpu::EmulatedGpu;
use kernels::cpu::Isa;
use plan_format::schedule::Layout;
use runtime::exec::{Executor, HostPlace, KvType, Limits, Precision, WeightStore};
use runtime::hybrid::cuda::{self, CudaMaker};
use runtime::hybrid::{GpuSide, HandOver};
use std::sync::Arc;
use support::{CONTEXT_TOKENS, Mixture, all_cpu, feed, model, plan, prompt, relative_error, team, without_flips};

/// Relative L2 distance of the logits of two ways to compute with 8-bit or 16-bit activations, expert flips aside.
const DISTANCE_MAX: f64 = 0.06;

fn executor(name: &str, mixture: Mixture, gpu: Arc<dyn Gpu>) -> Result<Executor, runtime::Error> {
    let mut plan = plan(name, mixture);
    for layouts in &mut plan.layouts {
        layouts.fill(Layout::GpuTiled);
    }
    let places = HostPlace::of_plan(&plan, Precision::Fast);
    let weights = WeightStore::load_placed(model(name), &plan.program, &places)?;
    let (kv_type, precision) = (KvType::F16, Precision::Fast);
    let limits = Limits { context_tokens: CONTEXT_TOKENS, sequences: 1, kv_type, precision };
    let hand_over = HandOver { to_gpu_us: 1.0, to_cpu_us: 1.0 };
    let maker = Box::new(CudaMaker::new(Arc::clone(&gpu)));
    let side = GpuSide { gpu, maker, hand_over, pinned_schedule: None };
    Executor::with_gpu(&plan, weights, limits, (team(2), Isa::detect()), side)
}

/// Every distance that is too large, and whatever else goes wrong, in words.
fn faults_on(name: &str, mixture: Mixture, gpu: &Arc<dyn Gpu>, ubatches: &[usize]) -> Vec<String> {
    let ids = prompt(name);
    let expected = feed(&mut all_cpu(name), &ids, 0, 64).expect("a good round");
    let what = format!("{name} {mixture:?}");
    let mut executor = match executor(name, mixture, Arc::clone(gpu)) {
        Ok(executor) => executor,
        Err(error) => return vec![format!("{what}: {error}")],
    };
    let mut faults = Vec::new();
    for &ubatch in ubatches {
        let got = executor.clear(0).and_then(|()| feed(&mut executor, &ids, 0, ubatch));
        let outcome = got.map(|got| {
            let (got, expected) = without_flips(name, &got, &expected);
            relative_error(&expected, &got)
        });
        println!("{what}, ubatch {ubatch}: distance {outcome:.5?}");
        if !outcome.as_ref().is_ok_and(|distance| *distance < DISTANCE_MAX) {
            faults.push(format!("{what}, ubatch {ubatch}: {outcome:?}"));
        }
    }
    faults
}

#[track_caller]
fn check<'a>(cases: impl Iterator<Item = (&'a str, Mixture)>, gpu: impl Fn() -> Arc<dyn Gpu>, ubatches: &[usize]) {
    let faults: Vec<String> = cases.flat_map(|(name, mixture)| faults_on(name, mixture, &gpu(), ubatches)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn emulated() -> Arc<dyn Gpu> {
    Arc::new(EmulatedGpu::new(0))
}

/// Every family under every mixture.
fn all(mixtures: &[Mixture]) -> impl Iterator<Item = (&'static str, Mixture)> {
    REFERENCE_MODELS.into_iter().flat_map(move |name| mixtures.iter().map(move |&mixture| (name, mixture)))
}

#[test]
fn a_dense_model_is_resident() {
    check([("qwen3", Mixture::Resident)].into_iter(), emulated, &[64, 3, 1]);
}

/// Streamed weights, whole or when they are chosen, give the bits of resident ones: the same kernels read what has been
/// unpacked.
#[test]
fn streamed_experts_give_the_bits_of_resident_ones() {
    let (name, ids) = ("qwen3moe", prompt("qwen3moe"));
    let logits = |mixture, ubatch| {
        let mut executor = executor(name, mixture, emulated()).expect("a good plan");
        feed(&mut executor, &ids, 0, ubatch).expect("good rounds")
    };
    // Chosen experts are streamed for one token only.
    for (mixture, ubatch) in [
        (Mixture::AllPromoted { slots: 2 }, 8),
        (Mixture::AllPromoted { slots: 1 }, 1),
        (Mixture::RoutedByGpu { slots: 2 }, 1),
    ] {
        assert!(logits(mixture, ubatch) == logits(Mixture::Resident, ubatch), "{mixture:?}, ubatch {ubatch}");
    }
}

/// So do those that are held between prompts, in memory that prompts use, whatever rounds follow each other.
#[test]
fn held_weights_give_the_bits_of_resident_ones() {
    let (name, ids) = ("qwen3moe", prompt("qwen3moe"));
    let logits = |mixture| {
        let mut executor = executor(name, mixture, emulated()).expect("a good plan");
        let (mut first, mut all) = (0, Vec::new());
        for tokens in [5, 1, 1, 3, 1, 4, 1] {
            let piece = &ids[first..first + tokens];
            all.extend(feed(&mut executor, piece, first, tokens).expect("a good round"));
            first += tokens;
        }
        all
    };
    assert!(logits(Mixture::Holding { slots: 2 }) == logits(Mixture::Resident));
}

/// Of a layer's experts some are computed here and the others on the CPU, or all here from two stacks: near what whole
/// stacks here give, in the same ubatches.
#[test]
fn experts_lie_in_two_places() {
    for (name, mixture) in [("qwen3moe", Mixture::Hot), ("gpt-oss", Mixture::HotAndStreamed { slots: 2 })] {
        let ids = prompt(name);
        for ubatch in [64, 1] {
            let logits = |mixture| {
                let mut executor = executor(name, mixture, emulated()).unwrap_or_else(|e| panic!("{name}: {e}"));
                feed(&mut executor, &ids, 0, ubatch).expect("good rounds")
            };
            let (got, expected) = without_flips(name, &logits(mixture), &logits(Mixture::Resident));
            let distance = relative_error(&expected, &got);
            println!("{name} {mixture:?}, ubatch {ubatch}: distance {distance:.5}");
            assert!(distance < DISTANCE_MAX, "{name} {mixture:?}, ubatch {ubatch}: {distance}");
        }
    }
}

#[test]
#[ignore = "minutes, mostly compiling; run it when operators or kernels change"]
fn every_family_under_every_mixture() {
    let mixtures = [
        Mixture::Resident,
        Mixture::Alternating,
        Mixture::MixerResident,
        Mixture::AllPromoted { slots: 2 },
        Mixture::Holding { slots: 2 },
        Mixture::Random { seed: 2 },
    ];
    check(all(&mixtures), emulated, &[64, 3, 1]);
}

#[test]
#[ignore = "needs a GPU"]
fn every_family_on_the_gpu_of_this_machine() {
    let mixtures = [
        Mixture::Resident,
        Mixture::Alternating,
        Mixture::FfnResident,
        Mixture::MixerResident,
        Mixture::AllPromoted { slots: 2 },
        Mixture::Promoted { slots: 1 },
        Mixture::Holding { slots: 2 },
        Mixture::Random { seed: 2 },
    ];
    let device = Arc::new(cuda::open(0, None).expect("a GPU"));
    for name in REFERENCE_MODELS {
        cuda::load(&device, &plan(name, Mixture::Resident).program, &[], 16).expect("modules");
    }
    check(all(&mixtures), || Arc::clone(&device) as Arc<dyn Gpu>, &[64, 33, 8, 4, 1]);
}
