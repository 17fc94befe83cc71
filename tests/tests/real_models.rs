//! Two real models against what llama.cpp b11434 made of them: greedy continuations, logits, perplexity.
//! `fixtures/reference/README.md` says how the figures were taken.

use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tests::{id_text, ids, real_model, reference_json, run};

const SMOLLM2: (&str, &str) = ("SmolLM2-135M-Instruct.Q4_1.gguf", "real/smollm2-135m-instruct-q4_1.json");
const GEMMA3: (&str, &str) = ("gemma-3-270m-q4_k_m.gguf", "real/gemma-3-270m-q4_k_m.json");

/// Where greedy choices may differ: the reference's best two logits are nearer than this.
const GREEDY_GAP: f64 = 0.5;
/// How much farther from F32 than llama.cpp's own quantised run logits may be.
const RMS_FACTOR: f64 = 1.5;
const PERPLEXITY_TOLERANCE: f64 = 0.01;

struct Case {
    folder: tempfile::TempDir,
    model: PathBuf,
    reference: Value,
}

impl Case {
    fn new((file, reference): (&str, &str)) -> Option<Self> {
        let model = real_model(file)?;
        let folder = tempfile::tempdir().expect("a folder");
        let plan = folder.path().join("plan");
        run("ats-plan", folder.path(), &["compile", text(&model), "--out", text(&plan), "--context", "1024"]).good();
        Some(Self { folder, model, reference: reference_json(reference) })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ats_run(&self, command: &str, arguments: &[&str]) -> String {
        let plan = self.path("plan");
        let all = [&[command, text(&self.model), "--plan", text(&plan)], arguments].concat();
        run("ats-run", self.folder.path(), &all).good()
    }

    fn token_file(&self, ids: &[u32]) -> PathBuf {
        let path = self.path("tokens");
        std::fs::write(&path, id_text(ids)).expect("writes");
        path
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8 path")
}

fn check_greedy(model: (&str, &str)) {
    let Some(case) = Case::new(model) else { return };
    for (index, prompt) in case.reference["greedy"].as_array().expect("prompts").iter().enumerate() {
        let want = ids(&prompt["quant"]["ids"]);
        let gaps: Vec<f64> =
            prompt["quant"]["gaps"].as_array().expect("gaps").iter().filter_map(Value::as_f64).collect();
        let tokens = case.token_file(&ids(&prompt["prompt_ids"]));
        let count = want.len().to_string();
        let flags = ["--tokens", text(&tokens), "--max-tokens", &count, "--greedy", "--ids", "--ignore-eos"];
        let printed: Value = serde_json::from_str(&case.ats_run("generate", &flags)).expect("JSON");
        let got = ids(&printed["ids"]);
        assert_eq!(got.len(), want.len(), "prompt {index}");
        if let Some(step) = (0..want.len()).find(|&step| want[step] != got[step]) {
            assert!(gaps[step] < GREEDY_GAP, "prompt {index} differs at step {step}, gap {}", gaps[step]);
        }
    }
}

/// Logits by token id of one position's list.
fn listed(part: &Value, position: usize) -> HashMap<u32, f64> {
    let values = part["top_values"][position].as_array().expect("values").iter().filter_map(Value::as_f64);
    ids(&part["top_ids"][position]).into_iter().zip(values).collect()
}

fn check_logits(model: (&str, &str)) {
    let Some(case) = Case::new(model) else { return };
    for (index, prompt) in case.reference["logits"].as_array().expect("prompts").iter().enumerate() {
        let prompt_ids = ids(prompt.get("prompt_ids").unwrap_or(&prompt["ids"]));
        let (tokens, out) = (case.token_file(&prompt_ids), case.path("logits.npy"));
        case.ats_run("logits", &["--tokens", text(&tokens), "--out", text(&out)]);
        let logits = fixtures::npy::read_f32(&out).expect("an array");
        let (mut ours, mut theirs) = (0.0, 0.0);
        for (position, row) in logits.rows().enumerate() {
            let (exact, quantised) = (listed(&prompt["f32"], position), listed(&prompt["quant"], position));
            for (id, value) in exact.iter().filter(|(id, _)| quantised.contains_key(id)) {
                ours += (f64::from(row[*id as usize]) - value).powi(2);
                theirs += (quantised[id] - value).powi(2);
            }
        }
        let ratio = (ours / theirs).sqrt();
        assert!(ratio <= RMS_FACTOR, "prompt {index}: {ratio:.3} times as far from F32 as the reference's own run");
    }
}

fn check_perplexity(model: (&str, &str)) {
    let Some(case) = Case::new(model) else { return };
    let reference = &case.reference["perplexity"];
    let chunks = "8";
    let file = fixtures::reference_dir().join("real/GPL-3.txt");
    let printed = case.ats_run("perplexity", &["--file", text(&file), "--chunks", chunks]);
    let last = printed.lines().last().expect("a result");
    let got: f64 = last.split(' ').nth(1).expect("a value").parse().expect("a number");
    let want = reference["quant_kv_f32"]["ppl"].as_f64().expect("the reference's value with an F32 cache");
    assert!((got / want - 1.0).abs() <= PERPLEXITY_TOLERANCE, "perplexity {got}, reference {want}");
}

macro_rules! per_model {
    ($($name:ident: $check:ident($model:expr);)+) => {$(
        #[test]
        fn $name() {
            $check($model);
        }
    )+};
}

per_model! {
    smollm2_greedy_follows_the_reference: check_greedy(SMOLLM2);
    smollm2_logits_are_as_near_to_f32: check_logits(SMOLLM2);
    smollm2_perplexity_is_the_references: check_perplexity(SMOLLM2);
    gemma3_greedy_follows_the_reference: check_greedy(GEMMA3);
    gemma3_logits_are_as_near_to_f32: check_logits(GEMMA3);
    gemma3_perplexity_is_the_references: check_perplexity(GEMMA3);
}
