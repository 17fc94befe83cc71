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
