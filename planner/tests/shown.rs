//! What commands show of one plan agrees: the schedule of the workload, its times at any context, what decode holds,
//! and the bounds. Models are full-size, headers only.

mod common;

use plan_format::arena::RoundLimits;
use plan_format::artifact::{KvType, Options, Plan};
use plan_format::costs::Load;
use plan_format::fingerprint::{DeviceFingerprint, ModelFingerprint};
use plan_format::schedule::Phase;
use plan_format::text::{Detail, plan_text};
use plan_format::workload;
use planner::compile::{Deciding, PlanInputs, Planned, plan_model};
use planner::cost::{Demand, price};
use planner::profile::{Profile, machines::MACHINES, synthetic};
use planner::regime::Grid;
use planner::report::claims::compare;
use planner::report::claims_text::{phases, sentences};
use planner::report::llama_cpp::export;
use planner::report::page::page;
use planner::report::simulated::Simulation;
use std::sync::LazyLock;

const PROMPT_TOKENS: u32 = 2048;
const GENERATE_TOKENS: u32 = 64;

fn machine(name: &str) -> Profile {
    synthetic::profile(MACHINES.iter().find(|machine| machine.name == name).unwrap())
}

fn planned(model: &str, machine_name: &str, vram_mib: u64) -> Planned {
    let profile = machine(machine_name);
    let gpu_bytes = profile.gpu.as_ref().map(|gpu| gpu.memory_mib << 20);
    let device = DeviceFingerprint::simulated(machine_name, &profile.cpu.model, u32::from(profile.cores()), gpu_bytes);
    let options = Options {
        vram_bytes: vram_mib << 20,
        ram_bytes: None,
        context_tokens: 8192,
        limits: RoundLimits { ubatch_tokens: 1024, output_tokens: 8 },
        prompt_tokens: PROMPT_TOKENS,
        generate_tokens: GENERATE_TOKENS,
        kv_type: KvType::F16,
    };
    let deciding = Deciding::Profile { profile: Box::new(profile), ubatch_tokens: vec![1024], grid: Grid::reduced() };
    let fingerprint =
        ModelFingerprint { file_sizes_bytes: vec![1 << 30], headers_hash: [0; 32], samples_hash: [0; 32] };
    let program = common::full_size(model);
    plan_model(PlanInputs { program, model: fingerprint, device, options, deciding }).unwrap()
}

/// A plan whose decode rounds hold items that prefill rounds do not.
static HOLDING: LazyLock<Planned> = LazyLock::new(|| planned("qwen3-14b", "h200-16core", 6144));

fn simulated(plan: &Plan, context_tokens: u32) -> String {
    Simulation { plan, load: Load::IDLE, conditions: Vec::new(), context_tokens }.text().unwrap()
}

#[test]
fn every_command_takes_the_same_schedule_for_the_workload() {
    for plan in [&HOLDING.plan, &planned("gpt-oss-20b", "rtx3060-laptop", 5700).plan] {
        let own = workload::context(&plan.origin.options, Phase::Decode);
        assert!(!plan.regimes.context_tokens.contains(&own), "the workload has a context of its own");
        let (text, flags) = (plan_text(plan, Detail::Summary), export(plan).flags);
        assert!(!text.contains("0 regimes"), "{text}");
        for (phase, flag) in [(Phase::Decode, "-t"), (Phase::Prefill { ubatch_tokens: 1024 }, "-tb")] {
            let chosen = workload::chosen(plan, phase).unwrap();
            let id = chosen.schedule;
            let threads = plan.schedules[id.index()].cpu_threads;
            let value = flags.iter().find(|(name, _)| *name == flag).and_then(|(_, value)| value.clone());
            assert_eq!(value, Some(threads.to_string()), "{phase:?}");
            let of_phase = |line: &&str| line.starts_with(&format!("{:>5} ", id.0)) && line.contains("threads");
            let line = text.lines().find(of_phase).unwrap();
            assert!(line.contains("the workload's own context"), "{phase:?}: {line}");
            assert!(simulated(plan, own).contains(&format!("schedule S{}: {threads} CPU threads", id.0)));
            // What was promised for these rounds is what they are shown to take.
            let at = (phase, chosen.case.context_tokens);
            let promised = plan.report.predictions.iter().find(|p| (p.phase, p.context_tokens) == at).unwrap();
            assert!((promised.round_us / chosen.round_us - 1.0).abs() < 1e-9, "{promised:?}, {chosen:?}");
        }
    }
}

#[test]
fn a_context_that_was_not_priced_costs_what_pricing_it_would() {
    let profile = machine("h200-16core");
    for model in ["qwen3-14b", "gpt-oss-20b"] {
        let program = common::full_size(model);
        let priced_for = |prompt_tokens| {
            let (context_tokens, kv_type) = (8192, KvType::F16);
            let (generate_tokens, ubatch_tokens, output_tokens) = (0, vec![16], 8);
            let demand =
                Demand { context_tokens, kv_type, prompt_tokens, generate_tokens, ubatch_tokens, output_tokens };
            price(&program, &profile, &demand).unwrap().costs
        };
        let known = priced_for(640);
        let total_us = |costs: &plan_format::costs::CostModel, tokens| {
            let case = costs.case_at(Phase::Decode, tokens).unwrap();
            let (cpu, gpu): (f32, f32) = (case.cpu_us.iter().sum(), case.items.iter().map(|item| item.gpu_us).sum());
            assert_eq!(case.context_tokens, tokens);
            [cpu, gpu].map(f64::from)
        };
        let mut last_us = [0.0; 2];
        for tokens in [64, 300, 640, 1000, 2048, 3000, 4096, 7000, 8192] {
            let (found_us, exact_us) = (total_us(&known, tokens), total_us(&priced_for(tokens), tokens));
            for (found, exact) in found_us.iter().zip(exact_us) {
                assert!((found / exact - 1.0).abs() < 0.02, "{model} at {tokens}: {found} against {exact}");
            }
            assert!(found_us.iter().zip(last_us).all(|(us, last)| *us >= last), "{model} at {tokens}");
            last_us = found_us;
        }
    }
}

#[test]
fn a_simulation_at_a_shorter_context_is_of_that_context() {
    let plan = &HOLDING.plan;
    let decode_ms = |tokens: u32| {
        let text = simulated(plan, tokens);
        let line = text.lines().find(|line| line.starts_with("decode at ")).unwrap().to_owned();
        assert!(line.starts_with(&format!("decode at {tokens} cached: ")), "{line}");
        line.split(": ").nth(1).unwrap().split(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let times = [100, 1000, 2080, 4096, 8192].map(decode_ms);
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]) && times[0] < times[4], "{times:?}");
}

#[test]
fn what_decode_holds_is_shown_everywhere() {
    let plan = &HOLDING.plan;
    let count = plan.placement.held.items.len();
    assert!(count > 1, "nothing is held, so nothing was tested");
    let html = page("m", plan, None).unwrap();
    let own = workload::context(&plan.origin.options, Phase::Decode);
    for (place, text) in
        [("simulate", simulated(plan, own)), ("report", html.clone()), ("export", export(plan).lost.join("\n"))]
    {
        assert!(text.contains(&format!("keeps {count} more items, ")), "{place}");
    }
    assert_eq!(html.matches("kept on the GPU between prompts").count(), count + 1, "each item and the legend");
}

#[test]
fn the_report_draws_the_regime_map_of_a_workload_with_a_context_of_its_own() {
    let html = page("m", &HOLDING.plan, None).unwrap();
    let map = &HOLDING.plan.regimes;
    let cells = map.cpu_slowdown.len() * map.gpu_slowdown.len() * map.link_slowdown.len();
    assert_eq!(html.matches("× slower: ").count(), 2 * cells, "decode and prefill");
}

#[test]
fn what_bounds_any_placement_bounds_this_one_in_the_same_words() {
    for (model, machine_name, vram_mib) in [
        ("qwen3-14b", "rtx3060-laptop", 5700),
        ("qwen3-30b-a3b", "rtx3060-laptop", 3000),
        ("qwen3-4b", "rtx4060-laptop", 2048),
    ] {
        let reasons = planned(model, machine_name, vram_mib).reasons.unwrap();
        let comparison = compare(&reasons.query(), &reasons.solved.decision).unwrap();
        for (name, claim) in phases(&comparison) {
            assert!(claim.reach.most <= claim.most_any(), "{model} {name}: {claim:?}");
            assert!(claim.reach.speedup <= claim.reach.most * 1.001, "{model} {name}: {claim:?}");
            let text = sentences(name, claim, 41.0).join("\n");
            let figure = |before: &str| {
                let rest = text.split(before).nth(1).unwrap();
                rest.split('x').next().unwrap().split(' ').next_back().unwrap().parse::<f64>().unwrap()
            };
            assert!(figure("at most ") <= figure("So no placement gains more than "), "{text}");
        }
    }
}

#[test]
fn a_bound_is_named_with_what_it_bounds() {
    let plan = &HOLDING.plan;
    let text = plan_text(plan, Detail::Summary);
    let found = plan.report.optimality.as_ref().unwrap();
    let bound = format!("none below {:.3} ms", found.lp_bound_us / 1000.0);
    let line = text.lines().find(|line| line.contains(&bound)).unwrap();
    assert!(line.contains("without transfers") && line.contains("one processor at a time"), "{line}");
    assert!(text.contains("ms for the workload, transfers and all"), "{text}");
    assert!(found.lp_bound_us <= found.dp_us);
}
