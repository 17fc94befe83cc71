//! The commands that look at plans (`simulate`, `report`, `diff`, `export`, `check`), as people use them.

use std::path::{Path, PathBuf};
use std::process::Command;

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn ats_plan(arguments: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_ats-plan")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[track_caller]
fn works(arguments: &[&str], parts: &[&str]) -> Ran {
    let ran = ats_plan(arguments);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.err);
    assert!(parts.iter().all(|part| ran.out.contains(part)), "{}\nlacks one of {parts:?}", ran.out);
    ran
}

#[track_caller]
fn fails(arguments: &[&str], code: i32, parts: &[&str]) {
    let ran = ats_plan(arguments);
    assert_eq!(ran.code, Some(code), "{arguments:?}: {}{}", ran.out, ran.err);
    assert!(parts.iter().all(|part| ran.err.contains(part)), "{}\nlacks one of {parts:?}", ran.err);
}

/// A folder with a model's headers and plans of it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn with_model() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        fixtures::catalog::model("qwen3-0.6b").unwrap().write_sparse(Path::new(&folder.file("m.gguf"))).unwrap();
        folder
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn plan(&self, name: &str, vram: &str) -> String {
        let (model, plan) = (self.file("m.gguf"), self.file(name));
        let laptop = "sim:rtx3060-laptop";
        let flags = ["--device", laptop, "--vram", vram, "--context", "2048", "--ubatch", "512"];
        works(&[&["compile", &model, "--out", &plan][..], &flags].concat(), &[]);
        plan
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }
}

#[test]
fn a_plan_is_simulated_under_load_with_its_timelines() {
    let folder = Folder::with_model();
    let plan = folder.plan("a.atsplan", "800M");
    let idle = works(
        &["simulate", &plan],
        &["decode at 640 cached", "prefill 512 at 512 cached", "schedule S", "floors without load"],
    );
    let (html, trace) = (folder.file("t.html"), folder.file("t.json"));
    let slow = ["--cpu-slowdown", "4", "--html", &html, "--trace", &trace, "--phase", "prefill"];
    let loaded = works(&[&["simulate", &plan][..], &slow].concat(), &["load: CPU 4x slower", "no overlap is faster"]);
    assert_ne!(idle.out, loaded.out);
    assert!(folder.read("t.html").contains("<svg") && folder.read("t.html").ends_with("</html>\n"));
    let trace: serde_json::Value = serde_json::from_str(&folder.read("t.json")).unwrap();
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 100));
}

#[test]
fn another_budget_context_or_link_is_planned_anew() {
    let folder = Folder::with_model();
    let (plan, model) = (folder.plan("a.atsplan", "800M"), folder.file("m.gguf"));
    // What plans are made for: 512 tokens read, 256 written.
    let workload_ms = |arguments: &[&str]| {
        let ran = works(&[&["simulate"], arguments].concat(), &["decode at 640", "prefill "]);
        let line =
            |phase: &str| ran.out.lines().find(|line| line.starts_with(phase)).unwrap_or_else(|| panic!("{}", ran.out));
        let ms = |line: &str| {
            let time = line.split(": ").nth(1).and_then(|rest| rest.split(", ").next()?.split_once(' '));
            let (number, unit) = time.unwrap_or_else(|| panic!("{line}"));
            number.parse::<f64>().unwrap_or_else(|_| panic!("{line}")) * if unit == "s" { 1000.0 } else { 1.0 }
        };
        let ubatch: f64 = line("prefill ").split(' ').nth(1).and_then(|tokens| tokens.parse().ok()).unwrap();
        256.0 * ms(line("decode")) + 512.0 / ubatch * ms(line("prefill "))
    };
    let as_compiled = workload_ms(&[&plan]);
    assert!(workload_ms(&[&plan, "--vram", "2G"]) < as_compiled, "more memory is faster");
    assert!(workload_ms(&[&plan, "--vram", "500M"]) > as_compiled, "less memory is slower");
    // Times are printed with three digits.
    assert!(workload_ms(&[&plan, "--link-gb-per-s", "3"]) >= as_compiled * 0.995, "a slower link is no faster");
    assert!(workload_ms(&[&plan, "--device", "sim:rtx4090-desktop", "--vram", "2G"]) < as_compiled);
    works(&["simulate", &plan, "--context", "8192"], &["planned context 8192"]);
    works(&["simulate", &plan, "--context", "1024"], &["planned context 2048"]);
    works(&["simulate", &model, "--device", "sim:cpu-laptop"], &["GPU ceiling 0 B", "nothing streamed"]);
}

#[test]
fn what_cannot_be_simulated_is_said_with_what_to_do() {
    let folder = Folder::with_model();
    let (plan, exact) = (folder.plan("a.atsplan", "800M"), folder.file("exact.atsplan"));
    works(&["compile", &folder.file("m.gguf"), "--exact", "--out", &exact, "--context", "512"], &[]);
    fails(&["simulate", &exact], 1, &["no expected times", "hint: ", "--exact"]);
    fails(&["report", &exact], 0, &[]);
    fails(&["report", &exact, "--out", &folder.file("r.html")], 1, &["no expected times", "hint: "]);
    fails(&["simulate", "/no/such/plan"], 1, &["/no/such/plan"]);
    fails(&["simulate", "/"], 1, &["directory"]);
    fails(&["simulate", &plan, "--cpu-slowdown", "0.5"], 2, &["--cpu-slowdown", "1 to 100"]);
    fails(&["simulate", &plan, "--gpu-slowdown", "much"], 2, &["--gpu-slowdown", "much"]);
    fails(&["simulate", &plan, "--link-gb-per-s", "nan"], 2, &["--link-gb-per-s"]);
    fails(&["simulate", &plan, "--phase", "decode"], 2, &["--trace"]);
    fails(&["simulate", &plan, "--vram", "100G"], 2, &["--vram"]);
    fails(&["simulate", &plan, "--device", "sim:nobody"], 2, &["nobody", "rtx3060-laptop"]);
    fails(&["simulate", &plan, "--html", "/no/such/folder/t.html"], 1, &["/no/such/folder/t.html"]);
    fails(&["simulate", &plan, "--device", "sim:cpu-laptop", "--link-gb-per-s", "9"], 2, &["no GPU"]);
    let cut = folder.file("cut.atsplan");
    std::fs::write(&cut, &std::fs::read(&plan).unwrap()[..500]).unwrap();
    fails(&["simulate", &cut], 1, &["cut.atsplan", "hint: ", "ats-plan compile"]);
}

#[test]
fn no_result_takes_the_place_of_what_is_read_of_a_model_or_of_a_plan() {
    let folder = Folder::with_model();
    let (plan, other, model) =
        (folder.plan("a.atsplan", "800M"), folder.plan("b.atsplan", "700M"), folder.file("m.gguf"));
    let profile = folder.file("device.json");
    works(&["profile", "--device", "sim:rtx3060-laptop", "--out", &profile], &[]);
    let (new, flags) = (folder.file("new"), ["--device", &profile, "--vram", "800M", "--context", "2048"]);
    let flagged =
        |command: &'static str, out: &'static str| [&[command, &model][..], &flags, &[out, &profile]].concat();
    let cases: [(Vec<&str>, &str); 13] = [
        (vec!["simulate", &plan, "--html", &plan], "file that is read"),
        (vec!["simulate", &plan, "--trace", &plan], "file that is read"),
        (vec!["simulate", &plan, "--html", &other], "is a plan"),
        (vec!["simulate", &plan, "--trace", &model], "is a model"),
        (vec!["simulate", &plan, "--html", &new, "--trace", &new], "two results"),
        (vec!["report", &plan, "--out", &plan], "file that is read"),
        (vec!["report", &plan, "--csv", &other], "is a plan"),
        (vec!["report", &plan, "--out", &model], "is a model"),
        (vec!["report", &plan, "--out", &new, "--csv", &new], "two results"),
        (flagged("report", "--out"), "file that is read"),
        (flagged("compile", "--out"), "file that is read"),
        (vec!["profile", "--device", "sim:rtx3060-laptop", "--out", &plan], "is a plan"),
        (vec!["profile", "--model", &model, "--out", &model], "file that is read"),
    ];
    // Of a model of holes the beginning says enough.
    let begin = |path: &str| {
        let mut bytes = vec![0; 1 << 16];
        let read = std::fs::File::open(path).and_then(|mut file| std::io::Read::read(&mut file, &mut bytes)).unwrap();
        bytes.truncate(read);
        bytes
    };
    let before = [&plan, &other, &model, &profile].map(|path| begin(path));
    for (arguments, why) in cases {
        fails(&arguments, 2, &[why, "hint: "]);
    }
    assert_eq!([&plan, &other, &model, &profile].map(|path| begin(path)), before);
    assert!(!Path::new(&new).exists());
}

#[test]
fn a_report_is_a_page_and_a_comparison() {
    let folder = Folder::with_model();
    let plan = folder.plan("a.atsplan", "800M");
    let (html, csv) = (folder.file("r.html"), folder.file("r.csv"));
    let from_plan = works(
        &["report", &plan, "--out", &html, "--csv", &csv],
        &["whole layers", "3.29x", "1.94x", "base + placement", "Memory floor of any placement"],
    );
    assert!(folder.read("r.html").contains("What each mechanism contributes"));
    let lines: Vec<String> = folder.read("r.csv").lines().map(str::to_owned).collect();
    assert!(lines.len() == 3 && lines[1].starts_with("a,rtx3060-laptop,800,decode,"), "{lines:#?}");
    // The same comparison comes of the model itself under the same flags.
    let flags = ["--device", "sim:rtx3060-laptop", "--vram", "800M", "--context", "2048", "--ubatch", "512"];
    let from_model = works(&[&["report", &folder.file("m.gguf")][..], &flags].concat(), &[]);
    let comparison = |ran: &Ran| ran.out.lines().filter(|line| !line.ends_with("written")).count();
    assert_eq!(comparison(&from_plan), comparison(&from_model));
    assert!(from_plan.out.starts_with(from_model.out.as_str()), "{}\n{}", from_plan.out, from_model.out);
    let on_cpu = ["report", &folder.file("m.gguf"), "--device", "sim:cpu-laptop", "--csv", &csv];
    fails(&on_cpu, 2, &["no comparison", "hint: "]);
}

#[test]
fn differences_are_words_and_an_exit_code() {
    let folder = Folder::with_model();
    let (a, b, c) = (folder.plan("a", "800M"), folder.plan("b", "800M"), folder.plan("c", "600M"));
    works(&["diff", &a, &b], &["the plans are the same"]);
    let ran = ats_plan(&["diff", &a, &c]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(1), ""), "{}", ran.out);
    assert!(ran.out.contains("GPU ceiling: 800.0 MiB -> 600.0 MiB"), "{}", ran.out);
    fails(&["diff", &a, "/no/such/plan"], 1, &["/no/such/plan"]);
    fails(&["diff", &a], 2, &["<IS>"]);
}

#[test]
fn flags_go_to_standard_output_and_losses_to_standard_error() {
    let folder = Folder::with_model();
    let plan = folder.plan("a.atsplan", "800M");
    let ran = works(&["export", &plan, "--to", "llama.cpp"], &["-ngl ", "-ub 512", "-c 2048", "-fa on", "-ctk f16"]);
    assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
    assert!(ran.err.lines().all(|line| line.starts_with("lost: ")) && ran.err.contains("schedules"), "{}", ran.err);
    fails(&["export", &plan], 2, &["--to"]);
    fails(&["export", &plan, "--to", "vllm"], 2, &["vllm", "llama.cpp"]);
}

#[test]
fn golden_figures_are_accepted_kept_and_guarded() {
    let folder = Folder(tempfile::tempdir().unwrap());
    std::fs::copy(fixtures::reference_dir().join("tiny-qwen3.gguf"), folder.file("tiny.gguf")).unwrap();
    let (models, golden) = (folder.file("."), folder.file("golden.csv"));
    let check = ["check", "--models", &models, "--golden", &golden];
    fails(&check, 1, &["golden.csv", "--accept"]);
    fails(&[&check[..], &["--accept", " "]].concat(), 2, &["--accept", "reason"]);
    works(&[&check[..], &["--accept", "first figures"]].concat(), &["no golden figures", "9 golden figures accepted"]);
    works(&check, &["9 plans", "all as the golden figures"]);
    let text = folder.read("golden.csv");
    assert!(text.lines().skip(1).all(|line| line.ends_with(",first figures")), "{text}");
    // Every golden figure becomes a tenth: the plans of today are much worse.
    let faster = tampered(&text, 6, |us| format!("{:.1}", us.parse::<f64>().unwrap() / 10.0));
    std::fs::write(&golden, faster).unwrap();
    fails(&check, 1, &["9 of them worse", "hint: ", "--accept REASON"]);
    std::fs::write(&golden, tampered(&text, 7, |_| "0123".to_owned())).unwrap();
    let changed = ats_plan(&check);
    assert!(changed.code == Some(1) && changed.out.contains("other bytes"), "{}{}", changed.out, changed.err);
    works(&[&check[..], &["--accept", "bytes moved"]].concat(), &["accepted"]);
    assert!(folder.read("golden.csv").lines().skip(1).all(|line| line.ends_with(",bytes moved")));
    std::fs::write(&golden, "device\n").unwrap();
    fails(&check, 1, &["golden.csv", "line 1"]);
    let empty = tempfile::tempdir().unwrap();
    std::fs::write(&golden, text).unwrap();
    let none = ["check", "--models", empty.path().to_str().unwrap(), "--golden", &golden];
    fails(&none, 1, &["holds no .gguf", "fixtures write"]);
}

/// A field of every row but the head, changed.
fn tampered(text: &str, field: usize, change: impl Fn(&str) -> String) -> String {
    let row = |(index, line): (usize, &str)| {
        let mut fields: Vec<String> = line.splitn(9, ',').map(str::to_owned).collect();
        if index > 0 {
            fields[field] = change(&fields[field]);
        }
        fields.join(",") + "\n"
    };
    text.lines().enumerate().map(row).collect()
}

/// The committed figures are complete: every machine with every model of the paper.
#[test]
fn the_projects_golden_figures_cover_all_pairs() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/golden-plans/plans.csv");
    let golden = planner::report::golden::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    let models: std::collections::BTreeSet<&str> = golden.iter().map(|g| g.figures.model.as_str()).collect();
    assert_eq!(models.len(), 10);
    for machine in planner::profile::machines::MACHINES {
        let of_machine = golden.iter().filter(|g| g.figures.device == machine.name);
        assert_eq!(of_machine.count(), models.len(), "{}", machine.name);
    }
}
