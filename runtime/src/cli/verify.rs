//! `ats-run verify`: the planned run's logits beside those of the exact kernels on the CPU, on fixed tokens.

use super::Failure;
use super::common::{ModelArgs, exactness, read_ids};
use crate::Error;
use crate::engine::{Engine, Sequence, Wanted};
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
    /// Largest relative L2 error that passes.
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
    let mut planned = args.model.open(Some(count), exactness(false))?;
    if args.full_hash {
        check_bytes(&args.model.model, planned.plan())?;
    }
    let ids = given.unwrap_or_else(|| fixed_ids(planned.vocab()));
    let planned_logits = logits(&mut planned, &ids)?;
    let vocab = planned.vocab();
    drop(planned);
    let exact_logits = logits(&mut args.model.open(Some(count), exactness(true))?, &ids)?;
    let error = relative_l2(&exact_logits, &planned_logits);
    let agree = same_best(&exact_logits, &planned_logits, vocab);
    writeln!(
        std::io::stdout(),
        "{} positions: relative L2 error {error:.5}, best token the same at {agree} of them",
        ids.len()
    )?;
    if error > args.tolerance || !error.is_finite() {
        let text = format!("the planned run is off by {error:.5}, more than {}", args.tolerance);
        return Err(Failure::failed(anyhow::anyhow!(text))
            .hint("please report it with the model's name and `ats-plan inspect`"));
    }
    Ok(())
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

fn logits(engine: &mut Engine, ids: &[u32]) -> Result<Vec<f32>, Failure> {
    let mut all = Vec::new();
    let wanted = Wanted::LastTokens(ids.len());
    engine.feed(&mut Sequence::default(), ids, wanted, &mut |_, row| all.extend_from_slice(row))?;
    Ok(all)
}

fn relative_l2(reference: &[f32], got: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = reference.iter().zip(got).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = reference.iter().map(|a| square(*a)).sum();
    (difference / norm).sqrt()
}

fn same_best(a: &[f32], b: &[f32], vocab: usize) -> usize {
    let best = |row: &[f32]| row.iter().enumerate().max_by(|x, y| x.1.total_cmp(y.1)).map(|(index, _)| index);
    a.chunks(vocab).zip(b.chunks(vocab)).filter(|(a, b)| best(a) == best(b)).count()
}
