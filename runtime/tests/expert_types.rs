//! Experts of every weight type: the fast kernels beside the exact ones, and one token at a time beside batches. All
//! experts are chosen, so that no choice can turn on a rounding difference.

use device::team::{CallerPinning, Pinning, Team, TeamConfig};
use fixtures::Mix;
use fixtures::family::{Common, Experts, Qwen3Moe};
use gguf::{GgmlType, Model};
use kernels::cpu::Isa;
use plan_format::arena::{Arena, RoundLimits};
use runtime::exec::{Choices, Executor, KvType, Limits, Precision, Round, Span, WeightStore};
use runtime::verify::relative_l2;
use std::path::Path;

const TOKENS: u32 = 24;

fn shape() -> Qwen3Moe {
    let common = Common {
        n_layer: 2,
        n_embd: 256,
        n_head: 4,
        n_head_kv: 2,
        head_dim: 64,
        n_vocab: 512,
        n_context: 256,
        rope_base: 1e4,
        norm_eps: 1e-6,
    };
    Qwen3Moe { common, experts: Experts { n_expert: 3, n_used: 3, n_ff: 256 }, n_ff_unused: 256 }
}

fn executor(path: &Path, precision: Precision) -> Executor {
    let model = Model::open(path).expect("readable");
    let program = planner::lower_model(&model).expect("known family");
    let arena = Arena::new(&program, RoundLimits { ubatch_tokens: TOKENS, output_tokens: TOKENS });
    let weights = WeightStore::load(model, &program, precision).expect("weights");
    let kv_type = if precision == Precision::Exact { KvType::F32 } else { KvType::F16 };
    let limits = Limits { context_tokens: 64, sequences: 1, kv_type, precision, choices: Choices::Unseen };
    let config = TeamConfig { threads: 2, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 20 };
    let team = Team::new(config).expect("threads");
    Executor::new(&program, &arena, weights, limits, (team, Isa::detect())).expect("prepared")
}

fn logits(executor: &mut Executor, ubatch: usize) -> Vec<f32> {
    executor.clear(0).expect("states on the CPU");
    let ids: Vec<u32> = (0..TOKENS).map(|i| 3 + i * 17 % 400).collect();
    let mut all = Vec::new();
    for (index, tokens) in ids.chunks(ubatch).enumerate() {
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        let positions: Vec<u32> = rows.iter().map(|row| (index * ubatch) as u32 + row).collect();
        let spans = [Span { sequence: 0, tokens: 0..tokens.len() }];
        let view = executor.run(&Round { tokens, positions: &positions, spans: &spans, outputs: &rows });
        let view = view.expect("a good round");
        (0..view.rows()).for_each(|row| all.extend_from_slice(view.row(row)));
    }
    all
}

#[test]
fn experts_of_every_type_are_right_in_any_round() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    for ty in GgmlType::KNOWN.iter().copied().filter(|&ty| fixtures::blocks::is_supported(ty)) {
        let spec = shape().build("experts", &Mix::Uniform(ty)).expect("a good shape");
        spec.write_random(&path, 3, &|_, _| {}).expect("written");
        let exact = logits(&mut executor(&path, Precision::Exact), TOKENS as usize);
        let mut fast = executor(&path, Precision::Fast);
        let got = logits(&mut fast, TOKENS as usize);
        let error = relative_l2(&exact, &got);
        assert!(error < 0.04, "{ty}: relative error {error:.4}");
        assert!(exact.iter().all(|logit| logit.is_finite()), "{ty}");
        for ubatch in [1, 5] {
            assert!(logits(&mut fast, ubatch) == got, "{ty}: rounds of {ubatch} change bits");
        }
    }
}
