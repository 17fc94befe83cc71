//! Finding a model's plan, or having one made, and checking that it fits model and machine.
//!
//! Order: the plan that was named; `<stem>.atsplan` beside the model; the user's cache; else the sibling program
//! `ats-plan` compiles one into the cache, and says so. A stale plan in the cache is made again; elsewhere it is
//! refused. Not here: the rules of names (`plan_format::find`), what a plan holds. Next: `engine.rs`.

use crate::Error;
use crate::machine::SimulatedMachine;
use gguf::Model;
use plan_format::artifact::{Origin, Plan};
use plan_format::find::{self, CacheName, Ceiling};
use plan_format::fingerprint::{DeviceDifference, DeviceFingerprint, Misfit, ModelFingerprint, check_fit, of_model};
use plan_format::sections;
use shared_cli::output::say;
use std::fs::File;
use std::io::Read;
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
    /// The simulated machine to run on; `None` = this one.
    pub simulated: Option<SimulatedMachine>,
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

/// What a plan must fit.
struct Here {
    model: ModelFingerprint,
    device: DeviceFingerprint,
}

/// The plan for a model.
/// Errors: a named plan that is damaged, stale, foreign or too short; `ats-plan` that fails.
pub fn plan_for(model: &Model, request: &PlanRequest) -> Result<Plan, Error> {
    if request.exactness == Exactness::Exact {
        return compile_exact(model, request);
    }
    let device = match &request.simulated {
        Some(machine) => machine.fingerprint().clone(),
        None => crate::machine::fingerprint()?,
    };
    let here = Here { model: of_model(model)?, device };
    if let Some(path) = &request.plan {
        let plan = read(path)?;
        fits(path, &plan.origin, &here, request.other_device)?;
        return long_enough(path, plan, request);
    }
    let beside = find::beside(first_shard(model));
    // A plan beside the model is this machine's.
    if request.simulated.is_none() && beside.is_file() {
        let plan = read(&beside)?;
        fits(&beside, &plan.origin, &here, request.other_device)?;
        if request.context_tokens.is_none_or(|tokens| tokens <= plan.origin.options.context_tokens) {
            return Ok(plan);
        }
    }
    cached(model, &here, request)
}

fn first_shard(model: &Model) -> &Path {
    model.files().first().map_or(Path::new(""), |file| file.path.as_path())
}

fn long_enough(path: &Path, plan: Plan, request: &PlanRequest) -> Result<Plan, Error> {
    let planned = plan.origin.options.context_tokens;
    match request.context_tokens {
        Some(needed) if needed > planned => Err(Error::PlanTooShort { path: path.into(), planned, needed }),
        _ => Ok(plan),
    }
}

/// No plan is larger; what is named by mistake may be, or have no end at all.
const PLAN_BYTES_MAX: u64 = 256 << 20;

fn read(path: &Path) -> Result<Plan, Error> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(PLAN_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|source| Error::Read { path: path.into(), source })?;
    sections::from_bytes(&bytes).map_err(|source| Error::PlanFile { path: path.into(), source })
}

/// Whether a plan fits model and machine; what is no reason to refuse is said.
fn fits(path: &Path, origin: &Origin, here: &Here, other_device: OtherDevice) -> Result<(), Error> {
    for DeviceDifference { field, planned, found, .. } in differences(path, origin, here, other_device)? {
        say(format_args!("warning: the plan {} was made with {field} {planned}; here: {found}", path.display()));
    }
    Ok(())
}

/// In what a plan differs that fits all the same.
fn differences(
    path: &Path,
    origin: &Origin,
    here: &Here,
    other_device: OtherDevice,
) -> Result<Vec<DeviceDifference>, Error> {
    let fit = check_fit((&origin.model, &origin.device), (&here.model, &here.device));
    fit.or_else(|misfit| match misfit {
        Misfit::Model(difference) => Err(Error::StalePlan { path: path.into(), difference }),
        Misfit::Device(differences) if other_device == OtherDevice::Accept => Ok(differences),
        Misfit::Device(_) => Err(Error::ForeignPlan { path: path.into(), misfit }),
    })
}

fn cached(model: &Model, here: &Here, request: &PlanRequest) -> Result<Plan, Error> {
    let folder = shared_cli::folders::cache().ok_or(Error::NoCache)?;
    let longest = model_context(model)?;
    let context_tokens = request.context_tokens.unwrap_or(0).max(longest.min(DEFAULT_CONTEXT_TOKENS));
    let names = file_names(&folder);
    let names = names.iter().map(String::as_str);
    let ceiling_mib = request.simulated.as_ref().map_or_else(|| free_ceiling_mib(here), SimulatedMachine::ceiling_mib);
    let ceiling = Ceiling::AtMost(ceiling_mib);
    if let Some(name) = find::best_cached(names, &here.model, &here.device, ceiling, context_tokens) {
        let path = folder.join(name);
        // A damaged or stale plan in the cache is made again below.
        if let Ok(plan) = read(&path)
            && fits(&path, &plan.origin, here, OtherDevice::Refuse).is_ok()
        {
            return Ok(plan);
        }
    }
    std::fs::create_dir_all(&folder).map_err(|source| Error::Write { path: folder.clone(), source })?;
    let path = folder.join(CacheName::new(&here.model, &here.device, ceiling_mib, context_tokens).file_name());
    say(format_args!("no plan for this model and machine yet: compiling one into {}", path.display()));
    let mut flags = vec!["--context".to_owned(), context_tokens.to_string()];
    if let Some(machine) = &request.simulated {
        flags.extend(["--device".to_owned(), machine.name()]);
    }
    if ceiling_mib > 0 {
        flags.extend(["--vram".to_owned(), format!("{ceiling_mib}M")]);
    }
    compile(model, &path, &flags)?;
    read(&path)
}

/// Ceiling for what is free on this machine's GPU; 0 without one.
fn free_ceiling_mib(here: &Here) -> u64 {
    let gpu = here.device.gpu.as_ref();
    gpu.and_then(|_| device::cuda::memory_free_bytes(0)).map_or(0, |bytes| find::unasked_ceiling_mib(bytes >> 20))
}

fn model_context(model: &Model) -> Result<u32, Error> {
    let architecture = model.str("general.architecture")?;
    Ok(model.u32(&format!("{architecture}.context_length"))?)
}

fn file_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Exact plans go through a folder of their own that nobody else can write to: they are cheap to make.
fn compile_exact(model: &Model, request: &PlanRequest) -> Result<Plan, Error> {
    let folder = tempfile::tempdir().map_err(|source| Error::Write { path: std::env::temp_dir(), source })?;
    let path = folder.path().join("exact.atsplan");
    let mut flags = vec!["--exact".to_owned()];
    if let Some(tokens) = request.context_tokens {
        flags.extend(["--context".to_owned(), tokens.to_string()]);
    }
    compile(model, &path, &flags)?;
    read(&path)
}

/// Runs the sibling `ats-plan compile`.
fn compile(model: &Model, out: &Path, flags: &[String]) -> Result<(), Error> {
    let here = std::env::current_exe().ok();
    let sibling = here.as_deref().and_then(Path::parent).map(|folder| folder.join("ats-plan"));
    let program = sibling.filter(|path| path.is_file()).unwrap_or_else(|| "ats-plan".into());
    let mut command = Command::new(&program);
    command.arg("compile").arg(first_shard(model)).arg("--out").arg(out).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // A thread of a running team is pinned to one core; the planner must see them all.
    let status = device::unpinned(|| command.status());
    match status.map_err(|source| Error::StartPlanner { program: program.clone(), source })? {
        status if status.success() => Ok(()),
        _ => Err(Error::Planner { program, arguments: flags.join(" ") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan_format::arena::RoundLimits;
    use plan_format::artifact::{KvType, Options};
    use plan_format::fingerprint::GpuFingerprint;

    fn here() -> Here {
        let gpu = ["RTX 3060", "PCIe 4.0 x16", "580.95"].map(str::to_owned);
        let [model, link, driver] = gpu;
        let gpu = Some(GpuFingerprint { model, memory_bytes: 6 << 30, link, driver });
        let model = ModelFingerprint { file_sizes_bytes: vec![1], headers_hash: [0; 32], samples_hash: [0; 32] };
        Here { model, device: DeviceFingerprint { cpu_model: "i7".into(), cpu_cores: 8, gpu } }
    }

    fn origin(change: impl FnOnce(&mut Here, &mut GpuFingerprint)) -> Origin {
        let mut planned = here();
        let mut gpu = planned.device.gpu.take().expect("a GPU");
        change(&mut planned, &mut gpu);
        planned.device.gpu = Some(gpu);
        let options = Options {
            vram_bytes: 0,
            ram_bytes: None,
            context_tokens: 64,
            limits: RoundLimits { ubatch_tokens: 8, output_tokens: 1 },
            prompt_tokens: 1,
            generate_tokens: 1,
            kv_type: KvType::F16,
        };
        Origin { tool_version: String::new(), options, model: planned.model, device: planned.device }
    }

    /// `words` of the refusal, or of the warning if the plan is taken.
    #[track_caller]
    fn check(origin: &Origin, other_device: OtherDevice, refused: bool, words: &str) {
        let got = differences(Path::new("x.atsplan"), origin, &here(), other_device);
        assert_eq!(got.is_err(), refused, "{got:?}");
        let text = got.map_or_else(|error| error.to_string(), |fields| format!("{fields:?}"));
        assert!(text.contains(words), "`{words}` is not in {text}");
    }

    #[test]
    fn another_driver_warns_and_other_machines_are_refused_unless_they_are_forced() {
        let same = origin(|_, _| ());
        check(&same, OtherDevice::Refuse, false, "[]");
        let driver = origin(|_, gpu| gpu.driver = "570.1".into());
        check(&driver, OtherDevice::Refuse, false, "GPU driver");
        for (other, field) in [
            (origin(|here, _| here.device.cpu_model = "i9".into()), "CPU model is `i7`, planned for `i9`"),
            (origin(|here, _| here.device.cpu_cores = 4), "CPU cores is `8`, planned for `4`"),
            (origin(|_, gpu| gpu.model = "RTX 4060".into()), "GPU model"),
            (origin(|_, gpu| gpu.memory_bytes = 8 << 30), "GPU memory"),
            (origin(|_, gpu| gpu.link = "PCIe 3.0 x16".into()), "GPU link"),
        ] {
            check(&other, OtherDevice::Refuse, true, field);
            check(&other, OtherDevice::Accept, false, field.split(" is").next().expect("a field"));
        }
        let stale = origin(|here, _| here.model.samples_hash = [1; 32]);
        check(&stale, OtherDevice::Accept, true, "stale");
    }
}
