//! The path that `compile` takes, from a program to the bytes of a plan, for every reference model on every machine.
//! Cases of report R18: a budget is kept or refused, never exceeded.

mod common;

use fixtures::REFERENCE_MODELS;
use plan_format::arena::RoundLimits;
use plan_format::artifact::{KvType, Options, Plan, Region};
use plan_format::fingerprint::{DeviceFingerprint, ModelFingerprint};
use plan_format::schedule::{Home, HostMemory, Layout};
use plan_format::sections::{from_bytes, to_bytes};
use planner::compile::{Deciding, PlanError, PlanInputs, Planned};
use planner::place::search::SearchError;
use planner::plan_model;
use planner::profile::machines::MACHINES;
use planner::profile::{Profile, synthetic};
use planner::regime::{Grid, SolveError};

fn machine(name: &str) -> Profile {
    synthetic::profile(MACHINES.iter().find(|machine| machine.name == name).unwrap())
}

fn inputs(model: &str, profile: Profile, vram_bytes: u64) -> PlanInputs {
    let options = Options {
        vram_bytes,
        ram_bytes: None,
        context_tokens: 256,
        limits: RoundLimits { ubatch_tokens: 256, output_tokens: 8 },
        prompt_tokens: 128,
        generate_tokens: 64,
        kv_type: KvType::F16,
    };
    let gpu_bytes = profile.gpu.as_ref().map(|gpu| gpu.memory_mib << 20);
    PlanInputs {
        program: common::lowered(model),
        model: ModelFingerprint { file_sizes_bytes: vec![1], headers_hash: [1; 32], samples_hash: [2; 32] },
        device: DeviceFingerprint::simulated(&profile.name, &profile.cpu.model, 8, gpu_bytes),
        options,
        deciding: Deciding::Profile {
            profile: Box::new(profile),
            ubatch_tokens: vec![16, 64, 256],
            grid: Grid::reduced(),
        },
    }
}

fn planned(model: &str, machine_name: &str, vram_bytes: u64) -> Result<Planned, PlanError> {
    plan_model(inputs(model, machine(machine_name), vram_bytes))
}

fn gpu_bytes(plan: &Plan) -> u64 {
    use Region::*;
    let regions = [GpuContext, GpuKernels, GpuWeights, GpuStates, GpuArena, GpuSlots];
    regions.iter().map(|&region| plan.report.bytes(region)).sum()
}

/// Predicted time of the workload, in microseconds.
fn total_us(planned: &Planned) -> f64 {
    planned.reasons.as_ref().unwrap().solved.decision.best.total_us
}

#[track_caller]
fn check_plan(planned: &Planned, what: &str) {
    let plan = &planned.plan;
    // Writing verifies every invariant of the format; reading does it again.
    let bytes = to_bytes(plan).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(from_bytes(&bytes).unwrap(), *plan, "{what}");
    assert!(gpu_bytes(plan) <= plan.origin.options.vram_bytes, "{what}: {} bytes", gpu_bytes(plan));
    assert_eq!(plan.report.bytes(Region::GpuSlots), plan.slots.total_bytes(), "{what}");
    assert!(!plan.report.predictions.is_empty(), "{what}");
    assert!(plan.report.predictions.iter().all(|p| p.round_us >= p.floor_us && p.floor_us > 0.0), "{what}");
    check_layouts(plan, what);
}

#[track_caller]
fn check_layouts(plan: &Plan, what: &str) {
    for (item, home) in plan.program.items.iter().zip(&plan.placement.homes) {
        for layout in item.weights.iter().flat_map(|weight| &plan.layouts[weight.index()]) {
            let fits = match home {
                Home::Resident => matches!(layout, Layout::GpuTiled | Layout::Gguf),
                Home::Host(HostMemory::Mapped) => *layout == Layout::Gguf,
                Home::Host(_) => *layout == Layout::CpuPanel16,
            };
            assert!(fits, "{what}: {} is {home:?} and {layout:?}", item.name);
        }
    }
}

#[test]
fn every_model_is_planned_on_every_machine() {
    let (mut resident, mut host, mut streamed) = (0, 0, 0);
    for model in REFERENCE_MODELS {
        for machine in MACHINES {
            let budgets: &[u64] = if machine.gpu.is_some() { &[0, 1 << 20, 2 << 20, 1 << 30] } else { &[0] };
            for &vram_bytes in budgets {
                let what = format!("{model} on {} with {vram_bytes} bytes", machine.name);
                let found = planned(model, machine.name, vram_bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
                check_plan(&found, &what);
                let homes = &found.plan.placement.homes;
                resident += homes.iter().filter(|home| **home == Home::Resident).count();
                host += homes.iter().filter(|home| matches!(home, Home::Host(_))).count();
                streamed += found.plan.schedules.iter().map(|schedule| schedule.promotions.len()).sum::<usize>();
            }
        }
    }
    assert!(resident > 0 && host > 0 && streamed > 0, "{resident} resident, {host} host, {streamed} streamed");
}

/// Budgets from the least that works to everything and beyond, in unequal steps.
fn budgets(model: &str, machine_name: &str) -> Vec<u64> {
    let Err(PlanError::Solve(SolveError::Search(SearchError::TooSmall { needed_bytes, .. }))) =
        planned(model, machine_name, 1)
    else {
        panic!("a budget of one byte is too small")
    };
    (0..16).map(|step| needed_bytes + step * 233_333).collect()
}

#[test]
fn the_least_budget_is_named_and_works_and_time_never_rises_with_more() {
    for (model, machine_name) in
        [("qwen3", "rtx3060-laptop"), ("qwen3moe", "rtx4060-laptop"), ("gemma3", "h200-16core")]
    {
        let budgets = budgets(model, machine_name);
        assert!(planned(model, machine_name, budgets[0] - 1).is_err(), "{model}: less than the least works");
        let mut last_us = f64::INFINITY;
        for vram_bytes in budgets {
            let what = format!("{model} on {machine_name} with {vram_bytes} bytes");
            let found = planned(model, machine_name, vram_bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
            check_plan(&found, &what);
            assert!(total_us(&found) <= last_us, "{what}: {} us, with less memory {last_us}", total_us(&found));
            last_us = total_us(&found);
        }
    }
}

#[test]
fn rounds_hold_the_outputs_that_were_asked_for_and_those_of_verification() {
    for (asked, ubatch, held) in [(1, 256, 8), (64, 256, 64), (64, 16, 16)] {
        let mut inputs = inputs("qwen3", machine("rtx3060-laptop"), 4 << 20);
        inputs.options.limits.output_tokens = asked;
        let Deciding::Profile { ubatch_tokens, .. } = &mut inputs.deciding else { unreachable!() };
        *ubatch_tokens = vec![ubatch];
        let found = plan_model(inputs).unwrap();
        check_plan(&found, "outputs");
        let limits = found.plan.origin.options.limits;
        assert_eq!((limits.ubatch_tokens, limits.output_tokens), (ubatch, held));
    }
}

#[test]
fn one_thread_and_several_give_the_same_bytes() {
    let bytes = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let of = |model: &str| to_bytes(&planned(model, "rtx3060-laptop", 2 << 20).unwrap().plan).unwrap();
        pool.install(|| ["llama4", "qwen3next"].map(of))
    };
    assert_eq!(bytes(1), bytes(4));
}

#[test]
fn weights_that_memory_does_not_hold_stay_in_the_file() {
    let mut asked = inputs("qwen3", machine("rtx3060-laptop"), 1 << 20);
    asked.options.ram_bytes = Some(400 << 10);
    let found = plan_model(asked).unwrap();
    check_plan(&found, "400 KiB of memory");
    let report = &found.plan.report;
    let held = report.bytes(Region::HostPinned) + report.bytes(Region::HostPageable);
    let small = found.plan.program.small_weight_bytes();
    assert!(held - small <= 400 << 10, "{held} bytes are held");
    assert!(report.bytes(Region::HostMapped) > 0);
}

#[test]
fn a_cpu_plan_shrinks_its_team_when_others_take_cores() {
    let found = planned("qwen3", "cpu-laptop", 0).unwrap();
    let plan = &found.plan;
    assert_eq!(plan.origin.device.gpu, None, "a plan without GPU fits beside any");
    let threads = |cell: usize| plan.schedules[plan.regimes.cells[cell].index()].cpu_threads;
    let last = plan.regimes.cpu_slowdown.len() - 1;
    assert!(threads(last) < threads(0), "{} threads with a fifth of the cores, {} with all", threads(last), threads(0));
}

#[test]
fn a_context_above_the_model_and_a_budget_without_gpu_are_refused() {
    let mut long = inputs("qwen3", machine("rtx3060-laptop"), 1 << 20);
    long.options.context_tokens = u32::MAX;
    assert!(matches!(plan_model(long), Err(PlanError::Context { asked: u32::MAX, .. })));
    assert!(matches!(planned("qwen3", "cpu-laptop", 1 << 20), Err(PlanError::NoGpu { .. })));
}

#[test]
fn a_time_that_the_profile_lacks_is_named_with_the_profile() {
    let mut profile = machine("rtx3060-laptop");
    profile.curves.retain(|curve| curve.weight_type != "Q6_K");
    let error = plan_model(inputs("qwen3", profile, 0)).unwrap_err().to_string();
    for part in ["rtx3060-laptop", "Q6_K", "on the Cpu"] {
        assert!(error.contains(part), "{error}");
    }
}
