//! `ats-run generate`: continues a prompt from an argument, a file or a pipe, as text, ids or JSON events.
//! Not here: reading the prompt (`input.rs`), writing what comes (`printer.rs`).

mod input;
mod printer;

use super::Failure;
use super::common::{ModelArgs, RoutingArgs, TraceArgs, exactness};
use super::interrupt::Interrupt;
use super::residence;
use super::sampling::Sampling;
use crate::engine::Sequence;
use crate::generation::{Outcome, Request, Reuse, generate};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use input::Input;
use printer::{Form, Printer};
use shared_cli::output::say;
use text::{ChannelFormat, EndTokens, Finish, StreamOptions};

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
    /// Text that ends the answer and is not part of it; may be given several times.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    /// Go on after tokens that end a text.
    #[arg(long)]
    ignore_eos: bool,
    /// Print {"ids":[…]} instead of text.
    #[arg(long, conflicts_with = "json")]
    ids: bool,
    /// Print one JSON event a line: `prompt` with its ids, `token` with its id and what it adds to the text (nothing
    /// while a character or a stop text is incomplete), `rest` after Ctrl-C with text that was held back, and `end`
    /// with finish (stop, length, context or interrupted), counts and speeds.
    #[arg(long)]
    json: bool,
    /// With --json: log-probabilities of each token and of the N most likely ones.
    #[arg(long, value_name = "N", requires = "json")]
    logprobs: Option<usize>,
    /// Print the speed to standard error at the end.
    #[arg(long)]
    stats: bool,
    /// Oracle kernels, F32 activations, F32 caches.
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    routing: RoutingArgs,
    #[command(flatten)]
    sampling: Sampling,
}

impl GenerateArgs {
    fn form(&self) -> Form {
        match (self.ids, self.json) {
            (true, _) => Form::Ids,
            (_, true) => Form::Json,
            _ => Form::Text,
        }
    }
}

/// Generates.
pub fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let chosen = args.sampling.choose(args.logprobs)?;
    let interrupt = Interrupt::install()?;
    let input = args.input.read()?;
    let mut engine = args.model.open_with(None, exactness(args.exact), args.routing.overrides())?;
    let prompt = input.ids(engine.tokenizer());
    let mut sampler = chosen.sampler(0, engine.tokenizer().vocab_tokens())?;
    let options = StreamOptions {
        stops: args.stop.clone(),
        max_tokens: args.max_tokens,
        context_tokens: engine.context_tokens(),
        end_tokens: if args.ignore_eos { EndTokens::Ignore } else { EndTokens::Stop },
        channels: ChannelFormat::Plain,
    };
    let mut printer = Printer::new(args.form(), &engine, &interrupt);
    printer.begin(&prompt)?;
    let request = Request { prompt: &prompt, border: None, reuse: Reuse::Nothing, options: &options };
    let inputs: Vec<_> = args.input.path().into_iter().collect();
    args.trace.begin(&mut engine, &inputs)?;
    args.routing.begin(&engine, &inputs)?;
    interrupt.begin();
    let outcome = generate(&mut engine, &mut Sequence::default(), &request, &mut sampler, &mut printer)?;
    interrupt.end();
    printer.end(&outcome)?;
    args.trace.end(&engine)?;
    args.routing.end(&engine)?;
    let is_interrupted = outcome.finish == Finish::Cancelled;
    if args.stats || is_interrupted {
        say(speed(&outcome));
    }
    if args.stats {
        residence::say_of(&mut engine, &outcome.token_times);
    }
    if let Some((prefill, decode)) = outcome.timing.simulated_rates() {
        let machine = args.model.device.as_deref().unwrap_or("the simulated machine");
        say(format_args!(
            "{machine} would take: prefill {prefill:.1} tokens/s, decode {decode:.1} tokens/s; here: {}",
            speed(&outcome)
        ));
    }
    if is_interrupted { Err(Failure::interrupted()) } else { Ok(()) }
}

fn speed(outcome: &Outcome) -> String {
    let timing = &outcome.timing;
    format!(
        "prefill {} tokens, {:.1} tokens/s; decode {} tokens, {:.1} tokens/s",
        timing.prompt_tokens,
        timing.prompt_rate(),
        timing.decode_tokens,
        timing.decode_rate()
    )
}
