//! Every reference model under every mixture of resident, streamed and host items on the simulated GPU: the logits are
//! those of the CPU alone, bit for bit, since the simulated GPU runs the same kernels.

mod support;

use fixtures::REFERENCE_MODELS;
use support::{Mixture, all_cpu, feed, plan, prompt, same_bits};

#[track_caller]
fn check(mixture: Mixture) {
    check_some(&REFERENCE_MODELS, mixture);
}

#[track_caller]
fn check_some(names: &[&str], mixture: Mixture) {
    for &name in names {
        let expected = feed(&mut all_cpu(name), &prompt(name), 0, 7).expect("a good round");
        same_bits(name, &plan(name, mixture), &expected, mixture);
    }
}

#[test]
fn all_on_the_host() {
    check(Mixture::Host);
}

#[test]
fn all_resident() {
    check(Mixture::Resident);
}

#[test]
fn alternating() {
    check(Mixture::Alternating);
}

#[test]
fn feed_forward_resident() {
    check(Mixture::FfnResident);
}

#[test]
fn mixers_resident() {
    check(Mixture::MixerResident);
}

#[test]
fn every_other_item_streamed_through_one_slot() {
    check(Mixture::Promoted { slots: 1 });
}

#[test]
fn every_other_item_streamed_through_two_slots() {
    check(Mixture::Promoted { slots: 2 });
}

#[test]
fn all_weights_streamed() {
    check(Mixture::AllPromoted { slots: 2 });
}

#[test]
fn chosen_experts_streamed_after_routers_on_the_cpu() {
    check_some(&["qwen3moe", "gpt-oss", "qwen3next", "llama4", "deepseek2"], Mixture::RoutedByCpu { slots: 2 });
}

#[test]
fn chosen_experts_streamed_after_routers_on_the_gpu() {
    for slots in [1, 2] {
        check_some(&["qwen3moe", "gpt-oss", "qwen35moe", "llama4", "deepseek2"], Mixture::RoutedByGpu { slots });
    }
}

#[test]
fn random_mixtures() {
    for seed in 1..4 {
        check(Mixture::Random { seed });
    }
}
