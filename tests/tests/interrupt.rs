//! Ctrl-C and readers that go away: work stops within a token, with the right exit code.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tests::scripted::{Script, Token};
use tests::{Outcome, command};

/// Far beyond what any of this takes, so that a busy machine fails no test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A model that never stops, and a plan whose context holds more than a test reads.
fn endless() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model.gguf");
    let (newline, ha) = (Token::Bytes(b"\n"), Token::Word("ha"));
    let script = Script::new().says(&[newline, ha, ha]).role("eos", Token::Control("<|im_end|>"));
    let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}";
    script.key("tokenizer.chat_template", template).write(&model);
    let arguments = ["compile", model.to_str().expect("UTF-8"), "--context", "65536"];
    tests::run("ats-plan", folder.path(), &arguments).good();
    (folder, model)
}

fn start(folder: &tempfile::TempDir, model: &PathBuf, name: &str, arguments: &[&str]) -> Child {
    let mut command = command("ats-run", folder.path());
    command.arg(name).arg(model).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
}

fn interrupt(child: &Child) {
    let pid = Pid::from_child(child);
    // It may have ended since.
    let _ = kill_process(pid, Signal::INT);
}

#[test]
fn a_reader_that_goes_away_is_success() {
    let (folder, model) = endless();
    for form in [&["--json"][..], &["--stats"]] {
        let mut child = start(&folder, &model, "generate", &[&["--prompt", "ha", "--greedy"], form].concat());
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_exact(&mut [0; 8]).expect("some text");
        drop(stdout);
        let outcome: Outcome = child.wait_with_output().expect("ends").into();
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    }
}

#[test]
fn r26_ctrl_c_ends_the_text_with_its_events_and_the_speed() {
    let (folder, model) = endless();
    let mut child = start(&folder, &model, "generate", &["--prompt", "ha", "--greedy", "--json"]);
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("\"token\"") {
        line.clear();
        stdout.read_line(&mut line).expect("a line");
    }
    interrupt(&child);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text");
    let end: serde_json::Value = serde_json::from_str(rest.lines().last().expect("lines")).expect("JSON");
    assert_eq!((&end["event"], &end["finish"]), (&"end".into(), &"interrupted".into()));
    let outcome: Outcome = child.wait_with_output().expect("ends").into();
    assert_eq!(outcome.code, Some(130));
    assert!(outcome.stderr.starts_with("prefill 1 tokens"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("error"), "{}", outcome.stderr);
}

#[test]
fn r26_a_second_ctrl_c_leaves_at_once_even_if_nobody_reads() {
    let (folder, model) = endless();
    let mut child = start(&folder, &model, "generate", &["--prompt", "ha", "--greedy", "--json"]);
    let mut stdout = child.stdout.take().expect("piped");
    stdout.read_exact(&mut [0; 1]).expect("it has begun");
    let start = Instant::now();
    let status = loop {
        // The pipe fills, so the program hangs in writing and cannot end by itself.
        interrupt(&child);
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "it does not leave");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(status.code(), Some(130));
}

#[test]
fn ctrl_c_ends_a_scripted_chat() {
    let (folder, model) = endless();
    let mut child = start(&folder, &model, "chat", &["--greedy", "--stats"]);
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"one\ntwo\n").expect("writes");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    stdout.read_exact(&mut [0; 8]).expect("some text");
    interrupt(&child);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text");
    let outcome: Outcome = child.wait_with_output().expect("ends").into();
    assert_eq!(outcome.code, Some(130));
    assert_eq!(outcome.stderr.matches("interrupted").count(), 1, "one answer: {}", outcome.stderr);
}
