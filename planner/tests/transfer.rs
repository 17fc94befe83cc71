//! Dynamic transfer against brute force over exactly the assignments that Algorithm 2 may choose.

use planner::transfer::paper::{Indicator, Side, TransferItem, brute_force, schedule, total_ns};
use proptest::prelude::*;

fn item() -> impl Strategy<Value = TransferItem> {
    let stream = prop_oneof![1 => Just(None), 6 => (0i64..1500).prop_map(Some)];
    let home = prop_oneof![1 => Just(Side::Gpu), 2 => Just(Side::Cpu)];
    (1i64..1000, 1i64..200, 0i64..150, 0i64..150, stream, home).prop_map(
        |(cpu_ns, gpu_ns, to_gpu_ns, to_cpu_ns, stream_ns, home)| TransferItem {
            cpu_ns,
            gpu_ns,
            to_gpu_ns,
            to_cpu_ns,
            stream_ns,
            home,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn algorithm_2_corrected_minimises_t(items in prop::collection::vec(item(), 1..=12)) {
        let found = schedule(&items, Indicator::Corrected);
        prop_assert_eq!(found.total_ns, brute_force(&items));
        prop_assert_eq!(total_ns(&items, &found.promoted), Some(found.total_ns));
    }
}

#[test]
fn algorithm_2_as_printed_does_not_minimise_t() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = prop::collection::vec(item(), 6..=12);
    let mut optimal = 0;
    for _ in 0..500 {
        let items = strategy.new_tree(&mut runner).unwrap().current();
        let found = schedule(&items, Indicator::AsPrinted);
        optimal += u32::from(total_ns(&items, &found.promoted) == Some(brute_force(&items)));
    }
    assert!(optimal < 450, "{optimal} of 500 optimal: the printed indicator would do");
}

#[test]
fn a_transfer_longer_than_its_window_is_worth_it_only_below_the_cpu_time() {
    let host = |cpu_ns, stream_ns| TransferItem {
        cpu_ns,
        gpu_ns: 10,
        to_gpu_ns: 5,
        to_cpu_ns: 5,
        stream_ns: Some(stream_ns),
        home: Side::Cpu,
    };
    // (time of item 1 on the CPU, is it promoted?): promoting costs 5 + 10 + exposed 300 - 100 + nothing after.
    for (cpu_ns, expected) in [(214, false), (216, true)] {
        let items = [TransferItem { stream_ns: None, ..host(100, 0) }, host(cpu_ns, 300)];
        let found = schedule(&items, Indicator::Corrected);
        assert_eq!(found.promoted, [false, expected]);
        assert_eq!(found.total_ns, 100 + if expected { 215 } else { cpu_ns });
    }
}

mod pipelined {
    //! The search under the simulator's rules.

    use plan_format::ItemId;
    use plan_format::artifact::KvType;
    use plan_format::costs::{CaseCosts, CostModel, ItemCost, Load, Team};
    use plan_format::evaluate::{Prepared, Scratch};
    use plan_format::program::ItemKind;
    use plan_format::schedule::{Home, HostMemory, Phase, Placement};
    use planner::cost::{Demand, ItemFacts, Problem};
    use planner::simulate::{AfterLast, Run};
    use planner::transfer::{
        Answer, Effort, GpuMemory, Method, SlotShape, Task, paper_promotions, solve, verify_schedule,
    };
    use proptest::prelude::*;

    /// Per item: cpu, gpu, stream, bytes, resident, routed.
    type Draw = (u32, u32, u32, u64, bool, bool);

    fn problem(draws: &[Draw], phase: Phase) -> Problem {
        let count = draws.len() as u32;
        let kinds = [ItemKind::MixerInput, ItemKind::MixerOutput, ItemKind::FfnInput, ItemKind::FfnOutput];
        let facts = |i: usize| ItemFacts {
            name: format!("item {i}"),
            kind: kinds[i % 4],
            layer: Some(i as u32 / 4),
            weight_bytes: draws[i].3,
            output_bytes_per_token: 0,
        };
        let item = |i: usize| ItemCost {
            gpu_us: draws[i].1 as f32,
            stream_us: draws[i].2 as f32,
            to_gpu_us: 6.0,
            to_cpu_us: 8.0,
            dram_share: 0.75,
            stream_after: (draws[i].5 && i > 0).then(|| ItemId(i as u32 - 1)),
        };
        let team = |threads| Team { threads, cpu_slowdown_while_link: 1.5, link_slowdown_while_cpu: 1.25 };
        let cpu_us = |slower: f32| draws.iter().map(move |draw| draw.0 as f32 * slower);
        Problem {
            items: (0..draws.len()).map(facts).collect(),
            costs: CostModel {
                teams: vec![team(2), team(4)],
                input_start: (0..=count).map(|i| i.saturating_sub(1)).collect(),
                inputs: (0..count - 1).map(ItemId).collect(),
                cases: vec![CaseCosts {
                    phase,
                    context_tokens: 2048,
                    gap_us: 5.0,
                    cpu_us: cpu_us(1.7).chain(cpu_us(1.0)).collect(),
                    items: (0..draws.len()).map(item).collect(),
                }],
            },
            slot_bytes: vec![draws.iter().map(|draw| draw.3).collect()],
            read_bytes: vec![draws.iter().map(|draw| draw.3).collect()],
            ubatches: Vec::new(),
            small_weight_bytes: 0,
            demand: Demand {
                context_tokens: 2048,
                kv_type: KvType::F16,
                prompt_tokens: 512,
                generate_tokens: 256,
                ubatch_tokens: vec![256],
                output_tokens: 8,
            },
        }
    }

    fn homes(draws: &[Draw]) -> Vec<Home> {
        draws.iter().map(|draw| if draw.4 { Home::Resident } else { Home::Host(HostMemory::Pinned) }).collect()
    }

    fn draw() -> impl Strategy<Value = Draw> {
        let bytes = 1u64..4000;
        (20u32..300, 1u32..30, 10u32..200, bytes, prop::bool::weighted(0.4), prop::bool::weighted(0.1))
    }

    fn phase() -> impl Strategy<Value = Phase> {
        prop_oneof![Just(Phase::Decode), Just(Phase::Prefill { ubatch_tokens: 256 })]
    }

    fn load() -> impl Strategy<Value = Load> {
        let ratio = || prop_oneof![Just(1.0), Just(2.5), Just(5.0)];
        (ratio(), ratio(), ratio()).prop_map(|(cpu, gpu, link)| Load::cell(cpu, gpu, link, 4))
    }

    /// The best of all sets of promotions for all teams.
    fn exhaustive_us(task: &Task<'_>) -> f64 {
        let promotable = task.promotable();
        let mut scratch = Scratch::default();
        let mut best_us = f64::INFINITY;
        for bits in 0..1u32 << promotable.len() {
            let chosen: Vec<u32> =
                (0..promotable.len()).filter(|i| bits >> i & 1 == 1).map(|i| promotable[i]).collect();
            for team in 0..2 {
                best_us = best_us.min(task.round_us(team, &chosen, &mut scratch));
            }
        }
        best_us
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn answers_are_never_worse_than_any_method_and_always_verify(
            draws in prop::collection::vec(draw(), 1..24), count in 1u32..4, size in 500u64..5000,
            phase in phase(), load in load()
        ) {
            let (problem, homes) = (problem(&draws, phase), homes(&draws));
            let slots = SlotShape::new(count, size);
            let task = Task { problem: &problem, case: 0, homes: &homes, slots, load };
            let Answer { team, promoted, round_us, method } = solve(&task, Effort::FULL, &[]);
            let mut scratch = Scratch::default();
            for team in 0..2 {
                for other in [Vec::new(), paper_promotions(&task, team)] {
                    prop_assert!(round_us <= task.round_us(team, &other, &mut scratch) * (1.0 + 2e-6));
                }
            }
            prop_assert_eq!(method == Method::Static, promoted.is_empty());
            let router_of = |item: u32| problem.costs.cases[0].items[item as usize].stream_after;
            let schedule = slots.schedule(phase, problem.costs.teams[team].threads, &promoted, router_of, round_us);
            let placement = Placement::new(homes.clone());
            let slots = slots.slots();
            // The artifact's form of the schedule means what the search meant.
            let case = &problem.costs.cases[0];
            let prepared = Prepared::new(&problem.costs, case, &placement, &slots, &schedule).unwrap();
            prop_assert_eq!(&prepared, &task.prepare(team, &promoted));
            let run = Run {
                model: &problem.costs,
                case: &problem.costs.cases[0],
                placement: &placement,
                slots: &slots,
                schedule: &schedule,
                load,
                rounds: 1,
                after_last: AfterLast::Stop,
            };
            let memory = GpuMemory { fixed_bytes: 0, budget_bytes: u64::MAX };
            prop_assert_eq!(verify_schedule(&run, &problem.slot_bytes[0], memory), Ok(()));
            for (index, promotion) in schedule.promotions.iter().enumerate() {
                prop_assert!(promotion.after.is_none_or(|after| after < promotion.item), "promotion {}", index);
            }
        }

        /// So few items are tried in all sets.
        #[test]
        fn answers_for_few_items_are_the_best_of_all_sets(
            draws in prop::collection::vec(draw(), 4..11), count in 1u32..4, phase in phase(), load in load()
        ) {
            let (problem, homes) = (problem(&draws, phase), homes(&draws));
            let task = Task { problem: &problem, case: 0, homes: &homes, slots: SlotShape::new(count, 4096), load };
            let found_us = solve(&task, Effort::FULL, &[]).round_us;
            let best_us = exhaustive_us(&task);
            prop_assert!(found_us >= best_us * (1.0 - 1e-9));
            // A promotion must earn more than one part in a million.
            prop_assert!(found_us <= best_us * (1.0 + 1e-5), "{} against {}", found_us, best_us);
        }
    }

    /// Always the same cases: the local search has no guarantee, these are what it reaches.
    #[test]
    fn answers_for_more_items_are_near_the_best_of_all_sets() {
        use proptest::strategy::ValueTree;
        use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
        let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let host = || draw().prop_map(|draw| (draw.0, draw.1, draw.2, draw.3, false, draw.5));
        let strategy = (prop::collection::vec(host(), 11..=12), 1u32..4, phase(), load());
        let mut ratios: Vec<f64> = (0..40)
            .map(|_| {
                let (draws, count, phase, load) = strategy.new_tree(&mut runner).unwrap().current();
                let (problem, homes) = (problem(&draws, phase), homes(&draws));
                let task = Task { problem: &problem, case: 0, homes: &homes, slots: SlotShape::new(count, 4096), load };
                assert!(task.promotable().len() > 10);
                solve(&task, Effort::FULL, &[]).round_us / exhaustive_us(&task)
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        assert!(ratios[0] >= 1.0 - 1e-9 && ratios[20] <= 1.01 && ratios[39] <= 1.15, "{ratios:?}");
    }

    #[test]
    fn a_schedule_over_budget_or_over_its_slot_is_refused() {
        let draws = [(200, 5, 20, 1000, false, false); 6];
        let (problem, homes) = (problem(&draws, Phase::Decode), homes(&draws));
        let shape = SlotShape::new(2, 1000);
        let schedule = shape.schedule(Phase::Decode, 4, &[1, 3, 5], |_| None, 0.0);
        let (placement, slots) = (Placement::new(homes), shape.slots());
        let run = Run {
            model: &problem.costs,
            case: &problem.costs.cases[0],
            placement: &placement,
            slots: &slots,
            schedule: &schedule,
            load: Load::IDLE,
            rounds: 1,
            after_last: AfterLast::Stop,
        };
        let check = |needed: u64, fixed_bytes, budget_bytes| {
            let fault = verify_schedule(&run, &[needed; 6], GpuMemory { fixed_bytes, budget_bytes });
            fault.err().map(|fault| fault.to_string())
        };
        assert_eq!(check(1000, 100, 2148), None);
        assert_eq!(check(1000, 100, 2147).unwrap(), "the plan takes 2148 bytes of GPU memory, the budget is 2147");
        assert_eq!(check(1025, 100, 9999).unwrap(), "item 1 needs 1025 bytes, its slot has 1024");
    }
}
