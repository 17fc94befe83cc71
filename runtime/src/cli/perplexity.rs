//! `ats-run perplexity`: how well a model predicts a text, by the scheme of llama.cpp's tool of that name: the whole
//! text is tokenised and cut in chunks; BOS stands in for a chunk's first token if the model adds it; of each chunk
//! only the second half is scored (token i + 1 from position i); perplexity is exp of the mean negative log-likelihood.

use super::Failure;
use super::common::{ModelArgs, RoutingArgs, exactness, read_text};
use crate::Error;
use crate::engine::{Engine, Sequence, Wanted};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;
use text::{AddSpecial, ParseSpecial};

/// What to measure.
#[derive(Debug, Args)]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text.
    #[arg(long, value_name = "TEXT")]
    file: PathBuf,
    /// Tokens of a chunk.
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    chunk: u32,
    /// Only the first so many chunks [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Oracle kernels, F32 activations, F32 caches.
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    routing: RoutingArgs,
}

/// Measures and prints the running value after each chunk.
pub fn run(args: &PerplexityArgs) -> Result<(), Failure> {
    let text = read_text(&args.file)?;
    let chunk = args.chunk as usize;
    let mut engine = args.model.open_with(Some(chunk), exactness(args.exact), args.routing.overrides())?;
    args.routing.begin(&engine, &[&args.file])?;
    let tokenizer = engine.tokenizer();
    let ids: Vec<u32> = tokenizer.encode(&text, AddSpecial::Yes, ParseSpecial::No).iter().map(|id| id.0).collect();
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos()).map(|id| id.0);
    let chunks: Vec<&[u32]> =
        ids.chunks_exact(chunk).take(args.chunks.map_or(usize::MAX, |chunks| chunks as usize)).collect();
    if chunks.is_empty() {
        return Err(Failure::usage(format!("the text has {} tokens, less than a chunk of {chunk}", ids.len())));
    }
    // The token to be predicted is looked up among the logits before it is fed.
    if let Some(&token) = ids.iter().find(|&&id| id as usize >= engine.vocab()) {
        return Err(Error::TokenOutOfRange { token, vocab: engine.vocab() }.into());
    }
    let mut total = Score::default();
    let mut out = std::io::stdout();
    for (index, ids) in chunks.iter().enumerate() {
        total.add(score_chunk(&mut engine, ids, bos)?);
        writeln!(out, "chunk {:>4} of {}  perplexity {:.4}", index + 1, chunks.len(), total.perplexity())?;
    }
    writeln!(out, "perplexity {:.4} over {} tokens", total.perplexity(), total.tokens)?;
    args.routing.end(&engine)
}

/// Sum of negative log-likelihoods.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    tokens: usize,
    negative_log_likelihood: f64,
}

impl Score {
    fn add(&mut self, other: Score) {
        self.tokens += other.tokens;
        self.negative_log_likelihood += other.negative_log_likelihood;
    }

    fn perplexity(&self) -> f64 {
        (self.negative_log_likelihood / self.tokens as f64).exp()
    }
}

fn score_chunk(engine: &mut Engine, ids: &[u32], bos: Option<u32>) -> Result<Score, Failure> {
    let first = ids.len() / 2;
    let mut input = ids.to_vec();
    if let Some(bos) = bos {
        input[0] = bos;
    }
    let mut score = Score::default();
    let mut add = |index: usize, row: &[f32]| {
        if index >= first && index + 1 < ids.len() {
            score.tokens += 1;
            score.negative_log_likelihood += negative_log_likelihood(row, ids[index + 1]);
        }
    };
    engine.feed(&mut Sequence::default(), &input, Wanted::LastTokens(ids.len() - first), &mut add)?;
    Ok(score)
}

/// −ln softmax(row)\[token\].
fn negative_log_likelihood(row: &[f32], token: u32) -> f64 {
    let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|logit| f64::from(logit - highest).exp()).sum();
    sum.ln() - f64::from(row[token as usize] - highest)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_likelihood_is_the_softmax() {
        let value = super::negative_log_likelihood(&[3.0, 2.0, 1.0, 0.0], 0);
        assert!((value - 0.440_190).abs() < 1e-6, "{value}");
    }
}
