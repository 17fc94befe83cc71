//! `ats-run generate`: where prompts come from, how they are encoded, how texts end, and what is printed of them.
//! R10, R11, R12 and R19 are the cases of reports from users of other engines.

use serde_json::Value;
use std::path::PathBuf;
use tests::scripted::{Script, Token};
use tests::{Outcome, pipe, run};

const END: Token = Token::Control("<|im_end|>");
const BOS: Token = Token::Control("<s>");

/// A folder with a model.
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

    fn plan(&self, context_tokens: &str) {
        let arguments = ["compile", self.model_text(), "--context", context_tokens];
        run("ats-plan", self.folder.path(), &arguments).good();
    }

    fn model_text(&self) -> &str {
        self.model.to_str().expect("UTF-8")
    }

    fn generate(&self, arguments: &[&str]) -> Outcome {
        run("ats-run", self.folder.path(), &[&["generate", self.model_text()], arguments].concat())
    }

    fn pipe(&self, arguments: &[&str], input: &[u8]) -> Outcome {
        pipe("ats-run", self.folder.path(), &[&["generate", self.model_text()], arguments].concat(), input)
    }

    fn events(&self, arguments: &[&str]) -> Events {
        Events::read(&self.generate(&[&["--json"], arguments].concat()).good())
    }
}

/// What `--json` printed.
#[derive(Debug)]
struct Events(Vec<Value>);

impl Events {
    fn read(stdout: &str) -> Self {
        Events(stdout.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect())
    }

    fn prompt(&self) -> Vec<u32> {
        tests::ids(&self.0[0]["ids"])
    }

    fn texts(&self) -> Vec<&str> {
        self.0.iter().filter_map(|event| event["text"].as_str()).collect()
    }

    fn text(&self) -> String {
        self.texts().concat()
    }

    fn tokens(&self) -> Vec<&Value> {
        self.0.iter().filter(|event| event["event"] == "token").collect()
    }

    fn end(&self) -> &Value {
        let end = self.0.last().expect("events");
        assert_eq!(end["event"], "end");
        end
    }
}

/// `go` is followed by `tokens`, then by an end token.
fn saying(tokens: &[Token]) -> Script {
    let chain = [&[Token::Word("go")], tokens, &[END]].concat();
    Script::new().says(&chain).role("eos", Token::Control("<|endoftext|>")).key("tokenizer.ggml.add_bos_token", false)
}

#[track_caller]
fn check_text(place: &Place, arguments: &[&str], text: &str, finish: &str) {
    let arguments = [&["--prompt", "go", "--greedy"], arguments].concat();
    let events = place.events(&arguments);
    assert_eq!((events.text().as_str(), events.end()["finish"].as_str()), (text, Some(finish)), "{events:?}");
    let whole = place.generate(&arguments).good();
    assert_eq!(whole, format!("{text}\n"), "the stream is the text");
}

#[test]
fn r10_a_prompt_begins_with_bos_as_often_as_the_file_says() {
    let script = || Script::new().says(&[Token::Word("go"), END]).role("eos", END);
    let adds = |script: Script| script.key("tokenizer.ggml.add_bos_token", true);
    for (script, prompt, expected) in [
        (adds(script().role("bos", BOS)), "go", 1),
        (adds(script().role("bos", BOS)), "<s>go", 1),
        (script().role("bos", BOS), "go", 0),
        (script().role("bos", BOS), "<s>go", 1),
        (adds(script()), "go", 0),
    ] {
        let place = Place::new(&script);
        let ids = place.events(&["--prompt", prompt, "-n", "1"]).prompt();
        let go = script.id(Token::Word("go"));
        let bos: Vec<u32> = ids.iter().copied().filter(|&id| id != go).collect();
        assert_eq!((bos.len(), ids.len()), (expected, expected + 1), "{prompt}: {ids:?}");
        assert!(bos.is_empty() || bos == [script.id(BOS)], "{prompt}: {ids:?}");
    }
}

#[test]
fn r10_a_turn_end_that_is_not_eos_ends_the_text_without_a_trace() {
    let place = Place::new(&saying(&[Token::Word("x")]));
    check_text(&place, &[], "x", "stop");
    let script = saying(&[Token::Word("x")]).says(&[END, Token::Word("y"), END]);
    let place = Place::new(&script);
    check_text(&place, &["--ignore-eos", "-n", "5"], "xyy", "length");
}

#[test]
fn r11_characters_come_whole() {
    let cat = [Token::Bytes(b"\xF0\x9F\x98"), Token::Bytes(b"\xB8")];
    let place = Place::new(&saying(&cat));
    let events = place.events(&["--prompt", "go", "--greedy"]);
    assert_eq!(events.texts(), ["", "\u{1F638}", ""]);
    check_text(&place, &["-n", "1"], "\u{FFFD}", "length");
    check_text(&Place::new(&saying(&[Token::Bytes(b"\xFF"), Token::Word("x")])), &[], "\u{FFFD}x", "stop");
    check_text(&place, &["--stop", "\u{1F638}"], "", "stop");
}

#[test]
fn r12_stop_strings_over_token_borders() {
    let [def, g, hi, j, x] = ["DEF", "G", "HI", "J", "X"].map(Token::Word);
    let cases: [(&[Token], &[&str], &str, &str); 6] = [
        (&[def, g, hi, j], &["--stop", "DEFGHIJ"], "", "stop"),
        (&[def, g, x], &["--stop", "DEFGHIJ"], "DEFGX", "stop"),
        (&[def, g, hi, j], &["--stop", "DEFGHIJ", "-n", "1"], "DEF", "length"),
        (
            &[Token::Word(">>>"), Token::Word(" A"), Token::Bytes(b"\n")],
            &["--stop", ">>> A", "--stop", ">>> A\n"],
            "",
            "stop",
        ),
        (&[Token::Word("a"), Token::Word("ab")], &["--stop", "ab"], "a", "stop"),
        (&[x, g], &[], "XG", "stop"),
    ];
    for (tokens, flags, text, finish) in cases {
        check_text(&Place::new(&saying(tokens)), flags, text, finish);
    }
    Place::new(&saying(&[x])).generate(&["--prompt", "go", "--stop", ""]).fails(2, &["--stop"]);
}

#[test]
fn r19_texts_end_with_the_context() {
    let script = saying(&[Token::Word("ha")]).says(&[Token::Word("hi"), Token::Word("hi")]);
    let place = Place::new(&script);
    place.plan("64");
    for (prompt_tokens, generated_tokens) in [(1, 63), (62, 2), (63, 1), (64, 0)] {
        let prompt = "hi".repeat(prompt_tokens);
        let events = place.events(&["--prompt", &prompt, "--greedy"]);
        let end = events.end();
        assert_eq!(end["finish"], "context", "{prompt_tokens}");
        assert_eq!(end["generated_tokens"], generated_tokens, "{prompt_tokens}");
        assert_eq!(events.tokens().len(), generated_tokens, "{prompt_tokens}");
    }
    for prompt_tokens in [65, 1000] {
        let prompt = "hi".repeat(prompt_tokens);
        let needed = format!("{prompt_tokens} tokens are needed");
        place.generate(&["--prompt", &prompt]).fails(1, &[&needed, "context of 64", "hint:"]);
    }
}

#[test]
fn r19_max_tokens_may_be_anything_that_is_a_number_of_tokens() {
    let script = saying(&[Token::Word("ha")]).says(&[Token::Word("hi"), Token::Word("hi")]);
    let place = Place::new(&script);
    place.plan("64");
    for (max_tokens, finish, generated_tokens) in [
        ("0", "length", 0),
        ("1", "length", 1),
        ("63", "length", 63),
        ("64", "context", 63),
        ("1000000000", "context", 63),
    ] {
        let events = place.events(&["--prompt", "hi", "--greedy", "-n", max_tokens]);
        let end = events.end();
        assert_eq!(
            (&end["finish"], &end["generated_tokens"]),
            (&finish.into(), &generated_tokens.into()),
            "{max_tokens}"
        );
    }
    for bad in ["-1", "1.5", "1e9", "many", "99999999999999999999"] {
        place.generate(&["--prompt", "hi", "-n", bad]).fails(2, &["error:"]);
    }
}

#[test]
fn r19_an_empty_prompt_is_the_beginning_of_a_text_or_an_error() {
    let script = Script::new().says(&[BOS, Token::Word("once"), END]).role("bos", BOS);
    let with_bos = Place::new(&script.clone().key("tokenizer.ggml.add_bos_token", true));
    assert_eq!(with_bos.generate(&["--prompt", "", "--greedy"]).good(), "once\n");
    assert_eq!(with_bos.pipe(&["--greedy"], b"").good(), "once\n");
    let without = Place::new(&script.key("tokenizer.ggml.add_bos_token", false));
    without.generate(&["--prompt", ""]).fails(1, &["the prompt is empty"]);
    without.generate(&["--prompt", "<s>", "--greedy"]).good();
}

#[test]
fn r19_wrong_sampling_options_are_named_before_the_model_is_read() {
    let missing = tempfile::tempdir().expect("a folder");
    let model = missing.path().join("missing.gguf");
    for (flag, value, words) in [
        ("--temperature", "-1", "0 (greedy) or a positive number"),
        ("--temperature", "nan", "0 (greedy) or a positive number"),
        ("--top-p", "0", "above 0"),
        ("--top-p", "1.5", "at most 1"),
        ("--min-p", "-0.1", "from 0"),
        ("--repeat-penalty", "0", "positive"),
        ("--presence-penalty", "inf", "finite"),
        ("--logit-bias", "5", "ID=BIAS"),
        ("--logit-bias", "5=nan", "minus infinity"),
    ] {
        let arguments = ["generate", model.to_str().expect("UTF-8"), "--prompt", "x", flag, value];
        run("ats-run", missing.path(), &arguments).fails(2, &["error:", words]);
    }
}

#[test]
fn prompts_come_from_arguments_files_and_pipes() {
    let place = Place::new(&saying(&[Token::Word("x")]));
    let file = place.folder.path().join("prompt");
    std::fs::write(&file, "go\n").expect("writes");
    let file = file.to_str().expect("UTF-8");
    for outcome in [
        place.generate(&["--prompt", "go", "--greedy"]),
        place.generate(&["--file", file, "--greedy"]),
        place.pipe(&["--greedy"], b"go"),
        place.pipe(&["--greedy"], b"go\n"),
        place.pipe(&["--greedy", "--file", "-"], b"go\n"),
    ] {
        assert_eq!(outcome.good(), "x\n");
    }
    let bytes = place.pipe(&["--json", "-n", "1"], b"\xFF\xFE\n\n").good();
    assert_eq!(Events::read(&bytes).prompt().len(), 7, "two replacement characters and one line feed of two");
    place.generate(&["--prompt", "go", "--file", file]).fails(2, &["--file"]);
    place.generate(&["--file", "/no/such/file"]).fails(1, &["cannot read /no/such/file"]);
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let script = saying(&[Token::Word("x")]);
    let place = Place::new(&script);
    let events = place.events(&["--prompt", "go", "--greedy", "--exact", "--logprobs", "3"]);
    // One logit is known, all others are 0.
    let log_sum = (Script::logit().exp() + (script.vocab() - 1) as f64).ln();
    let near = |value: &Value, expected: f64| (value.as_f64().expect("a number") - expected).abs() < 1e-4;
    let first = events.tokens()[0];
    assert_eq!(first["token"], script.id(Token::Word("x")));
    assert!(near(&first["logprob"], Script::logit() - log_sum), "{first}");
    let top = first["top_logprobs"].as_array().expect("a list");
    assert_eq!(top.len(), 3);
    assert_eq!((&top[0]["token"], &top[0]["text"]), (&first["token"], &"x".into()));
    assert_eq!((&top[1]["token"], &top[2]["token"]), (&0.into(), &1.into()), "equals in order of id");
    assert_eq!(top[1]["bytes"], serde_json::json!([0]));
    assert!(near(&top[1]["logprob"], -log_sum), "{first}");
    place.generate(&["--prompt", "go", "--logprobs", "3"]).fails(2, &["--json"]);
}

#[test]
fn biases_move_and_forbid_tokens() {
    let script = saying(&[Token::Word("x")]).says(&[Token::Word("y"), END]);
    let place = Place::new(&script);
    let x = format!("{}=-inf", script.id(Token::Word("x")));
    let y = format!("{}=10", script.id(Token::Word("y")));
    check_text(&place, &["--logit-bias", &y], "x", "stop");
    check_text(&place, &["--logit-bias", &x, "--logit-bias", &y, "-n", "1"], "y", "length");
    let beyond = format!("{}=1", script.vocab());
    place.generate(&["--prompt", "go", "--logit-bias", &beyond]).fails(2, &["logit_bias", "vocabulary"]);
}

#[test]
fn penalties_hold_with_greedy_choice() {
    let script = saying(&[Token::Word("x")]).says(&[Token::Word("ha"), Token::Word("ha")]);
    let place = Place::new(&script);
    let events = place.events(&["--prompt", "ha", "--greedy", "-n", "3", "--presence-penalty", "100"]);
    let ha = script.id(Token::Word("ha"));
    let ids: Vec<u32> =
        events.tokens().iter().filter_map(|event| event["token"].as_u64()).map(|id| id as u32).collect();
    assert_eq!((ids[0], ids[1] == ha), (ha, false), "{ids:?}");
}

#[test]
fn forms_agree() {
    let script = saying(&[Token::Word("x"), Token::Word("y")]);
    let place = Place::new(&script);
    let ids: Value =
        serde_json::from_str(&place.generate(&["--prompt", "go", "--greedy", "--ids"]).good()).expect("JSON");
    let expected = [Token::Word("x"), Token::Word("y"), END].map(|token| script.id(token));
    assert_eq!(tests::ids(&ids["ids"]), expected);
    let events = place.events(&["--prompt", "go", "--greedy"]);
    assert_eq!(
        events.tokens().iter().map(|event| event["token"].clone()).collect::<Vec<_>>(),
        expected.map(Value::from)
    );
    assert_eq!((&events.end()["prompt_tokens"], &events.end()["generated_tokens"]), (&1.into(), &3.into()));
    let stats = place.generate(&["--prompt", "go", "--greedy", "--stats"]);
    assert!(stats.stderr.contains("prefill 1 tokens") && stats.stderr.contains("decode 2 tokens"), "{}", stats.stderr);
    place.generate(&["--prompt", "go", "--ids", "--json"]).fails(2, &["--json"]);
}
