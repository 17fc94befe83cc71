//! From a model with uneven routers to a plan that knows of it: counted by one program for the other, and what is
//! refused on the way.

use fixtures::{catalog, skew};
use plan_format::routing::RoutingCounts;
use std::path::PathBuf;
use tests::run;

/// A folder for models, texts and counts.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Place(tempfile::tempdir().expect("a folder"));
        let text = std::fs::read(fixtures::reference_dir().join("real/GPL-3.txt")).expect("the text");
        std::fs::write(place.path("text"), &text[..16_000]).expect("writes");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Writes a tiny model, with routers after a Zipf law.
    fn model(&self, name: &str, zipf: f64) -> String {
        let mut spec = catalog::model(name).expect("known");
        spec.skew_routers(zipf, 1);
        spec.write_random(&self.path(name), 1, &|_, _| {}).expect("written");
        self.file(name)
    }

    fn plan(&self, arguments: &[&str]) -> tests::Outcome {
        run("ats-plan", self.0.path(), arguments)
    }

    fn counts(&self, name: &str) -> RoutingCounts {
        RoutingCounts::from_json(&std::fs::read_to_string(self.path(name)).expect("counts")).expect("their form")
    }
}

#[test]
fn choices_are_counted_for_a_text_and_planned_with() {
    let place = Place::new();
    let (model, text, counts) = (place.model("tiny-qwen3moe", 1.0), place.file("text"), place.file("counts"));
    let said = place.plan(&["profile", "--model", &model, "--text", &text, "--routing", &counts]).good();
    assert!(said.contains("2 layers") && said.contains("% of the choices"), "{said}");
    let found = place.counts("counts");
    let whole_chunks = |layer: &plan_format::routing::LayerHits| layer.tokens() > 0.0 && layer.tokens() % 512.0 == 0.0;
    assert!(found.layers.len() == 2 && found.layers.iter().all(whole_chunks), "{said}");
    let stated: f64 = skew::zipf_rates(8, 2, 1.0)[..2].iter().sum::<f64>() / 2.0;
    for layer in &found.layers {
        let share = layer.share_of_hottest(2);
        assert!((share - stated).abs() < 0.2, "the hottest quarter takes {share:.2}, written as {stated:.2}");
    }
    let out = place.file("m.atsplan");
    let flags = ["--device", "sim:rtx3060-laptop", "--vram", "5M", "--context", "256", "--out", &out];
    let compile = [&["compile", &model, "--routing", &counts][..], &flags].concat();
    let said = place.plan(&compile).good();
    assert!(said.contains("hot experts"), "{said}");
    // The runtime counts the same choices in any command that runs the model.
    let (run_counts, tokens) = (place.file("run"), place.file("tokens"));
    std::fs::write(&tokens, "3 4 5 6 7 8 9").expect("writes");
    let generate = ["generate", &model, "--tokens", &tokens, "-n", "4", "--greedy", "--ignore-eos", "--ids"];
    run("ats-run", place.0.path(), &[&generate[..], &["--routing", &run_counts]].concat()).good();
    assert!(place.counts("run").layers.iter().all(|layer| layer.tokens() == 10.0), "the last token is not fed");
}

#[test]
fn counts_that_do_not_fit_are_refused() {
    let place = Place::new();
    let (moe, other) = (place.model("tiny-qwen3moe", 0.0), place.model("tiny-gpt-oss", 0.0));
    let dense = place.model("tiny-llama", 0.0);
    let (text, counts) = (place.file("text"), place.file("counts"));
    place.plan(&["profile", "--model", &moe, "--text", &text, "--routing", &counts]).good();
    let compile = |model: &str, counts: &str| {
        let out = place.file("m.atsplan");
        place.plan(&["compile", model, "--routing", counts, "--vram", "0", "--device", "sim:cpu-laptop", "--out", &out])
    };
    compile(&other, &counts).fails(2, &["--routing", "layer 0", "2 of 8", "2 of 4", "ats-run generate"]);
    compile(&dense, &counts).fails(2, &["--routing", "layer 0", "no router"]);
    compile(&moe, &text).fails(2, &["--routing", "no counts of experts"]);
    compile(&moe, &place.file("nothing")).fails(2, &["--routing", "nothing", "cannot be read"]);
    let odd = place.file("odd");
    std::fs::write(&odd, "{\"layers\": []}").expect("writes");
    compile(&moe, &odd).fails(2, &["--routing", "no layer was counted"]);
    let layer = "{\"layer\": 0, \"chosen\": 2, \"hits\": [2, 2, 2, 2, 2, 2, 2, 2]}";
    std::fs::write(&odd, format!("{{\"layers\": [{layer}, {layer}]}}")).expect("writes");
    compile(&moe, &odd).fails(2, &["--routing", "layer 0 was counted twice"]);
    let damaged = std::fs::read_to_string(&counts).expect("counts").replacen("\"hits\": [", "\"hits\": [99999999, ", 1);
    std::fs::write(&counts, damaged).expect("writes");
    compile(&moe, &counts).fails(2, &["--routing", "2 of 9"]);
    let perplexity = ["perplexity", &dense, "--file", &text, "--routing", &counts];
    run("ats-run", place.0.path(), &perplexity).fails(2, &["--routing", "no experts"]);
    place.plan(&["profile", "--model", &moe, "--routing", &counts]).fails(2, &["--text"]);
    place.plan(&["profile", "--model", &moe, "--text", &text, "--routing", &text]).fails(2, &["text"]);
}
