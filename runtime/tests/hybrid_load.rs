//! Load-aware decoding on the simulated machine, whose times are all virtual: under scripted slow-downs of CPU, GPU and
//! link the schedule that runs is the best of the table, it comes back when the load ends, noise does not make it
//! oscillate, and no switch changes a bit.

mod support;

use device::clock::Nanos;
use device::gpu::Gpu;
use device::sim::{Faults, LoadScript, LoadStep, Resource};
use plan_format::artifact::Plan;
use plan_format::costs::Load;
use plan_format::evaluate::{Horizon, Prepared, Scratch, evaluate};
use plan_format::schedule::{Phase, Schedule};
use runtime::exec::Executor;
use runtime::hybrid::adapt::{Adaptive, Contention, Sample};
use support::{Mixture, all_cpu, feed, hybrid, hybrid_pinned, plan, prompt, sim, sim_with};

const NAME: &str = "qwen3";

/// A plan whose decoding can stream all, half or none of its host items; times so that each is best under some load.
fn graded() -> Plan {
    let mut plan = plan(NAME, Mixture::AllPromoted { slots: 2 });
    for case in &mut plan.costs.cases {
        case.cpu_us.fill(60.0);
        for item in &mut case.items {
            (item.gpu_us, item.stream_us, item.to_gpu_us, item.to_cpu_us) = (20.0, 55.0, 3.0, 3.0);
        }
    }
    let all = plan.schedules[0].clone();
    let keep = |every: usize| {
        let mut promotions = all.promotions.clone();
        let mut index = 0;
        promotions.retain(|_| {
            index += 1;
            every > 0 && index % every == 0
        });
        let slots = promotions.iter_mut().enumerate();
        slots.for_each(|(number, promotion)| promotion.slot = plan_format::SlotId(number as u32 % 2));
        Schedule { promotions, ..all.clone() }
    };
    let more = [keep(2), keep(0)];
    plan.schedules.extend(more);
    plan
}

/// The decode schedule that the evaluator finds best.
fn best(plan: &Plan, load: &Load) -> (usize, f64) {
    let case = &plan.costs.cases[plan.costs.case_index(Phase::Decode, 1).expect("costs")];
    let mut scratch = Scratch::default();
    let of_schedule = |(index, schedule): (usize, &Schedule)| {
        let prepared = Prepared::new(&plan.costs, case, &plan.placement, &plan.slots, schedule).expect("a good plan");
        (index, evaluate(&plan.costs, case, &prepared, load, Horizon::Steady, &mut scratch))
    };
    let decode = plan.schedules.iter().enumerate().filter(|(_, schedule)| schedule.phase == Phase::Decode);
    decode.map(of_schedule).min_by(|a, b| a.1.total_cmp(&b.1)).expect("schedules")
}

/// Times like a link of this machine: a transfer takes what the plan says.
fn decode(executor: &mut Executor, first: usize, tokens: usize) -> Vec<f32> {
    let ids = prompt(NAME);
    let tokens: Vec<u32> = (0..tokens).map(|step| ids[(first + step) % ids.len()]).collect();
    feed(executor, &tokens, first, 1).expect("a good round")
}

/// Sensors alone: under these ratios the choice is the evaluator's.
#[track_caller]
fn check_choice(ratios: [f64; 3]) {
    let plan = graded();
    let mut adaptive = Adaptive::new(&plan, Contention::Absent).expect("several schedules");
    let idle = best(&plan, &Load::IDLE).0;
    let mut now = 0;
    let mut run = |adaptive: &mut Adaptive, ratios: [f64; 3]| {
        let mut chosen = 0;
        for _ in 0..60 {
            now += 10_000_000;
            chosen = adaptive.choose(idle, 10, Nanos(now));
            adaptive.observe(&Sample { spent_us: ratios.map(|ratio| (100.0 * ratio, 100.0)), cores: None });
        }
        chosen
    };
    assert_eq!(run(&mut adaptive, [1.0; 3]), idle);
    let [cpu, gpu, link] = ratios;
    let load = Load { cpu, gpu, link, free_threads: f64::INFINITY };
    assert_eq!(run(&mut adaptive, ratios), best(&plan, &load).0, "{ratios:?}");
    assert_eq!(run(&mut adaptive, [1.0; 3]), idle, "after the load");
    assert!(adaptive.log().len() <= 2, "{:?}", adaptive.log());
}

#[test]
fn the_choice_is_the_evaluators_under_every_load() {
    for ratios in [[3.0, 1.0, 1.0], [1.0, 4.0, 1.0], [1.0, 1.0, 4.0], [1.0, 2.5, 2.5], [2.0, 2.0, 2.0], [5.0, 1.0, 3.0]]
    {
        check_choice(ratios);
    }
}

#[test]
fn noise_makes_no_switch_and_a_real_change_one() {
    let plan = graded();
    let mut adaptive = Adaptive::new(&plan, Contention::Absent).expect("several schedules");
    let idle = best(&plan, &Load::IDLE).0;
    let mut random = 7_u64;
    let mut noise = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        0.85 + 0.3 * ((random >> 40) as f64 / f64::from(1 << 24))
    };
    for round in 0..2000_u64 {
        let link = if round < 1000 { 1.0 } else { 4.0 };
        adaptive.choose(idle, 10, Nanos(round * 10_000_000));
        let spent_us = [1.0, 1.0, link].map(|ratio| (100.0 * ratio * noise(), 100.0));
        adaptive.observe(&Sample { spent_us, cores: None });
        let most = usize::from(round >= 1000);
        assert!(adaptive.log().len() <= most, "round {round}: {:?}", adaptive.log());
    }
    assert_eq!(adaptive.log().len(), 1);
    let text = adaptive.log()[0].to_string();
    assert!(text.contains("link") && text.contains("times as long"), "{text}");
}

/// The whole executor: load comes and goes on the virtual clock; which schedule runs at the end of each span.
fn spans(resources: &[Resource], slowdown: f64) -> [usize; 3] {
    let plan = graded();
    let quiet = sim(Faults::none());
    decode(&mut hybrid(NAME, &plan, &quiet).expect("a good plan"), 0, 60);
    let span = quiet.clock().now().0;
    let step =
        |at, factor| resources.iter().map(move |&resource| LoadStep { at: Nanos(at), resource, slowdown: factor });
    let load = LoadScript::new(step(span, slowdown).chain(step(5 * span, 1.0)).collect());
    let gpu = sim_with(Faults::none(), load, None);
    let mut executor = hybrid(NAME, &plan, &gpu).expect("a good plan");
    let mut all = Vec::new();
    let mut ends = [0; 3];
    let mut position = 0;
    for (index, end) in [span, 5 * span, 9 * span].into_iter().enumerate() {
        while gpu.clock().now().0 < end && position < 480 {
            all.extend(decode(&mut executor, position, 1));
            position += 1;
        }
        ends[index] = executor.schedule();
    }
    let mut expected = all_cpu(NAME);
    assert!(all == decode(&mut expected, 0, position), "a switch changed bits");
    ends
}

#[test]
fn a_slow_link_stops_streaming_until_it_is_fast_again() {
    let [before, under, after] = spans(&[Resource::Link], 8.0);
    let promotions = |schedule: usize| graded().schedules[schedule].promotions.len();
    assert!(promotions(under) < promotions(before), "{before} {under}");
    assert_eq!(after, before);
}

#[test]
fn a_slow_cpu_moves_work_to_the_gpu_until_it_is_fast_again() {
    let [before, under, after] = spans(&[Resource::Cpu], 6.0);
    let promotions = |schedule: usize| graded().schedules[schedule].promotions.len();
    assert!(promotions(under) >= promotions(before), "{before} {under}");
    assert_eq!(after, before);
}

#[test]
fn a_pinned_schedule_stays_whatever_happens() {
    let plan = graded();
    let load = LoadStep { at: Nanos(0), resource: Resource::Link, slowdown: 8.0 };
    let gpu = sim_with(Faults::none(), LoadScript::new(vec![load]), None);
    let mut executor = hybrid_pinned(NAME, &plan, &gpu, Some(0)).expect("a good plan");
    decode(&mut executor, 0, 100);
    assert_eq!((executor.schedule(), executor.switches().0.len()), (0, 0));
}
