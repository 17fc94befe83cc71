//! Bad input to the two programs: one clear error, the documented exit code, never a panic, nothing lost.

use plan_format::sections;
use std::path::{Path, PathBuf};
use tests::variant::Variant;
use tests::{Outcome, command, id_text, ids, pipe, reference_json, run};

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

/// R21: what the samples of a fingerprint miss.
#[test]
fn a_byte_between_the_samples_is_found_by_reading_everything() {
    let place = Place::new();
    let verify = || run("ats-run", place.folder.path(), &["verify", text(&place.model), "--full-hash"]);
    verify().fails(1, &["does not hold the hash", "hint:", "ats-plan compile", "--full-hash"]);
    place.compile(&["--full-hash"]).good();
    assert!(verify().good().contains("every byte is as it was"));
    let at = {
        let model = gguf::Model::open(&place.model).expect("opens");
        let tensor = model.require_tensor("blk.0.ffn_down.weight").expect("a large tensor");
        tensor.file_offset_bytes + tensor.size_bytes().expect("known") / 4
    };
    let mut bytes = std::fs::read(&place.model).expect("reads");
    bytes[at as usize] ^= 1;
    place.write("model.gguf", &bytes);
    place.generate(&[]).good();
    verify().fails(1, &["model.gguf has changed", "hint:"]);
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

/// R21: the machine edited in the plan.
#[test]
fn a_plan_for_another_machine_is_refused_unless_it_is_forced() {
    let place = Place::new();
    place.compile(&[]).good();
    let expected = place.generate(&[]).good();
    let mut plan = sections::from_bytes(&std::fs::read(place.path("model.atsplan")).expect("reads")).expect("a plan");
    plan.origin.device.cpu_model = "Cray-1".into();
    place.write("model.atsplan", &sections::to_bytes(&plan).expect("writes"));
    place
        .generate(&[])
        .fails(1, &["another machine", "CPU model", "Cray-1", "hint:", "ats-plan compile", "--force-device"]);
    assert_eq!(place.generate(&["--force-device"]).good(), expected);
}

#[test]
fn plans_with_too_short_a_context_are_passed_over_or_refused() {
    let place = Place::new();
    place.compile(&["--context", "8"]).good();
    let (tokens, out) = (place.tokens(24), place.path("logits.npy"));
    let flags = ["logits", text(&place.model), "--tokens", text(&tokens), "--out", text(&out)];
    let found = run("ats-run", place.folder.path(), &flags);
    assert!(found.stderr.contains("compiling one"), "{}", found.stderr);
    found.good();
    let plan = place.path("model.atsplan");
    run("ats-run", place.folder.path(), &[&flags[..], &["--plan", text(&plan)]].concat())
        .fails(1, &["a context of 8 tokens, 24 are needed", "hint:", "--context 24"]);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let place = Place::new();
    let flags = ["generate", text(&place.model), "--prompt", "a", "--max-tokens", "1"];
    let in_file = place.write("file", b"").join("cache");
    let outcome: Outcome =
        command("ats-run", &in_file).args(flags).env("XDG_CACHE_HOME", &in_file).output().expect("starts").into();
    outcome.fails(1, &["cannot write", "file/cache/ats", "hint:", "--plan"]);
    for (cache, home) in [("", ""), ("relative", "relative")] {
        let outcome: Outcome = command("ats-run", place.folder.path())
            .args(flags)
            .env("XDG_CACHE_HOME", cache)
            .env("HOME", home)
            .output()
            .expect("starts")
            .into();
        outcome.fails(1, &["no cache folder is known", "XDG_CACHE_HOME", "--plan"]);
    }
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
fn nothing_is_written_over_what_is_read() {
    let place = Place::new();
    let before = std::fs::read(&place.model).expect("reads");
    let link = place.path("link");
    std::os::unix::fs::symlink(&place.model, &link).expect("links");
    let tokens = place.tokens(3);
    for out in [&place.model, &link] {
        place.compile(&["--out", text(out)]).fails(2, &["written over", "hint:"]);
        let flags = ["logits", text(&place.model), "--tokens", text(&tokens), "--out", text(out)];
        run("ats-run", place.folder.path(), &flags).fails(2, &["written over", "hint:"]);
    }
    // A model whose name is that of a plan.
    let odd = place.path("odd.atsplan");
    std::fs::copy(&place.model, &odd).expect("copies");
    run("ats-plan", place.folder.path(), &["compile", text(&odd)]).fails(2, &["written over", "--out"]);
    // Results of other kinds, and a model that the command does not read.
    place.generate(&["--trace", text(&place.model)]).fails(2, &["written over", "hint:"]);
    place.compile(&["--out", text(&odd)]).fails(2, &["written over", "hint:"]);
    let report = ["report", text(&place.model), "--out", text(&odd)];
    run("ats-plan", place.folder.path(), &report).fails(2, &["written over", "hint:"]);
    assert!(std::fs::read(&place.model).expect("reads") == before && std::fs::read(&odd).expect("reads") == before);
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    place.compile(&[]).good();
    let plan = place.path("model.atsplan");
    let cases: [(&str, Vec<&str>); 4] = [
        ("ats-plan", vec!["inspect", text(&plan)]),
        ("ats-run", vec!["generate", text(&place.model), "--prompt", "a", "-n", "2"]),
        ("ats-run", vec!["tokenize", text(&place.model)]),
        ("ats-run", vec!["devices"]),
    ];
    for (program, arguments) in cases {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("opens");
        let outcome = command(program, place.folder.path()).args(&arguments).stdout(full).output().expect("starts");
        let outcome = Outcome::from(outcome);
        outcome.fails(1, &["error: cannot write the output: No space left on device"]);
        assert_eq!(outcome.stderr.matches("No space left").count(), 1, "{}", outcome.stderr);
    }
}

#[test]
fn devices_are_no_plans_and_can_be_written_to() {
    let place = Place::new();
    place.generate(&["--plan", "/dev/zero"]).fails(1, &["is no plan", "/dev/zero"]);
    place.generate(&["--plan", text(place.folder.path())]).fails(1, &["cannot read"]);
    place.compile(&["--out", "/dev/full"]).fails(1, &["cannot write /dev/full", "hint:"]);
    place.compile(&["--out", "/dev/null"]).good();
    use std::os::unix::fs::FileTypeExt;
    assert!(std::fs::metadata("/dev/null").expect("is there").file_type().is_char_device());
}

/// A file whose tokenizer knows more tokens than its embedding has rows.
#[test]
fn tokens_without_embedding_are_errors_everywhere() {
    let place = Place::new();
    let model = Variant::tiny("llama");
    let cut = |name: &str, rows: u64| {
        let (ty, shape, bytes) = model.get(name);
        let row_bytes = bytes.len() / shape[1] as usize;
        (ty, [shape[0], rows], bytes[..row_bytes * rows as usize].to_vec())
    };
    let [table, head] = ["token_embd.weight", "output.weight"].map(|name| cut(name, 60));
    let model = model.clone().tensor("token_embd.weight", (table.0, &table.1, &table.2));
    let model = model.tensor("output.weight", (head.0, &head.1, &head.2)).key("llama.vocab_size", 60_u32);
    model.write(&place.model);
    let prose = place.write("prose", "Über the hills and far away. ".repeat(200).as_bytes());
    let flags = ["perplexity", text(&place.model), "--file", text(&prose), "--chunk", "64"];
    run("ats-run", place.folder.path(), &flags).fails(1, &["token id", "60"]);
    let flags = ["generate", text(&place.model), "--prompt", "Über the hills", "-n", "3"];
    run("ats-run", place.folder.path(), &flags).fails(1, &["token id", "60"]);
    pipe("ats-run", place.folder.path(), &["chat", text(&place.model), "-n", "3"], "Über\n".as_bytes())
        .fails(1, &["token id", "60"]);
}

#[test]
fn arguments_and_pipes_need_not_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let odd = OsStr::from_bytes(b"\xff\xfe");
    for arguments in [
        vec![OsStr::new("generate"), place.model.as_os_str(), OsStr::new("--prompt"), odd],
        vec![odd],
        vec![OsStr::new("generate"), place.model.as_os_str(), OsStr::new("--seed"), odd],
    ] {
        let outcome: Outcome = command("ats-run", place.folder.path()).args(arguments).output().expect("starts").into();
        outcome.fails(2, &["error:"]);
    }
    let absent = place.folder.path().join(odd);
    let outcome: Outcome =
        command("ats-run", place.folder.path()).arg("bench").arg(absent).output().expect("starts").into();
    outcome.fails(1, &["error:"]);
    let raw = ["generate", text(&place.model), "-n", "2", "--greedy"];
    pipe("ats-run", place.folder.path(), &raw, b"\xff\xfe\0\x80 ok").good();
    assert_eq!(pipe("ats-run", place.folder.path(), &["tokenize", text(&place.model)], b"").good(), "[]\n");
}

#[test]
fn huge_and_odd_numbers_are_refused_or_obeyed() {
    let place = Place::new();
    place.compile(&["--context", "256"]).good();
    let huge = u64::MAX.to_string();
    for (flags, code) in [
        (["--max-tokens", huge.as_str()], 0),
        (["--top-k", huge.as_str()], 0),
        (["--top-k", "1"], 0),
        (["--seed", huge.as_str()], 0),
        (["--seed", "-1"], 2),
        (["--temperature", "nan"], 2),
        (["--temperature", "inf"], 2),
        (["--temperature", "1e-45"], 0),
        (["--min-p", "2"], 2),
        (["--top-p", "-0.1"], 2),
        (["--repeat-penalty", "0"], 2),
        (["--logit-bias", "5=nan"], 2),
        (["--logit-bias", "4294967295=1"], 2),
        (["--logit-bias", "99999999999999999999=1"], 2),
        (["--max-tokens", "1e9"], 2),
        (["--max-tokens", "-0"], 2),
    ] {
        let arguments = ["generate", text(&place.model), "--prompt", "a"];
        let outcome = run("ats-run", place.folder.path(), &[&arguments[..], &flags].concat());
        assert_eq!(outcome.code, Some(code), "{flags:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("panicked"), "{flags:?}: {}", outcome.stderr);
    }
    let prose = place.write("prose", b"A few words.");
    for (flags, words) in [
        (["--chunks", "0"], "--chunks"),
        (["--chunk", "3"], "--chunk"),
        (["--chunk", "200"], "less than a chunk"),
        (["--chunk", "4294967296"], "--chunk"),
    ] {
        let arguments = ["perplexity", text(&place.model), "--file", text(&prose)];
        run("ats-run", place.folder.path(), &[&arguments[..], &flags].concat()).fails(2, &[words]);
    }
    let bench = ["bench", text(&place.model), "--prompt", "999999999999", "--generate", "1", "-r", "1"];
    run("ats-run", place.folder.path(), &bench).fails(1, &["context"]);
}

#[test]
fn unwritable_places_are_named_and_leave_no_half_file() {
    let place = Place::new();
    let nowhere = place.path("no/such/folder/plan");
    place.compile(&["--out", text(&nowhere)]).fails(1, &["cannot write", "hint:"]);
    let mut left: Vec<_> =
        std::fs::read_dir(place.folder.path()).expect("lists").flatten().map(|entry| entry.file_name()).collect();
    left.sort_unstable();
    assert_eq!(left, ["ats", "model.gguf"], "only the model and the machine's profile");
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
