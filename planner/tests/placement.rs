//! Static placement against brute force and against the ILP, on random chains and graphs.

use planner::place::chain::{Allowed, ChainItem, MIB, brute_force, chain_ns, is_feasible};
use planner::place::ilp::{self, GraphItem, Proof};
use planner::place::knapsack::{Assignment, Knapsack};
use planner::place::moe::non_experts_first;
use proptest::prelude::*;

fn allowed() -> impl Strategy<Value = Allowed> {
    prop_oneof![8 => Just(Allowed::Either), 1 => Just(Allowed::Cpu), 1 => Just(Allowed::Gpu)]
}

/// Items of `unit`-sized bytes: whole MiB make the knapsack exact, others only safe.
fn items(unit: u64, most: usize) -> impl Strategy<Value = Vec<ChainItem>> {
    let item = (0u64..40, 0i64..1000, 0i64..300, 0i64..200, 0i64..200, allowed()).prop_map(
        move |(size, cpu_ns, gpu_ns, to_gpu_ns, to_cpu_ns, allowed)| ChainItem {
            bytes: size * unit,
            cpu_ns,
            gpu_ns,
            to_gpu_ns,
            to_cpu_ns,
            allowed,
        },
    );
    prop::collection::vec(item, 1..=most)
}

/// The same chain as a graph: each item reads its predecessor, whose output costs what entering the item costs.
fn as_graph(chain: &[ChainItem]) -> Vec<GraphItem> {
    let node = |(i, item): (usize, &ChainItem)| GraphItem {
        bytes: item.bytes,
        cpu_ns: item.cpu_ns,
        gpu_ns: item.gpu_ns,
        output_to_gpu_ns: chain.get(i + 1).map_or(0, |next| next.to_gpu_ns),
        output_to_cpu_ns: chain.get(i + 1).map_or(0, |next| next.to_cpu_ns),
        allowed: item.allowed,
        inputs: i.checked_sub(1).into_iter().collect(),
    };
    chain.iter().enumerate().map(node).collect()
}

fn check_sound(items: &[ChainItem], found: &Assignment, budget_bytes: u64) {
    assert!(is_feasible(items, &found.resident, budget_bytes), "over budget or misplaced: {found:?}");
    assert_eq!(found.total_ns, chain_ns(items, &found.resident));
}

/// Items with any figures at all.
fn absurd_items() -> impl Strategy<Value = Vec<ChainItem>> {
    let any_ns = || prop_oneof![any::<i64>(), Just(i64::MAX), Just(i64::MIN), -1000i64..1000];
    let any_bytes = prop_oneof![any::<u64>(), Just(u64::MAX), Just(0u64), 0u64..10_000_000];
    let item = (any_bytes, any_ns(), any_ns(), any_ns(), any_ns(), allowed()).prop_map(
        |(bytes, cpu_ns, gpu_ns, to_gpu_ns, to_cpu_ns, allowed)| ChainItem {
            bytes,
            cpu_ns,
            gpu_ns,
            to_gpu_ns,
            to_cpu_ns,
            allowed,
        },
    );
    prop::collection::vec(item, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_figures_make_the_knapsack_fail_or_exceed_the_budget(
        items in absurd_items(), budget in prop_oneof![any::<u64>(), 0u64..100_000_000]
    ) {
        let table = Knapsack::solve(&items, budget);
        let mut last_ns = i64::MIN;
        for found in table.descending(budget).take(50) {
            prop_assert!(is_feasible(&items, &found.resident, budget));
            prop_assert!(found.total_ns >= last_ns);
            last_ns = found.total_ns;
        }
        prop_assert!(table.within(u64::MAX).is_none_or(|found| found.resident.len() == items.len()));
    }
}

proptest! {
    #[test]
    fn the_knapsack_equals_brute_force(items in items(MIB, 14), budget_mib in 0u64..300) {
        let budget = budget_mib * MIB;
        let found = Knapsack::solve(&items, budget).best_within(budget);
        prop_assert_eq!(found.as_ref().map(|a| a.total_ns), brute_force(&items, budget));
        if let Some(found) = found {
            check_sound(&items, &found, budget);
        }
    }

    #[test]
    fn odd_sizes_never_exceed_the_budget_and_time_never_rises_with_it(
        items in items(777_777, 14), budgets in prop::collection::vec(0u64..300_000_000, 1..6)
    ) {
        let mut budgets = budgets;
        budgets.sort_unstable();
        let mut last = i64::MAX;
        for budget in budgets {
            let exact = brute_force(&items, budget);
            if let Some(found) = Knapsack::solve(&items, budget).best_within(budget) {
                check_sound(&items, &found, budget);
                prop_assert!(Some(found.total_ns) >= exact);
                prop_assert!(found.total_ns <= last);
                last = found.total_ns;
            } else {
                prop_assert_eq!(last, i64::MAX);
            }
        }
    }

    #[test]
    fn one_table_answers_every_smaller_budget(items in items(MIB, 10)) {
        let table = Knapsack::solve(&items, 400 * MIB);
        for budget_mib in (0..400).step_by(7) {
            let exact = brute_force(&items, budget_mib as u64 * MIB);
            prop_assert_eq!(table.assignment(budget_mib).map(|a| a.total_ns), exact);
        }
    }

    #[test]
    fn experts_come_after_everything_else(
        items in items(MIB, 10), experts in prop::collection::vec(any::<bool>(), 10), budget_mib in 0u64..300
    ) {
        let budget = budget_mib * MIB;
        let experts = &experts[..items.len()];
        if let Some(found) = non_experts_first(&items, experts, budget) {
            check_sound(&items, &found, budget);
            let some_expert_by_choice =
                (0..items.len()).any(|i| experts[i] && found.resident[i] && items[i].allowed == Allowed::Either);
            let some_other_left_out =
                (0..items.len()).any(|i| !experts[i] && !found.resident[i] && items[i].allowed == Allowed::Either);
            prop_assert!(!(some_expert_by_choice && some_other_left_out));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_ilp_on_a_chain_agrees_with_the_knapsack(items in items(MIB, 12), budget_mib in 0u64..300) {
        let budget = budget_mib * MIB;
        let graph = as_graph(&items);
        let knapsack = Knapsack::solve(&items, budget).best_within(budget);
        match ilp::solve(&graph, budget, 20.0, None) {
            Ok(found) => {
                prop_assert_eq!(found.proof, Proof::Optimal);
                prop_assert_eq!(Some(found.total_ns), knapsack.as_ref().map(|a| a.total_ns));
                prop_assert!(ilp::lower_bound_ns(&graph, budget).unwrap() <= found.total_ns);
            }
            Err(_) => prop_assert!(knapsack.is_none()),
        }
    }

    #[test]
    fn the_ilp_on_a_graph_equals_brute_force(
        items in items(MIB, 10), extra in prop::collection::vec((0usize..10, 0usize..10), 0..8), budget_mib in 0u64..300
    ) {
        let budget = budget_mib * MIB;
        let mut graph = as_graph(&items);
        for (a, b) in extra {
            let (from, to) = (a.min(b), a.max(b));
            if to < graph.len() && from < to && !graph[to].inputs.contains(&from) {
                graph[to].inputs.push(from);
            }
        }
        let exact = ilp::brute_force(&graph, budget);
        let found = ilp::solve(&graph, budget, 20.0, None).ok();
        prop_assert_eq!(found.map(|f| f.total_ns), exact);
        if let Some(exact) = exact {
            prop_assert!(ilp::lower_bound_ns(&graph, budget).unwrap() <= exact);
        }
    }
}
