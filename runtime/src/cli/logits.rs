//! `ats-run logits`: the logits of given tokens as a NumPy file, for scripts that compare implementations.

use super::common::{ModelArgs, exactness, read_ids};
use super::{Failure, npy};
use crate::Error;
use crate::engine::{Sequence, Wanted};
use clap::Args;
use shared_cli::output::{NewFile, cannot_write, refuse_inputs};
use std::io::{BufWriter, IntoInnerError, Write};
use std::path::PathBuf;

/// Which logits.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids that white space separates.
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Where to write float32 [positions, vocabulary].
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Only the last so many positions [default: all].
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    /// One token a round instead of as many as the plan allows.
    #[arg(long)]
    one_by_one: bool,
    /// Oracle kernels, F32 activations, F32 caches.
    #[arg(long)]
    exact: bool,
}

/// Computes and writes them.
pub fn run(args: &LogitsArgs) -> Result<(), Failure> {
    let ids = read_ids(&args.tokens)?;
    if ids.is_empty() {
        return Err(Error::EmptyPrompt.into());
    }
    refuse_inputs(&args.out, [args.model.model.as_path(), &args.tokens])?;
    let mut engine = args.model.open(Some(ids.len()), exactness(args.exact))?;
    let wanted = args.last.unwrap_or(ids.len()).min(ids.len());
    let mut out = BufWriter::new(NewFile::create(&args.out)?);
    npy::write_header(&mut out, wanted, engine.vocab()).map_err(|error| cannot_write(&args.out, error))?;
    let mut sequence = Sequence::default();
    let mut written = Ok(());
    let mut write_row = |index: usize, row: &[f32]| {
        if index >= ids.len() - wanted && written.is_ok() {
            written = out.write_all(bytemuck::cast_slice(row));
        }
    };
    if args.one_by_one {
        for (index, id) in ids.iter().enumerate() {
            engine.feed(&mut sequence, &[*id], Wanted::Last, &mut |_, row| write_row(index, row))?;
        }
    } else {
        engine.feed(&mut sequence, &ids, Wanted::LastTokens(wanted), &mut write_row)?;
    }
    let whole = written.and_then(|()| out.into_inner().map_err(IntoInnerError::into_error));
    whole.map_err(|error| cannot_write(&args.out, error))?.keep()
}
