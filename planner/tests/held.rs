//! What decode rounds hold in prefill's memory: where it fits, whether it pays, and that it never makes a plan worse.

use gguf::Model;
use plan_format::artifact::KvType;
use plan_format::costs::Load;
use plan_format::schedule::{Home, HostMemory, Phase};
use planner::cost::{Demand, Problem, price};
use planner::place::held::{Choice, choices};
use planner::place::memory::Budget;
use planner::place::search::{Decision, Query, decide};
use planner::place::weigh::Workload;
use planner::profile::machines::MACHINES;
use planner::profile::{Profile, synthetic};
use planner::transfer::{Effort, SlotShape, Task, solve};
use proptest::prelude::*;
use std::sync::LazyLock;

const GIB: u64 = 1 << 30;

fn problem(model: &str, generate_tokens: u32) -> (Problem, Profile) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fixtures::catalog::model(model).unwrap().write_sparse(&path).unwrap();
    let program = planner::lower_model(&Model::open(&path).unwrap()).unwrap();
    let profile = synthetic::profile(MACHINES.iter().find(|machine| machine.name == "h200-16core").unwrap());
    let demand = Demand {
        context_tokens: 4096,
        kv_type: KvType::F16,
        prompt_tokens: 2048,
        generate_tokens,
        ubatch_tokens: vec![1024],
        output_tokens: 8,
    };
    (price(&program, &profile, &demand).unwrap(), profile)
}

fn decided(model: &str, generate_tokens: u32) -> (Problem, Decision) {
    let (problem, profile) = problem(model, generate_tokens);
    let ram_bytes = profile.memory.available_mib << 20;
    let budget = Budget { vram_bytes: 6 * GIB, ram_bytes, pinned_bytes: ram_bytes };
    let decision = decide(&Query { problem: &problem, profile: &profile, budget }).unwrap();
    (problem, decision)
}

#[test]
fn a_long_answer_pays_for_bringing_items_and_a_short_one_does_not() {
    let (problem, decision) = decided("qwen3-14b", 64);
    let best = &decision.best;
    assert!(best.choice.held.total_bytes() > GIB / 4, "{:?}", best.choice);
    let workload = Workload::new(&problem, 1024).unwrap();
    let plain = Task { homes: &best.homes, slots: best.candidate.slots, ..best.task(&problem, workload.decode.0) };
    let without_us = workload.decode.1 * solve(&plain, Effort::FULL, &[]).round_us;
    let with_us = workload.decode.1 * best.decode.round_us + best.choice.held.load_us;
    assert!(with_us < 0.97 * without_us, "{with_us} us with, {without_us} us without");
    let (_, decision) = decided("qwen3-14b", 1);
    assert_eq!(decision.best.choice, Choice::nothing(decision.best.candidate.slots));
}

static EXPERTS: LazyLock<Problem> = LazyLock::new(|| problem("gpt-oss-20b", 64).0);

proptest! {
    #[test]
    fn what_is_held_fits_between_activations_and_slots_of_decode_rounds(
        seed in prop::collection::vec(0u8..4, 16), count in 1u32..4, size_mib in 4u64..300,
    ) {
        let problem = &*EXPERTS;
        let home = |item: usize| match seed[item % seed.len()] {
            0 if problem.items[item].weight_bytes > 0 => Home::Resident,
            1 => Home::Host(HostMemory::Mapped),
            2 => Home::Host(HostMemory::Pageable),
            _ => Home::Host(HostMemory::Pinned),
        };
        let homes: Vec<Home> = (0..problem.items.len()).map(home).collect();
        let slots = SlotShape::new(count, size_mib << 20);
        let facts = &problem.ubatches[0];
        for choice in choices(problem, 0, &homes, slots) {
            let (held, temporary) = (&choice.held, &choice.temporary);
            prop_assert_eq!(temporary.prefill, slots);
            prop_assert!(held.slots_at_bytes >= facts.arena_bytes + facts.gpu_work_bytes);
            let mut free_from = facts.few_bytes;
            for held in &held.items {
                let item = held.item.index();
                prop_assert!(matches!(homes[item], Home::Host(HostMemory::Pinned | HostMemory::Pageable)));
                prop_assert!(held.size_bytes >= problem.items[item].weight_bytes && facts.state_bytes[item] == 0);
                prop_assert!(held.offset_bytes >= free_from && held.offset_bytes.is_multiple_of(256));
                free_from = held.offset_bytes + held.size_bytes;
            }
            prop_assert!(free_from <= held.slots_at_bytes + temporary.few_at_bytes());
            prop_assert_eq!(temporary.few_at_bytes() + temporary.of(Phase::Decode).end_bytes(), slots.end_bytes());
            let few_homes = choice.homes(&homes);
            let changed = (0..homes.len()).filter(|&item| few_homes[item] != homes[item]).count();
            prop_assert_eq!(changed, held.items.len());
            // Held items are no promotions.
            let task = Task { problem, case: 0, homes: &few_homes, slots: temporary.few, load: Load::IDLE };
            prop_assert!(held.items.iter().all(|held| !task.is_promotable(held.item.index())));
        }
    }
}
