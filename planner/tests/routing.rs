//! Counts of chosen experts as an input of plans: what rounds read follows them, and layers whose experts are chosen
//! unevenly are divided where that pays.

mod common;

use fixtures::{catalog, skew};
use gguf::Model;
use plan_format::artifact::KvType;
use plan_format::program::{ItemKind, OpKind, Program};
use plan_format::routing::{LayerHits, RoutingCounts};
use plan_format::schedule::Phase;
use planner::cost::{Demand, Problem, distinct_experts, price};
use planner::place::hot::{Ask, HotExperts, HotReport, line, search};
use planner::place::memory::Budget;
use planner::place::search::{Query, decide};
use planner::profile::machines::MACHINES;
use planner::profile::{Profile, synthetic};

fn program(name: &str) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    catalog::model(name).unwrap().write_sparse(&path).unwrap();
    planner::lower_model(&Model::open(&path).unwrap()).unwrap()
}

fn machine(name: &str) -> Profile {
    synthetic::profile(MACHINES.iter().find(|machine| machine.name == name).unwrap())
}

/// Counts of a million tokens whose choices follow a Zipf law in every layer.
fn zipf(program: &Program, exponent: f64) -> RoutingCounts {
    let layer = |op: &plan_format::program::Op| {
        let OpKind::Router { router, .. } = &op.kind else { return None };
        let rates = skew::zipf_rates(router.experts as usize, router.chosen as usize, exponent);
        let mut hits: Vec<u64> = rates.iter().map(|rate| (rate * 1e6) as u64).collect();
        // Each token has chosen so many.
        let missing = u64::from(router.chosen) * 1_000_000 - hits.iter().sum::<u64>();
        hits.iter_mut().rev().take(missing as usize).for_each(|hits| *hits += 1);
        Some(LayerHits { layer: program.items[op.item.index()].layer?, chosen: router.chosen, hits })
    };
    let counts = RoutingCounts { layers: program.ops.iter().filter_map(layer).collect() };
    counts.check(program).unwrap();
    counts
}

fn demand() -> Demand {
    Demand {
        context_tokens: 2048,
        kv_type: KvType::F16,
        prompt_tokens: 512,
        generate_tokens: 256,
        ubatch_tokens: vec![64],
        output_tokens: 8,
    }
}

fn priced(program: &Program, profile: &Profile, routing: Option<RoutingCounts>) -> Problem {
    let profile = Profile { routing, ..profile.clone() };
    price(program, &profile, &demand()).unwrap()
}

/// Bytes that a layer's experts read in a round of these tokens.
fn expert_bytes(problem: &Problem, phase: Phase) -> f64 {
    let (case, _) = problem.case(phase, 2048).unwrap();
    let input = problem.items.iter().position(|item| item.kind == ItemKind::ExpertsInput).unwrap();
    problem.read_bytes[case][input] as f64
}

#[test]
fn rounds_read_the_experts_that_the_counts_say() {
    let (program, profile) = (program("qwen3-30b-a3b"), machine("rtx3060-laptop"));
    let [plain, alike, steep] = [None, Some(0.0), Some(1.0)]
        .map(|exponent| priced(&program, &profile, exponent.map(|exponent| zipf(&program, exponent))));
    for (phase, tokens) in
        [(Phase::Decode, 1), (Phase::Verify { tokens: 8 }, 8), (Phase::Prefill { ubatch_tokens: 64 }, 64)]
    {
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-3;
        assert!(close(expert_bytes(&alike, phase), expert_bytes(&plain, phase)), "{phase:?}");
        let rates = skew::zipf_rates(128, 8, 1.0);
        let distinct: f64 = rates.iter().map(|rate| 1.0 - (1.0 - rate).powi(tokens)).sum();
        let expected = distinct / distinct_experts(128, 8, tokens as u32);
        let found = expert_bytes(&steep, phase) / expert_bytes(&plain, phase);
        assert!(close(found, expected), "{phase:?}: {found} for {expected}");
        assert!(tokens == 1 || found < 0.9, "{phase:?}: {found}");
    }
}

/// The best divided plan under Zipf choices, of a model of which experts lie on both sides.
fn divided(program: &Program, profile: &Profile, vram_gib: u64, exponent: f64) -> Option<HotExperts> {
    let profile = Profile { routing: Some(zipf(program, exponent)), ..profile.clone() };
    let problem = price(program, &profile, &demand()).unwrap();
    let (ram_bytes, pinned_bytes) = (profile.memory.available_mib << 20, profile.memory.pinned_limit_mib << 20);
    let budget = Budget { vram_bytes: vram_gib << 30, ram_bytes, pinned_bytes };
    let decision = decide(&Query { problem: &problem, profile: &profile, budget }).unwrap();
    let ask = Ask { program, profile: &profile, demand: &demand(), budget };
    search(&ask, (&problem, &decision)).map(|(_, found)| found)
}

#[test]
fn dividing_experts_pays_with_skew_and_not_without() {
    for (model, machine_name, vram_gib) in
        [("qwen3-30b-a3b", "rtx3060-laptop", 6), ("qwen3-30b-a3b", "h200-16core", 6), ("gpt-oss-20b", "h200-16core", 6)]
    {
        let (program, profile) = (program(model), machine(machine_name));
        let [flat, steep] = [0.0, 1.0].map(|exponent| divided(&program, &profile, vram_gib, exponent));
        let what = format!("{model} on {machine_name}: {flat:?}, with skew {steep:?}");
        println!("{what}");
        assert!(flat.is_none_or(|flat| !flat.pays() && flat.divided_layers > 0), "{what}");
        let steep = steep.expect("experts lie on both sides");
        assert!(steep.pays() && steep.decode_us[0] < 0.95 * steep.decode_us[1], "{what}");
        assert!(steep.hit_rate[0] > steep.hit_rate[1] + 0.1, "{what}");
        let report = HotReport { counted: Some(steep), alike: flat };
        let text = line(&report);
        assert!(text.starts_with("hot experts: ") && text.contains("without skew"), "{text}");
    }
}
