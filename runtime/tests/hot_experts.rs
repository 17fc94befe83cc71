//! Layers whose experts lie in two places: the logits are near those of whole layers, whose sums have another order,
//! and always the same bits, whoever computes which part, with any number of threads and in any ubatches.

mod support;

use runtime::verify::relative_l2;
use support::{Mixture, all_cpu, all_cpu_of, divided, feed, is_hot, plan_of, prompt, same_bits, without_flips};

/// Families with routers, each with its own form of experts: biases, weighed inputs, shared experts, fused gate and up.
const FAMILIES: [&str; 6] = ["qwen3moe", "gpt-oss", "qwen3next", "qwen35moe", "llama4", "deepseek2"];

/// Relative L2 distance of logits that only the order of the sums of experts tells apart; rounding to 8 bits behind
/// them makes more of it.
const DISTANCE_MAX: f64 = 0.02;

#[test]
fn divided_experts_compute_what_whole_ones_do() {
    for name in FAMILIES {
        let (program, ids) = (divided(name, is_hot), prompt(name));
        let whole = feed(&mut all_cpu(name), &ids, 0, 64).expect("a good round");
        let expected = feed(&mut all_cpu_of(name, &program, 2), &ids, 0, 64).expect("a good round");
        let (a, b) = without_flips(name, &expected, &whole);
        let distance = relative_l2(&b, &a);
        println!("{name}: {distance:.6}, {} of {} logits", a.len(), whole.len());
        assert!(distance < DISTANCE_MAX, "{name}: {distance}");
        assert!(2 * a.len() > whole.len(), "{name}: too many positions are set aside");
        for threads in [1, 3] {
            let mut executor = all_cpu_of(name, &program, threads);
            for ubatch in [1, 5, 64] {
                executor.clear(0).expect("no GPU");
                let got = feed(&mut executor, &ids, 0, ubatch).expect("a good round");
                assert!(got == expected, "{name}, {threads} threads, ubatch {ubatch}: other bits");
            }
        }
    }
}

#[track_caller]
fn check(mixture: Mixture) {
    for name in FAMILIES {
        let program = divided(name, is_hot);
        let expected = feed(&mut all_cpu_of(name, &program, 2), &prompt(name), 0, 7).expect("a good round");
        same_bits(name, &plan_of(name, program, mixture), &expected, mixture);
    }
}

#[test]
fn hot_experts_on_the_gpu_and_the_others_on_the_cpu() {
    check(Mixture::Hot);
    check(Mixture::HotAlone);
}

#[test]
fn the_others_streamed() {
    check(Mixture::HotAndStreamed { slots: 1 });
    check(Mixture::HotAndStreamed { slots: 2 });
}

#[test]
fn parts_anywhere() {
    for seed in 1..4 {
        check(Mixture::Random { seed });
    }
}
