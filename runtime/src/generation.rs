//! Generating text: prompt in, tokens out one by one, with the time that each phase took. What a sequence already holds
//! of a prompt is not computed again; since a token's result has the same bits however it is fed, that changes nothing
//! but the time. Not here: what a person sees (`cli`), the sampler's rules (`text::sampler`). Next: `engine.rs`.

use crate::Error;
use crate::engine::{Engine, Sequence, Wanted};
use crate::quantiles::Quantiles;
use device::clock::{Clock, Nanos};
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::{Finish, Sampled, Sampler, Step, StreamOptions, TextStream, TokenId};

/// What to generate from.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// All tokens before the answer, those that the sequence already holds included.
    pub prompt: &'a [u32],
    /// Length of the part that a later prompt is expected to begin with as well; the sequence can come back to it.
    pub border: Option<usize>,
    /// What is taken over from the sequence.
    pub reuse: Reuse,
    /// How the answer is taken apart, and when it ends.
    pub options: &'a StreamOptions,
}

/// What is taken over from a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// The tokens with which the prompt begins too, as far as its states allow going back.
    Prefix,
    /// Nothing: everything is computed again.
    Nothing,
}

/// Whether generation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    Continue,
    /// Enough.
    Stop,
}

/// Follows a generation, and may stop it between rounds.
pub trait Listener {
    /// Called before each round of prefill: of `total` prompt tokens the sequence holds `done`.
    fn prefill(&mut self, done: usize, total: usize) -> Flow;
    /// A token with what it adds to the text. The last one's step says how the text ended.
    fn token(&mut self, token: &Sampled, step: &Step) -> Flow;
    /// The text that was held back when the listener stopped the generation.
    fn stopped(&mut self, rest: &Step);
}

/// How many tokens each phase processed, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// Prompt tokens that the sequence held already.
    pub reused_tokens: usize,
    /// Prompt tokens that were computed.
    pub prompt_tokens: usize,
    /// From the first of them to the first logits.
    pub prompt: Duration,
    /// Tokens decoded one at a time.
    pub decode_tokens: usize,
    /// All decode rounds.
    pub decode: Duration,
    /// What the simulated machine would have taken, if it ran on one.
    pub simulated: Option<SimulatedTiming>,
}

/// Times of a simulated machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SimulatedTiming {
    /// From the first prompt token to the first logits.
    pub prompt: Duration,
    /// All decode rounds.
    pub decode: Duration,
}

/// How a generation went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens that were chosen, an end token included.
    pub generated_tokens: usize,
    /// Where the time went.
    pub timing: Timing,
    /// Times of the tokens that were decoded one at a time; on a simulated machine by its clock.
    pub token_times: Quantiles,
}

/// Generates until the text ends or the listener stops it. The sequence then holds the prompt and all generated tokens
/// but the last.
/// Errors: an empty prompt, one longer than the context, logits that are not finite or all forbidden.
pub fn generate(
    engine: &mut Engine,
    sequence: &mut Sequence,
    request: &Request,
    sampler: &mut Sampler,
    listener: &mut dyn Listener,
) -> Result<Outcome, Error> {
    check(engine, request.prompt)?;
    let mut timing = Timing { reused_tokens: take_over(engine, sequence, request), ..Timing::default() };
    let tokenizer = Arc::clone(engine.tokenizer());
    let prompt: Vec<TokenId> = request.prompt.iter().map(|&id| TokenId(id)).collect();
    sampler.observe_prompt(&prompt);
    let mut stream = TextStream::new(&tokenizer, &prompt, request.options);
    let mut logits = Vec::with_capacity(engine.vocab());
    let (watch, mut times_us) = (Watch::start(engine), Vec::new());
    let mut flow = prefill(engine, sequence, request, &mut logits, listener)?;
    timing.add_prompt(&watch);
    timing.prompt_tokens = sequence.tokens.len() - timing.reused_tokens;
    while stream.finished().is_none() && flow == Flow::Continue {
        let token = sampler.sample(&logits)?;
        let step = stream.push(token.id);
        flow = listener.token(&token, &step);
        if step.finish.is_none() && flow == Flow::Continue {
            let watch = Watch::start(engine);
            feed(engine, sequence, &[token.id.0], &mut logits)?;
            timing.add_decode(&watch);
            times_us.push(watch.micros());
            timing.decode_tokens += 1;
        }
    }
    if stream.finished().is_none() {
        listener.stopped(&stream.cancel());
    }
    let finish = stream.finished().unwrap_or(Finish::Cancelled);
    let token_times = Quantiles::of(times_us);
    Ok(Outcome { finish, generated_tokens: stream.generated_tokens(), timing, token_times })
}

fn check(engine: &Engine, prompt: &[u32]) -> Result<(), Error> {
    let (needed, planned) = (prompt.len(), engine.context_tokens());
    match prompt.iter().find(|&&token| token as usize >= engine.vocab()) {
        _ if prompt.is_empty() => Err(Error::EmptyPrompt),
        _ if needed > planned => Err(Error::ContextFull { needed, planned }),
        Some(&token) => Err(Error::TokenOutOfRange { token, vocab: engine.vocab() }),
        None => Ok(()),
    }
}

/// Takes the sequence back to what it has in common with the prompt; how much that is. One token at least is left to
/// compute: its logits are needed.
fn take_over(engine: &mut Engine, sequence: &mut Sequence, request: &Request) -> usize {
    let common = match request.reuse {
        Reuse::Prefix => common_prefix(&sequence.tokens, &request.prompt[..request.prompt.len() - 1]),
        Reuse::Nothing => 0,
    };
    engine.rewind(sequence, common)
}

/// Number of tokens with which both begin.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Feeds what the sequence lacks of the prompt, round by round, and marks the border. Leaves the last token's logits.
fn prefill(
    engine: &mut Engine,
    sequence: &mut Sequence,
    request: &Request,
    logits: &mut Vec<f32>,
    listener: &mut dyn Listener,
) -> Result<Flow, Error> {
    let total = request.prompt.len();
    loop {
        let done = sequence.tokens.len();
        if request.border == Some(done) {
            engine.mark(sequence);
        }
        if done == total {
            return Ok(Flow::Continue);
        }
        if listener.prefill(done, total) == Flow::Stop {
            return Ok(Flow::Stop);
        }
        let border = request.border.filter(|&border| border > done).unwrap_or(total);
        let tokens = &request.prompt[done..border.min(total).min(done + engine.round_tokens())];
        if done + tokens.len() == total {
            feed(engine, sequence, tokens, logits)?;
        } else {
            engine.feed(sequence, tokens, Wanted::Nothing, &mut |_, _| ())?;
        }
    }
}

/// Feeds tokens and puts the last one's logits in place of what `logits` held.
fn feed(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32], logits: &mut Vec<f32>) -> Result<(), Error> {
    logits.clear();
    engine.feed(sequence, tokens, Wanted::Last, &mut |_, row| logits.extend_from_slice(row))
}

/// A phase being timed, here and on the simulated machine.
struct Watch {
    start: Instant,
    simulated: Option<(Clock, Nanos)>,
}

impl Watch {
    fn start(engine: &Engine) -> Self {
        let simulated = engine.simulated_clock();
        Watch { start: Instant::now(), simulated: simulated.map(|clock| (clock.clone(), clock.now())) }
    }

    /// Microseconds so far, of the simulated machine if there is one.
    fn micros(&self) -> f64 {
        self.simulated().unwrap_or_else(|| self.start.elapsed()).as_secs_f64() * 1e6
    }

    fn simulated(&self) -> Option<Duration> {
        let (clock, start) = self.simulated.as_ref()?;
        Some(Duration::from_nanos(clock.now().since(*start).0))
    }
}

impl Timing {
    fn add_prompt(&mut self, watch: &Watch) {
        self.prompt += watch.start.elapsed();
        if let Some(span) = watch.simulated() {
            self.simulated.get_or_insert_default().prompt += span;
        }
    }

    fn add_decode(&mut self, watch: &Watch) {
        self.decode += watch.start.elapsed();
        if let Some(span) = watch.simulated() {
            self.simulated.get_or_insert_default().decode += span;
        }
    }

    /// Prompt tokens and decoded tokens per second of the simulated machine.
    pub fn simulated_rates(&self) -> Option<(f64, f64)> {
        let simulated = self.simulated?;
        Some((rate(self.prompt_tokens, simulated.prompt), rate(self.decode_tokens, simulated.decode)))
    }

    /// Prompt tokens computed per second.
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
