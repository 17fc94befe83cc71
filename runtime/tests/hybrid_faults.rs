//! What goes wrong on a GPU ends in an error that says so, or costs speed only; nothing hangs, nothing is silently
//! wrong.

mod support;

use device::DeviceError;
use device::gpu::Gpu;
use device::sim::{Faults, LoadScript};
use runtime::Error;
use support::{Mixture, all_cpu, feed, hybrid, hybrid_pinned, plan, prompt, sim, sim_with};

const NAME: &str = "qwen3";

#[test]
fn a_ceiling_below_the_need_is_refused_before_anything_is_taken() {
    let plan = plan(NAME, Mixture::Resident);
    let gpu = sim_with(Faults::none(), LoadScript::default(), Some(300 << 10));
    let before = gpu.memory().expect("a sound GPU");
    let error = hybrid(NAME, &plan, &gpu).err().expect("too little memory");
    assert!(matches!(error, Error::GpuBudget { .. }), "{error}");
    for words in ["resident weights", "activations", "left under the ceiling"] {
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_eq!(gpu.memory().expect("a sound GPU"), before);
}

#[test]
fn all_memory_that_is_taken_was_counted() {
    let plan = plan(NAME, Mixture::AllPromoted { slots: 2 });
    let gpu = sim(Faults::none());
    let executor = hybrid(NAME, &plan, &gpu).expect("a good plan");
    let used = gpu.memory().expect("a sound GPU").ours_bytes;
    drop(executor);
    let just_enough = sim_with(Faults::none(), LoadScript::default(), Some(used));
    assert!(hybrid(NAME, &plan, &just_enough).is_ok());
    let too_little = sim_with(Faults::none(), LoadScript::default(), Some(used - 256));
    assert!(matches!(hybrid(NAME, &plan, &too_little), Err(Error::GpuBudget { .. })));
}

#[test]
fn a_refused_allocation_is_an_error_that_says_what_for() {
    for request in 0..3 {
        let gpu = sim(Faults { fail_memory_request: Some(request), ..Faults::none() });
        let plan = plan(NAME, Mixture::Promoted { slots: 1 });
        let error = hybrid(NAME, &plan, &gpu).err().expect("a refused allocation");
        assert!(matches!(error, Error::Device(DeviceError::GpuMemory { .. })), "{request}: {error}");
    }
}

/// Others hold so much that `slots` of three slots fit beside everything else; the run says so and computes the same.
#[track_caller]
fn check_others(slots: u64, notes: usize) {
    let (plan, ids) = (plan(NAME, Mixture::AllPromoted { slots: 3 }), prompt(NAME));
    let calm = sim(Faults::none());
    let expected = feed(&mut hybrid(NAME, &plan, &calm).expect("a good plan"), &ids, 0, 1).expect("good rounds");
    let memory = calm.memory().expect("a sound GPU");
    let slot_bytes = plan.slots.slots[0].size_bytes;
    let staging_bytes = plan.slots.staging().map_or(0, |staging| staging.size_bytes);
    let missing_bytes = (3 - slots) * slot_bytes + if slots == 0 { staging_bytes } else { 0 };
    let others_bytes = memory.unclaimed_bytes + missing_bytes;
    let gpu = sim(Faults { others_take: Some((0, others_bytes)), ..Faults::none() });
    let mut executor = hybrid(NAME, &plan, &gpu).expect("a plan with fewer slots");
    assert_eq!(executor.notes().len(), notes, "{:?}", executor.notes());
    assert!(
        executor.notes().iter().all(|note| note.contains(&format!("{slots} of 3 slots"))),
        "{:?}",
        executor.notes()
    );
    let got = feed(&mut executor, &ids, 0, 1).expect("good rounds");
    assert!(got == expected, "{slots} slots");
}

#[test]
fn when_others_hold_gpu_memory_fewer_slots_are_taken() {
    for (slots, notes) in [(3, 0), (2, 1), (1, 1), (0, 1)] {
        check_others(slots, notes);
    }
}

#[test]
fn memory_that_others_take_during_a_run_does_not_end_it() {
    let (plan, ids) = (plan(NAME, Mixture::AllPromoted { slots: 2 }), prompt(NAME));
    let expected = feed(&mut hybrid(NAME, &plan, &sim(Faults::none())).expect("a good plan"), &ids, 0, 1);
    let gpu = sim(Faults { others_take: Some((100, 1 << 30)), ..Faults::none() });
    let mut executor = hybrid(NAME, &plan, &gpu).expect("a good plan");
    let got = feed(&mut executor, &ids, 0, 1).expect("good rounds");
    assert!(got == expected.expect("good rounds"));
    assert_eq!(gpu.memory().expect("a sound GPU").unclaimed_bytes, 0);
}

#[test]
fn refused_pinning_costs_speed_and_is_said() {
    let (plan, ids) = (plan(NAME, Mixture::Promoted { slots: 2 }), prompt(NAME));
    let expected = feed(&mut all_cpu(NAME), &ids, 0, 64).expect("a good round");
    let mut times = Vec::new();
    for refuse in [None, Some(0)] {
        let gpu = sim(Faults { refuse_pinning_from_bytes: refuse, ..Faults::none() });
        let mut executor = hybrid(NAME, &plan, &gpu).expect("a good plan");
        assert_eq!(executor.notes().len(), usize::from(refuse.is_some()));
        assert!(executor.notes().iter().all(|note| note.contains("pin")));
        assert!(feed(&mut executor, &ids, 0, 1).expect("a good round") == expected);
        times.push(gpu.clock().now());
    }
    assert!(times[0] < times[1], "{times:?}");
}

#[test]
fn a_failed_operator_ends_the_round_with_its_cause_and_every_later_one() {
    for launch in [0, 1, 5, 40, 200] {
        let gpu = sim(Faults { fail_launch: Some(launch), ..Faults::jitter(launch) });
        let mut executor = hybrid(NAME, &plan(NAME, Mixture::Alternating), &gpu).expect("a good plan");
        let ids = prompt(NAME);
        let error = feed(&mut executor, &ids, 0, 1).expect_err("a failed operator");
        assert!(matches!(error, Error::Device(DeviceError::GpuLost { .. })), "launch {launch}: {error}");
        assert!(feed(&mut executor, &ids[..1], 0, 1).is_err());
    }
}

#[test]
fn a_round_that_fails_on_the_cpu_leaves_a_usable_executor() {
    let mut executor = hybrid(NAME, &plan(NAME, Mixture::Promoted { slots: 2 }), &sim(Faults::none())).expect("good");
    let ids = prompt(NAME);
    assert!(matches!(feed(&mut executor, &[u32::MAX], 0, 1), Err(Error::TokenOutOfRange { .. })));
    let expected = feed(&mut all_cpu(NAME), &ids, 0, 64).expect("a good round");
    assert!(feed(&mut executor, &ids, 0, 3).expect("a good round") == expected);
}

#[test]
fn slots_too_small_and_states_that_are_streamed_are_refused_by_name() {
    let mut small = plan(NAME, Mixture::Promoted { slots: 1 });
    small.slots.slots[0].size_bytes = 256;
    let error = hybrid(NAME, &small, &sim(Faults::none())).err().expect("a slot too small");
    assert!(matches!(error, Error::SlotTooSmall { .. }), "{error}");
}

#[test]
fn a_schedule_that_does_not_exist_cannot_be_pinned() {
    let plan = plan(NAME, Mixture::Promoted { slots: 1 });
    let error = hybrid_pinned(NAME, &plan, &sim(Faults::none()), Some(9)).err().expect("no such schedule");
    assert!(error.to_string().contains("schedule 9") && error.to_string().contains("has 2"), "{error}");
}
