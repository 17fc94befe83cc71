//! How planning time grows with layers, budget and regimes. Full-size shapes, headers only.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use gguf::Model;
use plan_format::artifact::KvType;
use plan_format::program::Program;
use planner::cost::{Demand, price};
use planner::place::memory::Budget;
use planner::place::search::{Query, decide};
use planner::profile::machines::MACHINES;
use planner::profile::{Profile, synthetic};
use planner::regime::{Grid, assemble};
use std::time::Duration;

fn program(name: &str) -> Program {
    let folder = tempfile::tempdir().expect("a folder for the model's header");
    let path = folder.path().join("model.gguf");
    fixtures::catalog::model(name).and_then(|model| model.write_sparse(&path)).expect("a model of the catalogue");
    planner::lower_model(&Model::open(&path).expect("a readable header")).expect("a known family")
}

fn machine(name: &str) -> Profile {
    synthetic::profile(MACHINES.iter().find(|machine| machine.name == name).expect("a machine of the table"))
}

fn demand() -> Demand {
    Demand {
        context_tokens: 8192,
        kv_type: KvType::F16,
        prompt_tokens: 512,
        generate_tokens: 256,
        ubatch_tokens: vec![16, 64, 128, 256, 512, 1024, 2048, 4096],
        output_tokens: 8,
    }
}

/// Everything that `compile` solves.
fn compile(program: &Program, profile: &Profile, vram_mib: u64, grid: &Grid) -> usize {
    let problem = price(program, profile, &demand()).expect("every time is in the profile");
    let budget = Budget { vram_bytes: vram_mib << 20, ram_bytes: 100 << 30, pinned_bytes: 100 << 30 };
    let query = Query { problem: &problem, profile, budget };
    let decision = decide(&query).expect("the budget holds the fixed parts");
    assemble(&query, &decision, grid).schedules.len()
}

fn by_layers(c: &mut Criterion) {
    let profile = machine("rtx4090-desktop");
    let mut group = c.benchmark_group("compile/layers");
    group.sample_size(10).measurement_time(Duration::from_secs(20));
    for (model, layers, vram_mib) in [("qwen3-1.7b", 28, 1024), ("qwen3-14b", 40, 6144), ("llama-3.1-70b", 80, 23_000)]
    {
        let program = program(model);
        let run =
            |b: &mut criterion::Bencher<'_>, _: &u32| b.iter(|| compile(&program, &profile, vram_mib, &Grid::full()));
        group.bench_with_input(BenchmarkId::from_parameter(layers), &layers, run);
    }
}

fn by_budget(c: &mut Criterion) {
    let profile = machine("rtx4090-desktop");
    let program = program("qwen3-14b");
    let mut group = c.benchmark_group("compile/budget_mib");
    group.sample_size(10).measurement_time(Duration::from_secs(20));
    for vram_mib in [1024, 4096, 8192] {
        let run =
            |b: &mut criterion::Bencher<'_>, &mib: &u64| b.iter(|| compile(&program, &profile, mib, &Grid::reduced()));
        group.bench_with_input(BenchmarkId::from_parameter(vram_mib), &vram_mib, run);
    }
}

fn by_regimes(c: &mut Criterion) {
    let profile = machine("rtx4090-desktop");
    let program = program("qwen3-14b");
    let mut group = c.benchmark_group("compile/regimes");
    group.sample_size(10).measurement_time(Duration::from_secs(20));
    for (cells, grid) in [(12, Grid::reduced()), (96, Grid::full())] {
        let run = |b: &mut criterion::Bencher<'_>, _: &u32| b.iter(|| compile(&program, &profile, 6144, &grid));
        group.bench_with_input(BenchmarkId::from_parameter(cells), &cells, run);
    }
}

criterion_group!(benches, by_layers, by_budget, by_regimes);
criterion_main!(benches);
