//! Arguments and words that several commands share, and reading token files. Not here: any command.

use super::Failure;
use crate::engine::{Engine, Overrides};
use crate::exec::Choices;
use crate::machine::SimulatedMachine;
use crate::plans::{Exactness, OtherDevice, PlanRequest};
use clap::Args;
use shared_cli::input::{TEXT_BYTES_MOST, read_at_most};
use shared_cli::output::{refuse_places, say, write_whole};
use std::path::{Path, PathBuf};
use text::{Delta, Finish};

/// The model and its plan.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// The model: a .gguf file, or any file of a split one.
    pub model: PathBuf,
    /// The plan [default: the one beside the model, else the user's cache, else one is compiled].
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Take a plan that was made for another machine.
    #[arg(long)]
    pub force_device: bool,
    /// Run on a simulated machine: sim:NAME of a device profile, such as sim:rtx3060-laptop. Results are real, its
    /// times are calculated.
    #[arg(long, value_name = "sim:NAME")]
    pub device: Option<String>,
    /// Always take schedule N of the plan, counted from 0, for rounds of its kind: the same bits in every run.
    #[arg(long, value_name = "N")]
    pub pin_schedule: Option<usize>,
}

impl ModelArgs {
    /// Opens the model for so many positions, if they are known.
    pub fn open(&self, context_tokens: Option<usize>, exactness: Exactness) -> Result<Engine, Failure> {
        self.open_with(context_tokens, exactness, Overrides::default())
    }

    /// The same with changes to the plan.
    pub fn open_with(
        &self,
        context_tokens: Option<usize>,
        exactness: Exactness,
        overrides: Overrides,
    ) -> Result<Engine, Failure> {
        let context_tokens = context_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
        let other_device = if self.force_device { OtherDevice::Accept } else { OtherDevice::Refuse };
        let simulated = self.device.as_deref().map(SimulatedMachine::named).transpose();
        let simulated = simulated.map_err(|error| Failure::usage(error.to_string()))?;
        let request = PlanRequest { plan: self.plan.clone(), context_tokens, exactness, other_device, simulated };
        let overrides = Overrides { pinned_schedule: self.pin_schedule, ..overrides };
        let engine = Engine::open(&self.model, &request, overrides);
        let engine = engine.map_err(|error| Failure::from(error).about(&self.model))?;
        engine.notes().iter().for_each(|note| say(format_args!("warning: {note}")));
        Ok(engine)
    }
}

/// A trace of the run's last round.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Write what ran when in the last round as a Chrome trace (ui.perfetto.dev opens it).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl TraceArgs {
    /// Before the run, which reads `inputs`: what its trace may not be written over is said now.
    pub fn begin(&self, engine: &mut Engine, inputs: &[&Path]) -> Result<(), Failure> {
        if let Some(trace) = &self.trace {
            refuse_places(&[trace], inputs)?;
            engine.time_gpu();
        }
        Ok(())
    }

    /// After it.
    pub fn end(&self, engine: &Engine) -> Result<(), Failure> {
        self.trace.as_deref().map_or(Ok(()), |path| write_whole(path, engine.trace().as_bytes()))
    }
}

/// Counts of the experts that the run has chosen.
#[derive(Debug, Args)]
pub struct RoutingArgs {
    /// Write how often each expert was chosen, layer by layer, for `ats-plan compile --routing FILE`. With a GPU that
    /// takes a launch more for each router there.
    #[arg(long, value_name = "FILE")]
    routing: Option<PathBuf>,
}

impl RoutingArgs {
    /// How the model is to be opened.
    pub fn overrides(&self) -> Overrides {
        let choices = if self.routing.is_some() { Choices::Recorded } else { Choices::Unseen };
        Overrides { choices, ..Overrides::default() }
    }

    /// Before the run, which reads `inputs`: what the counts may not be written over is said now, and so is a model
    /// without experts.
    pub fn begin(&self, engine: &Engine, inputs: &[&Path]) -> Result<(), Failure> {
        let Some(file) = &self.routing else { return Ok(()) };
        refuse_places(&[file], inputs)?;
        match engine.has_experts() {
            true => Ok(()),
            false => Err(Failure::usage("--routing: the model has no experts to choose from")),
        }
    }

    /// After it.
    pub fn end(&self, engine: &Engine) -> Result<(), Failure> {
        let Some(file) = &self.routing else { return Ok(()) };
        let counts = engine.routing();
        if counts.layers.is_empty() {
            return Err(Failure::failed(anyhow::anyhow!("--routing: no token was read, so nothing was chosen")));
        }
        write_whole(file, counts.to_json().as_bytes())
    }
}

/// The exact kernels, as a flag.
pub fn exactness(exact: bool) -> Exactness {
    if exact { Exactness::Exact } else { Exactness::Planned }
}

/// Why a text ended, in one word.
pub fn finish_word(finish: Finish) -> &'static str {
    match finish {
        Finish::EndToken(_) | Finish::StopString(_) => "stop",
        Finish::Length => "length",
        Finish::Context => "context",
        Finish::Cancelled => "interrupted",
    }
}

/// The text of a piece, whatever it belongs to.
pub fn delta_text(delta: &Delta) -> &str {
    match delta {
        Delta::Answer(text) | Delta::Reasoning(text) | Delta::ToolCall(text) | Delta::ToolArguments(text) => text,
    }
}

/// Reads a file.
pub fn read_text(path: &Path) -> Result<Vec<u8>, Failure> {
    read_at_most(path, TEXT_BYTES_MOST).map_err(|source| crate::Error::Read { path: path.into(), source }.into())
}

/// Reads ids that white space separates.
pub fn read_ids(path: &Path) -> Result<Vec<u32>, Failure> {
    let text = read_text(path)?;
    let text = String::from_utf8_lossy(&text);
    let id = |word: &str| {
        let shown = path.display();
        word.parse::<u32>().map_err(|_| Failure::usage(format!("{shown}: `{word}` is no token id (0 or more)")))
    };
    text.split_whitespace().map(id).collect()
}
