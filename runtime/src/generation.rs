//! Generating text: prompt in, tokens out one by one, with the time that each phase took.
//! Not here: what a person sees (`cli`), the sampler's rules (`text::sampler`).

use crate::Error;
use crate::engine::{Engine, Sequence, Wanted};
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::{Sampler, StreamOptions, TextStream, TokenId};

/// How many tokens each phase processed, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// From the first prompt token to the first logits.
    pub prompt: Duration,
    /// Tokens decoded one at a time.
    pub decode_tokens: usize,
    /// All decode rounds.
    pub decode: Duration,
}

/// Whether generation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Next token.
    Continue,
    /// Enough.
    Stop,
}

/// Generates until the text ends. `on_token` gets each token with what it adds to the text.
/// Errors: an empty prompt, one that leaves no place in the context, logits that are not finite.
pub fn generate(
    engine: &mut Engine,
    sequence: &mut Sequence,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &StreamOptions,
    on_token: &mut dyn FnMut(TokenId, text::Step) -> Flow,
) -> Result<Timing, Error> {
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    let tokenizer = Arc::clone(engine.tokenizer());
    let all: Vec<TokenId> = sequence.tokens.iter().chain(prompt).map(|&id| TokenId(id)).collect();
    sampler.observe_prompt(&all);
    let mut stream = TextStream::new(&tokenizer, &all, options);
    let mut timing = Timing { prompt_tokens: prompt.len(), ..Timing::default() };
    let mut logits = Vec::with_capacity(engine.vocab());
    let start = Instant::now();
    engine.feed(sequence, prompt, Wanted::Last, &mut |_, row| logits.extend_from_slice(row))?;
    timing.prompt = start.elapsed();
    while stream.finished().is_none() {
        let token = sampler.sample(&logits)?.id;
        let step = stream.push(token);
        let ended = step.finish.is_some();
        if on_token(token, step) == Flow::Stop || ended {
            break;
        }
        let start = Instant::now();
        logits.clear();
        engine.feed(sequence, &[token.0], Wanted::Last, &mut |_, row| logits.extend_from_slice(row))?;
        timing.decode += start.elapsed();
        timing.decode_tokens += 1;
    }
    Ok(timing)
}

impl Timing {
    /// Prompt tokens per second.
    pub fn prompt_rate(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt)
    }

    /// Decoded tokens per second.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_tokens, self.decode)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
