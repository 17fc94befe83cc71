//! From a model whose experts are chosen unevenly to text by a plan that keeps the often chosen ones on the GPU:
//! counted, planned, run on a simulated machine, and beside the plan that does not know of it.

use fixtures::Mix;
use fixtures::family::{Common, Experts, Qwen3Moe};
use gguf::GgmlType;
use plan_format::artifact::Plan;
use plan_format::program::{Item, ItemKind, OpKind};
use plan_format::routing::RoutingCounts;
use plan_format::schedule::Home;
use plan_format::sections;
use plan_format::sizes::experts_in;
use std::path::PathBuf;
use tests::run;

const MACHINE: [&str; 2] = ["--device", "sim:rtx3060-laptop"];
/// A good third of the experts fits.
const VRAM: &str = "48M";
const GENERATED: &str = "24";
const GENERATED_IDS: usize = 24;
/// Steps whose best two tokens are nearer than this, in nats, may go either way.
const GAP: f64 = 0.5;

/// Experts large enough for what they take to be their bytes, not their launches.
fn shape() -> Qwen3Moe {
    let common = Common {
        n_layer: 2,
        n_embd: 768,
        n_head: 6,
        n_head_kv: 2,
        head_dim: 128,
        n_vocab: 512,
        n_context: 1024,
        rope_base: 1e4,
        norm_eps: 1e-6,
    };
    Qwen3Moe { common, experts: Experts { n_expert: 32, n_used: 4, n_ff: 768 }, n_ff_unused: 768 }
}

struct Place(tempfile::TempDir);

impl Place {
    /// A folder with a model whose routers follow a Zipf law, and its counts.
    fn new(zipf: f64) -> Self {
        let place = Place(tempfile::tempdir().expect("a folder"));
        let mut spec = shape().build("hot", &Mix::Uniform(GgmlType::Q4_K)).expect("a good shape");
        spec.skew_routers(zipf, 1);
        spec.write_random(&place.path("m.gguf"), 1, &|_, _| {}).expect("written");
        let text = std::fs::read(fixtures::reference_dir().join("real/GPL-3.txt")).expect("the text");
        std::fs::write(place.path("text"), &text[..3000]).expect("writes");
        std::fs::write(place.path("prompt"), &text[3000..3100]).expect("writes");
        let (model, text, counts) = (place.file("m.gguf"), place.file("text"), place.file("counts"));
        let count = ["profile", "--model", &model, "--text", &text, "--routing", &counts];
        println!("{}", place.run("ats-plan", &[&count]));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    fn run(&self, program: &str, arguments: &[&[&str]]) -> String {
        run(program, self.0.path(), &arguments.concat()).good()
    }

    /// Compiles, and gives what is said of it.
    fn compile(&self, plan: &str, flags: &[&str]) -> String {
        let (model, out) = (self.file("m.gguf"), self.file(plan));
        let common = ["--vram", VRAM, "--context", "512", "--prompt", "128", "--generate", "128", "--out", &out];
        self.run("ats-plan", &[&["compile", &model], &MACHINE, &common, flags])
    }

    /// The ids that a plan generates, and how much more likely each was than the next best.
    fn generate(&self, plan: &str, flags: &[&str]) -> Vec<(u64, f64)> {
        let (model, plan, prompt) = (self.file("m.gguf"), self.file(plan), self.file("prompt"));
        let wanted = ["--file", &prompt, "-n", GENERATED, "--greedy", "--ignore-eos", "--json", "--logprobs", "2"];
        let printed = self.run("ats-run", &[&["generate", &model, "--plan", &plan], &MACHINE, &wanted, flags]);
        let events = printed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let step = |event: serde_json::Value| {
            let top = event["top_logprobs"].as_array()?.iter().map(|one| one["logprob"].as_f64().expect("a number"));
            let top: Vec<f64> = top.collect();
            Some((event["token"].as_u64()?, top[0] - top[1]))
        };
        events.filter_map(step).collect()
    }

    fn counts(&self, name: &str) -> RoutingCounts {
        RoutingCounts::from_json(&std::fs::read_to_string(self.path(name)).expect("counts")).expect("their form")
    }
}

/// Share of the counted choices that fall on experts which a plan keeps on the GPU.
fn hit_rate(plan: &Plan, counts: &RoutingCounts) -> f64 {
    let resident = |item: &Item| {
        let hits = counts.layer(item.layer?)?;
        let held = plan.program.weights[item.weights.first()?.index()].experts();
        let held =
            held.map_or_else(|| (0..hits.hits.len() as u32).collect(), |held| experts_in(held).collect::<Vec<_>>());
        Some(held.iter().map(|&expert| hits.hits[expert as usize]).sum::<u64>())
    };
    let items = plan.program.items.iter().zip(&plan.placement.homes);
    let here = items.filter(|(item, home)| item.kind == ItemKind::ExpertsInput && **home == Home::Resident);
    let all: u64 = counts.layers.iter().flat_map(|layer| &layer.hits).sum();
    here.filter_map(|(item, _)| resident(item)).sum::<u64>() as f64 / all as f64
}

/// The number in front of a text.
#[track_caller]
fn before(text: &str, what: &str) -> f64 {
    let (front, _) = text.split_once(what).unwrap_or_else(|| panic!("no `{what}` in {text}"));
    front.split_whitespace().last().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no number: {text}"))
}

/// The line on hot experts.
#[track_caller]
fn hot_line(said: &str) -> &str {
    said.lines().find(|line| line.starts_with("hot experts")).unwrap_or_else(|| panic!("no line: {said}"))
}

#[test]
fn often_chosen_experts_stay_on_the_gpu_and_the_text_stays_the_same() {
    let place = Place::new(1.2);
    let (model, counts) = (place.file("m.gguf"), place.file("counts"));
    let said = place.compile("hot.atsplan", &["--routing", &counts]);
    place.compile("whole.atsplan", &[]);
    let line = hot_line(&said);
    println!("{line}");
    let [hits, of_whole] = [" % of the choices instead", " %, decode"].map(|what| before(line, what) / 100.0);
    assert!(line.contains("2 divided layers") && hits > of_whole + 0.2, "{line}");
    assert!(before(line, " % less time for the workload") > 1.0 && line.contains("without skew"), "{line}");

    // What is counted beside the text is what was planned with, wherever routers and experts are.
    let (whole, hot) =
        (place.generate("whole.atsplan", &[]), place.generate("hot.atsplan", &["--routing", &place.file("ran")]));
    let ran = place.counts("ran");
    let plan = sections::from_bytes(&std::fs::read(place.path("hot.atsplan")).expect("a plan")).expect("sound");
    let divided = plan.program.weights.iter().filter(|weight| weight.experts().is_some()).count();
    assert!(divided == 12 && plan.program.ops.iter().any(|op| matches!(op.kind, OpKind::HeldIds { .. })), "{divided}");
    assert_eq!(ran.layers.len(), 2, "a layer was not seen");
    assert!((hit_rate(&plan, &place.counts("counts")) - hits).abs() < 0.01, "{line}");
    let found = hit_rate(&plan, &ran);
    assert!((found - hits).abs() < 0.1, "the run hits {found:.2}, planned {hits:.2}");

    // The sums have another order, so the ids are the same as long as the best two are not too near each other.
    assert_eq!((whole.len(), hot.len()), (GENERATED_IDS, GENERATED_IDS));
    let same = whole.iter().zip(&hot).take_while(|(a, b)| a.0 == b.0).count();
    println!("{same} of {GENERATED_IDS} ids the same");
    assert!(same == GENERATED_IDS || whole[same].1 < GAP, "step {same}: {:?} and {:?}", whole[same], hot[same]);
    assert!(same > 2, "the texts have nothing in common");

    for plan in ["hot.atsplan", "whole.atsplan"] {
        let said = place.run("ats-run", &[&["verify", &model, "--plan", &place.file(plan)], &MACHINE]);
        println!("{plan}: {said}");
        assert!(before(&said, ", best token the same") < 0.05, "{plan}: {said}");
    }

    let page = place.file("page.html");
    let workload = ["--vram", VRAM, "--context", "512", "--prompt", "128", "--generate", "128"];
    let report = [&["report", &model, "--routing", &counts, "--out", &page][..], &MACHINE, &workload].concat();
    place.run("ats-plan", &[&report]);
    let html = std::fs::read_to_string(page).expect("a page");
    assert!(html.contains("resident experts serve") && html.contains("without skew"), "no word of hot experts");
}

/// Bytes that are chosen alike are not worth two places.
#[test]
fn without_skew_no_layer_is_divided() {
    let place = Place::new(0.0);
    let said = place.compile("m.atsplan", &["--routing", &place.file("counts")]);
    let line = hot_line(&said);
    println!("{line}");
    assert!(line.contains("no layer is divided") || line.contains("no reason to divide"), "{line}");
    assert!(!said.contains("sums of divided experts"), "{said}");
}
