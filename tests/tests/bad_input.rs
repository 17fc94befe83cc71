//! Bad input to the two programs: one clear error, the documented exit code, never a panic, nothing lost.

use std::path::{Path, PathBuf};
use tests::{Outcome, id_text, ids, reference_json, run};

struct Place {
    folder: tempfile::TempDir,
    model: PathBuf,
}

impl Place {
    /// A folder with a copy of a tiny model.
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let model = folder.path().join("model.gguf");
        std::fs::copy(fixtures::reference_dir().join("tiny-llama.gguf"), &model).expect("copies");
        Self { folder, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("writes");
        path
    }

    fn compile(&self, extra: &[&str]) -> Outcome {
        run("ats-plan", self.folder.path(), &[&["compile", text(&self.model)], extra].concat())
    }

    fn generate(&self, extra: &[&str]) -> Outcome {
        let flags = ["generate", text(&self.model), "--prompt", "a", "--max-tokens", "2", "--greedy", "--ids"];
        run("ats-run", self.folder.path(), &[&flags[..], extra].concat())
    }

    fn tokens(&self, count: usize) -> PathBuf {
        let prompt = ids(&reference_json("llama.json")["prompt_ids"]);
        let many: Vec<u32> = prompt.iter().cycle().take(count).copied().collect();
        self.write("tokens", id_text(&many).as_bytes())
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8 path")
}

#[test]
fn damaged_models_are_named() {
    let place = Place::new();
    let good = std::fs::read(&place.model).expect("reads");
    let cases: [(&str, &[u8], &str); 4] = [
        ("empty.gguf", b"", "empty"),
        ("magic.gguf", b"GGML and some more bytes of nothing in particular", "magic"),
        ("cut.gguf", &good[..good.len() / 2], "cut.gguf"),
        ("header.gguf", &good[..100], "header.gguf"),
    ];
    for (name, bytes, word) in cases {
        let model = place.write(name, bytes);
        for (program, command) in [("ats-plan", "compile"), ("ats-run", "bench")] {
            run(program, place.folder.path(), &[command, text(&model)]).fails(1, &["error:", word]);
        }
    }
    let missing = place.path("missing.gguf");
    run("ats-plan", place.folder.path(), &["compile", text(&missing)]).fails(1, &["missing.gguf"]);
    run("ats-plan", place.folder.path(), &["compile", text(place.folder.path())]).fails(1, &["directory"]);
}

#[test]
fn a_plan_is_made_once_and_found_again() {
    let place = Place::new();
    let first = place.generate(&[]);
    assert!(first.stderr.contains("compiling one"), "{}", first.stderr);
    let second = place.generate(&[]);
    assert!(second.stderr.is_empty(), "{}", second.stderr);
    assert_eq!(first.good(), second.good());
    place.compile(&[]).good();
    assert!(place.path("model.atsplan").is_file(), "the plan lies beside the model");
    place.generate(&[]).good();
}

#[test]
fn a_changed_model_makes_its_plan_stale() {
    let place = Place::new();
    place.compile(&[]).good();
    let mut bytes = std::fs::read(&place.model).expect("reads");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    place.write("model.gguf", &bytes);
    place.generate(&[]).fails(1, &["stale", "weights differ", "hint: make it again: ats-plan compile"]);
}

#[test]
fn a_stale_plan_in_the_cache_is_made_again() {
    let place = Place::new();
    place.generate(&[]).good();
    let mut bytes = std::fs::read(&place.model).expect("reads");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    place.write("model.gguf", &bytes);
    place.generate(&[]).good();
}

#[test]
fn a_plan_for_another_model_is_refused() {
    let place = Place::new();
    let other = place.path("other.gguf");
    std::fs::copy(fixtures::reference_dir().join("tiny-qwen3.gguf"), &other).expect("copies");
    let plan = place.path("other.atsplan");
    run("ats-plan", place.folder.path(), &["compile", text(&other), "--out", text(&plan)]).good();
    place.generate(&["--plan", text(&plan)]).fails(1, &["stale", "other.atsplan"]);
}

#[test]
fn damaged_plans_are_refused() {
    let place = Place::new();
    place.compile(&[]).good();
    let good = std::fs::read(place.path("model.atsplan")).expect("reads");
    for (name, bytes) in [("half", good[..good.len() / 2].to_vec()), ("empty", Vec::new()), ("noise", vec![7; 4096])] {
        let plan = place.write(name, &bytes);
        place.generate(&["--plan", text(&plan)]).fails(1, &["is no plan that can be used", name]);
    }
    let mut flipped = good.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x10;
    let plan = place.write("flipped", &flipped);
    place.generate(&["--plan", text(&plan)]).fails(1, &["flipped"]);
    place.generate(&["--plan", text(&place.path("nowhere"))]).fails(1, &["cannot read", "nowhere"]);
}

#[test]
fn prompts_meet_the_context() {
    let place = Place::new();
    place.compile(&["--context", "64"]).good();
    for (count, fits) in [(63, true), (64, true), (65, false), (1000, false)] {
        let tokens = place.tokens(count);
        let flags = ["generate", text(&place.model), "--tokens", text(&tokens), "--greedy", "--ids"];
        let outcome = run("ats-run", place.folder.path(), &flags);
        if fits {
            outcome.good();
        } else {
            outcome.fails(1, &["the plan has a context of 64", "hint:"]);
        }
    }
}

#[test]
fn odd_token_files_are_usage_errors() {
    let place = Place::new();
    place.compile(&[]).good();
    let run_with = |content: &[u8]| {
        let tokens = place.write("tokens", content);
        run("ats-run", place.folder.path(), &["generate", text(&place.model), "--tokens", text(&tokens), "--ids"])
    };
    run_with(b"1 2 x").fails(2, &["`x` is no token id"]);
    run_with(b"-1").fails(2, &["`-1`"]);
    run_with(b"505").fails(1, &["505", "vocabulary"]);
    run_with(b"").fails(1, &["prompt is empty"]);
}

#[test]
fn flags_are_checked() {
    let place = Place::new();
    for flags in
        [&["--vram", "lots"][..], &["--vram", "-1"], &["--context", "0"], &["--context", "x"], &["--frobnicate"]]
    {
        place.compile(flags).fails(2, &["error:"]);
    }
    place.compile(&["--context", "100000"]).fails(2, &["100000", "4096"]);
    place.generate(&["--temperature", "-1"]).fails(2, &["error:"]);
    place.generate(&["--max-tokens", "-1"]).fails(2, &["error:"]);
}

#[test]
fn unwritable_places_are_named_and_leave_no_half_file() {
    let place = Place::new();
    let nowhere = place.path("no/such/folder/plan");
    place.compile(&["--out", text(&nowhere)]).fails(1, &["cannot write", "hint:"]);
    let left: Vec<_> = std::fs::read_dir(place.folder.path()).expect("lists").flatten().collect();
    assert_eq!(left.len(), 1, "only the model: {left:?}");
}

#[test]
fn odd_file_names_work() {
    for name in ["a model.gguf", "модель-模型.gguf"] {
        let place = Place::new();
        let model = place.path(name);
        std::fs::rename(&place.model, &model).expect("renames");
        let place = Place { model, ..place };
        place.compile(&[]).good();
        place.generate(&[]).good();
    }
}

/// R16: one NaN in a norm weight is an error that names the first bad result, never text.
#[test]
fn a_weight_that_is_not_a_number_is_an_error_with_its_place() {
    let place = Place::new();
    let at = {
        let model = gguf::Model::open(&place.model).expect("opens");
        model.require_tensor("blk.1.ffn_norm.weight").expect("a norm").file_offset_bytes
    };
    let mut bytes = std::fs::read(&place.model).expect("reads");
    bytes[at as usize..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    place.write("model.gguf", &bytes);
    let outcome = place.generate(&[]);
    outcome.fails(1, &["not finite", "blk.1.ffn_norm"]);
    assert!(outcome.stdout.is_empty(), "{}", outcome.stdout);
}
