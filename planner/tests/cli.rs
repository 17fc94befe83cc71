//! The program `ats-plan` as people use it: files that appear, exit codes, messages. Cases of report R21.

mod common;

use plan_format::fingerprint::{Misfit, ModelDifference, check_fit, of_model};
use plan_format::sections::{from_bytes, origin};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn ats_plan<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_ats-plan")).args(arguments).output().unwrap();
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
    let (_a, _, first) = compiled(OsStr::new("a.gguf"));
    let (_b, _, second) = compiled(OsStr::new("b.gguf"));
    assert_eq!(std::fs::read(first).unwrap(), std::fs::read(second).unwrap());
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
        fails(&ran, 1, &["m.atsplan", problem, "hint: ", "ats-plan compile"]);
    }
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
    fails(&ats_plan(["inspect", "/no/such/plan"]), 1, &["/no/such/plan"]);
    fails(&ats_plan(["explode"]), 2, &["explode"]);
    let truncated = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(truncated.path(), &std::fs::read(&llama).unwrap()[..100_000]).unwrap();
    fails(&ats_plan(["compile", truncated.path().to_str().unwrap()]), 1, &["truncated"]);
}
