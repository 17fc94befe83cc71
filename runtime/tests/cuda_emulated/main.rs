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
use runtime::exec::{Choices, Executor, HostPlace, KvType, Limits, Precision, WeightStore};
use runtime::hybrid::cuda::{self, CudaMaker};
use runtime::hybrid::{GpuSide, HandOver};
use runtime::verify::{Comparison, Exact, Outcome, relative_l2};
use std::sync::Arc;
use support::{Mixture, cpu_with, feed, limits, model, plan, prompt, team, without_flips};

/// Relative L2 distance of the logits of two ways to compute with 8-bit or 16-bit activations and the same experts.
const DISTANCE_MAX: f64 = 0.06;

fn executor(name: &str, mixture: Mixture, gpu: Arc<dyn Gpu>) -> Result<Executor, runtime::Error> {
    executor_with(name, mixture, gpu, Choices::Unseen)
}

fn executor_with(
    name: &str,
    mixture: Mixture,
    gpu: Arc<dyn Gpu>,
    choices: Choices,
) -> Result<Executor, runtime::Error> {
    let mut plan = plan(name, mixture);
    for layouts in &mut plan.layouts {
        layouts.fill(Layout::GpuTiled);
    }
    let places = HostPlace::of_plan(&plan, Precision::Fast);
    let weights = WeightStore::load_placed(model(name), &plan.program, &places)?;
    let limits = Limits { choices, ..limits() };
    let hand_over = HandOver { to_gpu_us: 1.0, to_cpu_us: 1.0 };
    let maker = Box::new(CudaMaker::new(Arc::clone(&gpu)));
    let side = GpuSide { gpu, maker, hand_over, pinned_schedule: None };
    Executor::with_gpu(&plan, weights, limits, (team(2), Isa::detect()), side)
}

/// A run beside the CPU's kernels with the same choices of experts: other kernels choose others where routers nearly
/// tie.
fn beside_cpu(name: &str, run: &Outcome, ids: &[u32]) -> Comparison {
    let program = planner::lower_model(&model(name)).expect("known family");
    let mut cpu = cpu_with(name, &program, 2, limits());
    cpu.force_choices(&program, run.chosen.clone()).expect("choices of this model");
    let logits = feed(&mut cpu, ids, 0, 64).expect("a good round");
    let (vocab, flips) = (logits.len() / ids.len(), cpu.take_flips());
    Comparison::new(run, Exact { logits, flips }, (vocab, DISTANCE_MAX))
}

/// Every run that is too far from the CPU's, and whatever else goes wrong, in words.
fn faults_on(name: &str, mixture: Mixture, gpu: &Arc<dyn Gpu>, ubatches: &[usize]) -> Vec<String> {
    let (ids, what) = (prompt(name), format!("{name} {mixture:?}"));
    let mut executor = match executor_with(name, mixture, Arc::clone(gpu), Choices::Recorded) {
        Ok(executor) => executor,
        Err(error) => return vec![format!("{what}: {error}")],
    };
    let mut faults = Vec::new();
    for &ubatch in ubatches {
        executor.keep_choices();
        let logits = executor.clear(0).and_then(|()| feed(&mut executor, &ids, 0, ubatch));
        let chosen = executor.take_choices();
        match logits {
            Ok(logits) => {
                let compared = beside_cpu(name, &Outcome { logits, chosen }, &ids);
                println!("{what}, ubatch {ubatch}: {compared}");
                faults.extend(compared.fault().map(|fault| format!("{what}, ubatch {ubatch}: {fault}")));
            }
            Err(error) => faults.push(format!("{what}, ubatch {ubatch}: {error}")),
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
            let distance = relative_l2(&expected, &got);
            println!("{name} {mixture:?}, ubatch {ubatch}: distance {distance:.5}");
            assert!(distance < DISTANCE_MAX, "{name} {mixture:?}, ubatch {ubatch}: {distance}");
        }
    }
}

/// Choices that kernels on the GPU make are seen, and are the exact routers' own but for near ties; with the same
/// experts the logits are nearer than they are without.
#[test]
fn choices_are_recorded_and_stand_beside_the_exact_ones() {
    let (name, ids) = ("qwen3moe", prompt("qwen3moe"));
    for mixture in [Mixture::Resident, Mixture::Hot] {
        let mut executor = executor_with(name, mixture, emulated(), Choices::Recorded).expect("a good plan");
        executor.keep_choices();
        let logits = feed(&mut executor, &ids, 0, 8).expect("good rounds");
        let run = Outcome { logits, chosen: executor.take_choices() };
        let program = planner::lower_model(&model(name)).expect("known family");
        let limits = Limits { kv_type: KvType::F32, precision: Precision::Exact, ..limits() };
        let mut exact = cpu_with(name, &program, 2, limits);
        exact.force_choices(&program, run.chosen.clone()).expect("choices of this model");
        let logits = feed(&mut exact, &ids, 0, 64).expect("good rounds");
        let (vocab, flips) = (logits.len() / ids.len(), exact.take_flips());
        let compared = Comparison::new(&run, Exact { logits, flips }, (vocab, 0.1));
        println!("{mixture:?}: {compared}");
        assert_eq!(compared.choices, 2 * ids.len());
        assert!(compared.fault().is_none() && compared.error < 0.03, "{mixture:?}: {compared}");
    }
}

/// A family under every mixture: minutes, mostly compiling, so each is a test of its own.
macro_rules! under_every_mixture {
    ($($test:ident: $name:literal),* $(,)?) => {$(
        #[test]
        #[ignore = "minutes, mostly compiling; run it when operators or kernels change"]
        fn $test() {
            let mixtures = [
                Mixture::Resident,
                Mixture::Alternating,
                Mixture::MixerResident,
                Mixture::AllPromoted { slots: 2 },
                Mixture::Holding { slots: 2 },
                Mixture::Random { seed: 2 },
            ];
            check(mixtures.into_iter().map(|mixture| ($name, mixture)), emulated, &[64, 3, 1]);
        }
    )*};
}

under_every_mixture! {
    every_mixture_of_llama: "llama",
    every_mixture_of_llama_spm: "llama-spm",
    every_mixture_of_qwen2: "qwen2",
    every_mixture_of_qwen3: "qwen3",
    every_mixture_of_gemma3: "gemma3",
    every_mixture_of_glm4: "glm4",
    every_mixture_of_qwen3moe: "qwen3moe",
    every_mixture_of_gpt_oss: "gpt-oss",
    every_mixture_of_qwen3next: "qwen3next",
    every_mixture_of_qwen35moe: "qwen35moe",
    every_mixture_of_llama4: "llama4",
    every_mixture_of_deepseek2: "deepseek2",
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
