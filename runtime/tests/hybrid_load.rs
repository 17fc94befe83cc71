//! Load-aware decoding on the simulated machine, whose times are all virtual: under scripted slow-downs of CPU, GPU and
//! link the schedule that runs is the best of the table, it comes back when the load ends, noise does not make it
//! oscillate, and no switch changes a bit.

mod support;

use device::clock::Nanos;
use device::gpu::Gpu;
use device::sim::{Faults, LoadScript, LoadStep, Resource};
use plan_format::artifact::Plan;
use plan_format::costs::{Load, Team};
use plan_format::evaluate::{Prepared, Scratch, busy};
use plan_format::schedule::{Phase, Schedule};
use runtime::exec::Executor;
use runtime::hybrid::adapt::{Adaptive, Cause, Contention, Cores, Sample};
use support::tables::{NAME, TEAMS, best, graded, with_teams};
use support::{all_cpu, feed, hybrid, hybrid_pinned, prompt, sim, sim_with};

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

/// Only its teams: nothing is streamed.
fn teams_alone() -> Plan {
    let mut plan = with_teams();
    let (mut decode, mut schedules): (Vec<Schedule>, Vec<Schedule>) =
        plan.schedules.drain(..).partition(|schedule| schedule.phase == Phase::Decode);
    decode.retain(|schedule| schedule.promotions.is_empty());
    decode.sort_by_key(|schedule| std::cmp::Reverse(schedule.cpu_threads));
    // The regime map names schedule 0 for decoding without load, and 1 for prefill.
    schedules.insert(0, decode.remove(0));
    plan.schedules = schedules.into_iter().chain(decode).collect();
    plan
}

/// The whole executor under a load that comes and goes: the schedule at the end of each span is the evaluator's best.
#[track_caller]
fn check_load(plan: &Plan, [cores, gpu, link]: [f64; 3]) {
    let quiet = sim(Faults::none());
    decode(&mut hybrid(NAME, plan, &quiet).expect("a good plan"), 0, 60);
    let span = quiet.clock().now().0;
    let loads = [(Resource::Cores, cores), (Resource::Gpu, gpu), (Resource::Link, link)];
    let step = |at: u64, on: f64| {
        loads.map(|(resource, slowdown)| LoadStep { at: Nanos(at), resource, slowdown: slowdown.powf(on) })
    };
    let script = step(span, 1.0).into_iter().chain(step(6 * span, 0.0)).collect();
    let machine = sim_with(Faults::none(), LoadScript::new(script), None);
    let mut executor = hybrid(NAME, plan, &machine).expect("a good plan");
    let mut position = 0;
    let mut until = |executor: &mut Executor, end: u64| {
        while machine.clock().now().0 < end && position < 500 {
            decode(executor, position, 1);
            position += 1;
        }
        executor.schedule()
    };
    let idle = best(plan, &Load::IDLE).0;
    assert_eq!(until(&mut executor, span), idle, "before: {:?}", executor.switches());
    let loaded = best(plan, &Load::cell(cores, gpu, link, 8)).0;
    assert_eq!(until(&mut executor, 6 * span), loaded, "{cores} {gpu} {link}: {:?}", executor.switches());
    assert_eq!(until(&mut executor, 12 * span), idle, "after {cores} {gpu} {link}: {:?}", executor.switches());
    let most = 2 * usize::from(loaded != idle);
    assert!(executor.switches().0.len() <= most, "{:?}", executor.switches().0);
}

#[test]
fn under_every_load_the_best_schedule_runs_and_it_comes_back_afterwards() {
    let plan = with_teams();
    let loads = [[4.0, 1.0, 1.0], [1.0, 10.0, 1.0], [1.0, 1.0, 8.0], [1.0, 5.0, 5.0], [4.0, 1.0, 8.0], [2.5, 2.5, 1.0]];
    loads.into_iter().for_each(|load| check_load(&plan, load));
    check_load(&teams_alone(), [4.0, 1.0, 1.0]);
}

#[test]
fn fewer_threads_run_when_others_take_cores() {
    let plan = teams_alone();
    let threads = |load: Load| plan.schedules[best(&plan, &load).0].cpu_threads;
    assert_eq!((threads(Load::IDLE), threads(Load::cell(4.0, 1.0, 1.0, 8))), (8, 2));
}

/// Rounds of a machine on which only cores are scarce: as many are free as `free` says.
fn rounds(adaptive: &mut Adaptive, now: &mut u64, plan: &Plan, (free, rounds): (f64, usize)) -> u16 {
    let mut threads = 0;
    for _ in 0..rounds {
        *now += 10_000_000;
        let schedule = adaptive.choose(0, 10, Nanos(*now));
        threads = plan.schedules[schedule].cpu_threads;
        let crowding = (f64::from(threads) / free).max(1.0);
        let cores = Some(Cores { free, lost_share: 1.0 - 1.0 / crowding });
        adaptive.observe(&Sample { spent_us: [(100.0 * crowding, 100.0), (100.0, 100.0), (0.0, 0.0)], cores });
    }
    threads
}

#[test]
fn a_team_shrinks_to_the_cores_that_are_left_and_grows_again() {
    let (plan, mut now) = (teams_alone(), 0);
    let mut adaptive = Adaptive::new(&plan, Contention::Absent).expect("several schedules");
    for (free, threads) in [(8.0, 8), (2.0, 2), (8.0, 8), (4.0, 4), (8.0, 8)] {
        assert_eq!(rounds(&mut adaptive, &mut now, &plan, (free, 60)), threads, "{free} free: {:?}", adaptive.log());
    }
    assert_eq!(adaptive.log().len(), 4);
}

#[test]
fn a_switch_that_made_rounds_longer_is_undone_and_not_repeated_under_the_same_load() {
    let plan = graded();
    let mut adaptive = Adaptive::new(&plan, Contention::Absent).expect("several schedules");
    let idle = best(&plan, &Load::IDLE).0;
    let (mut now, mut schedule) = (0, idle);
    let mut run = |adaptive: &mut Adaptive, link: f64, rounds: usize| {
        for _ in 0..rounds {
            // Whatever the evaluator thinks: here every other schedule takes twice as long.
            now += if schedule == idle { 10_000_000 } else { 20_000_000 };
            schedule = adaptive.choose(idle, 10, Nanos(now));
            let spent_us = [1.0, 1.0, link].map(|ratio| (100.0 * ratio, 100.0));
            adaptive.observe(&Sample { spent_us, cores: None });
        }
        schedule
    };
    run(&mut adaptive, 1.0, 30);
    assert_eq!(run(&mut adaptive, 4.0, 300), idle);
    // There and back, once with each schedule that should be better.
    let tried = |adaptive: &Adaptive, from: usize| -> Vec<usize> {
        let pairs = adaptive.log()[from..].chunks(2);
        pairs
            .map(|pair| {
                assert!(matches!(pair[1].cause, Cause::Failed(..)) && pair[1].to == idle, "{pair:?}");
                pair[0].to
            })
            .collect()
    };
    let first = tried(&adaptive, 0);
    assert!((1..=2).contains(&first.len()) && first.first() != first.get(1), "{first:?}");
    // Another load is another chance.
    run(&mut adaptive, 9.0, 300);
    assert!((1..=2).contains(&tried(&adaptive, 2 * first.len()).len()), "{:?}", adaptive.log());
}

/// Rounds of a machine with free cores, on which an item takes each of [`TEAMS`] so long as `real_us` says.
fn teams_that_take(real_us: [f32; 3], planned_us: [f32; 3]) -> (u16, usize) {
    let mut plan = teams_alone();
    let items = plan.program.items.len();
    for case in &mut plan.costs.cases {
        case.cpu_us = planned_us.iter().flat_map(|&us| vec![us; items]).collect();
    }
    let idle = best(&plan, &Load::IDLE).0;
    plan.schedules.swap(0, idle);
    let mut adaptive = Adaptive::new(&plan, Contention::Absent).expect("several schedules");
    let (mut now, mut threads) = (0, 0);
    for _ in 0..300 {
        threads = plan.schedules[adaptive.choose(0, 10, Nanos(now))].cpu_threads;
        let team = TEAMS.iter().position(|team| team.0 == threads).expect("a team");
        now += u64::from(real_us[team] as u32) * 100_000;
        let cores = Some(Cores { free: 8.0, lost_share: 0.0 });
        let cpu = (f64::from(real_us[team]), f64::from(planned_us[team]));
        adaptive.observe(&Sample { spent_us: [cpu, (1.0, 1.0), (0.0, 0.0)], cores });
    }
    (threads, adaptive.log().len())
}

/// Seen where a figure of 16 threads had been measured while others had the memory: the plan chose 8, which took 1.5
/// times as long as planned, and no larger team was tried since it was taken to be as slow.
#[test]
fn a_larger_team_is_tried_when_the_plan_was_wrong_of_the_present_one() {
    // As planned: four threads are best, and stay.
    assert_eq!(teams_that_take([330.0, 110.0, 120.0], [330.0, 110.0, 120.0]), (4, 0));
    // Four threads take longer than planned, eight do not; four are tried once more, since a load may have ended.
    assert_eq!(teams_that_take([330.0, 180.0, 120.0], [330.0, 110.0, 120.0]), (8, 3));
    // All teams take so much longer: eight are tried, found to be no better and left, and not tried again.
    let (threads, switches) = teams_that_take([600.0, 180.0, 216.0], [330.0, 110.0, 120.0]);
    assert!(threads == 4 && switches <= 2, "{threads} threads after {switches} switches");
}

#[test]
fn a_schedule_that_takes_as_long_as_its_own_contention_explains_is_not_under_load() {
    let mut plan = graded();
    plan.costs.teams[0] = Team { threads: 2, cpu_slowdown_while_link: 1.6, link_slowdown_while_cpu: 1.6 };
    plan.costs.cases.iter_mut().flat_map(|case| &mut case.items).for_each(|item| item.dram_share = 1.0);
    let mut adaptive = Adaptive::new(&plan, Contention::Felt).expect("several schedules");
    let idle = best(&plan, &Load::IDLE).0;
    let case = &plan.costs.cases[plan.costs.case_index(Phase::Decode, 1).expect("costs")];
    let schedule = &plan.schedules[idle];
    let prepared = Prepared::new(&plan.costs, case, &plan.placement, &plan.slots, schedule).expect("a good plan");
    let together = busy(&plan.costs, case, &prepared, &Load::IDLE, &mut Scratch::default());
    let on_cpu = prepared.on_gpu.iter().zip(&case.cpu_us).filter(|(on_gpu, _)| !**on_gpu);
    let cpu_us: f64 = on_cpu.map(|(_, us)| f64::from(*us)).sum();
    let link_us: f64 = prepared.streams.iter().map(|s| f64::from(case.items[s.item as usize].stream_us)).sum();
    assert!(together.cpu_us > 1.05 * cpu_us && together.link_us > 1.05 * link_us, "{together:?} {cpu_us} {link_us}");
    for round in 0..100 {
        assert_eq!(adaptive.choose(idle, 10, Nanos(round * 10_000_000)), idle);
        let spent_us = [(together.cpu_us, cpu_us), (100.0, 100.0), (together.link_us, link_us)];
        adaptive.observe(&Sample { spent_us, cores: None });
    }
    assert!(adaptive.ratios().iter().all(|ratio| (ratio - 1.0).abs() < 1e-6), "{:?}", adaptive.ratios());
}

/// Seen with GPT-OSS-20B: all that the CPU does is looking up embeddings, 5 us expected and 170 measured, since waking
/// the team takes that long. It says nothing about load, neither in that schedule nor, from prefill, in others.
#[test]
fn work_that_is_next_to_nothing_is_no_sign_of_load() {
    let mut plan = graded();
    let embedding = plan.schedules[0].clone();
    for case in &mut plan.costs.cases {
        let on_cpu = |item: &usize| {
            let is_resident = plan.placement.homes[*item] == plan_format::schedule::Home::Resident;
            !is_resident && !embedding.promotions.iter().any(|promotion| promotion.item.index() == *item)
        };
        // Rounds of some 20 ms.
        case.cpu_us.iter_mut().for_each(|us| *us *= 30.0);
        for item in &mut case.items {
            (item.gpu_us, item.stream_us) = (30.0 * item.gpu_us, 30.0 * item.stream_us);
        }
        (0..plan.program.items.len()).filter(on_cpu).for_each(|item| case.cpu_us[item] = 5.0);
    }
    let mut adaptive = Adaptive::new(&plan, Contention::Absent).expect("several schedules");
    let idle = best(&plan, &Load::IDLE).0;
    for round in 0..200 {
        let base = if round < 20 { 1 } else { idle };
        assert_eq!(adaptive.choose(base, 10, Nanos(round * 10_000_000)), base, "round {round}");
        let cpu = if base == 1 { (170.0, 5.0) } else { (5.0, 5.0) };
        adaptive.observe(&Sample { spent_us: [cpu, (9e3, 9e3), (0.0, 0.0)], cores: None });
    }
    assert!(adaptive.log().is_empty(), "{:?}", adaptive.log());
    // The same in decoding itself, under the schedule that streams everything.
    let mut adaptive = Adaptive::new(&plan, Contention::Absent).expect("several schedules");
    for round in 0..200 {
        assert_eq!(adaptive.choose(0, 10, Nanos(round * 10_000_000)), 0, "round {round}");
        adaptive.observe(&Sample { spent_us: [(170.0, 5.0), (9e3, 9e3), (18e3, 18e3)], cores: None });
    }
    assert_eq!(adaptive.ratios()[0], 1.0);
}
