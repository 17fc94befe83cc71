//! What the table is for: under the paper's loads its best schedule must take a stated part of the rise that the
//! schedule of no load has. By the simulator's rules, on models of full size whose headers are enough.

mod common;

use plan_format::arena::RoundLimits;
use plan_format::artifact::{KvType, Options, Plan};
use plan_format::costs::Load;
use plan_format::evaluate::{Horizon, Prepared, Scratch, evaluate};
use plan_format::fingerprint::{DeviceFingerprint, ModelFingerprint};
use plan_format::schedule::{Phase, Schedule};
use planner::compile::{Deciding, PlanInputs};
use planner::plan_model;
use planner::profile::machines::MACHINES;
use planner::profile::synthetic;
use planner::regime::Grid;

const CONTEXT_TOKENS: u32 = 2048;

/// The plan of a catalogue's model on a synthetic machine, with all regimes.
fn plan(model: &str, machine: &str, vram_mib: u64) -> Plan {
    let profile = synthetic::profile(MACHINES.iter().find(|known| known.name == machine).unwrap());
    let gpu_bytes = profile.gpu.as_ref().map(|gpu| gpu.memory_mib << 20);
    let inputs = PlanInputs {
        program: common::full_size(model),
        model: ModelFingerprint { file_sizes_bytes: vec![1], headers_hash: [1; 32], samples_hash: [2; 32] },
        device: DeviceFingerprint::simulated(&profile.name, &profile.cpu.model, 8, gpu_bytes),
        options: Options {
            vram_bytes: vram_mib << 20,
            ram_bytes: None,
            context_tokens: CONTEXT_TOKENS,
            limits: RoundLimits { ubatch_tokens: 512, output_tokens: 8 },
            prompt_tokens: 512,
            generate_tokens: 256,
            kv_type: KvType::F16,
        },
        deciding: Deciding::Profile { profile: Box::new(profile), ubatch_tokens: vec![512], grid: Grid::full() },
    };
    plan_model(inputs).unwrap().plan
}

/// Times of the kept decode schedules under a load, in microseconds.
fn decode_us(plan: &Plan, load: &Load) -> Vec<f64> {
    let case = &plan.costs.cases[plan.costs.case_index(Phase::Decode, CONTEXT_TOKENS).unwrap()];
    let of_schedule = |schedule: &Schedule| {
        let prepared = Prepared::new(&plan.costs, case, &plan.placement, &plan.slots, schedule).unwrap();
        evaluate(&plan.costs, case, &prepared, load, Horizon::Steady, &mut Scratch::default())
    };
    plan.schedules.iter().filter(|schedule| schedule.phase == Phase::Decode).map(of_schedule).collect()
}

/// Part of the rise that the table takes away under slowdowns of CPU, GPU and link.
fn cut(plan: &Plan, [cpu, gpu, link]: [f64; 3]) -> f64 {
    let full_team = plan.costs.teams.last().unwrap().threads;
    let (idle, loaded) = (decode_us(plan, &Load::IDLE), decode_us(plan, &Load::cell(cpu, gpu, link, full_team)));
    let best = |times: &[f64]| (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap();
    let (fixed, adapted) = (best(&idle), best(&loaded));
    (loaded[fixed] - loaded[adapted]) / (loaded[fixed] - idle[fixed])
}

/// 60 % of a resource taken leaves it 2.5 times slower.
const CPU: [f64; 3] = [2.5, 1.0, 1.0];
const GPU_AND_LINK: [f64; 3] = [1.0, 2.5, 2.5];

#[test]
fn the_table_takes_its_part_of_the_rise_under_load() {
    // At least so much of the rise under each load.
    let cases = [("qwen3-14b", "h200-16core", 6144), ("qwen3-14b", "rtx3060-laptop", 5600)];
    for (model, machine, vram_mib) in cases {
        let plan = plan(model, machine, vram_mib);
        let cuts = [CPU, GPU_AND_LINK].map(|load| cut(&plan, load));
        assert!(cuts[0] >= 0.25 && cuts[1] >= 0.5, "{model} on {machine}: {cuts:?}");
    }
}

/// Where nothing is streamed, a slower link costs nothing, and what a slower GPU costs is the work of what lives there:
/// another schedule has no say in it.
#[test]
fn a_plan_that_streams_nothing_has_only_the_cpus_rise_to_cut() {
    let plan = plan("qwen3-30b-a3b", "rtx3060-laptop", 5600);
    let idle = decode_us(&plan, &Load::IDLE);
    let of_decode: Vec<&Schedule> = plan.schedules.iter().filter(|schedule| schedule.phase == Phase::Decode).collect();
    let fixed = (0..idle.len()).min_by(|&a, &b| idle[a].total_cmp(&idle[b])).unwrap();
    assert!(of_decode[fixed].promotions.is_empty());
    assert!(cut(&plan, CPU) >= 0.25 && cut(&plan, GPU_AND_LINK) < 0.05);
}
