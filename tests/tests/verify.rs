//! `ats-run verify` tells experts that were chosen by a hair's breadth from faults: the first pass and are told, a
//! router or an expert that is not what the file says fails and is named.

use device::team::{CallerPinning, Pinning, Team, TeamConfig};
use gguf::{GgmlType, Model};
use kernels::cpu::Isa;
use plan_format::arena::{Arena, RoundLimits};
use runtime::engine::{Engine, Overrides};
use runtime::exec::{Choices, Chosen, Executor, KvType, Limits, Precision, Round, Span, WeightStore};
use runtime::machine::SimulatedMachine;
use runtime::plans::{Exactness, OtherDevice, PlanRequest};
use runtime::verify::{Comparison, Exact, Fault, Outcome, relative_l2, run_of};
use std::path::{Path, PathBuf};
use tests::variant::Variant;
use tests::{id_text, run};

const MACHINE: &str = "sim:rtx3060-laptop";
const TOLERANCE: f64 = 0.1;

/// On the CPU alone, in mixtures, and with all but the embedding on the GPU.
const CEILINGS: [&str; 3] = ["0", "4M", "12M"];

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, model: &Variant) -> PathBuf {
        let path = self.0.path().join(name);
        model.write(&path);
        path
    }

    fn plan(&self, model: &Path, vram: &str) -> PathBuf {
        let plan = model.with_extension(format!("{vram}.atsplan"));
        let flags = ["--device", MACHINE, "--vram", vram, "--context", "256", "--out", text(&plan)];
        run("ats-plan", self.0.path(), &[&["compile", text(model)][..], &flags].concat()).good();
        plan
    }

    fn verify(&self, model: &Path, plan: &Path) -> tests::Outcome {
        let tokens = self.0.path().join("tokens");
        std::fs::write(&tokens, id_text(&ids())).expect("writes");
        let flags = ["--plan", text(plan), "--device", MACHINE, "--tokens", text(&tokens)];
        run("ats-run", self.0.path(), &[&["verify", text(model)][..], &flags].concat())
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn ids() -> Vec<u32> {
    (0..160).map(|i: u32| i.wrapping_mul(2_654_435_761) % 400).collect()
}

/// A model run as planned.
fn planned(place: &Place, model: &Path, vram: &str) -> (Outcome, usize) {
    let request = PlanRequest {
        plan: Some(place.plan(model, vram)),
        context_tokens: None,
        exactness: Exactness::Planned,
        other_device: OtherDevice::Refuse,
        simulated: Some(SimulatedMachine::named(MACHINE).expect("known")),
    };
    let overrides = Overrides { choices: Choices::Recorded, ..Overrides::default() };
    let mut engine = Engine::open(model, &request, overrides).expect("opens");
    (run_of(&mut engine, &ids()).expect("a good run"), engine.vocab())
}

/// A model by the exact kernels, with these choices of experts or its own.
fn exact(model: &Path, chosen: Option<Chosen>) -> Exact {
    let (ids, model) = (ids(), Model::open(model).expect("readable"));
    let program = planner::lower_model(&model).expect("a known family");
    let tokens = ids.len() as u32;
    let arena = Arena::new(&program, RoundLimits { ubatch_tokens: tokens, output_tokens: tokens });
    let weights = WeightStore::load(model, &program, Precision::Exact).expect("weights");
    let (context_tokens, kv_type, precision) = (ids.len(), KvType::F32, Precision::Exact);
    let limits = Limits { context_tokens, sequences: 1, kv_type, precision, choices: Choices::Unseen };
    let config = TeamConfig { threads: 2, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 20 };
    let team = Team::new(config).expect("threads");
    let mut executor = Executor::new(&program, &arena, weights, limits, (team, Isa::detect())).expect("prepared");
    chosen.into_iter().for_each(|chosen| executor.force_choices(&program, chosen).expect("of this model"));
    let all: Vec<u32> = (0..tokens).collect();
    let spans = [Span { sequence: 0, tokens: 0..ids.len() }];
    let view = executor.run(&Round { tokens: &ids, positions: &all, spans: &spans, outputs: &all }).expect("good");
    let logits = (0..view.rows()).flat_map(|row| view.row(row).to_vec()).collect();
    Exact { logits, flips: executor.take_flips() }
}

/// `damaged` as planned beside `good` as it should be.
fn compare(place: &Place, damaged: &Path, good: &Path, vram: &str) -> Comparison {
    let (run, vocab) = planned(place, damaged, vram);
    let exact = exact(good, Some(run.chosen.clone()));
    Comparison::new(&run, exact, (vocab, TOLERANCE))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn router_name(layer: u32) -> String {
    format!("blk.{layer}.ffn_gate_inp.weight")
}

/// A model whose routers' rows are what `change` makes of them: by layer, rows one after the other, columns.
fn with_routers(of: &Variant, layers: u32, change: impl Fn(&mut [f32], usize)) -> Variant {
    (0..layers).fold(of.clone(), |model, layer| {
        let (ty, shape, bytes) = of.get(&router_name(layer));
        assert_eq!(ty, GgmlType::F32);
        let (shape, mut values) = (shape.to_vec(), floats(bytes));
        change(&mut values, shape[0] as usize);
        model.floats(&router_name(layer), &shape, &values)
    })
}

/// Every even expert's row again as the next one's, but for one part in five thousand: their scores nearly tie for
/// every token, though the experts have nothing in common. What is left of the difference is as uncertain as all else,
/// so about one choice in a hundred goes the other way.
fn nearly_tied(rows: &mut [f32], cols: usize) {
    for pair in rows.chunks_exact_mut(2 * cols) {
        let (even, odd) = pair.split_at_mut(cols);
        let sign = |index: usize| if index.is_multiple_of(3) { -1.0 } else { 1.0 };
        odd.iter_mut().zip(&*even).enumerate().for_each(|(index, (odd, even))| *odd = even * (1.0 + sign(index) / 5e3));
    }
}

#[test]
fn near_ties_pass_and_are_told() {
    let place = Place::new();
    // One of each pair that nearly ties is chosen, and the other not.
    let one = Variant::tiny("qwen3moe").key("qwen3moe.expert_used_count", 1_u32);
    let model = place.write("m.gguf", &with_routers(&one, 2, nearly_tied));
    for vram in CEILINGS {
        let plan = place.plan(&model, vram);
        let said = place.verify(&model, &plan).good();
        let told = said.lines().find(|line| line.contains("choices of experts differ")).expect("a line on choices");
        assert!(said.contains("relative L2 error 0.0") && told.contains(" of 320 choices"), "{said}");
        assert!(!told.starts_with("0 ") && told.contains("is allowed"), "{vram}: no choice was nearly tied: {told}");
        let compared = compare(&place, &model, &model, vram);
        assert_eq!(compared.fault(), None, "{vram}");
        // Without the run's own choices the exact logits say nothing of it.
        let error = relative_l2(&exact(&model, None).logits, &planned(&place, &model, vram).0.logits);
        assert!(error > 2.0 * compared.error, "{vram}: {error} as it is, {} with its choices", compared.error);
    }
}

#[test]
fn a_router_that_is_wrong_fails_and_is_named() {
    let place = Place::new();
    let tiny = Variant::tiny("qwen3moe");
    let good = place.write("good.gguf", &tiny);
    let swapped = with_routers(&tiny, 2, |rows, cols| {
        let (first, rest) = rows.split_at_mut(cols);
        first.swap_with_slice(&mut rest[..cols]);
    });
    let damaged = place.write("damaged.gguf", &swapped);
    for vram in CEILINGS {
        let fault = compare(&place, &damaged, &good, vram).fault().expect("it passed");
        let Fault::Choice { flip, bound, wide } = &fault else { panic!("{vram}: {fault}") };
        assert!(flip.layer == 0 && f64::from(flip.margin) > *bound && *wide > 10, "{vram}: {fault}");
        let swaps = |ids: &[i32]| ids.iter().any(|id| [0, 1].contains(id));
        assert!(swaps(&flip.taken) && swaps(&flip.own), "{vram}: {fault}");
    }
}

#[test]
fn an_expert_that_is_wrong_fails_by_its_logits() {
    let place = Place::new();
    let tiny = Variant::tiny("qwen3moe");
    let good = place.write("good.gguf", &tiny);
    // Of the last layer, so that no router sees what it does: expert 3 computes as expert 4.
    let name = "blk.1.ffn_down_exps.weight";
    let (ty, shape, bytes) = tiny.get(name);
    let (shape, mut bytes) = (shape.to_vec(), bytes.to_vec());
    let expert_bytes = bytes.len() / shape[2] as usize;
    bytes.copy_within(4 * expert_bytes..5 * expert_bytes, 3 * expert_bytes);
    let damaged = place.write("damaged.gguf", &tiny.clone().tensor(name, (ty, &shape, &bytes)));
    for vram in CEILINGS {
        let compared = compare(&place, &damaged, &good, vram);
        let fault = compared.fault().expect("it passed");
        assert!(matches!(fault, Fault::Logits { error, .. } if error > TOLERANCE), "{vram}: {fault}");
        assert_eq!(compare(&place, &good, &good, vram).fault(), None, "{vram}");
    }
}

/// All families with routers, as they are.
#[test]
fn every_family_with_routers_passes() {
    let place = Place::new();
    for name in ["qwen3moe", "gpt-oss", "qwen3next", "qwen35moe", "llama4", "deepseek2"] {
        let model = place.write(&format!("{name}.gguf"), &Variant::tiny(name));
        for vram in ["0", "4M"] {
            let said = place.verify(&model, &place.plan(&model, vram)).good();
            println!("{name} {vram}: {said}");
            assert!(said.contains("choices of experts differ"), "{said}");
        }
    }
}
