//! Results never depend on timing: decoding with random delays before copies, operators and the CPU's parts gives the
//! bits of the undelayed run, with one slot and with two; virtual times are the same, too. reports: R02.
//! Schedules that run the same items on the GPU give the same bits, whatever slots they use.

mod support;

use device::clock::Nanos;
use device::sim::Faults;
use plan_format::schedule::{Phase, Slot};
use plan_format::{ScheduleId, SlotId};
use runtime::exec::Executor;
use support::{Mixture, feed, hybrid, hybrid_pinned, plan, prompt, sim};

const STEPS: usize = 200;

/// Decodes `steps` tokens after a prompt; a hash of all logits' bits, and the virtual time at the end.
fn decode(executor: &mut Executor, name: &str, steps: usize) -> (u64, Nanos) {
    let ids = prompt(name);
    executor.clear(0).expect("a sound GPU");
    let mut hash = Fnv::default();
    hash.add(&feed(executor, &ids, 0, 64).expect("a good round"));
    for step in 0..steps {
        let token = ids[(step * 7) % ids.len()];
        hash.add(&feed(executor, &[token], ids.len() + step, 1).expect("a good round"));
    }
    (hash.0, executor.gpu().expect("a GPU").clock().now())
}

struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, values: &[f32]) {
        for value in values {
            self.0 = (self.0 ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Some of the twenty seeds: all of them in one test take long where the machine is busy.
#[track_caller]
fn check_delays(name: &str, slots: u32, seeds: std::ops::Range<u64>) {
    let plan = plan(name, Mixture::Promoted { slots });
    let run = |faults: Faults| decode(&mut hybrid(name, &plan, &sim(faults)).expect("a good plan"), name, STEPS);
    let undelayed = run(Faults::none());
    for seed in seeds {
        let kinds = [Faults::late_copies, Faults::late_operators, Faults::late_host, Faults::jitter];
        let faults = kinds[seed as usize % kinds.len()](seed);
        assert_eq!(run(faults.clone()), undelayed, "{name}, {slots} slots, {faults:?}");
    }
}

#[test]
fn first_delays_change_nothing_with_one_slot() {
    check_delays("qwen3", 1, 0..5);
}

#[test]
fn second_delays_change_nothing_with_one_slot() {
    check_delays("qwen3", 1, 5..10);
}

#[test]
fn third_delays_change_nothing_with_one_slot() {
    check_delays("qwen3", 1, 10..15);
}

#[test]
fn last_delays_change_nothing_with_one_slot() {
    check_delays("qwen3", 1, 15..20);
}

#[test]
fn first_delays_change_nothing_with_two_slots() {
    check_delays("qwen3", 2, 0..5);
}

#[test]
fn second_delays_change_nothing_with_two_slots() {
    check_delays("qwen3", 2, 5..10);
}

#[test]
fn third_delays_change_nothing_with_two_slots() {
    check_delays("qwen3", 2, 10..15);
}

#[test]
fn last_delays_change_nothing_with_two_slots() {
    check_delays("qwen3", 2, 15..20);
}

#[test]
fn delays_change_nothing_in_any_kind_of_model() {
    for name in ["qwen3moe", "qwen3next", "gemma3"] {
        let routed = [Mixture::RoutedByCpu { slots: 1 }, Mixture::RoutedByGpu { slots: 2 }];
        let routed = routed.into_iter().filter(|_| name == "qwen3moe");
        for mixture in [Mixture::Random { seed: 7 }, Mixture::MixerResident].into_iter().chain(routed) {
            let plan = plan(name, mixture);
            let run = |faults| decode(&mut hybrid(name, &plan, &sim(faults)).expect("a good plan"), name, 20);
            let undelayed = run(Faults::none());
            for seed in 0..3 {
                assert_eq!(run(Faults::jitter(seed)), undelayed, "{name} {mixture:?} {seed}");
            }
        }
    }
}

/// A plan with two decode schedules that promote the same items: one through slot after slot, one always through the
/// first.
#[test]
fn schedules_with_the_same_items_on_the_gpu_give_the_same_bits() {
    let name = "qwen3";
    let mut plan = plan(name, Mixture::Promoted { slots: 3 });
    let mut other = plan.schedules[0].clone();
    assert_eq!(other.phase, Phase::Decode);
    other.promotions.iter_mut().for_each(|promotion| promotion.slot = SlotId(0));
    plan.schedules.push(other);
    let pinned = |number| hybrid_pinned(name, &plan, &sim(Faults::none()), Some(number)).expect("a good plan");
    let first = decode(&mut pinned(0), name, 20);
    let second = decode(&mut pinned(2), name, 20);
    assert_eq!(first.0, second.0);
    assert!(first.1 < second.1, "three slots hide transfers: {first:?} {second:?}");
}

/// Transfers for the next round are queued for the schedule that ran: another one must not read them.
#[test]
fn transfers_of_a_schedule_that_is_left_are_not_read_by_the_next() {
    let name = "qwen3";
    let mut plan = plan(name, Mixture::Promoted { slots: 2 });
    let prefill = &mut plan.schedules[1];
    prefill.promotions.retain(|promotion| promotion.slot == SlotId(1));
    prefill.promotions.iter_mut().for_each(|promotion| promotion.slot = SlotId(0));
    plan.regimes.cells = vec![ScheduleId(0), ScheduleId(1)];
    let mut executor = hybrid(name, &plan, &sim(Faults::jitter(3))).expect("a good plan");
    let ids = prompt(name);
    let expected = feed(&mut support::all_cpu(name), &ids, 0, 5).expect("a good round");
    let mut got = Vec::new();
    for (index, piece) in [0..1, 1..6, 6..7, 7..8, 8..ids.len()].into_iter().enumerate() {
        let logits = feed(&mut executor, &ids[piece.clone()], piece.start, 64);
        got.extend(logits.unwrap_or_else(|error| panic!("piece {index}: {error}")));
    }
    assert!(got == expected, "other bits than the CPU's");
}

#[test]
fn slots_that_lie_over_each_other_are_refused() {
    let mut plan = plan("qwen3", Mixture::Promoted { slots: 2 });
    plan.slots.slots[1] = Slot { offset_bytes: 256, ..plan.slots.slots[1] };
    assert!(hybrid("qwen3", &plan, &sim(Faults::none())).is_err());
}
