//! Flags that say how tokens are chosen, shared by `generate` and `chat`. Not here: the sampler (`text::sampler`).

use super::Failure;
use clap::Args;
use text::{Sampler, SamplerOptions, TokenId};

/// The sampler, in the order in which its parts work.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct Sampling {
    /// Always the most likely token.
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "seed"])]
    greedy: bool,
    /// Add BIAS to a token's logit; -inf forbids the token; may be given several times.
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    logit_bias: Vec<(TokenId, f32)>,
    /// Penalty of tokens that stand in the last 64; 1 = none.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    repeat_penalty: f32,
    /// Penalty of tokens that were generated before.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Penalty for each time that a token was generated before.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Keep the K most likely tokens; 0 = all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,
    /// Keep the most likely tokens until their probabilities sum to P.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    top_p: f32,
    /// Keep tokens with at least P times the probability of the best.
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true)]
    min_p: f32,
    /// How adventurous; 0 = greedy.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f32,
    /// Makes a run repeatable, on any number of threads [default: from the clock].
    #[arg(long)]
    seed: Option<u64>,
}

/// Tokens that the repetition penalty sees.
const REPEAT_WINDOW_TOKENS: usize = 64;

/// The options of a run, its seed decided.
#[derive(Clone, Debug)]
pub struct Chosen(SamplerOptions);

impl Sampling {
    /// Decides the seed and checks what can be checked without a model.
    pub fn choose(&self, logprobs: Option<usize>) -> Result<Chosen, Failure> {
        let clock = || std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
        let options = SamplerOptions {
            temperature: if self.greedy { 0.0 } else { self.temperature },
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_window_tokens: REPEAT_WINDOW_TOKENS,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(clock),
            logprobs,
        };
        let chosen = Chosen(options);
        chosen.sampler(0, usize::MAX).map(|_| chosen)
    }
}

impl Chosen {
    /// The sampler of a session's text number `turn`, from 0: each has random numbers of its own.
    pub fn sampler(&self, turn: u64, vocab_tokens: usize) -> Result<Sampler, Failure> {
        let options = SamplerOptions { seed: self.0.seed.wrapping_add(turn), ..self.0.clone() };
        Sampler::new(options, vocab_tokens).map_err(|error| Failure::usage(error.to_string()))
    }
}

fn parse_bias(text: &str) -> Result<(TokenId, f32), String> {
    let form = || format!("`{text}` is not of the form ID=BIAS, such as 42=-1.5 or 42=-inf");
    let (id, bias) = text.split_once('=').ok_or_else(form)?;
    Ok((TokenId(id.trim().parse().map_err(|_| form())?), bias.trim().parse().map_err(|_| form())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_read() {
        assert_eq!(parse_bias("42=-1.5"), Ok((TokenId(42), -1.5)));
        assert_eq!(parse_bias("0=-inf"), Ok((TokenId(0), f32::NEG_INFINITY)));
        for bad in ["42", "x=1", "-1=1", "42=", "=1", "42=much"] {
            assert!(parse_bias(bad).is_err(), "{bad}");
        }
    }
}
