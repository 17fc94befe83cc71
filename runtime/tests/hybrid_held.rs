//! Items that decode rounds hold in prefill's memory: whatever rounds follow each other, results are the CPU's, delays
//! and races change nothing, what is held is brought once per change of phase, and what does not fit is left out.

mod support;

use device::gpu::Gpu;
use device::sim::Faults;
use plan_format::arena::{Arena, RoundLimits};
use plan_format::artifact::Plan;
use plan_format::verify;
use planner::cost::{Demand, few_limits, price};
use planner::profile::machines::MACHINES;
use planner::profile::synthetic;
use runtime::exec::Executor;
use runtime::hybrid::cuda::scratch_bytes;
use runtime::hybrid::ops::Sizes;
use support::{Mixture, all_cpu, feed, hold, hybrid, plan, prompt, sim};

fn holding(name: &str, mixture: Mixture) -> Plan {
    hold(plan(name, mixture))
}

/// Prompts, single tokens and verification batches in turn.
const PIECES: [usize; 12] = [7, 1, 1, 1, 5, 1, 4, 1, 6, 4, 1, 3];

/// Feeds the prompt in those pieces.
fn feed_pieces(executor: &mut Executor, ids: &[u32]) -> Vec<f32> {
    let (mut first, mut all) = (0, Vec::new());
    for tokens in PIECES.into_iter().cycle() {
        let last = ids.len().min(first + tokens);
        if first == last {
            return all;
        }
        let logits = feed(executor, &ids[first..last], first, tokens);
        all.extend(logits.unwrap_or_else(|error| panic!("tokens from {first}: {error}")));
        first = last;
    }
    all
}

#[track_caller]
fn check(name: &str, mixture: Mixture) {
    let (plan, ids) = (holding(name, mixture), prompt(name));
    let expected = feed(&mut all_cpu(name), &ids, 0, 5).expect("a good round");
    for faults in [Faults::none(), Faults::late_copies(1), Faults::late_operators(2), Faults::jitter(3)] {
        let mut executor = hybrid(name, &plan, &sim(faults.clone())).expect("a good plan");
        let got = feed_pieces(&mut executor, &ids);
        assert!(got == expected, "{name} {mixture:?} {faults:?}: other bits than the CPU's");
    }
}

#[test]
fn a_dense_model_that_holds_items_computes_what_the_cpu_does() {
    check("qwen3", Mixture::Promoted { slots: 2 });
}

#[test]
fn a_model_with_windows_that_holds_items_computes_what_the_cpu_does() {
    check("gemma3", Mixture::AllPromoted { slots: 3 });
}

#[test]
fn a_model_with_experts_that_holds_items_computes_what_the_cpu_does() {
    check("qwen3moe", Mixture::AllPromoted { slots: 2 });
}

#[test]
fn a_model_with_recurrences_that_holds_items_computes_what_the_cpu_does() {
    check("qwen3next", Mixture::Promoted { slots: 1 });
}

#[test]
fn what_is_held_is_brought_once_after_a_prompt() {
    let name = "qwen3";
    let mut plan = holding(name, Mixture::AllPromoted { slots: 2 });
    // Nothing else is brought, so that calls are the same in all rounds but the first.
    plan.schedules[0].promotions.clear();
    let (gpu, ids) = (sim(Faults::none()), prompt(name));
    let mut executor = hybrid(name, &plan, &gpu).expect("a good plan");
    let calls = |executor: &mut Executor, first: usize, tokens: usize| {
        let before = gpu.calls();
        feed(executor, &ids[first..first + tokens], first, tokens).expect("a good round");
        gpu.calls() - before
    };
    calls(&mut executor, 0, 8);
    let with_fills = calls(&mut executor, 8, 1);
    calls(&mut executor, 9, 1);
    let without = calls(&mut executor, 10, 1);
    assert_eq!(calls(&mut executor, 11, 1), without);
    // Each takes at least a copy, and an event on either side.
    let least = 3 * plan.placement.held.items.len() as u64;
    assert!(with_fills >= without + least, "{with_fills} {without}");
    calls(&mut executor, 12, 5);
    assert!(calls(&mut executor, 17, 1) >= without + least);
}

#[test]
fn a_round_that_fails_while_items_are_held_leaves_a_usable_executor() {
    let name = "qwen3";
    let (plan, ids) = (holding(name, Mixture::Promoted { slots: 2 }), prompt(name));
    let mut executor = hybrid(name, &plan, &sim(Faults::none())).expect("a good plan");
    feed(&mut executor, &ids[..3], 0, 1).expect("good rounds");
    assert!(feed(&mut executor, &[u32::MAX], 3, 1).is_err());
    let expected = feed(&mut all_cpu(name), &ids, 0, 64).expect("a good round");
    assert!(feed_pieces(&mut executor, &ids) == expected);
}

/// Others leave no room for `missing` of the slots: what lies on activations stays held, the rest is the CPU's.
#[test]
fn when_others_hold_gpu_memory_less_is_held() {
    let name = "qwen3";
    let (plan, ids) = (holding(name, Mixture::AllPromoted { slots: 3 }), prompt(name));
    let calm = sim(Faults::none());
    let expected = feed_pieces(&mut hybrid(name, &plan, &calm).expect("a good plan"), &ids);
    let unclaimed = calm.memory().expect("a sound GPU").unclaimed_bytes;
    let slot_bytes = plan.slots.slots[0].size_bytes;
    for missing_bytes in [slot_bytes, 2 * slot_bytes, 3 * slot_bytes + plan.slots.staging().map_or(0, |s| s.size_bytes)]
    {
        let gpu = sim(Faults { others_take: Some((0, unclaimed + missing_bytes)), ..Faults::none() });
        let mut executor = hybrid(name, &plan, &gpu).expect("a plan that does with less");
        assert_eq!(executor.notes().len(), 1);
        assert!(feed_pieces(&mut executor, &ids) == expected, "without {missing_bytes} bytes");
    }
}

#[test]
fn held_items_where_decode_rounds_work_are_refused() {
    let mut plan = holding("qwen3", Mixture::Promoted { slots: 2 });
    let least = plan.few_arena.as_ref().expect("an arena").size_bytes.next_multiple_of(256);
    plan.placement.held.items[0].offset_bytes = least;
    verify::verify_plan(&plan).expect("the format does not know what kernels work in");
    let error = hybrid("qwen3", &plan, &sim(Faults::none())).err().expect("held items on the scratch");
    assert!(error.to_string().contains("held items"), "{error}");
}

/// The planner puts held items behind what it thinks that rounds of few tokens work in, and slots behind what it thinks
/// that all rounds do: never less than they take.
#[test]
fn what_rounds_work_in_is_planned_for() {
    let profile = synthetic::profile(&MACHINES[0]);
    for name in ["qwen3-14b", "qwen3-30b-a3b", "gpt-oss-20b", "tiny-deepseek2", "tiny-qwen3next", "tiny-gemma3"] {
        let model = fixtures::catalog::model(name).expect("a known model");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        model.write_sparse(&path).expect("a sparse file");
        let program = planner::lower_model(&gguf::Model::open(&path).expect("a model")).expect("a known family");
        for ubatch_tokens in [16, 512, 2048] {
            let demand = Demand {
                context_tokens: 4096,
                kv_type: plan_format::artifact::KvType::F16,
                prompt_tokens: 2048,
                generate_tokens: 64,
                ubatch_tokens: vec![ubatch_tokens],
                output_tokens: 8,
            };
            let facts = &price(&program, &profile, &demand).expect("a complete profile").ubatches[0];
            let all = RoundLimits { ubatch_tokens, output_tokens: facts.output_tokens };
            let work_bytes = |limits: RoundLimits| {
                let sizes = Sizes { limits, context_tokens: 4096, sequences: 1, kv_bytes: 2 };
                let scratch = scratch_bytes(&program, &sizes).expect("known types").next_multiple_of(256);
                scratch + Arena::new(&program, limits).size_bytes
            };
            assert!(work_bytes(all) <= facts.arena_bytes + facts.gpu_work_bytes, "{name} {ubatch_tokens}");
            assert!(work_bytes(few_limits(all)) <= facts.few_bytes, "{name} {ubatch_tokens}");
        }
    }
}
