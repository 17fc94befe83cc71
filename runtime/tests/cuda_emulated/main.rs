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
use gpu::EmulatedGpu;
use kernels::cpu::Isa;
use plan_format::schedule::Layout;
use runtime::exec::{Executor, HostPlace, KvType, Limits, Precision, WeightStore};
use runtime::hybrid::cuda::{self, CudaMaker};
use runtime::hybrid::{GpuSide, HandOver};
use std::sync::Arc;
use support::{CONTEXT_TOKENS, FAMILIES, Mixture, all_cpu, feed, model, plan, prompt, team};

/// Relative L2 distance of the logits of two ways to compute with 8-bit or 16-bit activations.
const DISTANCE_MAX: f64 = 0.06;

fn executor(name: &str, mixture: Mixture, gpu: Arc<dyn Gpu>) -> Executor {
    let mut plan = plan(name, mixture);
    for layouts in &mut plan.layouts {
        layouts.fill(Layout::GpuTiled);
    }
    let places = HostPlace::of_plan(&plan, Precision::Fast);
    let weights = WeightStore::load_placed(model(name), &plan.program, &places).expect("weights");
    let (kv_type, precision) = (KvType::F16, Precision::Fast);
    let limits = Limits { context_tokens: CONTEXT_TOKENS, sequences: 1, kv_type, precision };
    let hand_over = HandOver { to_gpu_us: 1.0, to_cpu_us: 1.0 };
    let maker = Box::new(CudaMaker::new(Arc::clone(&gpu)));
    let side = GpuSide { gpu, maker, hand_over, pinned_schedule: None };
    Executor::with_gpu(&plan, weights, limits, (team(2), Isa::detect()), side).expect("an executor")
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (difference / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

#[track_caller]
fn check_on(name: &str, mixture: Mixture, gpu: &Arc<dyn Gpu>, ubatches: &[usize]) {
    let ids = prompt(name);
    let expected = feed(&mut all_cpu(name), &ids, 0, 64).expect("a good round");
    let mut executor = executor(name, mixture, Arc::clone(gpu));
    for &ubatch in ubatches {
        executor.clear(0).expect("a sound GPU");
        let got = feed(&mut executor, &ids, 0, ubatch).unwrap_or_else(|e| panic!("{name} {mixture:?}: {e}"));
        let distance = distance(&got, &expected);
        println!("{name} {mixture:?}, ubatch {ubatch}: distance {distance:.5}");
        assert!(distance < DISTANCE_MAX, "{name} {mixture:?}, ubatch {ubatch}: distance {distance}");
    }
}

#[track_caller]
fn check(name: &str, mixture: Mixture) {
    let gpu: Arc<dyn Gpu> = Arc::new(EmulatedGpu::new(0));
    check_on(name, mixture, &gpu, &[64, 3, 1]);
}

#[test]
fn a_dense_model_is_resident() {
    check("qwen3", Mixture::Resident);
}

#[test]
#[ignore = "minutes, mostly compiling; run it when operators or kernels change"]
fn every_family_under_every_mixture() {
    for name in FAMILIES {
        for mixture in [
            Mixture::Resident,
            Mixture::Alternating,
            Mixture::MixerResident,
            Mixture::AllPromoted { slots: 2 },
            Mixture::Random { seed: 2 },
        ] {
            check(name, mixture);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn every_family_on_the_gpu_of_this_machine() {
    let device = Arc::new(cuda::open(0, None).expect("a GPU"));
    for name in FAMILIES {
        cuda::load(&device, &plan(name, Mixture::Resident).program, &[], 8).expect("modules");
        for mixture in [
            Mixture::Resident,
            Mixture::Alternating,
            Mixture::FfnResident,
            Mixture::MixerResident,
            Mixture::AllPromoted { slots: 2 },
            Mixture::Promoted { slots: 1 },
            Mixture::Random { seed: 2 },
        ] {
            let gpu = Arc::clone(&device) as Arc<dyn Gpu>;
            check_on(name, mixture, &gpu, &[64, 33, 8, 4, 1]);
        }
    }
}
