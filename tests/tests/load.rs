//! `ats-run bench --load` as a whole: on a simulated machine, whose load is a script on its clock, and what it refuses.

use std::path::Path;
use tests::{Outcome, run};

fn bench(folder: &Path, arguments: &[&str]) -> Outcome {
    let model = fixtures::reference_dir().join("tiny-qwen3.gguf");
    let model = model.to_str().expect("UTF-8").to_owned();
    let all = ["bench", &model, "--device", "sim:rtx3060-laptop", "-p", "0", "-n", "0"];
    run("ats-run", folder, &[&all[..], arguments].concat())
}

#[test]
fn every_phase_is_measured_with_both_plans_and_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (csv, html) = (file("t.csv"), file("t.html"));
    let load = ["--load", "cpu=60,link=60,gpu=60", "--timeline", &csv, "--timeline", &html, "--phase-seconds", "0.02"];
    let text = bench(folder.path(), &load).good();
    for words in
        ["| no load |", "| CPU 60 % |", "| GPU 60 %, link 60 % |", "fixed: p50", "load-aware: p50", "of its share"]
    {
        assert!(text.contains(words), "`{words}` is not in {text}");
    }
    let csv = std::fs::read_to_string(csv).expect("a table");
    for plan in ["fixed", "load-aware"] {
        for phase in 0..5 {
            let lines = csv.lines().filter(|line| line.starts_with(&format!("{plan},{phase},"))).count();
            assert!(lines >= 10, "{plan} {phase}: {lines}");
        }
    }
    let html = std::fs::read_to_string(html).expect("a page");
    assert!(html.contains("<svg") && html.ends_with("</html>\n"));
}

#[test]
fn the_same_load_on_a_simulated_machine_gives_the_same_times() {
    let folder = tempfile::tempdir().expect("a folder");
    let load = ["--load", "cpu=50", "--phase-seconds", "0.01"];
    let first = bench(folder.path(), &load).good();
    assert_eq!(first, bench(folder.path(), &load).good());
}

#[test]
fn wrong_loads_are_usage_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    bench(folder.path(), &["--load", "disk=10"]).fails(2, &["disk", "cpu, gpu and link"]);
    bench(folder.path(), &["--load", "cpu=99"]).fails(2, &["95"]);
    bench(folder.path(), &["--load", "cpu=50", "--timeline", "x.png"]).fails(2, &[".csv"]);
    bench(folder.path(), &["--load", "cpu=50", "--pin-schedule", "1"]).fails(2, &["--load", "--pin-schedule"]);
    bench(folder.path(), &["--timeline", "x.csv"]).fails(2, &["--load"]);
}
