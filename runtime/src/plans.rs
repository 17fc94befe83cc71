//! Finding a model's plan, or having one made, and checking that it fits model and machine.
//!
//! Order: the plan that was named; `<stem>.atsplan` beside the model; the user's cache; else the sibling program
//! `ats-plan` compiles one into the cache, and says so. A stale plan in the cache is made again; elsewhere it is
//! refused. Not here: the rules of names (`plan_format::find`), what a plan holds. Next: `engine.rs`.

use crate::Error;
use gguf::Model;
use plan_format::artifact::{Origin, Plan};
use plan_format::find::{self, CACHE_FOLDER, CacheName, Ceiling};
use plan_format::fingerprint::{DeviceFingerprint, ModelFingerprint, of_model};
use plan_format::sections;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a command needs of a plan.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// The plan that the user named.
    pub plan: Option<PathBuf>,
    /// Positions that the command needs, if it knows; a found plan with a shorter context is not taken.
    pub context_tokens: Option<u32>,
    /// What the kernels are to be.
    pub exactness: Exactness,
    /// Whether a plan for another machine is taken.
    pub other_device: OtherDevice,
}

/// Which kernels a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// The fast ones, where the plan puts them.
    Planned,
    /// Oracle kernels, all on the CPU, F32 caches. Never found, always made.
    Exact,
}

/// What to do with a plan for another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherDevice {
    /// Refuse it.
    Refuse,
    /// Take it (`--force-device`).
    Accept,
}

/// Context of a plan that is compiled unasked, if the model allows it.
const DEFAULT_CONTEXT_TOKENS: u32 = 8192;

/// The plan for a model.
/// Errors: a named plan that is damaged, stale, foreign or too short; `ats-plan` that fails.
pub fn plan_for(model: &Model, request: &PlanRequest) -> Result<Plan, Error> {
    let found = of_model(model)?;
    let device = crate::machine::fingerprint()?;
    if request.exactness == Exactness::Exact {
        return compile_exact(model, request);
    }
    if let Some(path) = &request.plan {
        let plan = read(path)?;
        fits(path, &plan.origin, &found, &device, request.other_device)?;
        return long_enough(path, plan, request);
    }
    let first_shard = model.files().first().map_or(Path::new(""), |file| file.path.as_path());
    let beside = find::beside(first_shard);
    if beside.is_file() {
        let plan = read(&beside)?;
        fits(&beside, &plan.origin, &found, &device, request.other_device)?;
        if request.context_tokens.is_none_or(|tokens| tokens <= plan.origin.options.context_tokens) {
            return Ok(plan);
        }
    }
    cached(model, &found, &device, request)
}

fn long_enough(path: &Path, plan: Plan, request: &PlanRequest) -> Result<Plan, Error> {
    let planned = plan.origin.options.context_tokens;
    match request.context_tokens {
        Some(needed) if needed > planned => Err(Error::PlanTooShort { path: path.into(), planned, needed }),
        _ => Ok(plan),
    }
}

fn read(path: &Path) -> Result<Plan, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.into(), source })?;
    sections::from_bytes(&bytes).map_err(|source| Error::PlanFile { path: path.into(), source })
}

fn fits(
    path: &Path,
    origin: &Origin,
    model: &ModelFingerprint,
    device: &DeviceFingerprint,
    other_device: OtherDevice,
) -> Result<(), Error> {
    if let Some(difference) = origin.model.difference(model) {
        return Err(Error::StalePlan { path: path.into(), difference });
    }
    if origin.device != *device && other_device == OtherDevice::Refuse {
        let (planned, here) = (origin.device.cpu_model.clone(), device.cpu_model.clone());
        return Err(Error::ForeignPlan { path: path.into(), planned, here });
    }
    Ok(())
}

/// The user's cache: `$XDG_CACHE_HOME` or `~/.cache`, then `ats`.
fn cache_folder() -> Result<PathBuf, Error> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.map(|cache| cache.join(CACHE_FOLDER)).ok_or(Error::NoCache)
}

fn cached(
    model: &Model,
    found: &ModelFingerprint,
    device: &DeviceFingerprint,
    request: &PlanRequest,
) -> Result<Plan, Error> {
    let folder = cache_folder()?;
    let longest = model_context(model)?;
    let context_tokens = request.context_tokens.unwrap_or(0).max(longest.min(DEFAULT_CONTEXT_TOKENS));
    let names = file_names(&folder);
    let names = names.iter().map(String::as_str);
    if let Some(name) = find::best_cached(names, found, device, Ceiling::AtMost(0), context_tokens) {
        let path = folder.join(name);
        // A damaged or stale plan in the cache is made again below.
        if let Ok(plan) = read(&path)
            && fits(&path, &plan.origin, found, device, OtherDevice::Refuse).is_ok()
        {
            return Ok(plan);
        }
    }
    std::fs::create_dir_all(&folder).map_err(|source| Error::Write { path: folder.clone(), source })?;
    let path = folder.join(CacheName::new(found, device, 0, context_tokens).file_name());
    // Nobody is told if standard error is gone.
    let _ =
        writeln!(std::io::stderr(), "no plan for this model and machine yet: compiling one into {}", path.display());
    compile(model, &path, &["--context".into(), context_tokens.to_string()])?;
    read(&path)
}

fn model_context(model: &Model) -> Result<u32, Error> {
    let architecture = model.str("general.architecture")?;
    Ok(model.u32(&format!("{architecture}.context_length"))?)
}

fn file_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Exact plans go through a temporary file: they are cheap to make and nobody else's.
fn compile_exact(model: &Model, request: &PlanRequest) -> Result<Plan, Error> {
    let path = std::env::temp_dir().join(format!("ats-exact-{}.atsplan", std::process::id()));
    let mut flags = vec!["--exact".to_owned()];
    if let Some(tokens) = request.context_tokens {
        flags.extend(["--context".to_owned(), tokens.to_string()]);
    }
    let plan = compile(model, &path, &flags).and_then(|()| read(&path));
    // Nothing depends on the removal.
    let _ = std::fs::remove_file(&path);
    plan
}

/// Runs the sibling `ats-plan compile`.
fn compile(model: &Model, out: &Path, flags: &[String]) -> Result<(), Error> {
    let first_shard = model.files().first().map_or(Path::new(""), |file| file.path.as_path());
    let here = std::env::current_exe().ok();
    let sibling = here.as_deref().and_then(Path::parent).map(|folder| folder.join("ats-plan"));
    let program = sibling.filter(|path| path.is_file()).unwrap_or_else(|| "ats-plan".into());
    let mut command = Command::new(&program);
    command.arg("compile").arg(first_shard).arg("--out").arg(out).args(flags);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status.map_err(|source| Error::StartPlanner { program: program.clone(), source })? {
        status if status.success() => Ok(()),
        _ => Err(Error::Planner { program, arguments: flags.join(" ") }),
    }
}
