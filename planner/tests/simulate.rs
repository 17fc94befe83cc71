//! The simulator and the evaluator of the artifact are two programs for one set of rules: they must agree.

use plan_format::costs::{CaseCosts, CostModel, ItemCost, Load, Team};
use plan_format::evaluate::{Horizon, Prepared, Scratch, evaluate};
use plan_format::schedule::{Home, HostMemory, Phase, Placement, Promotion, Schedule, Slot, Slots};
use plan_format::{ItemId, SlotId};
use planner::simulate::{AfterLast, Lane, Run, Timeline, simulate};
use proptest::prelude::*;

/// Everything that a run needs.
#[derive(Clone, Debug)]
struct Case {
    model: CostModel,
    placement: Placement,
    slots: Slots,
    schedule: Schedule,
    load: Load,
}

/// Per item: cpu, gpu, stream, switches, DRAM share, whether it is resident or promoted, an extra input, routed.
type Draw = (f32, f32, f32, (f32, f32), f32, u8, Option<usize>, bool);

fn draw() -> impl Strategy<Value = Draw> {
    let time = || (1u32..100).prop_map(|t| t as f32);
    let switches = (0u32..20, 0u32..20).prop_map(|(a, b)| (a as f32, b as f32));
    let share = (0u32..=4).prop_map(|s| s as f32 / 4.0);
    (time(), time(), time(), switches, share, 0u8..4, prop::option::of(0usize..16), prop::bool::weighted(0.15))
}

fn build(draws: Vec<Draw>, slot_count: u64, overlap: u64, contention: (f32, f32), load: Load, gap_us: f32) -> Case {
    let mut inputs = Vec::new();
    let mut input_start = vec![0];
    let mut items = Vec::new();
    for (i, &(_, gpu_us, stream_us, (to_gpu_us, to_cpu_us), dram_share, _, extra, routed)) in draws.iter().enumerate() {
        inputs.extend(i.checked_sub(1).map(|p| ItemId(p as u32)));
        inputs.extend(extra.filter(|&p| p + 1 < i).map(|p| ItemId(p as u32)));
        input_start.push(inputs.len() as u32);
        let stream_after = (routed && i > 0).then(|| ItemId(i as u32 - 1));
        items.push(ItemCost { gpu_us, stream_us, to_gpu_us, to_cpu_us, dram_share, stream_after });
    }
    let home = |draw: &Draw| if draw.5 == 0 { Home::Resident } else { Home::Host(HostMemory::Pinned) };
    let promoted = (0..draws.len()).filter(|&i| draws[i].5 == 1);
    let promotions = promoted
        .enumerate()
        .map(|(n, i)| Promotion { item: ItemId(i as u32), slot: SlotId((n as u64 % slot_count) as u32), after: None })
        .collect();
    let slot = |i| Slot { offset_bytes: 256 * i, size_bytes: 256 * (1 + overlap) };
    let (cpu_slowdown_while_link, link_slowdown_while_cpu) = contention;
    Case {
        placement: Placement::new(draws.iter().map(home).collect()),
        slots: Slots { slots: (0..slot_count).map(slot).collect() },
        schedule: Schedule { phase: Phase::Decode, cpu_threads: 4, promotions, predicted_us: 0.0 },
        model: CostModel {
            teams: vec![Team { threads: 4, cpu_slowdown_while_link, link_slowdown_while_cpu }],
            input_start,
            inputs,
            cases: vec![CaseCosts {
                phase: Phase::Decode,
                context_tokens: 2048,
                gap_us,
                cpu_us: draws.iter().map(|draw| draw.0).collect(),
                items,
            }],
        },
        load,
    }
}

fn case() -> impl Strategy<Value = Case> {
    let ratio = || prop_oneof![Just(1.0), Just(1.25), Just(2.0), Just(5.0)];
    let load = (ratio(), ratio(), ratio()).prop_map(|(cpu, gpu, link)| Load { cpu, gpu, link, free_threads: 3.0 });
    let contention = prop_oneof![Just((1.0f32, 1.0f32)), Just((1.4, 1.2)), Just((1.1, 1.7))];
    let draws = prop::collection::vec(draw(), 1..16);
    let gap = prop_oneof![Just(0.0f32), Just(7.0)];
    (draws, 1u64..4, 0u64..2, contention, load, gap).prop_map(|(d, s, o, c, l, g)| build(d, s, o, c, l, g))
}

impl Case {
    fn evaluate(&self, horizon: Horizon) -> f64 {
        let (model, case) = (&self.model, &self.model.cases[0]);
        let prepared = Prepared::new(model, case, &self.placement, &self.slots, &self.schedule).unwrap();
        evaluate(model, case, &prepared, &self.load, horizon, &mut Scratch::default())
    }

    fn simulate(&self, rounds: u32, after_last: AfterLast) -> Timeline {
        let run = Run {
            model: &self.model,
            case: &self.model.cases[0],
            placement: &self.placement,
            slots: &self.slots,
            schedule: &self.schedule,
            load: self.load,
            rounds,
            after_last,
        };
        simulate(&run).expect("the schedule completes")
    }
}

fn assert_close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-6 * a.abs().max(1.0), "{a} against {b}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn evaluator_and_simulator_agree_from_a_cold_start(case in case(), rounds in 1u32..5) {
        let timeline = case.simulate(rounds, AfterLast::Stop);
        let mean_us = timeline.round_starts_us[rounds as usize] / f64::from(rounds);
        assert_close(case.evaluate(Horizon::Cold { rounds }), mean_us);
    }

    #[test]
    fn evaluator_and_simulator_agree_in_an_endless_loop(case in case()) {
        let timeline = case.simulate(12, AfterLast::Continue);
        let late: Vec<f64> = (8..12).map(|round| timeline.round_us(round)).collect();
        let settled = late.iter().all(|us| (us - late[0]).abs() < 1e-9);
        let steady = (2..8).all(|round| (timeline.round_us(round) - late[0]).abs() < 1e-9);
        prop_assume!(settled && steady);
        assert_close(case.evaluate(Horizon::Steady), late[0]);
    }

    #[test]
    fn lanes_do_one_thing_at_a_time_and_readers_wait_for_their_transfers(case in case()) {
        let timeline = case.simulate(3, AfterLast::Continue);
        for lane in [Lane::Cpu, Lane::Gpu, Lane::Link] {
            let spans: Vec<_> = timeline.spans.iter().filter(|span| span.lane == lane).collect();
            prop_assert!(spans.windows(2).all(|pair| pair[0].end_us <= pair[1].start_us + 1e-9));
        }
        for copy in timeline.spans.iter().filter(|span| span.lane == Lane::Link) {
            let same = |span: &&planner::simulate::Span| {
                span.lane == Lane::Gpu && span.item == copy.item && span.round == copy.round
            };
            if let Some(reader) = timeline.spans.iter().find(same) {
                prop_assert!(copy.end_us <= reader.start_us + 1e-9);
            }
        }
    }
}

#[test]
fn the_chrome_trace_is_json_with_one_event_per_span() {
    let draws =
        vec![(10.0, 1.0, 5.0, (3.0, 2.0), 1.0, 0, None, false), (20.0, 2.0, 9.0, (3.0, 2.0), 1.0, 1, None, false)];
    let case = build(draws, 1, 0, (1.0, 1.0), Load::IDLE, 0.0);
    let timeline = case.simulate(2, AfterLast::Stop);
    let text = timeline.to_chrome_trace(&["a \"quoted\" name".into(), "b".into()]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    assert_eq!(events.len(), Lane::ALL.len() + timeline.spans.len());
    assert_eq!(timeline.spans.iter().filter(|span| span.lane == Lane::Link).count(), 2);
}
