//! Reports of whole plans: pages, simulations, the arithmetic of claims, differences, exports. Models are full-size,
//! headers only.

use gguf::Model;
use plan_format::arena::RoundLimits;
use plan_format::artifact::{KvType, Options, Plan};
use plan_format::costs::Load;
use plan_format::fingerprint::{DeviceFingerprint, ModelFingerprint};
use plan_format::program::{Item, ItemKind};
use plan_format::schedule::{Home, Phase};
use planner::compile::{Deciding, PlanInputs, Planned, plan_model};
use planner::profile::{Profile, machines::MACHINES, synthetic};
use planner::regime::Grid;
use planner::report::claims::{Verdict, compare};
use planner::report::claims_text;
use planner::report::differences::differences;
use planner::report::llama_cpp::export;
use planner::report::page::{Study, page};
use planner::report::simulated::{RoundKind, Simulation};
use planner::simulate::round::{Round, RoundError};

fn machine(name: &str) -> Profile {
    synthetic::profile(MACHINES.iter().find(|machine| machine.name == name).unwrap())
}

fn planned(model: &str, machine_name: &str, vram_mib: u64) -> Planned {
    planned_for(model, machine_name, vram_mib, [512, 256])
}

/// For a workload of so many tokens read and written.
fn planned_for(model: &str, machine_name: &str, vram_mib: u64, [prompt_tokens, generate_tokens]: [u32; 2]) -> Planned {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fixtures::catalog::model(model).unwrap().write_sparse(&path).unwrap();
    let program = planner::lower_model(&Model::open(&path).unwrap()).unwrap();
    let profile = machine(machine_name);
    let gpu_bytes = profile.gpu.as_ref().map(|gpu| gpu.memory_mib << 20);
    let device = DeviceFingerprint::simulated(machine_name, &profile.cpu.model, u32::from(profile.cores()), gpu_bytes);
    let options = Options {
        vram_bytes: vram_mib << 20,
        ram_bytes: None,
        context_tokens: 4096,
        limits: RoundLimits { ubatch_tokens: 512, output_tokens: 8 },
        prompt_tokens,
        generate_tokens,
        kv_type: KvType::F16,
    };
    let deciding = Deciding::Profile { profile: Box::new(profile), ubatch_tokens: vec![512], grid: Grid::reduced() };
    let model = ModelFingerprint { file_sizes_bytes: vec![1 << 30], headers_hash: [0; 32], samples_hash: [0; 32] };
    plan_model(PlanInputs { program, model, device, options, deciding }).unwrap()
}

/// A round at a context of the regime map.
fn round(plan: &Plan, phase: Phase, load: Load) -> Round<'_> {
    Round { plan, phase, context_tokens: 2048, load }
}

#[test]
fn the_page_says_everything_and_needs_nothing_from_elsewhere() {
    for (model, vram_mib) in [("qwen3-4b", 2048), ("deepseek-v2-lite", 4096)] {
        let Planned { plan, reasons } = planned(model, "rtx3060-laptop", vram_mib);
        let reasons = reasons.unwrap();
        let comparison = compare(&reasons.query(), &reasons.solved.decision).unwrap();
        let study = Study { machine: "rtx3060-laptop", read_gb_per_s: 41.0, hot: None, comparison: Some(&comparison) };
        let html = page("m.atsplan", &plan, Some(study)).unwrap();
        let parts = [
            "What lies where",
            "Empirical performance density",
            "Memory by region",
            "One round",
            "Regimes",
            "Under changing load",
            "(the paper: 38 %)",
            "What each mechanism contributes",
            "3.29×",
            "1.94×",
            "GPU, resident",
            "time per MiB of memory",
            "time, ms",
        ];
        assert!(parts.iter().all(|part| html.contains(part)), "{model}");
        for item in plan.program.items.iter() {
            assert!(html.contains(&item.name), "{model}: {} is missing", item.name);
        }
        let without_namespace = html.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http", "<script", "<link", "<img", "url(", "@import"] {
            assert!(!without_namespace.contains(foreign), "{model}: {foreign}");
        }
        for element in ["svg", "div", "table", "ul", "details"] {
            let (open, close) =
                (html.matches(&format!("<{element}")).count(), html.matches(&format!("</{element}>")).count());
            assert_eq!(open, close, "{model}: <{element}>");
        }
        assert!(!html.contains("NaN") && !html.contains("inf"), "{model}");
    }
}

#[test]
fn a_page_of_a_plan_without_gpu_leaves_out_what_there_is_not() {
    let plan = planned("qwen3-0.6b", "cpu-laptop", 0).plan;
    let html = page("m", &plan, None).unwrap();
    assert!(html.contains("Nothing to compare") && !html.contains("Empirical performance density"));
    assert!(!html.contains("NaN") && !html.contains("inf "));
}

#[test]
fn a_loaded_round_runs_the_best_kept_schedule() {
    let plan = planned("qwen3-14b", "rtx3060-laptop", 5000).plan;
    let full_team = plan.costs.teams.last().unwrap().threads;
    for phase in [Phase::Decode, Phase::Prefill { ubatch_tokens: 512 }] {
        let idle = round(&plan, phase, Load::IDLE).outcome().unwrap();
        let promised = idle.floors.unwrap().round_us;
        assert!((idle.round_us / promised - 1.0).abs() < 1e-9, "{phase:?}: {} against {promised}", idle.round_us);
        assert_eq!(idle.round_us, idle.unadapted_us);
        let mut last_us = 0.0;
        for times in [1.0, 1.3, 2.0, 3.5, 5.0] {
            let loaded = round(&plan, phase, Load::cell(times, 1.0, 1.0, full_team)).outcome().unwrap();
            assert!(loaded.round_us <= loaded.unadapted_us && loaded.round_us >= last_us, "{phase:?} {times}");
            assert!(loaded.round_us >= loaded.busy.most_us(), "{phase:?} {times}: {:?}", loaded.busy);
            last_us = loaded.round_us;
        }
    }
    let busy_cpu = round(&plan, Phase::Decode, Load::cell(5.0, 1.0, 1.0, full_team)).outcome().unwrap();
    assert!(busy_cpu.round_us < 0.9 * busy_cpu.unadapted_us, "switching schedules gains little: {busy_cpu:?}");
}

#[test]
fn the_timeline_shows_the_round_that_was_predicted() {
    let plan = planned("qwen3-14b", "rtx3060-laptop", 5000).plan;
    let decode = round(&plan, Phase::Decode, Load::IDLE);
    let outcome = decode.outcome().unwrap();
    let (timeline, index) = decode.timeline(outcome.schedule).unwrap();
    assert!((timeline.round_us(index) / outcome.round_us - 1.0).abs() < 0.005, "{}", timeline.round_us(index));
    let simulation = Simulation { plan: &plan, load: Load::IDLE, conditions: Vec::new(), context_tokens: 1024 };
    for (kind, phase) in
        [(RoundKind::Decode, Phase::Decode), (RoundKind::Prefill, Phase::Prefill { ubatch_tokens: 512 })]
    {
        assert_eq!(simulation.phase(kind), Ok(phase));
        let trace: serde_json::Value = serde_json::from_str(&simulation.trace(phase).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let spans = events.iter().filter(|event| event["ph"] == "X");
        assert!(spans.clone().count() >= plan.program.items.len());
        assert!(spans.clone().all(|span| span["dur"].as_f64().is_some_and(|us| us >= 0.0)));
    }
    let missing = Phase::Prefill { ubatch_tokens: 7 };
    assert!(matches!(round(&plan, missing, Load::IDLE).outcome(), Err(RoundError::NoPhase { .. })));
}

#[test]
fn a_plan_without_times_has_nothing_to_simulate() {
    let Planned { plan, .. } = planned("qwen3-0.6b", "cpu-laptop", 0);
    let plan = Plan { costs: Default::default(), ..plan };
    assert_eq!(round(&plan, Phase::Decode, Load::IDLE).outcome(), Err(RoundError::NoTimes));
    assert_eq!(page("m", &plan, None), Err(RoundError::NoTimes));
}

/// The paper's laptop with its models and its workload: both phases are faster than in whole layers at equal memory.
#[test]
fn on_the_papers_laptop_whole_layers_are_beaten_and_no_floor_is() {
    for model in ["glm-z1-9b", "qwen3-14b", "qwen3-30b-a3b", "gpt-oss-20b"] {
        let reasons = planned_for(model, "rtx3060-laptop", 5700, [2048, 128]).reasons.unwrap();
        let comparison = compare(&reasons.query(), &reasons.solved.decision).unwrap();
        let [base_us, plan_us] = comparison.workload_us;
        assert!(plan_us < base_us, "{model}: whole layers take {base_us}, the plan {plan_us}");
        assert!(!claims_text::workload(&comparison).contains("is slower"), "{model}");
        for (name, claim) in claims_text::phases(&comparison) {
            assert!(claim.reach.speedup > 1.0, "{model} {name}: {claim:?}");
            assert!(claim.plan_us >= claim.floor.us(), "{model} {name}: {claim:?}");
            assert!(claim.most_any() >= claim.reach.speedup && claim.reach.most >= claim.reach.speedup * 0.999);
            let sentences = claims_text::sentences(name, claim, 41.0).join("\n");
            assert!(sentences.contains(&claim.paper.to_string()), "{sentences}");
            let expected = match claim.verdict() {
                Verdict::Reached => ": reached",
                Verdict::WithinFloors => "within the floors",
                Verdict::BeyondFloors => "beyond the floors",
            };
            assert!(sentences.contains(expected), "{sentences}");
        }
        let csv = claims_text::csv(model, "laptop", 5700, &comparison);
        let columns = claims_text::CSV_HEADER.split(',').count();
        assert!(csv.lines().count() == 2 && csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
    }
}

#[test]
fn a_phase_that_is_given_up_for_the_other_is_said_with_the_reason() {
    let reasons = planned("qwen3-14b", "rtx3060-laptop", 5700).reasons.unwrap();
    let mut comparison = compare(&reasons.query(), &reasons.solved.decision).unwrap();
    let rows = &mut comparison.rows;
    (rows[0].decode_us, rows[0].prefill_us, comparison.generate_tokens) = (100_000.0, 3_000_000.0, 270);
    comparison.workload_us = [30e6, 20e6];
    comparison.prefill.reach.speedup = 0.75;
    let text = claims_text::workload(&comparison);
    for part in ["30 s in whole layers and 20 s", "Its prefill is slower", "(0.75x)", "10 % of its time", "--generate"]
    {
        assert!(text.contains(part), "{part} is missing from {text}");
    }
}

#[test]
fn a_model_that_fits_has_no_memory_floor() {
    let reasons = planned("qwen3-0.6b", "rtx4090-desktop", 8192).reasons.unwrap();
    let floor = compare(&reasons.query(), &reasons.solved.decision).unwrap().decode.floor;
    assert_eq!(floor.memory_us, 0.0);
    // One read of 1.2 GB at about 1 TB/s.
    assert!((800.0..3000.0).contains(&floor.chain_us), "{floor:?}");
}

#[test]
fn equal_plans_do_not_differ_and_every_other_does() {
    let plan = planned("qwen3-4b", "rtx3060-laptop", 2048).plan;
    assert_eq!(differences(&plan, &plan.clone()), Vec::<String>::new());
    let other = planned("qwen3-4b", "rtx3060-laptop", 1800).plan;
    let text = differences(&plan, &other).join("\n");
    for part in ["GPU ceiling: 2.00 GiB -> 1.76 GiB", "memory GpuWeights", "GPU, resident -> host, pinned", "workload:"]
    {
        assert!(text.contains(part), "{part} is missing from\n{text}");
    }
    let text = differences(&plan, &planned("qwen3-0.6b", "rtx3060-laptop", 1024).plan).join("\n");
    assert!(text.contains("program: other items"), "{text}");
    let changes: [fn(&mut Plan); 12] = [
        |plan| plan.origin.tool_version.push('x'),
        |plan| plan.origin.model.headers_hash[0] ^= 1,
        |plan| plan.origin.device.cpu_cores += 1,
        |plan| plan.origin.device.gpu = None,
        |plan| plan.origin.options.ram_bytes = Some(1),
        |plan| plan.program.context_tokens += 1,
        |plan| plan.arena.size_bytes += 1,
        |plan| plan.placement.homes[3] = Home::Host(plan_format::schedule::HostMemory::Mapped),
        |plan| plan.schedules[0].cpu_threads = 1,
        |plan| plan.regimes.cells.reverse(),
        |plan| plan.costs.cases[0].gap_us += 1.0,
        |plan| plan.report.predictions[0].floor_us += 1.0,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut changed = plan.clone();
        change(&mut changed);
        assert!(!differences(&plan, &changed).is_empty(), "change {index} went unsaid");
    }
}

/// Flags that build b11434 of llama.cpp accepts in `llama-server`, `llama-cli` and `llama-completion`, with whether
/// they take a value.
const PEER_FLAGS: &[(&str, &str)] = &[
    ("-ngl", "N"),
    ("-ncmoe", "N"),
    ("-ncffn", "N"),
    ("-ot", "PATTERN=BUFFER,..."),
    ("--no-op-offload", ""),
    ("-c", "N"),
    ("-b", "N"),
    ("-ub", "N"),
    ("-t", "N"),
    ("-tb", "N"),
    ("-fa", "on|off|auto"),
    ("-ctk", "TYPE"),
    ("-ctv", "TYPE"),
    ("-nkvo", ""),
    ("-lm", "auto|none|mmap|mlock|mmap+mlock|dio"),
];

/// Where llama.cpp puts a tensor under flags: overrides in order, then experts of first layers, then the layer.
fn peer_on_gpu(flags: &[(&str, Option<String>)], tensor: &str, layers: u32) -> bool {
    let value = |wanted: &str| flags.iter().find(|(flag, _)| *flag == wanted).and_then(|(_, value)| value.clone());
    let layer = tensor.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    for pattern in value("-ot").iter().flat_map(|list| list.split(',')) {
        let (pattern, buffer) = pattern.rsplit_once('=').unwrap();
        let regex = regex_automata::meta::Regex::new(pattern).unwrap();
        if regex.is_match(tensor) {
            return buffer == "CUDA0";
        }
    }
    let first_experts: u32 = value("-ncmoe").map_or(0, |n| n.parse().unwrap());
    if tensor.contains("_exps.") && layer.is_some_and(|layer| layer < first_experts) {
        return false;
    }
    let count: u32 = value("-ngl").unwrap().parse().unwrap();
    let first = (layers + 1).saturating_sub(count);
    count > 0 && layer.unwrap_or(layers) >= first
}

#[test]
fn exported_flags_are_the_peers_and_put_every_weight_where_the_plan_has_it() {
    let cases = [
        ("qwen3-14b", "rtx3060-laptop", 5000),
        ("qwen3-30b-a3b", "rtx3060-laptop", 5700),
        ("gpt-oss-20b", "rtx4060-laptop", 7500),
        ("qwen3-next-80b-a3b", "rtx4090-desktop", 23_000),
        ("deepseek-v2-lite", "rtx3060-laptop", 5700),
        ("qwen3-0.6b", "rtx4090-desktop", 8000),
        ("qwen3-0.6b", "cpu-laptop", 0),
    ];
    for (model, machine_name, vram_mib) in cases {
        let plan = planned(model, machine_name, vram_mib).plan;
        let export = export(&plan);
        for (index, (flag, value)) in export.flags.iter().enumerate() {
            assert!(export.flags[..index].iter().all(|(before, _)| before != flag), "{model}: {flag} comes twice");
            let known = PEER_FLAGS.iter().find(|(known, _)| known == flag);
            let (_, takes) = known.unwrap_or_else(|| panic!("{model}: the peer does not know {flag}"));
            assert_eq!(value.is_some(), !takes.is_empty(), "{model}: {flag}");
            let choices: Vec<&str> = takes.split('|').collect();
            assert!(choices.len() < 2 || value.as_deref().is_some_and(|v| choices.contains(&v)), "{model}: {flag}");
        }
        let layers = plan.program.items.iter().filter_map(|item| item.layer).max().unwrap() + 1;
        for (item, home) in plan.program.items.iter().zip(&plan.placement.homes) {
            if item.kind == ItemKind::Embedding {
                continue;
            }
            for weight in &item.weights {
                let tensor = &plan.program.tensors[plan.program.weights[weight.index()].tensor.index()].name;
                // A tied head is the embedding there, which follows the output layer.
                let tensor = if tensor == "token_embd.weight" { "output.weight" } else { tensor };
                let there = peer_on_gpu(&export.flags, tensor, layers);
                assert_eq!(there, *home == Home::Resident, "{model}: {tensor} of {}: {}", item.name, export.shell());
            }
        }
        let host = |(item, home): (&Item, &Home)| *home != Home::Resident && item.kind != ItemKind::Embedding;
        let split = vram_mib > 0 && plan.program.items.iter().zip(&plan.placement.homes).any(host);
        let changes = plan.schedules.len() > plan.regimes.phases.len();
        assert_eq!(export.lost.is_empty(), !split && !changes, "{model}: {:?}", export.lost);
    }
}

#[test]
fn exported_flags_are_safe_in_a_shell() {
    let export = export(&planned("qwen3-14b", "rtx3060-laptop", 5000).plan);
    let shell = export.shell();
    let output = std::process::Command::new("sh").args(["-c", &format!("printf '%s\\n' {shell}")]).output().unwrap();
    let words: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    let expected: Vec<String> = export
        .flags
        .iter()
        .flat_map(|(flag, value)| std::iter::once((*flag).to_owned()).chain(value.clone()))
        .collect();
    assert_eq!(words, expected, "{shell}");
}
