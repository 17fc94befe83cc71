//! Counting which experts are chosen: the counts are the choices, on any number of threads and in any round, and a
//! router that was written with a Zipf law follows it.

mod support;

use device::sim::Faults;
use device::team::{CallerPinning, Pinning, Team, TeamConfig};
use fixtures::{catalog, skew};
use gguf::Model;
use kernels::cpu::Isa;
use plan_format::arena::{Arena, RoundLimits};
use plan_format::program::Program;
use plan_format::routing::RoutingCounts;
use runtime::exec::{Choices, Executor, KvType, Limits, Precision, Round, Span, WeightStore};

use support::Mixture;

const UBATCH_TOKENS: u32 = 64;

fn executor(model: Model, threads: usize) -> (Executor, Program) {
    let program = planner::lower_model(&model).expect("known family");
    let arena = Arena::new(&program, RoundLimits { ubatch_tokens: UBATCH_TOKENS, output_tokens: 1 });
    let weights = WeightStore::load(model, &program, Precision::Fast).expect("weights");
    let limits = Limits {
        context_tokens: 512,
        sequences: 1,
        kv_type: KvType::F16,
        precision: Precision::Fast,
        choices: Choices::Recorded,
    };
    let config = TeamConfig { threads, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 20 };
    let team = Team::new(config).expect("threads");
    (Executor::new(&program, &arena, weights, limits, (team, Isa::detect())).expect("prepared"), program)
}

/// Feeds tokens from position 0.
fn feed(executor: &mut Executor, ids: &[u32], ubatch: usize) {
    executor.clear(0).expect("states on the CPU");
    for (index, tokens) in ids.chunks(ubatch).enumerate() {
        let first = (index * ubatch) as u32;
        let positions: Vec<u32> = (first..first + tokens.len() as u32).collect();
        let spans = [Span { sequence: 0, tokens: 0..tokens.len() }];
        executor.run(&Round { tokens, positions: &positions, spans: &spans, outputs: &[0] }).expect("a good round");
    }
}

fn ids(count: u32, seed: u32) -> Vec<u32> {
    (0..count).map(|i| 3 + (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 8) % 400).collect()
}

fn reference(name: &str) -> Model {
    Model::open(&fixtures::reference_dir().join(format!("tiny-{name}.gguf"))).expect("reference model")
}

#[test]
fn counts_are_the_choices_whatever_the_rounds_and_threads() {
    for (name, layers, chosen) in [("qwen3moe", 2, 2), ("gpt-oss", 3, 2), ("llama4", 4, 1), ("deepseek2", 2, 2)] {
        let count = |threads, ubatch| {
            let (mut executor, program) = executor(reference(name), threads);
            feed(&mut executor, &ids(90, 0), ubatch);
            let counts = executor.routing();
            counts.check(&program).expect("counts of this program");
            counts
        };
        let one = count(1, 64);
        assert_eq!(one.layers.len(), layers, "{name}");
        for layer in &one.layers {
            assert_eq!((layer.chosen, layer.tokens()), (chosen, 90.0), "{name} layer {}", layer.layer);
        }
        for (threads, ubatch) in [(1, 1), (3, 1), (3, 7)] {
            assert_eq!(count(threads, ubatch), one, "{name}, {threads} threads, rounds of {ubatch}");
        }
    }
    assert_eq!(executor(reference("llama"), 1).0.routing(), RoutingCounts::default());
}

/// Wherever routers and experts run, and whatever is streamed: the simulated GPU gives the CPU's bits, so its choices.
#[test]
fn choices_on_a_gpu_are_seen_too() {
    let mixtures = [
        Mixture::Resident,
        Mixture::MixerResident,
        Mixture::RoutedByGpu { slots: 2 },
        Mixture::Holding { slots: 2 },
        Mixture::Hot,
        Mixture::HotAlone,
        Mixture::HotAndStreamed { slots: 2 },
        Mixture::Random { seed: 3 },
    ];
    for name in ["qwen3moe", "gpt-oss"] {
        for mixture in mixtures {
            let (plan, ids) = (support::plan(name, mixture), support::prompt(name));
            let limits = Limits { choices: Choices::Recorded, ..support::limits() };
            let mut cpu = support::cpu_with(name, &plan.program, 2, limits);
            let gpu = support::sim(Faults::none());
            let mut hybrid = support::hybrid_with(name, &plan, &gpu, (None, Choices::Recorded)).expect("a good plan");
            for ubatch in [64, 1] {
                let chosen = |executor: &mut Executor| {
                    executor.clear(0).expect("a sound GPU");
                    executor.keep_choices();
                    support::feed(executor, &ids, 0, ubatch).expect("good rounds");
                    executor.take_choices()
                };
                let found = chosen(&mut hybrid);
                assert!(found.iter().all(|by| by.ids.len() == ids.len() * by.chosen), "{name} {mixture:?}");
                assert_eq!(found, chosen(&mut cpu), "{name} {mixture:?}, rounds of {ubatch}");
            }
            assert_eq!(hybrid.routing(), cpu.routing(), "{name} {mixture:?}");
            assert!(hybrid.routing().layers.iter().all(|layer| layer.tokens() == 2.0 * ids.len() as f64));
        }
    }
}

/// How often each rank is chosen, over all layers.
fn rates_by_rank(counts: &RoutingCounts, seed: u64) -> Vec<f64> {
    let mut rates = vec![0.0; counts.layers[0].hits.len()];
    for layer in &counts.layers {
        let name = format!("blk.{}.ffn_gate_inp.bias", layer.layer);
        for (rate, expert) in rates.iter_mut().zip(skew::ranking(layer.hits.len(), seed, &name)) {
            *rate += layer.hits[expert] as f64 / layer.tokens() / counts.layers.len() as f64;
        }
    }
    rates
}

#[track_caller]
fn check_skew(name: &str, exponent: f64) {
    let seed = 5;
    let mut spec = catalog::model(name).expect("a known model");
    assert!(spec.skew_routers(exponent, seed) > 0, "{name} has routers");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    spec.write_random(&path, seed, &|_, _| {}).expect("written");
    let (mut executor, _) = executor(Model::open(&path).expect("readable"), 2);
    for sequence in 0..8 {
        feed(&mut executor, &ids(256, 1000 * sequence), UBATCH_TOKENS as usize);
    }
    let counts = executor.routing();
    let found = rates_by_rank(&counts, seed);
    let stated = skew::zipf_rates(found.len(), counts.layers[0].chosen as usize, exponent);
    for (rank, (found, stated)) in found.iter().zip(&stated).enumerate() {
        assert!((found - stated).abs() < 0.08, "{name} rank {rank}: {found:.3} of {stated:.3} a token\n{stated:.3?}");
    }
    let hottest = found.len() / 4;
    let share = |rates: &[f64]| rates[..hottest].iter().sum::<f64>() / rates.iter().sum::<f64>();
    let (found, stated) = (share(&found), share(&stated));
    assert!((found / stated - 1.0).abs() < 0.1, "{name}: the hottest {hottest} take {found:.3}, stated {stated:.3}");
}

#[test]
fn a_written_zipf_law_is_what_experts_are_chosen_by() {
    for name in ["tiny-qwen3moe", "tiny-gpt-oss", "tiny-llama4", "tiny-qwen3next"] {
        for exponent in [0.0, 0.6, 1.2] {
            check_skew(name, exponent);
        }
    }
}
