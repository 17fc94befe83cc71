//! From generated tokens to the text that a person sees, and when it ends.
//!
//! Each token goes through: end tokens; channels ([`crate::channels`]: what is reasoning, what a tool call, what the
//! answer); whole characters ([`Utf8Stream`]); stop strings ([`StopStream`], in the answer only); limits. The pieces
//! joined are the same however the tokens are grouped, so a caller that does not stream joins them.
//!
//! When the context is full the generation ends with [`Finish::Context`]: nothing is shifted or forgotten behind the
//! caller's back. Prompt and generated tokens together never exceed the context.
//! Not here: choosing tokens ([`crate::sampler`]). Next file: [`utf8`].

mod stop;
mod utf8;

pub use stop::{StopStep, StopStream};
pub use utf8::Utf8Stream;

use crate::channels::{Channel, ChannelFormat, Channels, Part};
use crate::tokenizer::{TokenId, Tokenizer};

/// Whether tokens that end a turn end the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndTokens {
    /// They do.
    Stop,
    /// They are passed over without a trace, for measurements of a fixed length.
    Ignore,
}

/// When a text ends and how it is taken apart.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Strings that end the answer, not shown themselves.
    pub stops: Vec<String>,
    /// The most tokens to generate; `None` leaves it to the context.
    pub max_tokens: Option<usize>,
    /// Places in the context, for prompt and generated tokens together.
    pub context_tokens: usize,
    /// What end tokens do.
    pub end_tokens: EndTokens,
    /// How reasoning and tool calls are told from the answer.
    pub channels: ChannelFormat,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its turn with this token.
    EndToken(TokenId),
    /// The stop string of this position in the list was generated.
    StopString(usize),
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    Context,
    /// The caller ended it.
    Cancelled,
}

impl Finish {
    /// The word that the OpenAI API has for it.
    pub fn reason(self) -> &'static str {
        match self {
            Finish::EndToken(_) | Finish::StopString(_) => "stop",
            Finish::Length | Finish::Context | Finish::Cancelled => "length",
        }
    }
}

/// A piece of what was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the answer.
    Answer(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// A call of the tool of this name begins.
    ToolCall(String),
    /// Text of that call's arguments.
    ToolArguments(String),
}

/// What came of one token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Pieces in order, none of them empty.
    pub deltas: Vec<Delta>,
    /// Set with the last step.
    pub finish: Option<Finish>,
}

/// Turns one generation's tokens into text.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    channels: Channels,
    utf8: Utf8Stream,
    stops: StopStream,
    current: Channel,
    end_tokens: EndTokens,
    max_tokens: usize,
    max_is_context: bool,
    generated_tokens: usize,
    finish: Option<Finish>,
}

impl<'a> TextStream<'a> {
    /// A stream of what follows `prompt`.
    pub fn new(tokenizer: &'a Tokenizer, prompt: &[TokenId], options: &StreamOptions) -> TextStream<'a> {
        let places = options.context_tokens.saturating_sub(prompt.len());
        let max_is_context = options.max_tokens.is_none_or(|max| places < max);
        let max_tokens = options.max_tokens.unwrap_or(places).min(places);
        let mut stream = TextStream {
            tokenizer,
            channels: Channels::new(options.channels, tokenizer, prompt),
            utf8: Utf8Stream::default(),
            stops: StopStream::new(&options.stops),
            current: Channel::Answer,
            end_tokens: options.end_tokens,
            max_tokens,
            max_is_context,
            generated_tokens: 0,
            finish: None,
        };
        stream.finish = stream.limit();
        stream
    }

    /// Why the generation ended, if it did. It may have before the first token: no place, or none asked for.
    pub fn finished(&self) -> Option<Finish> {
        self.finish
    }

    /// How many tokens came, end tokens included.
    pub fn generated_tokens(&self) -> usize {
        self.generated_tokens
    }

    /// Takes the next token. After the end nothing more comes.
    pub fn push(&mut self, id: TokenId) -> Step {
        let mut step = Step { deltas: Vec::new(), finish: self.finish };
        if self.finish.is_some() {
            return step;
        }
        self.generated_tokens += 1;
        if self.tokenizer.is_end_of_generation(id) {
            if self.end_tokens == EndTokens::Stop {
                return self.end(Finish::EndToken(id), step);
            }
        } else {
            let parts = self.channels.push(self.tokenizer, id);
            self.take(parts, &mut step);
        }
        match self.finish.or_else(|| self.limit()) {
            Some(finish) => self.end(finish, step),
            None => step,
        }
    }

    /// Ends the generation from outside and gives out what is held back.
    pub fn cancel(&mut self) -> Step {
        match self.finish {
            Some(_) => Step { deltas: Vec::new(), finish: self.finish },
            None => self.end(Finish::Cancelled, Step::default()),
        }
    }

    fn limit(&self) -> Option<Finish> {
        let finish = if self.max_is_context { Finish::Context } else { Finish::Length };
        (self.generated_tokens >= self.max_tokens).then_some(finish)
    }

    fn end(&mut self, finish: Finish, mut step: Step) -> Step {
        if !matches!(self.finish, Some(Finish::StopString(_))) {
            let parts = self.channels.finish();
            self.take(parts, &mut step);
        }
        // A stop string may have been completed by what the channels held back.
        if !matches!(self.finish, Some(Finish::StopString(_))) {
            self.leave_channel(&mut step);
            self.finish = self.finish.or(Some(finish));
        }
        step.finish = self.finish;
        step
    }

    fn take(&mut self, parts: Vec<Part>, step: &mut Step) {
        for part in parts {
            match part {
                Part::Bytes(channel, bytes) => {
                    if channel != self.current {
                        self.leave_channel(step);
                        self.current = channel;
                    }
                    let text = self.utf8.push(&bytes);
                    self.give(&text, step);
                }
                Part::ToolCall(name) => {
                    self.leave_channel(step);
                    self.current = Channel::ToolArguments;
                    step.deltas.push(Delta::ToolCall(name));
                }
            }
            if self.finish.is_some() {
                return;
            }
        }
    }

    /// Gives out what the channel that ends holds back.
    fn leave_channel(&mut self, step: &mut Step) {
        let rest = self.utf8.finish();
        self.give(rest, step);
        if self.current == Channel::Answer && self.finish.is_none() {
            let held = self.stops.finish();
            append(Channel::Answer, &held, step);
        }
    }

    fn give(&mut self, text: &str, step: &mut Step) {
        if self.current != Channel::Answer {
            return append(self.current, text, step);
        }
        let found = self.stops.push(text);
        append(Channel::Answer, &found.text, step);
        if let Some(index) = found.stopped_by {
            self.finish = Some(Finish::StopString(index));
        }
    }
}

/// Appends text to the last delta, or as a new one where that is of another kind.
fn append(channel: Channel, text: &str, step: &mut Step) {
    if text.is_empty() {
        return;
    }
    match (channel, step.deltas.last_mut()) {
        (Channel::Answer, Some(Delta::Answer(last)))
        | (Channel::Reasoning, Some(Delta::Reasoning(last)))
        | (Channel::ToolArguments, Some(Delta::ToolArguments(last))) => last.push_str(text),
        (Channel::Answer, _) => step.deltas.push(Delta::Answer(text.into())),
        (Channel::Reasoning, _) => step.deltas.push(Delta::Reasoning(text.into())),
        (Channel::ToolArguments, _) => step.deltas.push(Delta::ToolArguments(text.into())),
    }
}
