//! What `simulate` and `report` are about: a plan's file, the same program planned anew under other flags, or a model
//! that is planned in memory. Next: `simulate.rs`, `report.rs`.

use super::compile::explain;
use super::machine;
use super::options::PlanArgs;
use crate::compile::{Deciding, PlanInputs, Planned, Reasons, plan_model};
use crate::profile::Profile;
use crate::regime::Grid;
use crate::simulate::with_link;
use anyhow::{Context, anyhow};
use gguf::Model;
use plan_format::artifact::{KvType, Options, Plan};
use plan_format::fingerprint::{DeviceFingerprint, ModelFingerprint, SIMULATED, of_model};
use plan_format::program::Program;
use shared_cli::Failure;
use shared_cli::input::{PLAN_BYTES_MOST, read_at_most};
use shared_cli::machine::this_machine;
use shared_cli::output::Progress;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The plan, and what led to it if it was made just now.
#[derive(Debug)]
pub struct Subject {
    /// File name, for headings.
    pub name: String,
    /// The plan.
    pub plan: Plan,
    /// `None` for a plan that was read from its file.
    pub reasons: Option<Reasons>,
}

/// What a fresh plan is made with beyond the flags of every plan.
#[derive(Clone, Debug)]
pub struct Anew {
    /// Rate of another link.
    pub link_gb_per_s: Option<f64>,
    /// Loads to be ready for.
    pub grid: Grid,
}

/// First bytes of a plan file.
const MAGIC: &[u8; 8] = b"ATSPLAN\0";

/// Opens a plan or a model. A plan is planned anew when a flag asks for something else than it was made for.
///
/// # Errors
/// Files that cannot be read, flags that contradict the model or the machine.
pub fn open(args: &PlanArgs, anew: &Anew, progress: &Progress) -> Result<Subject, Failure> {
    let name = file_name(&args.model);
    progress.step("reading");
    if !is_plan(&args.model)? {
        let model = Model::open(&args.model).map_err(Failure::failed)?;
        let fingerprint = of_model(&model).map_err(Failure::failed)?;
        progress.step("lowering the model");
        let program = crate::lower_model(&model).map_err(Failure::failed)?;
        let fresh = Fresh { program, model: fingerprint, device: args.device.clone(), base: None };
        let Planned { plan, reasons } = fresh.plan(args, anew, progress)?;
        return Ok(Subject { name, plan, reasons });
    }
    let plan = read_plan(&args.model)?;
    if !asks_for_more(args, &plan.origin.options) && anew.link_gb_per_s.is_none() {
        return Ok(Subject { name, plan, reasons: None });
    }
    let Planned { plan, reasons } = again(args, &plan, anew, progress)?;
    Ok(Subject { name, plan, reasons })
}

/// A plan's program planned anew with its own options, but for what flags ask for.
///
/// # Errors
/// No profile of the plan's machine is at hand, or the flags contradict it.
pub fn again(args: &PlanArgs, plan: &Plan, anew: &Anew, progress: &Progress) -> Result<Planned, Failure> {
    let device = match (&args.device, plan.origin.device.simulated_profile()) {
        (Some(device), _) => Some(device.clone()),
        (None, Some(simulated)) => Some(format!("{SIMULATED}{simulated}")),
        (None, None) if is_this_machine(&plan.origin.device)? => None,
        (None, None) => {
            let cpu = &plan.origin.device.cpu_model;
            let error = anyhow!("planning anew needs the device profile of the plan's machine ({cpu})");
            let hint = "give it with --device FILE; there, `ats-plan profile --out FILE` makes it";
            return Err(Failure::usage(error).hint(hint));
        }
    };
    let (program, model) = (plan.program.clone(), plan.origin.model.clone());
    Fresh { program, model, device, base: Some(plan.origin.options) }.plan(args, anew, progress)
}

fn is_this_machine(planned: &DeviceFingerprint) -> Result<bool, Failure> {
    let here = this_machine().map_err(Failure::failed)?.fingerprint;
    Ok((&planned.cpu_model, planned.cpu_cores) == (&here.cpu_model, here.cpu_cores))
}

/// Reads a plan's file.
///
/// # Errors
/// It is none, or damaged.
pub fn read_plan(path: &Path) -> Result<Plan, Failure> {
    let name = path.display();
    let file = read_at_most(path, PLAN_BYTES_MOST).with_context(|| format!("cannot read {name}"));
    let file = file.map_err(Failure::failed)?;
    let plan = plan_format::sections::from_bytes(&file).with_context(|| format!("{name}"));
    plan.map_err(|error| {
        let failure = Failure::failed(error).hint("make the plan again with `ats-plan compile MODEL`");
        let model = path.with_extension("gguf");
        if model.is_file() { failure.about(&model) } else { failure }
    })
}

fn is_plan(path: &Path) -> Result<bool, Failure> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display())).map_err(Failure::failed)?;
    let mut begin = Vec::new();
    // A folder opens but does not read: the model's reader says so better.
    let read = file.take(MAGIC.len() as u64).read_to_end(&mut begin);
    Ok(read.is_ok() && begin == MAGIC)
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Whether flags ask for something else than a plan was made for. A shorter context is simulated, not planned.
fn asks_for_more(args: &PlanArgs, planned: &Options) -> bool {
    let limits = planned.limits;
    args.vram.is_some()
        || args.ram.is_some()
        || args.device.is_some()
        || args.context.is_some_and(|tokens| tokens > planned.context_tokens)
        || args.ubatch.is_some_and(|tokens| tokens != limits.ubatch_tokens)
        || args.outputs.is_some_and(|tokens| tokens != limits.output_tokens)
        || args.prompt.is_some_and(|tokens| tokens != planned.prompt_tokens)
        || args.generate.is_some_and(|tokens| tokens != planned.generate_tokens)
        || (KvType::from(args.kv_type) == KvType::F32 && planned.kv_type == KvType::F16)
}

/// A program to plan.
struct Fresh {
    program: Program,
    model: ModelFingerprint,
    device: Option<String>,
    /// Options of an earlier plan, which hold where no flag says otherwise.
    base: Option<Options>,
}

impl Fresh {
    fn plan(self, args: &PlanArgs, anew: &Anew, progress: &Progress) -> Result<Planned, Failure> {
        let f32_before = self.base.is_some_and(|base| base.kv_type == KvType::F32);
        let kv_type = if f32_before { KvType::F32 } else { args.kv_type.into() };
        let machine = machine::planned_for(self.device.as_deref(), (&self.program, kv_type), progress)?;
        let profile = anew.link_gb_per_s.map_or(machine.profile.clone(), |rate| with_link(&machine.profile, rate));
        let profile = Profile { routing: args.routing(&self.program)?, ..profile };
        if anew.link_gb_per_s.is_some() && profile.gpu.is_none() {
            let error = anyhow!("a link was given, but the machine `{}` has no GPU to link to", profile.name);
            return Err(Failure::usage(error));
        }
        let args = self.base.map_or_else(|| args.clone(), |base| with_defaults_of(args, &base));
        let options = args.options(self.program.context_tokens, Some(&profile))?;
        let options = Options { kv_type, ..options };
        let ubatch_tokens = args.ubatches(options.context_tokens, &profile)?;
        progress.step("planning");
        let deciding = Deciding::Profile { profile: Box::new(profile), ubatch_tokens, grid: anew.grid.clone() };
        let (program, model, device) = (self.program, self.model, machine.fingerprint);
        let planned = plan_model(PlanInputs { program, model, device, options, deciding });
        planned.map_err(|error| explain(error, self.device.as_deref()))
    }
}

/// Flags that were not given, as the earlier plan had them. Its ubatch was the planner's choice and is chosen anew.
fn with_defaults_of(args: &PlanArgs, base: &Options) -> PlanArgs {
    let bytes = super::Amount::Bytes;
    // Another machine's ceiling is its own.
    let vram = if args.device.is_none() { Some(bytes(base.vram_bytes)) } else { None };
    PlanArgs {
        vram: args.vram.or(vram),
        ram: args.ram.or(base.ram_bytes.map(bytes)),
        context: Some(args.context.map_or(base.context_tokens, |tokens| tokens.max(base.context_tokens))),
        outputs: args.outputs.or_else(|| args.ubatch.is_none().then_some(base.limits.output_tokens)),
        prompt: Some(args.prompt.unwrap_or(base.prompt_tokens)),
        generate: Some(args.generate.unwrap_or(base.generate_tokens)),
        ..args.clone()
    }
}
