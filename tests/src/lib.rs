//! What whole-program tests share: the binaries, the real models, and small checks on what programs print.
//! Not here: tests (`tests/*.rs`).

pub mod scripted;
pub mod variant;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use fixtures::reference_dir;

/// A binary of this workspace, as `cargo test --workspace` builds it beside the tests.
///
/// # Panics
/// When it is not built.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let folder = test.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let path = folder.join(name);
    assert!(path.is_file(), "{} is missing: run `cargo build -p planner -p runtime` first", path.display());
    path
}

/// What a program did.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Outcome {
    /// Standard output of a success.
    ///
    /// # Panics
    /// On failure.
    #[track_caller]
    pub fn good(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    /// A failure with this code whose message names all of `words`, in one line with at most one hint.
    ///
    /// # Panics
    /// Otherwise.
    #[track_caller]
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "`{word}` is not in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

/// Runs a program with cache and state folders of its own and nothing on standard input.
///
/// # Panics
/// When it cannot be started.
pub fn run(program: &str, cache: &Path, arguments: &[&str]) -> Outcome {
    command(program, cache).args(arguments).output().expect("starts").into()
}

/// The same with `input` on standard input.
///
/// # Panics
/// When it cannot be started.
pub fn pipe(program: &str, cache: &Path, arguments: &[&str], input: &[u8]) -> Outcome {
    let mut command = command(program, cache);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut stdin = child.stdin.take().expect("piped");
    // A program that has failed reads no further; its exit code says so.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().expect("ends").into()
}

/// The same as [`run`], to be given more.
pub fn command(program: &str, cache: &Path) -> Command {
    share_profiles(cache);
    bare_command(program, cache)
}

fn bare_command(program: &str, cache: &Path) -> Command {
    let mut command = Command::new(binary(program));
    command.env("XDG_CACHE_HOME", cache).env("XDG_STATE_HOME", cache).stdin(Stdio::null());
    command
}

/// Links this machine's profile, which planning measures for a second or more where there is none, into a test's cache
/// folder. What is measured besides goes through the link to all tests after.
fn share_profiles(cache: &Path) {
    static SHARED: LazyLock<PathBuf> = LazyLock::new(|| {
        let shared = binary("ats-plan").with_file_name("test-cache");
        let model = reference_dir().join("tiny-llama.gguf");
        // A machine that cannot be measured fails the tests that need it, by their own words.
        let _ = bare_command("ats-plan", &shared).arg("compile").arg(model).args(["--out", "/dev/null"]).output();
        shared.join("ats")
    });
    let profiles = std::fs::read_dir(&*SHARED).into_iter().flatten().flatten();
    let ours = cache.join("ats");
    for profile in profiles.filter(|entry| entry.file_name().to_string_lossy().starts_with("profile-")) {
        if std::fs::create_dir_all(&ours).is_ok() {
            // The link may be there already.
            let _ = std::os::unix::fs::symlink(profile.path(), ours.join(profile.file_name()));
        }
    }
}

/// A real model or vocabulary in the cache that `cargo xtask fetch` fills; `None`, with a printed line, if it is not
/// there and `ATS_REQUIRE_MODELS` is not set.
///
/// # Panics
/// When it is not there and `ATS_REQUIRE_MODELS` is set.
pub fn real_model(file: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("ATS_CACHE").map(PathBuf::from);
    let user = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let folder = cache.or_else(|| user.or_else(home).map(|cache| cache.join("ats")))?.join("models");
    let path = folder.join(file);
    if path.is_file() {
        return Some(path);
    }
    let required = std::env::var_os("ATS_REQUIRE_MODELS").is_some();
    assert!(!required, "{} is missing: run `cargo xtask fetch`", path.display());
    println!("skipped: {} is missing; `cargo xtask fetch` brings it", path.display());
    None
}

/// A JSON file of the reference data.
///
/// # Panics
/// When it is missing or damaged.
pub fn reference_json(name: &str) -> serde_json::Value {
    let text = std::fs::read(fixtures::reference_dir().join(name)).expect("reference file");
    serde_json::from_slice(&text).expect("JSON")
}

/// The ids in a JSON list.
///
/// # Panics
/// When it is none.
pub fn ids(list: &serde_json::Value) -> Vec<u32> {
    list.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Ids as token files hold them.
pub fn id_text(ids: &[u32]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
