//! Plans with a table of decode schedules to choose from, and which of them is best by the plan. Not here: what
//! chooses.

use super::{Mixture, plan, profile};
use device::sim::SourceMemory;
use kernels::quant::{WeightType, packed_bytes};
use plan_format::artifact::Plan;
use plan_format::costs::{Load, Team};
use plan_format::evaluate::{Horizon, Prepared, Scratch, evaluate};
use plan_format::schedule::{Phase, Schedule};

/// The model.
pub const NAME: &str = "qwen3";

/// A plan whose decoding can stream all, half or none of its host items; times so that each is best under some load.
pub fn graded() -> Plan {
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
pub fn best(plan: &Plan, load: &Load) -> (usize, f64) {
    let case = &plan.costs.cases[plan.costs.case_index(Phase::Decode, 1).expect("costs")];
    let mut scratch = Scratch::default();
    let of_schedule = |(index, schedule): (usize, &Schedule)| {
        let prepared = Prepared::new(&plan.costs, case, &plan.placement, &plan.slots, schedule).expect("a good plan");
        (index, evaluate(&plan.costs, case, &prepared, load, Horizon::Steady, &mut scratch))
    };
    let decode = plan.schedules.iter().enumerate().filter(|(_, schedule)| schedule.phase == Phase::Decode);
    decode.map(of_schedule).min_by(|a, b| a.1.total_cmp(&b.1)).expect("schedules")
}

/// Threads of the teams of [`with_teams`], and how long an item takes them, in microseconds.
pub const TEAMS: [(u16, f32); 3] = [(2, 330.0), (4, 180.0), (8, 120.0)];

/// The same plan with three teams, each with all, half or none of the host items streamed, and transfers that are
/// expected to take what this simulated link takes.
pub fn with_teams() -> Plan {
    let mut plan = graded();
    let team =
        |&(threads, _): &(u16, f32)| Team { threads, cpu_slowdown_while_link: 1.0, link_slowdown_while_cpu: 1.0 };
    plan.costs.teams = TEAMS.iter().map(team).collect();
    let (items, profile) = (plan.program.items.len(), profile());
    let copy_us = |item: usize| -> f32 {
        let weights = plan.program.items[item].weights.iter();
        let bytes = weights.map(|weight| {
            let tensor = &plan.program.tensors[plan.program.weights[weight.index()].tensor.index()];
            let ty = WeightType::try_from(gguf::GgmlType::from_id(tensor.ggml_type)).expect("a known type");
            packed_bytes(ty, tensor.rows() as usize, tensor.cols() as usize).expect("whole blocks") as u64
        });
        bytes.map(|bytes| profile.copy_time(bytes, SourceMemory::Pinned).as_micros_f64() as f32).sum()
    };
    let stream_us: Vec<f32> = (0..items).map(copy_us).collect();
    for case in &mut plan.costs.cases {
        case.cpu_us = TEAMS.iter().flat_map(|&(_, us)| vec![us; items]).collect();
        case.items.iter_mut().zip(&stream_us).for_each(|(item, &us)| item.stream_us = us);
    }
    let of_teams = |schedule: &Schedule| TEAMS.map(|(cpu_threads, _)| Schedule { cpu_threads, ..schedule.clone() });
    // Decoding without load comes first: the regime map names schedule 0 for it.
    let prefill = plan.schedules[1].clone();
    let mut decode: Vec<Schedule> =
        plan.schedules.iter().filter(|s| s.phase == Phase::Decode).flat_map(of_teams).collect();
    let mut sorted = Plan { schedules: decode.clone(), ..plan.clone() };
    let idle = best(&sorted, &Load::IDLE).0;
    decode.swap(0, idle);
    sorted.schedules = decode;
    sorted.schedules.insert(1, Schedule { cpu_threads: 8, ..prefill });
    sorted
}
