//! The executor against the reference logits of the tiny models, on any number of threads and in any ubatch.

mod support;

use device::team::{CallerPinning, Pinning, Team, TeamConfig};
use fixtures::REFERENCE_MODELS;
use fixtures::npy::Array;
use kernels::cpu::Isa;
use plan_format::arena::{Arena, RoundLimits};
use runtime::exec::{Choices, Executor, KvType, Limits, Precision, Round, Span, WeightStore};
use runtime::verify::relative_l2;
use support::{prompt, without_flips};

const CONTEXT_TOKENS: usize = 512;

fn executor(name: &str, precision: Precision, threads: usize) -> Executor {
    executor_of(name, precision, threads, CONTEXT_TOKENS)
}

fn executor_of(name: &str, precision: Precision, threads: usize, context_tokens: usize) -> Executor {
    let path = fixtures::reference_dir().join(format!("tiny-{name}.gguf"));
    let model = gguf::Model::open(&path).expect("reference model");
    let program = planner::lower_model(&model).expect("known family");
    let arena = Arena::new(&program, RoundLimits { ubatch_tokens: 256, output_tokens: 256 });
    let weights = WeightStore::load(model, &program, precision).expect("weights");
    let kv_type = if precision == Precision::Exact { KvType::F32 } else { KvType::F16 };
    let limits = Limits { context_tokens, sequences: 1, kv_type, precision, choices: Choices::Unseen };
    let config = TeamConfig { threads, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 20 };
    let team = Team::new(config).expect("threads");
    Executor::new(&program, &arena, weights, limits, (team, Isa::detect())).expect("prepared")
}

fn logits(executor: &mut Executor, ids: &[u32], ubatch: usize) -> Vec<f32> {
    executor.clear(0).expect("states on the CPU");
    let round = |(index, tokens): (usize, &[u32])| more_logits(executor, tokens, (index * ubatch) as u32);
    ids.chunks(ubatch).enumerate().flat_map(round).collect()
}

/// Logits of tokens from position `first` on, in one round.
fn more_logits(executor: &mut Executor, tokens: &[u32], first: u32) -> Vec<f32> {
    let positions: Vec<u32> = (0..tokens.len() as u32).map(|i| first + i).collect();
    let outputs: Vec<u32> = (0..tokens.len() as u32).collect();
    let spans = [Span { sequence: 0, tokens: 0..tokens.len() }];
    let round = Round { tokens, positions: &positions, spans: &spans, outputs: &outputs };
    let view = executor.run(&round).expect("a good round");
    (0..view.rows()).flat_map(|row| view.row(row).to_vec()).collect()
}

fn reference(name: &str, kind: &str) -> Array<f32> {
    fixtures::npy::read_f32(&fixtures::reference_dir().join(format!("{name}.{kind}.npy"))).expect("reference array")
}

/// High-precision reference: float64, which differs from llama.cpp's F32 run only for gemma3.
#[track_caller]
fn check_short(name: &str, precision: Precision, limit: impl Fn(f64) -> f64) {
    let (ids, reference64) = (prompt(name), reference(name, "logits_f64"));
    let error_of = |got: &[f32]| match precision {
        Precision::Exact => relative_l2(&reference64.data, got),
        Precision::Fast => {
            let (reference, got) = without_flips(name, &reference64.data, got);
            relative_l2(&reference, &got)
        }
    };
    let quantised = error_of(&reference(name, "logits_quant").data);
    let mut executor = executor(name, precision, 2);
    let whole = logits(&mut executor, &ids, 256);
    let error = error_of(&whole);
    assert!(error <= limit(quantised), "{name}: relative error {error:.5}, llama.cpp's own {quantised:.5}");
    for ubatch in [1, 7] {
        assert!(logits(&mut executor, &ids, ubatch) == whole, "{name}: ubatch {ubatch} changes bits");
    }
}

#[test]
fn eight_bit_activations_are_as_near_as_the_references_own() {
    for name in REFERENCE_MODELS {
        check_short(name, Precision::Fast, |quantised| (1.5 * quantised).max(0.002));
    }
}

#[test]
fn exact_mode_is_exact() {
    for name in REFERENCE_MODELS {
        check_short(name, Precision::Exact, |_| 1e-4);
    }
}

#[test]
fn threads_change_no_bit() {
    for name in REFERENCE_MODELS {
        let ids = prompt(name);
        let one = logits(&mut executor(name, Precision::Fast, 1), &ids, 5);
        for threads in 2..=8 {
            let mut executor = executor(name, Precision::Fast, threads);
            for ubatch in [9, 1] {
                assert!(logits(&mut executor, &ids, ubatch) == one, "{name}, {threads} threads, ubatch {ubatch}");
            }
        }
    }
}

/// More segments of the cache than each worker joins for itself, and enough rounds for workers to overtake each other.
#[test]
fn tokens_one_by_one_after_a_long_prompt_have_the_bits_of_a_batch() {
    for name in ["llama", "gemma3"] {
        let mut executor = executor_of(name, Precision::Fast, 3, 2048);
        let ids: Vec<u32> = (0..1400).map(|i: u32| 3 + i.wrapping_mul(2_654_435_761) % 200).collect();
        let all = logits(&mut executor, &ids, 256);
        let vocab = all.len() / ids.len();
        for first in [1399, 1330, 200] {
            let end = ids.len().min(first + 40);
            logits(&mut executor, &ids[..first], 256);
            for position in first..end {
                let round = [ids[position]];
                let got = more_logits(&mut executor, &round, position as u32);
                assert!(got == all[position * vocab..][..vocab], "{name}, position {position}");
            }
        }
    }
}
