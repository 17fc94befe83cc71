//! Whole plans of full-size models (headers only) on the synthetic machines.

use gguf::Model;
use plan_format::arena::Arena;
use plan_format::artifact::{KvType, Options, Origin, Plan, Region};
use plan_format::costs::{CaseCosts, CostModel, ItemCost, Load};
use plan_format::evaluate::{Horizon, Prepared, Scratch, evaluate};
use plan_format::fingerprint::{DeviceFingerprint, GpuFingerprint, ModelFingerprint};
use plan_format::program::Program;
use plan_format::schedule::{Home, HostMemory, Layout, Phase, Placement, Promotion, Schedule, Slot, Slots};
use plan_format::sections::{from_bytes, to_bytes};
use plan_format::{ItemId, SlotId};
use planner::cost::{Demand, Problem, price};
use planner::place::ablation::{ablation, reach};
use planner::place::explain::{Flip, explain};
use planner::place::memory::Budget;
use planner::place::search::{Decision, Query, SearchError, cross_check, decide, whole_layers};
use planner::place::summary::summary;
use planner::profile::machines::MACHINES;
use planner::profile::{Profile, synthetic};
use planner::regime::{Grid, Parts, assemble, solve_plan};
use planner::simulate::{AfterLast, Lane, Run, simulate};
use planner::transfer::{GpuMemory, verify_schedule};

const GIB: u64 = 1 << 30;

fn program(name: &str) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fixtures::catalog::model(name).unwrap().write_sparse(&path).unwrap();
    planner::lower_model(&Model::open(&path).unwrap()).unwrap()
}

fn machine(name: &str) -> Profile {
    synthetic::profile(MACHINES.iter().find(|machine| machine.name == name).unwrap())
}

/// One ubatch and two context buckets: enough to see everything, fast enough for a test.
fn demand() -> Demand {
    Demand {
        context_tokens: 4096,
        kv_type: KvType::F16,
        prompt_tokens: 512,
        generate_tokens: 256,
        ubatch_tokens: vec![512],
        output_tokens: 8,
    }
}

fn query<'a>(problem: &'a Problem, profile: &'a Profile, vram_bytes: u64) -> Query<'a> {
    let ram_bytes = profile.memory.available_mib << 20;
    Query {
        problem,
        profile,
        budget: Budget { vram_bytes, ram_bytes, pinned_bytes: profile.memory.pinned_limit_mib << 20 },
    }
}

/// Problem, decision and artifact parts of a model on a machine.
fn planned(model: &str, machine_name: &str, vram_bytes: u64) -> (Problem, Profile, Decision, Parts) {
    let profile = machine(machine_name);
    let problem = price(&program(model), &profile, &demand()).unwrap();
    let query = query(&problem, &profile, vram_bytes);
    let decision = decide(&query).unwrap();
    let parts = assemble(&query, &decision, &Grid::reduced());
    (problem, profile, decision, parts)
}

fn gpu_bytes(parts: &Parts) -> u64 {
    let gpu = [
        Region::GpuContext,
        Region::GpuKernels,
        Region::GpuWeights,
        Region::GpuStates,
        Region::GpuArena,
        Region::GpuSlots,
    ];
    gpu.iter().map(|&region| parts.report.bytes(region)).sum()
}

#[test]
fn every_kept_schedule_passes_the_verifier_and_predicts_its_simulation() {
    let vram_bytes = 5 * GIB;
    let (problem, _, _, parts) = planned("qwen3-14b", "rtx3060-laptop", vram_bytes);
    assert!(gpu_bytes(&parts) <= vram_bytes);
    assert!(gpu_bytes(&parts) >= vram_bytes - GIB / 8, "leaves {} bytes idle", vram_bytes - gpu_bytes(&parts));
    let fixed_bytes = gpu_bytes(&parts) - parts.report.bytes(Region::GpuSlots);
    let memory = GpuMemory { fixed_bytes, budget_bytes: vram_bytes };
    for schedule in &parts.schedules {
        let (case, costs) = problem.case(schedule.phase, parts.regimes.context_tokens[0]).unwrap();
        let run = Run {
            model: &problem.costs,
            case: costs,
            placement: &parts.placement,
            slots: &parts.slots,
            schedule,
            load: Load::IDLE,
            rounds: 1,
            after_last: AfterLast::Stop,
        };
        verify_schedule(&run, &problem.slot_bytes[case], memory).unwrap();
        let prepared = Prepared::new(&problem.costs, costs, &parts.placement, &parts.slots, schedule).unwrap();
        let horizon = match schedule.phase {
            Phase::Prefill { .. } => Horizon::Cold { rounds: 1 },
            _ => Horizon::Steady,
        };
        let again = evaluate(&problem.costs, costs, &prepared, &Load::IDLE, horizon, &mut Scratch::default());
        assert!((again - schedule.predicted_us).abs() <= 1e-9 * again, "{again} against {}", schedule.predicted_us);
    }
}

#[test]
fn no_prediction_is_below_its_floor_even_where_the_profile_contradicts_itself() {
    let check = |model: &str, program: &Program, profile: &Profile| {
        let problem = price(program, profile, &demand()).unwrap();
        let free_bytes = profile.gpu.as_ref().map_or(0, |gpu| gpu.free_mib << 20);
        let query = query(&problem, profile, free_bytes.min(6 * GIB));
        let parts = assemble(&query, &decide(&query).unwrap(), &Grid::reduced());
        for p in &parts.report.predictions {
            assert!(p.floor_us > 0.0 && p.round_us >= p.floor_us * (1.0 - 1e-5), "{model}, {}: {p:?}", profile.name);
        }
    };
    for model in ["qwen3-14b", "gpt-oss-20b"] {
        let program = program(model);
        for sheet in MACHINES {
            let mut profile = synthetic::profile(sheet);
            check(model, &program, &profile);
            // Plain reads that were measured while others had the machine.
            profile.memory.read_gb_per_s /= 3.0;
            if let Some(gpu) = &mut profile.gpu {
                gpu.memory_gb_per_s /= 3.0;
            }
            check(model, &program, &profile);
        }
    }
}

/// The H200 machine reads 143 GB/s with 16 threads alone and copies 55; both at once get 108 and 46.
#[test]
fn cpu_and_link_share_the_dram_as_they_were_measured_to() {
    let problem = price(&program("qwen3-0.6b"), &machine("h200-16core"), &demand()).unwrap();
    let team = *problem.costs.teams.last().unwrap();
    let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.01, "{found}, {expected}");
    near(f64::from(team.cpu_slowdown_while_link), 143.0 / 108.0);
    near(f64::from(team.link_slowdown_while_cpu), 55.0 / 46.0);
    // Decode is bound by the DRAM and prefill by arithmetic: the link disturbs one and hardly the other.
    let down = problem.items.iter().position(|item| item.name == "blk.1.ffn_down").unwrap();
    let share = |phase| problem.case(phase, 2048).unwrap().1.items[down].dram_share;
    let (decode, prefill) = (share(Phase::Decode), share(Phase::Prefill { ubatch_tokens: 512 }));
    assert!(decode > 0.7 && prefill < 0.1, "{decode} {prefill}");
    // A read of 143 MB beside a copy of 55 MB, each of 1000 us alone. The copy ends after 55 / 46 of that; by then the
    // read has done 108 / 143 of as much, and goes on alone.
    let item = |stream_us, dram_share| ItemCost { gpu_us: 1.0, stream_us, dram_share, ..ItemCost::default() };
    let case = CaseCosts {
        phase: Phase::Decode,
        context_tokens: 1,
        gap_us: 0.0,
        cpu_us: vec![1000.0, 1.0],
        items: vec![item(0.0, 1.0), item(1000.0, 1.0)],
    };
    let model = CostModel { teams: vec![team], input_start: vec![0, 0, 0], inputs: Vec::new(), cases: vec![case] };
    let promotion = Promotion { item: ItemId(1), slot: SlotId(0), after: None };
    let schedule =
        Schedule { phase: Phase::Decode, cpu_threads: team.threads, promotions: vec![promotion], predicted_us: 0.0 };
    let placement = Placement::new(vec![Home::Host(HostMemory::Pinned); 2]);
    let slots = Slots { slots: vec![Slot { offset_bytes: 0, size_bytes: 256 }] };
    let (case, load) = (&model.cases[0], Load::IDLE);
    let run = Run {
        model: &model,
        case,
        placement: &placement,
        slots: &slots,
        schedule: &schedule,
        load,
        rounds: 1,
        after_last: AfterLast::Stop,
    };
    let timeline = simulate(&run).unwrap();
    let end_us = |lane| timeline.spans.iter().find(|span| span.lane == lane).unwrap().end_us;
    let copied_us = 1000.0 * 55.0 / 46.0;
    let read_us = copied_us + 1000.0 - copied_us * 108.0 / 143.0;
    near(end_us(Lane::Link), copied_us);
    near(end_us(Lane::Cpu), read_us);
    let prepared = Prepared::new(&model, case, &placement, &slots, &schedule).unwrap();
    let round_us = evaluate(&model, case, &prepared, &load, Horizon::Cold { rounds: 1 }, &mut Scratch::default());
    assert!((round_us - timeline.round_us(0)).abs() < 1e-6 && round_us >= read_us * 0.99, "{round_us} {read_us}");
}

/// The artifact of solved parts, as `compile` puts it together.
fn artifact(program: Program, parts: Parts, vram_bytes: u64) -> Plan {
    let layouts = program.weights.iter().map(|weight| vec![Layout::Gguf; weight.parts.len()]).collect();
    let options = Options {
        vram_bytes,
        ram_bytes: None,
        context_tokens: demand().context_tokens,
        limits: parts.limits,
        prompt_tokens: demand().prompt_tokens,
        generate_tokens: demand().generate_tokens,
        kv_type: demand().kv_type,
    };
    let gpu = GpuFingerprint { model: "G".into(), memory_bytes: 6 * GIB, link: "L".into(), driver: "1".into() };
    Plan {
        origin: Origin {
            tool_version: "0".into(),
            options,
            model: ModelFingerprint { file_sizes_bytes: vec![1], headers_hash: [0; 32], samples_hash: [0; 32] },
            device: DeviceFingerprint { cpu_model: "C".into(), cpu_cores: 8, gpu: Some(gpu) },
        },
        arena: Arena::new(&program, parts.limits),
        few_arena: (!parts.placement.held.items.is_empty())
            .then(|| Arena::new(&program, planner::cost::few_limits(parts.limits))),
        program,
        placement: parts.placement,
        layouts,
        slots: parts.slots,
        schedules: parts.schedules,
        regimes: parts.regimes,
        costs: parts.costs,
        report: parts.report,
        code: Vec::new(),
        full_hash: None,
    }
}

#[test]
fn solved_parts_make_a_plan_that_verifies_and_survives_its_file() {
    let cases = [("qwen3-4b", "rtx3060-laptop", 3 * GIB / 2), ("qwen3-30b-a3b", "rtx3060-laptop", 5 * GIB)];
    for (model, machine_name, vram_bytes) in cases {
        let (program, profile) = (program(model), machine(machine_name));
        let ram_bytes = profile.memory.available_mib << 20;
        let budget = Budget { vram_bytes, ram_bytes, pinned_bytes: ram_bytes };
        let solved = solve_plan(&program, &profile, &demand(), budget, &Grid::reduced()).unwrap();
        let promotes = solved.parts.schedules.iter().any(|schedule| !schedule.promotions.is_empty());
        assert!(promotes, "{model}: nothing is streamed, so little was tested");
        let plan = artifact(program, solved.parts, vram_bytes);
        let bytes = to_bytes(&plan).unwrap_or_else(|error| panic!("{model}: {error}"));
        assert_eq!(from_bytes(&bytes).unwrap(), plan);
    }
}

#[test]
fn the_plan_beats_hand_made_splits_and_every_mechanism_contributes() {
    let profile = machine("rtx3060-laptop");
    let problem = price(&program("qwen3-14b"), &profile, &demand()).unwrap();
    let query = query(&problem, &profile, 5 * GIB);
    let decision = decide(&query).unwrap();
    let seed = decision.best_seed.as_ref().unwrap();
    assert!(decision.best.total_us <= seed.total_us);
    let whole = whole_layers(&query, 0).unwrap();
    assert!(decision.best.total_us < 0.9 * whole.total_us);
    let rows = ablation(&query, &decision, &whole).unwrap();
    let workload_us = |row: &planner::place::ablation::Row| 256.0 * row.decode_us + row.prefill_us;
    assert!(rows.windows(2).all(|pair| workload_us(&pair[1]) < workload_us(&pair[0])), "{rows:#?}");
    // The dynamic program is near its bound, and the bound is one.
    let (dp_us, bound_us) = (decision.dp_us.unwrap(), decision.lp_bound_us.unwrap());
    assert!(bound_us <= dp_us && dp_us <= 1.02 * bound_us, "{dp_us} against {bound_us}");
    // No schedule is faster than the floor of its own transfers.
    let parts = assemble(&query, &decision, &Grid::reduced());
    assert!(parts.report.predictions.iter().all(|p| p.round_us >= p.floor_us && p.floor_us > 0.0));
}

#[test]
fn the_summary_says_what_lies_where_how_fast_and_how_near_to_the_bounds() {
    let (problem, profile, decision, parts) = planned("qwen3-4b", "rtx3060-laptop", 2 * GIB);
    let text = summary(&query(&problem, &profile, 2 * GIB), &decision, &parts);
    for expected in ["GPU 2.00 GiB of 2.00 GiB", "pinned", "resident: attention inputs", "decode", "prefill", "floor"] {
        assert!(text.contains(expected), "{expected} is missing from\n{text}");
    }
    assert!(text.contains("streams") && text.contains("of optimal"), "{text}");
}

#[test]
fn the_integer_program_on_the_graph_is_no_better_than_its_bound() {
    let (problem, profile, decision, _) = planned("qwen3-0.6b", "rtx3060-laptop", GIB * 3 / 4);
    let found = cross_check(&query(&problem, &profile, GIB * 3 / 4), &decision, 10.0).unwrap();
    let found_us = found.total_ns as f64 / 1000.0;
    assert!(found_us >= decision.lp_bound_us.unwrap());
    assert!(found_us <= decision.dp_us.unwrap(), "started from the dynamic program, yet {found_us}");
}

#[test]
fn predicted_time_falls_as_the_budget_grows() {
    let profile = machine("rtx4060-laptop");
    let problem = price(&program("qwen3-4b"), &profile, &demand()).unwrap();
    let mut last_us = f64::INFINITY;
    for step in 4..=16 {
        let decision = decide(&query(&problem, &profile, step * GIB / 4)).unwrap();
        let total_us = decision.best.total_us;
        assert!(total_us <= last_us, "{} MiB: {total_us} us, with less memory {last_us}", step * 256);
        last_us = total_us;
    }
}

#[test]
fn plans_are_the_same_on_one_thread_and_on_several() {
    let on_threads = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| planned("qwen3-4b", "rtx3060-laptop", 2 * GIB))
    };
    let (one, several) = (on_threads(1), on_threads(4));
    assert_eq!(one.2, several.2);
    assert_eq!(one.3, several.3);
}

#[test]
fn a_budget_too_small_names_the_least_that_works() {
    let profile = machine("rtx3060-laptop");
    let problem = price(&program("qwen3-0.6b"), &profile, &demand()).unwrap();
    let error = decide(&query(&problem, &profile, 1 << 20)).unwrap_err();
    let SearchError::TooSmall { needed_bytes, .. } = error else { panic!("{error}") };
    assert!(error.to_string().contains(&format!("need {}M", needed_bytes.div_ceil(1 << 20))));
    let least = decide(&query(&problem, &profile, needed_bytes)).unwrap();
    assert!(least.best.homes.iter().all(|home| *home != Home::Resident));
}

#[test]
fn without_a_gpu_everything_is_on_the_host_and_a_gpu_budget_is_refused() {
    let profile = machine("cpu-laptop");
    let problem = price(&program("qwen3-0.6b"), &profile, &demand()).unwrap();
    assert!(matches!(decide(&query(&problem, &profile, GIB)), Err(SearchError::NoGpu { .. })));
    let host = query(&problem, &profile, 0);
    let decision = decide(&host).unwrap();
    let parts = assemble(&host, &decision, &Grid::cpu_only());
    assert!(parts.slots.slots.is_empty() && gpu_bytes(&parts) == 0);
    assert!(parts.schedules.iter().all(|schedule| schedule.promotions.is_empty()));
    // A busy CPU shrinks the team.
    let threads = |cell: usize| parts.schedules[parts.regimes.cells[cell].index()].cpu_threads;
    assert!(threads(5) < threads(0), "{} threads with a fifth of the CPU, {} with all", threads(5), threads(0));
}

#[test]
fn host_memory_is_pinned_then_pageable_then_mapped() {
    let profile = machine("rtx4050-laptop-16g");
    let problem = price(&program("llama-3.1-70b"), &profile, &demand()).unwrap();
    let query = query(&problem, &profile, 5 * GIB);
    let decision = decide(&query).unwrap();
    let held = |class| {
        let items = problem.items.iter().zip(&decision.best.homes);
        items.filter(|(_, home)| **home == Home::Host(class)).map(|(item, _)| item.weight_bytes).sum::<u64>()
    };
    assert!(held(HostMemory::Pinned) <= query.budget.pinned_bytes);
    assert!(held(HostMemory::Pinned) + held(HostMemory::Pageable) <= query.budget.ram_bytes);
    assert!(held(HostMemory::Mapped) > 20 * GIB);
    // Weights from storage make it slow, and the prediction says so.
    assert!(decision.best.decode.round_us > 5e6);
}

#[test]
fn explanations_name_what_would_flip_an_item() {
    let (problem, profile, decision, _) = planned("qwen3-4b", "rtx3060-laptop", 2 * GIB);
    let query = query(&problem, &profile, 2 * GIB);
    let mut flips = (0, 0);
    for item in (0..problem.items.len()).step_by(13) {
        let explanation = explain(&query, &decision, item).unwrap();
        match explanation.flip {
            Flip::ResidentFrom { vram_bytes } => {
                flips.0 += 1;
                assert!(explanation.home != Home::Resident && vram_bytes <= 8 * GIB);
            }
            Flip::HostBelow { vram_bytes } => {
                flips.1 += 1;
                assert!(explanation.home == Home::Resident && vram_bytes <= 2 * GIB);
            }
            Flip::Never => {}
        }
    }
    assert!(flips.0 > 0 && flips.1 > 0, "{flips:?}");
}

/// The paper's machines with their models, and two models of its summary.
const PAPER: &[(&str, &[&str], u64)] = &[
    ("rtx3060-laptop", &["glm-z1-9b", "qwen3-14b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite"], 5900),
    (
        "rtx4090-desktop",
        &["llama-3.1-70b", "qwen3-next-80b-a3b", "qwen3.5-122b-a10b", "gpt-oss-120b", "llama-4-scout"],
        23_500,
    ),
];

#[test]
fn every_model_of_the_paper_plans_on_its_machine_and_beats_whole_layers() {
    for &(machine_name, models, vram_mib) in PAPER {
        let profile = machine(machine_name);
        for model in models {
            let problem =
                price(&program(model), &profile, &demand()).unwrap_or_else(|error| panic!("{model}: {error}"));
            let query = query(&problem, &profile, vram_mib << 20);
            let decision = decide(&query).unwrap();
            let whole = whole_layers(&query, 0).unwrap();
            let rows = ablation(&query, &decision, &whole).unwrap();
            for row in &rows {
                let speeds = (row.prefill_tokens_per_s(), row.decode_tokens_per_s());
                println!("{model:20} {:45} prefill {:8.1} decode {:6.2} tokens/s", row.name, speeds.0, speeds.1);
            }
            let [decode, prefill] = reach(&query, &decision, &rows).unwrap();
            println!("{model:20} decode {decode:.2?} prefill {prefill:.2?}");
            assert!(decode.speedup <= decode.most * 1.001 && prefill.speedup <= prefill.most * 1.001, "{model}");
            println!("{}", summary(&query, &decision, &assemble(&query, &decision, &Grid::reduced())));
            let seed_us = decision.best_seed.as_ref().map_or(f64::INFINITY, |seed| seed.total_us);
            assert!(decision.best.total_us <= seed_us, "{model}");
            assert!(decision.best.total_us < whole.total_us, "{model}: whole layers win");
        }
    }
}
