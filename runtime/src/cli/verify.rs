//! `ats-run verify`: the planned run's logits and choices of experts beside those of the exact kernels on the CPU, on
//! fixed tokens. Not here: what may differ (`crate::verify`).

use super::Failure;
use super::common::{ModelArgs, exactness, read_ids};
use crate::Error;
use crate::engine::Overrides;
use crate::exec::Choices;
use crate::verify::{Comparison, exact_run, run_of};
use clap::Args;
use plan_format::artifact::Plan;
use plan_format::fingerprint::{full_hash, hex};
use plan_format::text::bytes_text;
use shared_cli::output::Progress;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What to compare.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids that white space separates [default: 32 fixed ones].
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Largest relative L2 error that passes. Experts may differ from the exact routers' where their scores lie at most
    /// twice that share of the scores' root mean square apart.
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    tolerance: f64,
    /// Read all of the model too, and compare it with what `ats-plan compile --full-hash` read: every start looks at
    /// samples only, which miss a tensor that was changed or damaged in part.
    #[arg(long)]
    full_hash: bool,
}

/// Tokens that are compared if none are given.
const DEFAULT_TOKENS: u32 = 32;

/// Compares; an error above the tolerance is a failure.
pub fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let given = args.tokens.as_deref().map(read_ids).transpose()?;
    let count = given.as_ref().map_or(DEFAULT_TOKENS as usize, Vec::len);
    let recorded = Overrides { choices: Choices::Recorded, ..Overrides::default() };
    let mut planned = args.model.open_with(Some(count), exactness(false), recorded)?;
    if args.full_hash {
        check_bytes(&args.model.model, planned.plan())?;
    }
    let ids = given.unwrap_or_else(|| fixed_ids(planned.vocab()));
    let vocab = planned.vocab();
    let run = run_of(&mut planned, &ids)?;
    drop(planned);
    let exact = exact_run(&mut args.model.open(Some(count), exactness(true))?, &ids, &run)?;
    let compared = Comparison::new(&run, exact, (vocab, args.tolerance));
    writeln!(std::io::stdout(), "{compared}")?;
    match compared.fault() {
        Some(fault) => Err(Failure::failed(anyhow::anyhow!(fault))
            .hint("please report it with the model's name and `ats-plan inspect`")),
        None => Ok(()),
    }
}

/// Compares every byte of the model with the plan.
fn check_bytes(path: &Path, plan: &Plan) -> Result<(), Failure> {
    let Some(expected) = plan.full_hash else {
        let text = "the plan does not hold the hash of the whole model, so there is nothing to compare with";
        return Err(Failure::failed(anyhow::anyhow!(text))
            .hint(format!("make one that does: ats-plan compile {} --full-hash", path.display())));
    };
    let model = gguf::Model::open(path).map_err(Error::from)?;
    let progress = Progress::start();
    let found = full_hash(&model, |done, total| {
        progress.step(format!("reading {} of {}", bytes_text(done), bytes_text(total)))
    });
    drop(progress);
    if found != expected {
        let text = format!("{} has changed since the plan was made: BLAKE3 {}", path.display(), hex(&found));
        return Err(Failure::failed(anyhow::anyhow!("{text}, was {}", hex(&expected)))
            .hint("the file is damaged or was edited: fetch it again, or make the plan again"));
    }
    writeln!(std::io::stdout(), "every byte is as it was when the plan was made, BLAKE3 {}", hex(&found))?;
    Ok(())
}

fn fixed_ids(vocab: usize) -> Vec<u32> {
    (0..DEFAULT_TOKENS).map(|i| i.wrapping_mul(2_654_435_761) % vocab as u32).collect()
}
