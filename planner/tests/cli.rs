//! The program `ats-plan` as people use it: files that appear, exit codes, messages. Cases of report R21.

mod common;

use plan_format::fingerprint::{Misfit, ModelDifference, check_fit, of_model};
use plan_format::sections::{from_bytes, origin};
use planner::profile::Profile;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs the program with a cache that all of these tests share: the machine is measured once.
fn ats_plan<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-cache");
    ats_plan_with(&cache, arguments)
}

fn ats_plan_with<S: AsRef<OsStr>>(cache: &Path, arguments: impl IntoIterator<Item = S>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ats-plan"));
    let output = command.env("XDG_CACHE_HOME", cache).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A copy of a reference model in a folder of its own, and its plan beside it.
fn compiled(name: &OsStr) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join(name);
    std::fs::copy(common::path("qwen3"), &model).unwrap();
    let ran = ats_plan([OsStr::new("compile"), model.as_os_str()]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(ran.err, "", "quiet when not a terminal");
    let plan = model.with_extension("atsplan");
    (folder, model, plan)
}

fn fit(plan: &Path, model: &Path) -> Result<(), Misfit> {
    let planned = origin(&std::fs::read(plan).unwrap()).unwrap();
    let found = of_model(&gguf::Model::open(model).unwrap()).unwrap();
    check_fit((&planned.model, &planned.device), (&found, &planned.device)).map(drop)
}

#[track_caller]
fn fails(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, Some(code), "{}", ran.err);
    assert!(ran.err.starts_with("error: "), "{}", ran.err);
    assert!(parts.iter().all(|part| ran.err.contains(part)), "{}\nlacks one of {parts:?}", ran.err);
}

#[test]
fn a_plan_is_written_beside_the_model_and_read_back() {
    let (_folder, model, plan) = compiled(OsStr::new("m.gguf"));
    let read = from_bytes(&std::fs::read(&plan).unwrap()).unwrap();
    assert_eq!(read.program, common::lowered("qwen3"));
    assert_eq!(fit(&plan, &model), Ok(()));
    let inspected = ats_plan([OsStr::new("inspect"), plan.as_os_str()]);
    assert_eq!(inspected.code, Some(0));
    assert!(inspected.out.contains("blk.2.ffn_down"), "{}", inspected.out);
}

#[test]
fn the_same_model_gives_the_same_bytes() {
    // A cache of its own: tests that share one may measure at the same time.
    let cache = tempfile::tempdir().unwrap();
    let plan = |name: &str| {
        let model = cache.path().join(name);
        std::fs::copy(common::path("qwen3"), &model).unwrap();
        let ran = ats_plan_with(cache.path(), [OsStr::new("compile"), model.as_os_str()]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        std::fs::read(model.with_extension("atsplan")).unwrap()
    };
    assert_eq!(plan("a.gguf"), plan("b.gguf"));
}

#[test]
fn other_weights_under_the_same_header_do_not_fit() {
    let (_folder, model, plan) = compiled(OsStr::new("m.gguf"));
    let modified = std::fs::metadata(&model).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&model).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&model, bytes).unwrap();
    // An old time of modification hides nothing: times are not looked at.
    std::fs::File::options().write(true).open(&model).unwrap().set_modified(modified).unwrap();
    assert_eq!(fit(&plan, &model), Err(Misfit::Model(ModelDifference::Weights)));
}

#[test]
fn every_tensor_is_sampled_at_both_ends_and_in_the_middle() {
    let (_folder, path, plan) = compiled(OsStr::new("m.gguf"));
    let model = gguf::Model::open(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    let copy = path.with_file_name("changed.gguf");
    for tensor in model.tensors().iter().step_by(5) {
        let (begin, size) = (tensor.file_offset_bytes, tensor.size_bytes().unwrap());
        for at in [begin, begin + size / 2, begin + size - 1] {
            let mut bytes = good.clone();
            bytes[at as usize] ^= 0x40;
            std::fs::write(&copy, bytes).unwrap();
            assert_eq!(fit(&plan, &copy), Err(Misfit::Model(ModelDifference::Weights)), "{}", tensor.name);
        }
    }
}

#[test]
fn another_tensor_type_or_key_does_not_fit() {
    let (_folder, model, plan) = compiled(OsStr::new("m.gguf"));
    let mut bytes = std::fs::read(&model).unwrap();
    let name = b"qwen3.context_length";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap() + name.len() + 4;
    bytes[at + 1] ^= 1;
    std::fs::write(&model, &bytes).unwrap();
    assert_eq!(fit(&plan, &model), Err(Misfit::Model(ModelDifference::Headers)));
    bytes.push(0);
    std::fs::write(&model, &bytes).unwrap();
    assert_eq!(fit(&plan, &model), Err(Misfit::Model(ModelDifference::Size)));
}

#[test]
fn a_damaged_or_newer_plan_is_refused_with_what_to_do() {
    let (_folder, model, plan) = compiled(OsStr::new("m.gguf"));
    let good = std::fs::read(&plan).unwrap();
    let mut newer = good.clone();
    newer[8] += 1;
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 4;
    for (bytes, problem) in [
        (newer.as_slice(), "format version 2"),
        (&good[..good.len() / 2], "it was cut"),
        (&flipped, "checksum"),
        (&std::fs::read(&model).unwrap(), "ATSPLAN"),
        (b"", "empty"),
    ] {
        std::fs::write(&plan, bytes).unwrap();
        let ran = ats_plan([OsStr::new("inspect"), plan.as_os_str()]);
        let again = format!("ats-plan compile {}`", model.display());
        fails(&ran, 1, &["m.atsplan", problem, "hint: ", &again]);
    }
    std::fs::remove_file(&model).unwrap();
    fails(&ats_plan([OsStr::new("inspect"), plan.as_os_str()]), 1, &["ats-plan compile MODEL`"]);
}

#[test]
fn odd_file_names_work() {
    use std::os::unix::ffi::OsStringExt;
    let not_utf8 = OsString::from_vec(b"mod\xffel.gguf".to_vec());
    for name in [OsStr::new("my model (1).gguf"), OsStr::new("модель-模型.gguf"), &not_utf8] {
        let (_folder, model, plan) = compiled(name);
        assert_eq!(fit(&plan, &model), Ok(()));
        assert_eq!(ats_plan([OsStr::new("inspect"), plan.as_os_str()]).code, Some(0));
    }
}

#[test]
fn a_model_moved_with_its_plan_still_fits() {
    let (folder, model, plan) = compiled(OsStr::new("m.gguf"));
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let (new_model, new_plan) = (elsewhere.join("x.gguf"), elsewhere.join("x.atsplan"));
    std::fs::rename(model, &new_model).unwrap();
    std::fs::rename(plan, &new_plan).unwrap();
    assert_eq!(fit(&new_plan, &new_model), Ok(()));
}

#[test]
fn a_place_that_cannot_be_written_is_named_and_nothing_is_left() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let model = common::path("qwen3");
    let compile =
        |out: &Path| ats_plan([OsStr::new("compile"), model.as_os_str(), OsStr::new("--out"), out.as_os_str()]);
    let missing = folder.path().join("missing/plan.atsplan");
    fails(&compile(&missing), 1, &["missing/plan.atsplan", "No such file", "hint: ", "--out"]);
    let locked = folder.path().join("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o555)).unwrap();
    let ran = compile(&locked.join("plan.atsplan"));
    // Root may write anywhere; for everybody else the folder is closed. Either way there is no half file.
    match std::fs::File::create(locked.join("probe")) {
        Ok(_) => assert_eq!(ran.code, Some(0)),
        Err(_) => fails(&ran, 1, &["locked/plan.atsplan", "hint: ", "--out"]),
    }
    let left = std::fs::read_dir(&locked).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().ends_with(".tmp")));
}

#[test]
fn bad_input_is_one_error_with_its_exit_code() {
    let llama = common::path("llama");
    let model = llama.to_str().unwrap();
    fails(&ats_plan(["compile", "/no/such/model.gguf"]), 1, &["/no/such/model.gguf"]);
    fails(&ats_plan(["compile", "/"]), 1, &["directory"]);
    fails(&ats_plan(["compile", model, "--vram", "6"]), 2, &["--vram", "6144M"]);
    fails(&ats_plan(["compile", model, "--vram", "6G"]), 2, &["no GPU is known", "hint: ", "--vram 0"]);
    fails(&ats_plan(["compile", model, "--context", "9999999"]), 2, &["9999999", "4096", "hint: "]);
    fails(&ats_plan(["compile", model, "--context", "0"]), 2, &["--context"]);
    fails(&ats_plan(["compile", model, "--kv-type", "q4"]), 2, &["--kv-type", "f16", "f32"]);
    fails(&ats_plan(["compile", model, "--exact", "--vram", "0"]), 2, &["--exact", "--vram"]);
    fails(&ats_plan(["compile", model, "--exact", "--device", "sim:rtx3060-laptop"]), 2, &["--exact", "--device"]);
    fails(&ats_plan(["compile", model, "--context", "64", "--prompt", "65"]), 2, &["--prompt 65", "--context 64"]);
    fails(&ats_plan(["compile", model, "--context", "64", "--ubatch", "65"]), 2, &["--ubatch 65", "--context 64"]);
    fails(&ats_plan(["compile", model, "--ubatch", "4", "--outputs", "5"]), 2, &["--outputs 5", "--ubatch 4"]);
    fails(&ats_plan(["compile", model, "--device", "sim:rtx9"]), 2, &["sim:rtx9", "hint: ", "rtx3060-laptop"]);
    fails(&ats_plan(["explain", "blk.0.ffn", model]), 2, &["no item `blk.0.ffn`", "hint: ", "blk.0.ffn_down"]);
    fails(&ats_plan(["inspect", "/no/such/plan"]), 1, &["/no/such/plan"]);
    fails(&ats_plan(["explode"]), 2, &["explode"]);
    let truncated = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(truncated.path(), &std::fs::read(&llama).unwrap()[..100_000]).unwrap();
    fails(&ats_plan(["compile", truncated.path().to_str().unwrap()]), 1, &["truncated"]);
}

const LAPTOP: &str = "sim:rtx3060-laptop";

#[test]
fn a_budget_is_read_as_people_write_it_and_kept_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (common::path("qwen3"), folder.path().join("plan.atsplan"));
    let compile = |vram: &str| {
        let arguments = ["compile", model.to_str().unwrap(), "--out", out.to_str().unwrap()];
        ats_plan(arguments.into_iter().chain(["--context", "512", "--device", LAPTOP, "--vram", vram]))
    };
    let mut sizes = Vec::new();
    // 6000 MiB of the laptop's GPU are free.
    let written =
        [("0", 0), ("2M", 2 << 20), ("1G", 1 << 30), ("1GiB", 1 << 30), ("1024M", 1 << 30), ("50%", 3000 << 20)];
    for (vram, bytes) in written {
        let ran = compile(vram);
        assert_eq!(ran.code, Some(0), "{vram}: {}", ran.err);
        let plan = from_bytes(&std::fs::read(&out).unwrap()).unwrap();
        assert_eq!(plan.origin.options.vram_bytes, bytes, "{vram}");
        sizes.push(std::fs::read(&out).unwrap());
    }
    assert_eq!(sizes[2], sizes[3]);
    assert_eq!(sizes[2], sizes[4]);
    let kept = std::fs::read(&out).unwrap();
    fails(&compile("-1"), 2, &["--vram", "6144M"]);
    for flag in ["--context", "--ubatch", "--outputs", "--prompt", "--generate", "--ram"] {
        let ran = ats_plan(["compile", model.to_str().unwrap(), flag, "-1"]);
        fails(&ran, 2, &[flag, "'-1'"]);
        // What one would be told of an unknown flag helps nobody.
        assert!(!ran.err.contains("tip:"), "{}", ran.err);
    }
    fails(&compile("abc"), 2, &["--vram", "6144M"]);
    fails(&compile("7G"), 2, &["7.00 GiB", "6.00 GiB", "hint: ", "6000M"]);
    fails(&compile("100K"), 2, &["100K", "need ", "of rounds of 16 tokens", "hint: give --vram "]);
    assert_eq!(std::fs::read(&out).unwrap(), kept, "a refusal leaves the old plan as it was");
    std::fs::remove_file(&out).unwrap();
    fails(&compile("100K"), 2, &["too small for anything"]);
    fails(&compile("0.0000001K"), 2, &["less than a byte"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a refusal writes nothing");
}

#[test]
fn the_least_budget_that_a_refusal_names_may_be_typed_and_works() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("plan.atsplan");
    for model in ["qwen3", "qwen3moe", "deepseek2", "gemma3"] {
        for flags in [&[][..], &["--ubatch", "64"], &["--context", "128", "--outputs", "2"], &["--kv-type", "f32"]] {
            let compile = |vram: &str| {
                let model = common::path(model);
                let (model, out) = (model.to_str().unwrap(), out.to_str().unwrap());
                ats_plan([&["compile", model, "--device", LAPTOP, "--vram", vram, "--out", out][..], flags].concat())
            };
            for too_small in ["1K", "100K"] {
                let ran = compile(too_small);
                fails(&ran, 2, &["too small for anything", "give --vram "]);
                let least = ran.err.split("give --vram ").nth(1).unwrap().split(' ').next().unwrap();
                let ran = compile(least);
                assert_eq!(ran.code, Some(0), "{model} {flags:?} {least}: {}", ran.err);
            }
        }
    }
}

#[test]
fn without_a_budget_what_is_free_less_headroom_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (common::path("qwen3"), folder.path().join("plan.atsplan"));
    for (device, bytes) in [(LAPTOP, (6000 - 256) << 20), ("sim:cpu-laptop", 0)] {
        let arguments = ["compile", model.to_str().unwrap(), "--out", out.to_str().unwrap(), "--device", device];
        let ran = ats_plan(arguments.into_iter().chain(["--ram", "50%"]));
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let options = from_bytes(&std::fs::read(&out).unwrap()).unwrap().origin.options;
        assert_eq!(options.vram_bytes, bytes, "{device}");
        assert!(options.ram_bytes.is_some_and(|ram_bytes| ram_bytes > 1 << 30), "{device}");
    }
}

#[test]
fn a_plan_for_a_simulated_machine_says_so_and_what_to_expect() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("plan.atsplan");
    let model = common::path("gemma3");
    let ran = ats_plan([
        "compile".as_ref(),
        model.as_os_str(),
        "--out".as_ref(),
        out.as_os_str(),
        "--device".as_ref(),
        LAPTOP.as_ref(),
        "--vram".as_ref(),
        "2M".as_ref(),
    ]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    for part in ["sim:rtx3060-laptop", "GPU ", "host ", "resident: ", "decode ", "prefill ", "floor", "bound", "cells"]
    {
        assert!(ran.out.contains(part), "{part} is missing from\n{}", ran.out);
    }
    let plan = from_bytes(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(plan.origin.device.simulated_profile(), Some("rtx3060-laptop"));
    let inspected = ats_plan(["inspect".as_ref(), out.as_os_str()]);
    assert!(inspected.out.contains("slots") && inspected.out.contains("regimes"), "{}", inspected.out);
}

#[test]
fn this_machine_is_measured_once_and_its_profile_kept() {
    let cache = tempfile::tempdir().unwrap();
    let model = common::path("qwen3");
    let out = cache.path().join("plan.atsplan");
    let compile = |model: &Path| {
        let ran =
            ats_plan_with(cache.path(), ["compile".as_ref(), model.as_os_str(), "--out".as_ref(), out.as_os_str()]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        let times = ran.out.lines().find(|line| line.starts_with("times: ")).unwrap().to_owned();
        (std::fs::read(&out).unwrap(), times)
    };
    let (first, times) = compile(&model);
    let shapes = planner::measure::shapes(&common::lowered("qwen3")).len();
    assert!(times.contains(&format!("{shapes} of {shapes} matrix shapes measured on the CPU (")), "{times}");
    let kept = std::fs::read_dir(cache.path().join("ats")).unwrap().next().unwrap().unwrap().path();
    let profile = std::fs::read_to_string(&kept).unwrap();
    let plan = from_bytes(&first).unwrap();
    assert!(plan.report.predictions.iter().all(|p| p.round_us > 0.0) && !plan.report.predictions.is_empty());
    let (second, times) = compile(&model);
    assert_eq!(second, first, "the same profile gives the same bytes");
    assert!(times.contains(&format!("{shapes} of {shapes} ")) && !times.contains("just now"), "{times}");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), profile);
    // Another model adds the shapes that it has of its own, and takes none away.
    let points = || Profile::from_json(&std::fs::read_to_string(&kept).unwrap()).unwrap().points;
    let before = points();
    let (_, times) = compile(&common::path("gemma3"));
    assert!(times.contains("just now"), "{times}");
    assert!(points().len() > before.len() && points()[..before.len()] == before);
    // A profile that cannot be this machine's is measured anew.
    std::fs::write(&kept, profile.replace("schema_version\": 1", "schema_version\": 9")).unwrap();
    compile(&model);
    assert!(std::fs::read_to_string(&kept).unwrap().contains("schema_version\": 1"));
}

#[test]
fn profiles_that_cannot_be_true_are_refused_by_the_name_of_the_figure() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("device.json");
    let good = ats_plan(["profile", "--device", LAPTOP]);
    assert_eq!(good.code, Some(0), "{}", good.err);
    let model = common::path("qwen3");
    let compile = || {
        ats_plan([
            "compile".as_ref(),
            model.as_os_str(),
            "--device".as_ref(),
            file.as_os_str(),
            "--out".as_ref(),
            "/dev/null".as_ref(),
        ])
    };
    std::fs::write(&file, &good.out).unwrap();
    let ran = compile();
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let cases = [
        ("\"schema_version\": 1", "\"schema_version\": 2", "schema version 2"),
        ("\"read_gb_per_s\": 41.0", "\"read_gb_per_s\": -41.0", "memory.read_gb_per_s"),
        ("\"cpu_op_us\": 4.0", "\"cpu_op_us\": 4e9", "latency.cpu_op_us"),
        ("\"available_mib\": 55705", "\"available_mib\": 99999", "memory.available_mib"),
        ("\"storage_gb_per_s\": 3.0", "\"storage_gb_per_second\": 3.0", "storage_gb_per_second"),
    ];
    for (from, to, named) in cases {
        assert!(good.out.contains(from), "{from}");
        std::fs::write(&file, good.out.replace(from, to)).unwrap();
        fails(&compile(), 1, &["device.json", named]);
    }
}

#[test]
fn a_profile_from_elsewhere_is_not_to_be_measured_here() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("device.json");
    let (model, device) = (common::path("qwen3"), file.to_str().unwrap());
    let compile = |device: &str, more: &[&str]| {
        let arguments = ["compile", model.to_str().unwrap(), "--out", "/dev/null", "--device", device];
        ats_plan(arguments.iter().chain(more))
    };
    let noted = "Others took 40 % of the CPU time of the teams that were timed";
    let text = ats_plan(["profile", "--device", LAPTOP]).out;
    let text = text.replacen("\"assumptions\": [", &format!("\"assumptions\": [\n\"{noted}\","), 1);
    std::fs::write(&file, text.replace("\"synthetic\"", "\"measured\"")).unwrap();
    let ran = compile(device, &["--vram", "1G", "--context", "512"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains(&format!("{noted} when it was measured\n")), "{}", ran.out);
    let shapes = planner::measure::shapes(&common::lowered("qwen3")).len();
    let times = format!("times: 0 of {shapes} matrix shapes measured on the CPU, 0 on the GPU; all else");
    assert!(ran.out.contains(&times), "{}", ran.out);
    assert!(!ran.out.contains("ats-plan profile"), "{}", ran.out);
    let simulated = compile(LAPTOP, &["--vram", "1G", "--context", "512"]);
    assert!(simulated.out.contains("times: calculated for the simulated machine rtx3060-laptop;"), "{}", simulated.out);
    // A kind of operator that the file lacks.
    let lines = text.lines().filter(|line| !(line.contains("\"attention\"") && line.contains("\"F16\"")));
    std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
    fails(&compile(device, &["--vram", "0"]), 1, &["no time for Attention F16", "on that machine", "--out FILE"]);
}

#[test]
fn a_ubatch_beyond_the_profile_is_refused_with_the_most_that_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m.gguf");
    fixtures::catalog::model("qwen3-0.6b").unwrap().write_sparse(&model).unwrap();
    let compile = |ubatch: &str, context: &str| {
        let arguments = ["compile", model.to_str().unwrap(), "--out", "/dev/null", "--device", LAPTOP, "--vram", "4G"];
        ats_plan(arguments.iter().chain(&["--ubatch", ubatch, "--context", context]))
    };
    assert_eq!(compile("4096", "8192").code, Some(0));
    for ubatch in ["4097", "8192"] {
        let ran = compile(ubatch, "8192");
        fails(
            &ran,
            2,
            &[&format!("--ubatch {ubatch}"), "`rtx3060-laptop`", "4096 tokens at most", "give --ubatch at most 4096"],
        );
        assert!(!ran.err.contains("ats-plan profile"), "{}", ran.err);
    }
    fails(&compile("4096", "1024"), 2, &["--ubatch 4096 is more than --context 1024"]);
}

#[test]
fn an_item_is_explained_with_its_times_and_what_would_move_it() {
    let model = common::path("qwen3");
    let model = model.to_str().unwrap();
    let explain = |item: &str, vram: &str| {
        let ran = ats_plan(["explain", item, model, "--context", "512", "--device", LAPTOP, "--vram", vram]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        ran.out
    };
    let host = explain("blk.1.ffn_gate_up", "600K");
    for part in ["t_c", "t_g", "density k", "switch", "decode", "residency saves", "--vram"] {
        assert!(host.contains(part), "{part} is missing from\n{host}");
    }
    assert!(explain("blk.1.ffn_gate_up", "1G").contains("in GPU memory"));
}

#[test]
fn a_family_that_nobody_knows_is_named_with_those_that_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut bytes = std::fs::read(common::path("qwen3")).unwrap();
    let name = b"qwen3";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    bytes[at..at + name.len()].copy_from_slice(b"bloom");
    std::fs::write(&path, bytes).unwrap();
    let ran = ats_plan(["compile".as_ref(), path.as_os_str()]);
    fails(&ran, 1, &["bloom", "llama", "qwen3", "gpt-oss", "deepseek2"]);
}
