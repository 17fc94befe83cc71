//! What `compile` and `explain` plan for: the flags that say so, their defaults, and which of them contradict.
//! Not here: which machine (`machine.rs`), what is done with the plan.

use super::{Amount, parse_amount};
use crate::profile::Profile;
use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use plan_format::arena::RoundLimits;
use plan_format::artifact::{KvType, Options};
use plan_format::program::Program;
use plan_format::routing::RoutingCounts;
use plan_format::text::bytes_text;
use shared_cli::Failure;
use shared_cli::input::{TABLE_BYTES_MOST, text_at_most};
use std::path::PathBuf;

/// Planned context where none is asked for, if the model allows it.
const DEFAULT_CONTEXT_TOKENS: u32 = 8192;
/// Tokens of a prefill round where nothing is searched.
const DEFAULT_UBATCH_TOKENS: u32 = 512;
/// Rounds that the planner chooses from. The first three are for ceilings that hold no larger round's activations, and
/// for the ends of prompts.
const UBATCH_TOKENS: [u32; 8] = [16, 64, 128, 256, 512, 1024, 2048, 4096];
/// Logits of a round: one for generation, a few for speculation.
const DEFAULT_OUTPUT_TOKENS: u32 = 8;
/// Workload where none is stated.
const DEFAULT_PROMPT_TOKENS: u32 = 512;
const DEFAULT_GENERATE_TOKENS: u32 = 256;
/// What is left free of GPU memory unless `--vram` says otherwise.
const VRAM_HEADROOM_BYTES: u64 = 256 << 20;

/// What to plan for.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// The model: a .gguf file, or any file of a split one.
    pub model: PathBuf,
    /// Ceiling of everything on the GPU: 6G, 6144M, 80% of what is free, 0 for none [default: what is free, less 256M].
    #[arg(long, value_name = "SIZE", value_parser = parse_amount)]
    pub vram: Option<Amount>,
    /// Ceiling of weights in CPU memory; what is above it is read from the file [default: what is available].
    #[arg(long, value_name = "SIZE", value_parser = parse_amount)]
    pub ram: Option<Amount>,
    /// Longest context in tokens [default: the model's, at most 8192].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Most tokens of a prefill round [default: what is predicted to be fastest].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub ubatch: Option<u32>,
    /// Most tokens of a round whose logits are wanted [default: 8, at most the round].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub outputs: Option<u32>,
    /// Prompt tokens of the workload to be fast at [default: 512].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt: Option<u32>,
    /// Generated tokens of that workload [default: 256].
    #[arg(long, value_name = "TOKENS")]
    pub generate: Option<u32>,
    /// Type of the caches of keys and values.
    #[arg(long, value_enum, default_value = "f16")]
    pub kv_type: KvTypeArg,
    /// Plan for another machine: a device profile's file, or sim:NAME for a simulated one.
    #[arg(long, value_name = "FILE")]
    pub device: Option<String>,
    /// How often the model's experts are chosen, as `ats-run generate --routing FILE` counted it: what rounds of
    /// several tokens read of each layer's experts follows from it [default: all are chosen alike].
    #[arg(long, value_name = "FILE")]
    pub routing: Option<PathBuf>,
}

/// [`KvType`] as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvTypeArg {
    /// 16-bit floats.
    F16,
    /// 32-bit floats.
    F32,
}

impl From<KvTypeArg> for KvType {
    fn from(typed: KvTypeArg) -> KvType {
        match typed {
            KvTypeArg::F16 => KvType::F16,
            KvTypeArg::F32 => KvType::F32,
        }
    }
}

impl PlanArgs {
    /// Options with defaults resolved, for a model made for `model_tokens` and a machine.
    ///
    /// # Errors
    /// Flags that contradict each other or the machine.
    pub fn options(&self, model_tokens: u32, profile: Option<&Profile>) -> Result<Options, Failure> {
        let context_tokens = self.context.unwrap_or(model_tokens.min(DEFAULT_CONTEXT_TOKENS));
        self.check(context_tokens)?;
        let ubatch_tokens = self.ubatch.unwrap_or(DEFAULT_UBATCH_TOKENS).min(context_tokens);
        let output_tokens = self.outputs.unwrap_or(DEFAULT_OUTPUT_TOKENS).min(ubatch_tokens);
        Ok(Options {
            vram_bytes: self.vram_bytes(profile)?,
            ram_bytes: self.ram_bytes(profile)?,
            context_tokens,
            limits: RoundLimits { ubatch_tokens, output_tokens },
            prompt_tokens: self.prompt.unwrap_or(DEFAULT_PROMPT_TOKENS.min(context_tokens)),
            generate_tokens: self.generate.unwrap_or(DEFAULT_GENERATE_TOKENS),
            kv_type: self.kv_type.into(),
        })
    }

    /// The counts of `--routing`.
    ///
    /// # Errors
    /// A file that holds none, or those of another model.
    pub fn routing(&self, program: &Program) -> Result<Option<RoutingCounts>, Failure> {
        let Some(path) = &self.routing else { return Ok(None) };
        let hint = "count this model's choices: ats-run generate MODEL --file TEXT --routing FILE";
        let wrong =
            |error: anyhow::Error| Failure::usage(error.context(format!("--routing {}", path.display()))).hint(hint);
        let text = text_at_most(path, TABLE_BYTES_MOST).context("cannot be read").map_err(wrong)?;
        let counts = RoutingCounts::from_json(&text).map_err(|error| wrong(error.into()))?;
        counts.check(program).map_err(|error| wrong(error.into()))?;
        Ok(Some(counts))
    }

    /// Ubatches to choose from: the one asked for, else the usual ones that the context holds, else all of it; none
    /// with more tokens than the machine was profiled for.
    ///
    /// # Errors
    /// A larger one is asked for.
    pub fn ubatches(&self, context_tokens: u32, profile: &Profile) -> Result<Vec<u32>, Failure> {
        let most = profile.most_tokens().unwrap_or(u32::MAX);
        if let Some(ubatch) = self.ubatch {
            let ubatch = ubatch.min(context_tokens);
            if ubatch > most {
                let name = &profile.name;
                let error =
                    anyhow!("--ubatch {ubatch}: the device profile `{name}` has times for {most} tokens at most");
                return Err(Failure::usage(error).hint(format!("give --ubatch at most {most}")));
            }
            return Ok(vec![ubatch]);
        }
        let most = most.min(context_tokens);
        let fitting: Vec<u32> = UBATCH_TOKENS.into_iter().filter(|&tokens| tokens <= most).collect();
        Ok(if fitting.is_empty() { vec![most] } else { fitting })
    }

    /// Flags that cannot both be meant.
    fn check(&self, context_tokens: u32) -> Result<(), Failure> {
        let pairs = [
            ("--prompt", self.prompt, "--context", Some(context_tokens)),
            ("--ubatch", self.ubatch, "--context", self.context),
            ("--outputs", self.outputs, "--ubatch", self.ubatch),
        ];
        for (flag, value, limit_flag, limit) in pairs {
            if let (Some(value), Some(limit)) = (value, limit)
                && value > limit
            {
                let error = anyhow!("{flag} {value} is more than {limit_flag} {limit}");
                return Err(Failure::usage(error).hint(format!("give {flag} at most {limit}, or {limit_flag} more")));
            }
        }
        Ok(())
    }

    /// The ceiling: as asked, by default what is free of the GPU less headroom.
    fn vram_bytes(&self, profile: Option<&Profile>) -> Result<u64, Failure> {
        let gpu = profile.and_then(|profile| profile.gpu.as_ref());
        let Some(gpu) = gpu else {
            return match self.vram {
                None => Ok(0),
                Some(Amount::Bytes(bytes)) => Ok(bytes),
                Some(Amount::PercentOfFree(percent)) => {
                    let error = anyhow!("--vram {percent}%: no GPU is known of which that is a share");
                    Err(Failure::usage(error).hint("leave out --vram, or give --vram 0"))
                }
            };
        };
        let (free_bytes, all_bytes) = (gpu.free_mib << 20, gpu.memory_mib << 20);
        match self.vram {
            Some(Amount::Bytes(bytes)) if bytes > all_bytes => {
                let (asked, all) = (bytes_text(bytes), bytes_text(all_bytes));
                let error = anyhow!("--vram {asked} is more than {} has: {all}", gpu.model);
                let hint = format!("give --vram at most {}M, of which {}M are free", gpu.memory_mib, gpu.free_mib);
                Err(Failure::usage(error).hint(hint))
            }
            Some(Amount::Bytes(bytes)) => Ok(bytes),
            Some(Amount::PercentOfFree(percent)) => Ok(free_bytes / 100 * u64::from(percent)),
            None => Ok(free_bytes.saturating_sub(VRAM_HEADROOM_BYTES)),
        }
    }

    fn ram_bytes(&self, profile: Option<&Profile>) -> Result<Option<u64>, Failure> {
        match (self.ram, profile) {
            (None, _) => Ok(None),
            (Some(Amount::Bytes(bytes)), _) => Ok(Some(bytes)),
            (Some(Amount::PercentOfFree(percent)), Some(profile)) => {
                Ok(Some((profile.memory.available_mib << 20) / 100 * u64::from(percent)))
            }
            (Some(Amount::PercentOfFree(percent)), None) => {
                let error = anyhow!("--ram {percent}%: how much is available is not known here");
                Err(Failure::usage(error).hint("give --ram a size, such as 24G"))
            }
        }
    }
}
