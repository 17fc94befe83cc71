//! From one row of logits to one token.
//!
//! The chain, in this order: logit bias; repetition, presence and frequency penalties; top-k; top-p; min-p;
//! temperature; draw. With temperature 0 everything from top-k on is left out and the highest logit wins, the lowest id
//! among equals. Top-p and min-p see the probabilities before temperature. Log-probabilities are those of the model's
//! own logits, before the whole chain.
//!
//! Deterministic: the same options, seed and rows give the same tokens, on any number of threads, since one row is
//! handled by one thread in one order. Rows past the vocabulary are padding and are never chosen.
//! Not here: when a generation ends ([`crate::stream`]). Next file: [`chain`].

mod chain;
mod rng;

use std::collections::{HashMap, VecDeque};

pub use chain::Candidate;
pub use rng::Rng;

use crate::tokenizer::TokenId;

/// What the caller wants of sampling. [`SamplerOptions::greedy`] is the plainest; all else is set field by field.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits; 0 means greedy.
    pub temperature: f32,
    /// How many of the most likely tokens are kept; 0 means all.
    pub top_k: usize,
    /// The most likely tokens are kept until their probabilities sum to this; 1 means all.
    pub top_p: f32,
    /// Tokens are kept whose probability is at least this share of the highest; 0 means all.
    pub min_p: f32,
    /// Logits of tokens in the window are divided by this where positive, multiplied where negative; 1 means no change.
    pub repeat_penalty: f32,
    /// How many of the last tokens, those of the prompt included, the repetition penalty sees.
    pub repeat_window_tokens: usize,
    /// Taken off the logits of tokens that were generated before.
    pub presence_penalty: f32,
    /// Taken off the logits of tokens once for each time that they were generated before.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens; minus infinity forbids one.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// What the random numbers follow from. Callers that want chance bring their own.
    pub seed: u64,
    /// Whether log-probabilities are wanted, and of how many of the most likely tokens besides the chosen one.
    pub logprobs: Option<usize>,
}

impl SamplerOptions {
    /// The most likely token, always.
    pub fn greedy() -> SamplerOptions {
        SamplerOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_window_tokens: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// Why no token could be chosen, or no sampler made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// An option is outside its range.
    #[error("`{option}` is {value}; it must be {accepted}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        accepted: &'static str,
    },
    /// A logit is infinite or not a number: the model's arithmetic has failed, so no token can be trusted.
    #[error("logit {index} of the row is {value}: the model's arithmetic has failed, and no token is chosen from it")]
    NotFinite {
        /// Position in the row.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// The row is shorter than the vocabulary.
    #[error("a row of {logits} logits cannot belong to a vocabulary of {vocab_tokens} tokens")]
    ShortRow {
        /// Length of the row.
        logits: usize,
        /// Tokens of the vocabulary.
        vocab_tokens: usize,
    },
    /// The logit bias forbids every token.
    #[error("the logit bias forbids every token; take some of its entries back")]
    NothingLeft,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: TokenId,
    /// Log-probabilities, if they were asked for.
    pub logprobs: Option<Logprobs>,
}

/// Natural logarithms of the probabilities that the model itself gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// Of the most likely tokens, best first, as many as were asked for (or the vocabulary has).
    pub top: Vec<(TokenId, f32)>,
}

/// Chooses tokens for one sequence and remembers what the penalties need.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    vocab_tokens: usize,
    rng: Rng,
    window: VecDeque<TokenId>,
    generated: HashMap<TokenId, u32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab_tokens`.
    ///
    /// # Errors
    /// An option is out of its range.
    pub fn new(options: SamplerOptions, vocab_tokens: usize) -> Result<Sampler, SampleError> {
        check(&options, vocab_tokens)?;
        let rng = Rng::new(options.seed);
        let (window, generated, candidates) = (VecDeque::new(), HashMap::new(), Vec::new());
        Ok(Sampler { options, vocab_tokens, rng, window, generated, candidates })
    }

    /// Tells the repetition penalty what stands before the text that is generated.
    pub fn observe_prompt(&mut self, ids: &[TokenId]) {
        for &id in ids {
            self.remember(id);
        }
    }

    /// Chooses the next token from the logits that the model gave for it, and remembers it.
    ///
    /// # Errors
    /// The row is too short or not finite, or nothing may be chosen.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Sampled, SampleError> {
        if let Some(index) = logits.iter().position(|logit| !logit.is_finite()) {
            return Err(SampleError::NotFinite { index, value: logits[index] });
        }
        let row = logits
            .get(..self.vocab_tokens)
            .ok_or(SampleError::ShortRow { logits: logits.len(), vocab_tokens: self.vocab_tokens })?;
        let mut candidates = std::mem::take(&mut self.candidates);
        chain::fill(&mut candidates, row);
        self.adjust(&mut candidates);
        let chosen = self.choose(&mut candidates);
        self.candidates = candidates;
        let id = chosen?;
        self.remember(id);
        *self.generated.entry(id).or_default() += 1;
        Ok(Sampled { id, logprobs: self.options.logprobs.map(|count| chain::logprobs(row, id, count)) })
    }

    /// Logit bias and penalties. Here candidate number i is still token i.
    fn adjust(&self, candidates: &mut [Candidate]) {
        let options = &self.options;
        for &(id, bias) in &options.logit_bias {
            candidates[id.index()].logit += bias;
        }
        if options.repeat_penalty != 1.0 {
            let mut seen: Vec<TokenId> = self.window.iter().copied().collect();
            seen.sort_unstable();
            seen.dedup();
            for id in seen {
                let logit = &mut candidates[id.index()].logit;
                let penalty = options.repeat_penalty;
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        if options.presence_penalty != 0.0 || options.frequency_penalty != 0.0 {
            for (&id, &count) in &self.generated {
                let penalty = options.presence_penalty + options.frequency_penalty * count as f32;
                candidates[id.index()].logit -= penalty;
            }
        }
    }

    fn choose(&mut self, candidates: &mut Vec<Candidate>) -> Result<TokenId, SampleError> {
        let options = &self.options;
        if options.temperature == 0.0 {
            return chain::greedy(candidates).ok_or(SampleError::NothingLeft);
        }
        candidates.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
        chain::top_k(candidates, options.top_k);
        chain::top_p(candidates, options.top_p);
        chain::min_p(candidates, options.min_p);
        chain::draw(candidates, options.temperature, self.rng.next_unit()).ok_or(SampleError::NothingLeft)
    }

    fn remember(&mut self, id: TokenId) {
        if id.index() >= self.vocab_tokens || self.options.repeat_window_tokens == 0 {
            return;
        }
        if self.window.len() == self.options.repeat_window_tokens {
            self.window.pop_front();
        }
        self.window.push_back(id);
    }
}

fn check(options: &SamplerOptions, vocab_tokens: usize) -> Result<(), SampleError> {
    let bad = |option, value: f32, accepted| Err(SampleError::BadOption { option, value: value.to_string(), accepted });
    let unit = 0.0..=1.0;
    if !(0.0..f32::INFINITY).contains(&options.temperature) {
        return bad("temperature", options.temperature, "0 (greedy) or a positive number");
    }
    if !unit.contains(&options.top_p) || options.top_p == 0.0 {
        return bad("top_p", options.top_p, "above 0 and at most 1 (all)");
    }
    if !unit.contains(&options.min_p) {
        return bad("min_p", options.min_p, "from 0 (all) to 1");
    }
    if !options.repeat_penalty.is_finite() || options.repeat_penalty <= 0.0 {
        return bad("repeat_penalty", options.repeat_penalty, "a positive number, 1 for no change");
    }
    for (option, value) in
        [("presence_penalty", options.presence_penalty), ("frequency_penalty", options.frequency_penalty)]
    {
        if !value.is_finite() {
            return bad(option, value, "a finite number, 0 for no change");
        }
    }
    for &(id, bias) in &options.logit_bias {
        if id.index() >= vocab_tokens {
            let value = format!("for token {id}");
            let accepted = "for tokens of the vocabulary only";
            return Err(SampleError::BadOption { option: "logit_bias", value, accepted });
        }
        if bias.is_nan() || bias == f32::INFINITY {
            return bad("logit_bias", bias, "a number, or minus infinity to forbid the token");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
