//! Tells reasoning and tool calls from the answer in what a model generates.
//!
//! Two formats are known: `<think>` tags in the text (Qwen3, DeepSeek R1, GLM …: [`think`]) and harmony's channels of
//! marker tokens (gpt-oss: [`harmony`]). Both work on tokens as they come, hold back only what may be part of a marker,
//! and give the same parts however the text is cut. Not here: characters and stop strings ([`crate::stream`]).

mod harmony;
mod think;

use crate::tokenizer::{RenderSpecial, TokenId, Tokenizer};
use harmony::Harmony;
use think::Think;

/// How a model marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelFormat {
    /// Not at all: everything is the answer.
    Plain,
    /// Between `<think>` and `</think>`, before the answer.
    ThinkTags,
    /// In channels: `analysis`, `commentary`, `final`.
    Harmony,
}

impl ChannelFormat {
    /// The format of a model: harmony where the vocabulary has its markers, think tags where the chat template writes
    /// or reads them.
    pub fn detect(tokenizer: &Tokenizer, template_source: Option<&str>) -> ChannelFormat {
        let harmony = ["<|channel|>", "<|message|>", "<|start|>"];
        if harmony.iter().all(|marker| tokenizer.find(marker).is_some()) {
            return ChannelFormat::Harmony;
        }
        match template_source {
            Some(source) if source.contains("<think>") || source.contains("</think>") => ChannelFormat::ThinkTags,
            _ => ChannelFormat::Plain,
        }
    }
}

/// Where a piece of text belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// What the user asked for.
    Answer,
    /// What the model thought before.
    Reasoning,
    /// Arguments of a tool call.
    ToolArguments,
}

/// A part of what was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes of a channel, characters perhaps cut.
    Bytes(Channel, Vec<u8>),
    /// A call of the tool of this name begins.
    ToolCall(String),
}

/// Follows one generation.
#[derive(Debug)]
pub enum Channels {
    /// See [`ChannelFormat::Plain`].
    Plain,
    /// See [`ChannelFormat::ThinkTags`].
    Think(Box<Think>),
    /// See [`ChannelFormat::Harmony`].
    Harmony(Box<Harmony>),
}

impl Channels {
    /// Begins after `prompt`, which may already have opened a channel.
    pub fn new(format: ChannelFormat, tokenizer: &Tokenizer, prompt: &[TokenId]) -> Channels {
        match format {
            ChannelFormat::Plain => Channels::Plain,
            ChannelFormat::ThinkTags => Channels::Think(Box::new(Think::after(tokenizer, prompt))),
            ChannelFormat::Harmony => Channels::Harmony(Box::new(Harmony::after(tokenizer, prompt))),
        }
    }

    /// The parts that are certain once `id` has come.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: TokenId) -> Vec<Part> {
        match self {
            Channels::Plain => {
                vec![Part::Bytes(Channel::Answer, tokenizer.token_bytes(id, RenderSpecial::No).to_vec())]
            }
            Channels::Think(think) => think.push(tokenizer, id),
            Channels::Harmony(harmony) => harmony.push(tokenizer, id),
        }
    }

    /// What is held back at the end.
    pub fn finish(&mut self) -> Vec<Part> {
        match self {
            Channels::Think(think) => think.finish(),
            Channels::Plain | Channels::Harmony(_) => Vec::new(),
        }
    }
}
