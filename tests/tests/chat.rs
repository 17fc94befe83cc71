//! `ats-run chat` driven through pipes: what a script gives and gets. Terminals: `terminal.rs`; the library's half of
//! channels and templates: crate `text`.

use std::path::PathBuf;
use tests::scripted::{Script, Token};
use tests::{Outcome, pipe};

const END: Token = Token::Control("<|im_end|>");
const NEWLINE: Token = Token::Bytes(b"\n");

const CHATML: &str = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\
{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";

struct Place {
    folder: tempfile::TempDir,
    model: PathBuf,
}

impl Place {
    fn new(script: &Script) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let model = folder.path().join("model.gguf");
        script.write(&model);
        Place { folder, model }
    }

    /// A folder with a tiny model that computes.
    fn tiny(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let model = folder.path().join("model.gguf");
        std::fs::copy(fixtures::reference_dir().join(format!("tiny-{name}.gguf")), &model).expect("copies");
        Place { folder, model }
    }

    fn plan(&self, flags: &[&str]) {
        let model = self.model.to_str().expect("UTF-8");
        tests::run("ats-plan", self.folder.path(), &[&["compile", model], flags].concat()).good();
    }

    fn chat(&self, flags: &[&str], input: &str) -> Outcome {
        let model = self.model.to_str().expect("UTF-8");
        pipe("ats-run", self.folder.path(), &[&["chat", model], flags].concat(), input.as_bytes())
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).expect("a file")
    }
}

/// Answers to everything with `tokens`, in turns of ChatML.
fn answering(tokens: &[Token]) -> Script {
    let start = Token::Control("<|im_start|>");
    let script = Script::new().says(&[&[NEWLINE], tokens, &[END]].concat()).says(&[start]);
    script.role("eos", END).key("tokenizer.chat_template", CHATML)
}

#[test]
fn answers_go_to_standard_output_and_figures_to_standard_error() {
    let place = Place::new(&answering(&[Token::Word("four")]));
    let outcome = place.chat(&["--greedy", "--stats"], "2+2?\n\nand 1+3?\n");
    assert_eq!(outcome.stdout, "four\nfour\n");
    // `<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n`: 3 markers, 4 + 1 + 4 + 1 + 9 + 1 bytes.
    assert!(outcome.stderr.contains("[0 tokens reused, 23 prefilled"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("2 generated at"), "{}", outcome.stderr);
    // Then the answer, and of the second turn all but that.
    assert!(outcome.stderr.contains("[24 tokens reused, 29 prefilled"), "{}", outcome.stderr);
    assert_eq!(outcome.code, Some(0));
    let quiet = place.chat(&["--greedy"], "2+2?");
    assert!(!quiet.stderr.contains("tokens"), "{}", quiet.stderr);
    assert_eq!(quiet.good(), "four\n");
}

#[test]
fn conversations_are_saved_and_loaded() {
    let place = Place::new(&answering(&[Token::Word("four")]));
    let (first, second) = (place.path("first.json"), place.path("second.json"));
    let input =
        format!("one\\\ntwo\n\"\"\"\n/slash\n\"\"\"\n/save {first}\n/reset\n/save {second}\n/load {first}\n/regen\n");
    assert_eq!(place.chat(&["--greedy", "--system", "Be brief."], &input).good(), "four\nfour\nfour\n");
    let saved: serde_json::Value = serde_json::from_str(&place.read("first.json")).expect("JSON");
    let expected = serde_json::json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "/slash"},
        {"role": "assistant", "content": "four"},
    ]});
    assert_eq!(saved, expected);
    let reset: serde_json::Value = serde_json::from_str(&place.read("second.json")).expect("JSON");
    assert_eq!(reset["messages"], serde_json::json!([{"role": "system", "content": "Be brief."}]));
    let left: Vec<_> = std::fs::read_dir(place.folder.path()).expect("lists").flatten().collect();
    assert!(left.iter().all(|entry| !entry.file_name().to_string_lossy().contains("part")), "{left:?}");
}

#[test]
fn the_system_prompt_can_be_changed_and_taken_away() {
    let place = Place::new(&answering(&[Token::Word("four")]));
    let file = place.path("chat.json");
    for (line, expected) in [("/system Be kind.", Some("Be kind.")), ("/system \"\"", None)] {
        let input = format!("{line}\n/system\n/save {file}\n");
        let outcome = place.chat(&["--system", "Be brief."], &input);
        assert!(outcome.stderr.contains(expected.unwrap_or("there is no system prompt")), "{}", outcome.stderr);
        let saved: serde_json::Value = serde_json::from_str(&place.read("chat.json")).expect("JSON");
        assert_eq!(saved["messages"][0]["content"].as_str(), expected);
    }
}

#[test]
fn what_goes_wrong_ends_a_script_with_its_code() {
    let place = Place::new(&answering(&[Token::Word("four")]));
    std::fs::write(place.path("bad.json"), "{}").expect("writes");
    for (line, code, words) in [
        ("/bogus", 2, &["`/bogus` is no command", "/help"][..]),
        ("/save", 2, &["/save needs"]),
        ("/regen", 2, &["no message yet"]),
        ("/load /no/such/file", 1, &["cannot read /no/such/file"]),
        ("/save /no/such/folder/x", 1, &["cannot write /no/such/folder/x"]),
        ("\"\"\"\nopen", 2, &["inside a \"\"\" block"]),
    ] {
        place.chat(&[], &format!("{line}\n/help\n")).fails(code, words);
    }
    let bad = place.path("bad.json");
    place.chat(&[], &format!("/load {bad}\n")).fails(1, &["bad.json is no conversation", "`messages`"]);
    let model = place.model.to_str().expect("UTF-8");
    pipe("ats-run", place.folder.path(), &["chat", model], b"\xFF\n").fails(1, &["UTF-8"]);
}

#[test]
fn templates_that_fail_are_errors() {
    let refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}x";
    let script = Script::new().says(&[NEWLINE, END]).role("eos", END);
    let place = Place::new(&script.clone().key("tokenizer.chat_template", refusing));
    place.chat(&["--system", "x"], "hello\n").fails(1, &["no system role here"]);
    place.chat(&["-n", "1"], "hello\n").good();
    Place::new(&script.clone().key("tokenizer.chat_template", "{% if %}"))
        .chat(&[], "")
        .fails(1, &["does not compile"]);
    let without = Place::new(&script);
    without.chat(&[], "hello\n").fails(1, &["no chat template", "hint:", "--template"]);
    without.chat(&["--template", "no-such"], "hello\n").fails(1, &["no-such", "chatml"]);
    without.chat(&["--template", "chatml", "-n", "1"], "hello\n").good();
    let file = without.path("template");
    std::fs::write(&file, "{{ word }}\n\n").expect("writes");
    without.chat(&["--template", &file, "--variable", "word=hello", "-n", "1"], "hello\n").good();
}

#[test]
fn x31_channels_are_kept_apart_from_the_answer() {
    let [channel, message, end, start] = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"].map(Token::Control);
    let [assistant, analysis, last] = ["assistant", "analysis", "final"].map(Token::Word);
    let back = Token::Control("<|return|>");
    // The prompt opens the channel and says the first word in it.
    let template = "{% for m in messages %}\
        {{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endfor %}\
        {% if add_generation_prompt %}<|start|>assistant<|channel|>analysis<|message|>well{% endif %}";
    let chain = [
        Token::Word("well"),
        Token::Word("hm"),
        end,
        start,
        assistant,
        channel,
        last,
        message,
        Token::Word("four"),
        back,
    ];
    // That a message ends is no end of the turn where calls and returns have their own markers.
    let script = Script::new().says(&chain).says(&[analysis]).says(&[Token::Control("<|call|>")]).role("eos", back);
    let place = Place::new(&script.key("tokenizer.chat_template", template));
    let file = place.path("chat.json");
    let input = format!("2+2?\n/save {file}\n");
    assert_eq!(place.chat(&["--greedy"], &input).good(), "[reasoning]\nhm\n[answer]\nfour\n");
    let saved = place.read("chat.json");
    assert!(saved.contains("\"four\"") && !saved.contains("hm"), "the next turn has no old analysis: {saved}");
    assert_eq!(place.chat(&["--greedy", "--reasoning", "hide"], "2+2?").good(), "four\n");
    let cut = place.chat(&["--greedy", "--stats", "-n", "1"], &input);
    assert!(cut.stderr.contains("length]"), "{}", cut.stderr);
    assert_eq!(cut.good(), "[reasoning]\nhm\n");
    assert!(place.read("chat.json").contains("\"content\": \"\""), "a cut analysis is no answer");
}

#[test]
fn x31_think_tags_are_kept_apart_from_the_answer() {
    let words = [Token::Word("<think>"), Token::Word("hm"), Token::Word("</think>"), Token::Word("four")];
    let template = format!("{CHATML}{{# knows <think> #}}");
    let place = Place::new(&answering(&words).key("tokenizer.chat_template", template.as_str()));
    assert_eq!(place.chat(&["--greedy"], "2+2?").good(), "[reasoning]\nhm\n[answer]\nfour\n");
}

#[test]
fn x33_what_a_user_writes_is_never_a_control_token() {
    // The prompt ends with the user's text. Read as a marker it would lead to `bad`.
    let marker = Token::Control("<|go|>");
    let script =
        Script::new().says(&[marker, Token::Word("bad"), END]).says(&[Token::Bytes(b">"), Token::Word("good"), END]);
    let script = script.role("eos", END).key("tokenizer.chat_template", "{{ messages[-1].content }}");
    let place = Place::new(&script);
    assert_eq!(place.chat(&["--greedy"], "say <|go|>\n<|go|>\n").good(), "good\ngood\n");
    let model = place.model.to_str().expect("UTF-8");
    let raw = pipe("ats-run", place.folder.path(), &["generate", model, "--greedy"], b"say <|go|>");
    assert_eq!(raw.good(), "bad\n", "raw prompts are read with their markers");
}

#[test]
fn a_full_context_ends_the_answer_and_then_the_chat() {
    let place = Place::new(&answering(&[Token::Word("ha"), Token::Word("hi"), Token::Word("ho")]));
    place.plan(&["--context", "25"]);
    let outcome = place.chat(&["--greedy", "--stats"], "2+2?\nmore\n");
    assert_eq!(outcome.stdout, "hahi\n");
    outcome.fails(1, &["context]", "the context of 25 tokens is full", "tokens are needed", "hint: /reset"]);
    let outcome = place.chat(&["--greedy"], "2+2?\n/reset\n2+2?\n");
    assert_eq!(outcome.good(), "hahi\nhahi\n");
}

#[test]
fn sessions_are_repeatable_and_answers_are_not_copies() {
    let place = Place::tiny("llama");
    let session =
        |seed: &str| place.chat(&["--seed", seed, "--temperature", "2", "-n", "20"], "hello\n/regen\n").good();
    let first = session("42");
    assert_eq!(session("42"), first);
    assert_ne!(session("43"), first);
    let two: Vec<&str> = first.trim_end().split('\n').collect();
    assert_ne!(two[..two.len() / 2], two[two.len() / 2..], "another answer, not the same again");
}

/// The reuse figures of each answer.
fn reused(outcome: &Outcome) -> Vec<usize> {
    let lines = outcome.stderr.lines().filter_map(|line| line.strip_prefix('[')?.split_once(" tokens reused"));
    lines.map(|(count, _)| count.parse().expect("a number")).collect()
}

#[test]
fn r25_reuse_changes_no_answer() {
    let input =
        "hello there\nand then?\n/regen\n/system Be brief.\nonce more\n/reset\nhello there\nwhat now, at length?\n";
    for family in FAMILIES {
        let place = Place::tiny(family);
        place.plan(&["--context", "512", "--ubatch", "16"]);
        let flags = ["--greedy", "-n", "40", "--stats"];
        let with = place.chat(&flags, input);
        let without = place.chat(&[&flags[..], &["--no-reuse"]].concat(), input);
        let counts = reused(&with);
        assert_eq!(counts.len(), 6, "{family}: {}", with.stderr);
        assert_eq!(reused(&without), [0; 6], "{family}");
        assert!(
            counts[1] > 0 && counts[2] > counts[1],
            "{family}: turns and new answers begin with what is there: {counts:?}"
        );
        assert_eq!(with.good(), without.good(), "{family}");
    }
}

/// One family of each kind of memory: whole caches, rings, chunks, latent caches, recurrent states.
const FAMILIES: [&str; 5] = ["llama-spm", "gpt-oss", "llama4", "deepseek2", "qwen35moe"];
