//! `ats-run generate`: continues a prompt from an argument, a file or a pipe, as text, ids or JSON events.

use super::Failure;
use super::common::{ModelArgs, exactness, read_ids, read_text};
use crate::engine::{Engine, Sequence};
use crate::generation::{Flow, Timing, generate};
use clap::Args;
use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use text::{ChannelFormat, Delta, EndTokens, Finish, ParseSpecial, Sampler, SamplerOptions, StreamOptions, TokenId};

/// What to generate, and how.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    input: Input,
    /// Most tokens to generate [default: until the text ends or the context is full].
    #[arg(long, short = 'n', value_name = "N")]
    max_tokens: Option<usize>,
    #[command(flatten)]
    sampling: Sampling,
    /// Text that ends the answer; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on after tokens that end a text.
    #[arg(long)]
    ignore_eos: bool,
    /// Print {"ids":[…]} instead of text.
    #[arg(long, conflicts_with = "json")]
    ids: bool,
    /// Print one JSON event a line.
    #[arg(long)]
    json: bool,
    /// Print the speed to standard error at the end.
    #[arg(long)]
    stats: bool,
    /// Oracle kernels, F32 activations, F32 caches.
    #[arg(long)]
    exact: bool,
}

/// Where the prompt comes from; standard input if nothing is given.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct Input {
    /// The prompt.
    #[arg(long, short, value_name = "TEXT")]
    prompt: Option<String>,
    /// A file with the prompt.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A file with token ids that white space separates, used as they are.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
}

/// The sampler, in the order in which its parts work.
#[derive(Debug, Args)]
struct Sampling {
    /// Always the most likely token.
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "seed"])]
    greedy: bool,
    /// Penalty of tokens that stand in the last 64; 1 = none.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
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
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,
    /// Keep tokens with at least P times the probability of the best.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    min_p: f32,
    /// How adventurous; 0 = greedy.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f32,
    /// Makes a run repeatable [default: from the clock].
    #[arg(long)]
    seed: Option<u64>,
}

/// Tokens that the repetition penalty sees.
const REPEAT_WINDOW_TOKENS: usize = 64;

impl Sampling {
    fn options(&self) -> SamplerOptions {
        if self.greedy {
            return SamplerOptions::greedy();
        }
        let clock = || std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
        SamplerOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_window_tokens: REPEAT_WINDOW_TOKENS,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: Vec::new(),
            seed: self.seed.unwrap_or_else(clock),
            logprobs: None,
        }
    }
}

/// Generates.
pub fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let input = args.input.read()?;
    let mut engine = args.model.open(None, exactness(args.exact))?;
    let prompt: Vec<u32> = match input {
        Prompt::Ids(ids) => ids,
        Prompt::Text(text) => {
            engine.tokenizer().encode_prompt(&text, ParseSpecial::Yes).iter().map(|id| id.0).collect()
        }
    };
    let vocab_tokens = engine.tokenizer().vocab_tokens();
    let mut sampler =
        Sampler::new(args.sampling.options(), vocab_tokens).map_err(|error| Failure::usage(error.to_string()))?;
    let options = StreamOptions {
        stops: args.stop.clone(),
        max_tokens: args.max_tokens,
        context_tokens: engine.context_tokens(),
        end_tokens: if args.ignore_eos { EndTokens::Ignore } else { EndTokens::Stop },
        channels: ChannelFormat::Plain,
    };
    let mut printer = Printer::new(args);
    let timing = stream(&mut engine, &prompt, &mut sampler, &options, &mut printer)?;
    printer.end(&timing)?;
    if args.stats {
        eprintln!(
            "prefill {} tokens, {:.1} tokens/s; decode {} tokens, {:.1} tokens/s",
            timing.prompt_tokens,
            timing.prompt_rate(),
            timing.decode_tokens,
            timing.decode_rate()
        );
    }
    Ok(())
}

fn stream(
    engine: &mut Engine,
    prompt: &[u32],
    sampler: &mut Sampler,
    options: &StreamOptions,
    printer: &mut Printer,
) -> Result<Timing, Failure> {
    let mut failure = None;
    let mut on_token = |token: TokenId, step: text::Step| match printer.token(token, step) {
        Ok(()) => Flow::Continue,
        Err(error) => {
            failure = Some(error);
            Flow::Stop
        }
    };
    let timing = generate(engine, &mut Sequence::default(), prompt, sampler, options, &mut on_token)?;
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(timing),
    }
}

enum Prompt {
    Ids(Vec<u32>),
    Text(Vec<u8>),
}

impl Input {
    fn read(&self) -> Result<Prompt, Failure> {
        if let Some(path) = &self.tokens {
            return read_ids(path).map(Prompt::Ids);
        }
        if let Some(text) = &self.prompt {
            return Ok(Prompt::Text(text.clone().into_bytes()));
        }
        if let Some(path) = &self.file {
            return read_text(path).map(Prompt::Text);
        }
        let mut stdin = std::io::stdin();
        if stdin.is_terminal() {
            return Err(Failure::usage("there is no prompt").hint("give --prompt TEXT, --file FILE, or pipe a text in"));
        }
        let mut text = Vec::new();
        stdin.read_to_end(&mut text)?;
        Ok(Prompt::Text(text))
    }
}

/// Writes what is generated in the form that was asked for.
struct Printer {
    form: Form,
    ids: Vec<u32>,
    finish: Option<Finish>,
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Text,
    Ids,
    Json,
}

impl Printer {
    fn new(args: &GenerateArgs) -> Self {
        let form = match (args.ids, args.json) {
            (true, _) => Form::Ids,
            (_, true) => Form::Json,
            _ => Form::Text,
        };
        Printer { form, ids: Vec::new(), finish: None }
    }

    fn token(&mut self, token: TokenId, step: text::Step) -> std::io::Result<()> {
        self.ids.push(token.0);
        self.finish = step.finish;
        let mut out = std::io::stdout();
        let text: String = step.deltas.iter().map(delta_text).collect();
        match self.form {
            Form::Text => out.write_all(text.as_bytes())?,
            Form::Json => writeln!(out, "{}", serde_json::json!({"token": token.0, "text": text}))?,
            Form::Ids => return Ok(()),
        }
        out.flush()
    }

    fn end(&self, timing: &Timing) -> std::io::Result<()> {
        let mut out = std::io::stdout();
        let finish = self.finish.map(Finish::reason);
        match self.form {
            Form::Text => writeln!(out),
            Form::Ids => writeln!(out, "{}", serde_json::json!({"ids": self.ids})),
            Form::Json => {
                let end = serde_json::json!({
                    "finish": finish,
                    "prompt_tokens": timing.prompt_tokens,
                    "generated_tokens": self.ids.len(),
                    "prefill_tokens_per_s": timing.prompt_rate(),
                    "decode_tokens_per_s": timing.decode_rate(),
                });
                writeln!(out, "{end}")
            }
        }
    }
}

fn delta_text(delta: &Delta) -> &str {
    match delta {
        Delta::Answer(text) | Delta::Reasoning(text) | Delta::ToolCall(text) | Delta::ToolArguments(text) => text,
    }
}
