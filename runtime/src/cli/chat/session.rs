//! The model's side of a chat: the conversation as tokens, the answer, what the sequence keeps for the next turn.
//! Not here: what the user types (`mod.rs`), how an answer looks (`screen.rs`).

use super::ChatArgs;
use super::conversation::Conversation;
use super::screen::{Look, Screen};
use crate::Error;
use crate::cli::common::finish_word;
use crate::cli::interrupt::Interrupt;
use crate::cli::sampling::Chosen;
use crate::cli::terminal::Progress;
use crate::cli::{Failure, common};
use crate::engine::{Engine, Sequence};
use crate::generation::{Flow, Listener, Outcome, Request, Reuse, Timing, common_prefix, generate};
use std::io::{self, Stdout};
use text::{
    Builtin, ChannelFormat, ChatRequest, ChatTemplate, CivilTime, Delta, EndTokens, Finish, GenerationPrompt, Sampled,
    Step, StreamOptions, TextError,
};

/// A chat with a running model.
pub struct Session<'a> {
    args: &'a ChatArgs,
    chosen: Chosen,
    interrupt: Interrupt,
    engine: Engine,
    template: ChatTemplate,
    channels: ChannelFormat,
    /// The same for the whole chat, so that a date in the prompt does not change what can be reused.
    now: CivilTime,
    sequence: Sequence,
    look: Look,
    totals: Totals,
    /// What was said.
    pub conversation: Conversation,
}

/// Sums over all answers.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    answers: u64,
    generated_tokens: usize,
    timing: Timing,
}

/// The source of the template: a built-in one by name, a file, or the model's own.
/// Errors: neither is there.
pub fn template_source(args: &ChatArgs) -> Result<String, Failure> {
    let Some(name) = &args.template else { return own_template(args) };
    if let Some(builtin) = Builtin::find(name) {
        return Ok(builtin.source().into());
    }
    let known: Vec<&str> = Builtin::ALL.iter().map(|(known, _)| *known).collect();
    let text = common::read_text(name.as_ref())
        .map_err(|failure| failure.hint(format!("--template takes a file, or one of {}", known.join(", "))))?;
    String::from_utf8(text).map_err(|_| Failure::usage(format!("the template {name} is not UTF-8")))
}

fn own_template(args: &ChatArgs) -> Result<String, Failure> {
    let model = gguf::Model::open(&args.model.model).map_err(Error::from)?;
    let source = model.opt_str("tokenizer.chat_template").map_err(Error::from)?;
    source.map(str::to_owned).ok_or_else(|| {
        let hint = "name one with --template, or continue raw text with `ats-run generate`";
        Failure::from(Error::from(TextError::NoTemplate)).hint(hint)
    })
}

impl<'a> Session<'a> {
    /// A chat in which nothing has been said. Error: the template does not compile.
    pub fn new(
        args: &'a ChatArgs,
        chosen: Chosen,
        interrupt: Interrupt,
        engine: Engine,
        template_source: &str,
    ) -> Result<Self, Failure> {
        let tokenizer = engine.tokenizer();
        // A bias for a token that does not exist is refused now rather than at the first answer.
        chosen.sampler(0, tokenizer.vocab_tokens())?;
        let seconds = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs() as i64);
        Ok(Session {
            template: ChatTemplate::for_tokenizer(template_source, tokenizer).map_err(Error::from)?,
            channels: ChannelFormat::detect(tokenizer, Some(template_source)),
            now: CivilTime::from_unix_seconds(seconds),
            sequence: Sequence::default(),
            look: Look::of_stdout(),
            totals: Totals::default(),
            conversation: Conversation::new(args.system.clone().filter(|text| !text.is_empty())),
            args,
            chosen,
            interrupt,
            engine,
        })
    }

    /// Planned context in tokens.
    pub fn context_tokens(&self) -> usize {
        self.engine.context_tokens()
    }

    /// Answers the conversation's last message, and shows the answer while it comes. It is kept even if the user
    /// stopped it, unless it had not begun.
    /// Errors: the template refuses, the context is too short, the arithmetic fails, standard output is gone.
    pub fn answer(&mut self) -> Result<Outcome, Failure> {
        let prompt = self.tokens(GenerationPrompt::Add)?;
        let border = self.border(&prompt);
        let options = self.options();
        let reuse = if self.args.no_reuse { Reuse::Nothing } else { Reuse::Prefix };
        let request = Request { prompt: &prompt, border, reuse, options: &options };
        let vocab_tokens = self.engine.tokenizer().vocab_tokens();
        let mut sampler = self.chosen.sampler(self.totals.answers, vocab_tokens)?;
        let mut answer = Answer {
            screen: Screen::new(io::stdout(), self.look, self.args.reasoning),
            interrupt: &self.interrupt,
            round_tokens: self.engine.round_tokens(),
            progress: Progress::default(),
            text: String::new(),
            result: Ok(()),
        };
        self.interrupt.begin();
        let outcome = generate(&mut self.engine, &mut self.sequence, &request, &mut sampler, &mut answer);
        self.interrupt.end();
        let text = answer.end()?;
        let outcome = outcome.map_err(explain)?;
        if outcome.generated_tokens > 0 {
            self.conversation.answer(text);
        }
        self.totals.add(&outcome);
        Ok(outcome)
    }

    /// The conversation as the model wants it.
    fn tokens(&self, generation_prompt: GenerationPrompt) -> Result<Vec<u32>, Failure> {
        let request = ChatRequest {
            messages: self.conversation.messages(),
            tools: Vec::new(),
            generation_prompt,
            variables: self.args.variable.iter().cloned().collect(),
            now: self.now,
        };
        let ids = self.template.render_tokens(self.engine.tokenizer(), &request).map_err(Error::from)?;
        Ok(ids.iter().map(|id| id.0).collect())
    }

    /// Where the next turn's prompt may part from this one's: before the beginning of the answer, which templates write
    /// in another way once it is history. One token at least is left, so that the answer can be made again. Only needed
    /// where going back takes a mark; templates that refuse to be asked leave it at that one token.
    fn border(&self, prompt: &[u32]) -> Option<usize> {
        if self.args.no_reuse || !self.engine.needs_marks() {
            return None;
        }
        let history = self.tokens(GenerationPrompt::Omit).unwrap_or_default();
        let common = if history.is_empty() { prompt.len() } else { common_prefix(&history, prompt) };
        Some(common.min(prompt.len().saturating_sub(1)))
    }

    fn options(&self) -> StreamOptions {
        StreamOptions {
            stops: Vec::new(),
            max_tokens: self.args.max_tokens,
            context_tokens: self.engine.context_tokens(),
            end_tokens: EndTokens::Stop,
            channels: self.channels,
        }
    }

    /// Sums over the whole chat, for `/stats`.
    pub fn stats(&self) -> String {
        let Totals { answers, generated_tokens, timing } = &self.totals;
        format!(
            "{} of {} tokens of the context in use, {} turns in the conversation\n\
             {answers} answers: {} prompt tokens reused, {} prefilled at {:.1}/s, \
             {generated_tokens} generated at {:.1}/s",
            self.sequence.tokens.len(),
            self.context_tokens(),
            self.conversation.turns(),
            timing.reused_tokens,
            timing.prompt_tokens,
            timing.prompt_rate(),
            timing.decode_rate(),
        )
    }
}

/// One answer's figures in a line.
pub fn terse(outcome: &Outcome) -> String {
    let timing = &outcome.timing;
    format!(
        "[{} tokens reused, {} prefilled at {:.1}/s, {} generated at {:.1}/s, {}]",
        timing.reused_tokens,
        timing.prompt_tokens,
        timing.prompt_rate(),
        outcome.generated_tokens,
        timing.decode_rate(),
        finish_word(outcome.finish)
    )
}

/// Whether an answer ended for lack of room.
pub fn is_context_full(outcome: &Outcome) -> bool {
    outcome.finish == Finish::Context
}

fn explain(error: Error) -> Failure {
    let is_full = matches!(error, Error::ContextFull { .. });
    let failure = Failure::from(error);
    if is_full {
        failure.hint("/reset forgets the conversation; `ats-plan compile --context` plans for more")
    } else {
        failure
    }
}

impl Totals {
    fn add(&mut self, outcome: &Outcome) {
        let (sum, timing) = (&mut self.timing, &outcome.timing);
        sum.reused_tokens += timing.reused_tokens;
        sum.prompt_tokens += timing.prompt_tokens;
        sum.prompt += timing.prompt;
        sum.decode_tokens += timing.decode_tokens;
        sum.decode += timing.decode;
        self.generated_tokens += outcome.generated_tokens;
        self.answers += 1;
    }
}

/// Shows an answer and keeps its text.
struct Answer<'a> {
    screen: Screen<Stdout>,
    interrupt: &'a Interrupt,
    round_tokens: usize,
    progress: Progress,
    text: String,
    /// The first error of writing; nothing is written after it.
    result: io::Result<()>,
}

impl Answer<'_> {
    fn take(&mut self, step: &Step) {
        self.progress.clear();
        for delta in &step.deltas {
            if let Delta::Answer(text) = delta {
                self.text.push_str(text);
            }
        }
        if self.result.is_ok() {
            self.result = self.screen.show(step);
        }
    }

    fn flow(&self) -> Flow {
        if self.result.is_err() || self.interrupt.asked() { Flow::Stop } else { Flow::Continue }
    }

    /// The text of the answer; or the error that ended the writing.
    fn end(mut self) -> io::Result<String> {
        self.progress.clear();
        self.result?;
        self.screen.end()?;
        Ok(self.text)
    }
}

impl Listener for Answer<'_> {
    fn prefill(&mut self, done: usize, total: usize) -> Flow {
        self.progress.show(done, total, self.round_tokens);
        self.flow()
    }

    fn token(&mut self, _: &Sampled, step: &Step) -> Flow {
        self.take(step);
        self.flow()
    }

    fn stopped(&mut self, rest: &Step) {
        self.take(rest);
    }
}
