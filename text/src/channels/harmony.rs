//! Harmony, the format of gpt-oss: messages of a header and a body, with markers that are tokens of their own.
//!
//! `<|start|>` role [to=recipient] `<|channel|>` channel [to=recipient] [`<|constrain|>` type] `<|message|>` body
//! `<|end|>`, or `<|return|>` or `<|call|>` at the end of the turn. The body is reasoning in the channel `analysis`,
//! arguments of a tool call where a recipient is named, and the answer otherwise. Only marker tokens are markers: the
//! same letters spelled with other tokens are text. A header that never ends gives nothing.

use super::{Channel, Part};
use crate::tokenizer::{RenderSpecial, TokenId, Tokenizer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    Start,
    Channel,
    Constrain,
    Message,
    End,
}

const MARKERS: [(&str, Marker); 7] = [
    ("<|start|>", Marker::Start),
    ("<|channel|>", Marker::Channel),
    ("<|constrain|>", Marker::Constrain),
    ("<|message|>", Marker::Message),
    ("<|end|>", Marker::End),
    ("<|return|>", Marker::End),
    ("<|call|>", Marker::End),
];

/// What the header of a message has said so far.
#[derive(Debug, Default)]
struct Header {
    /// Role and channel with their recipients, each field as one text.
    role: Vec<u8>,
    channel: Vec<u8>,
    constraint: Vec<u8>,
    field: Field,
}

#[derive(Clone, Copy, Debug, Default)]
enum Field {
    #[default]
    Role,
    Channel,
    Constraint,
}

#[derive(Debug)]
enum State {
    Header(Header),
    Body(Channel),
}

/// Follows one generation.
#[derive(Debug)]
pub struct Harmony {
    markers: Vec<(TokenId, Marker)>,
    state: State,
}

impl Harmony {
    /// Begins after `prompt`, in the state that its last message leaves.
    pub fn after(tokenizer: &Tokenizer, prompt: &[TokenId]) -> Harmony {
        let found = MARKERS.iter().filter_map(|&(text, marker)| Some((tokenizer.find(text)?, marker)));
        let mut harmony = Harmony { markers: found.collect(), state: State::Header(Header::default()) };
        let is_start = |&id: &TokenId| harmony.marker(id) == Some(Marker::Start);
        let last = prompt.iter().rposition(is_start).unwrap_or(prompt.len());
        for &id in &prompt[last..] {
            harmony.push(tokenizer, id);
        }
        harmony
    }

    fn marker(&self, id: TokenId) -> Option<Marker> {
        self.markers.iter().find(|(marker, _)| *marker == id).map(|&(_, marker)| marker)
    }

    /// Takes a token.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: TokenId) -> Vec<Part> {
        match (self.marker(id), &mut self.state) {
            (Some(Marker::Start | Marker::End), _) => self.state = State::Header(Header::default()),
            (Some(Marker::Message), State::Header(header)) => {
                let (channel, call) = header.destination();
                self.state = State::Body(channel);
                return call.map(Part::ToolCall).into_iter().collect();
            }
            (Some(Marker::Message), State::Body(_)) => {}
            (Some(Marker::Channel), State::Header(header)) => header.field = Field::Channel,
            (Some(Marker::Channel), State::Body(_)) => {
                self.state = State::Header(Header { field: Field::Channel, ..Header::default() });
            }
            (Some(Marker::Constrain), State::Header(header)) => header.field = Field::Constraint,
            (Some(Marker::Constrain), State::Body(_)) => {}
            (None, State::Header(header)) => header.extend(tokenizer.token_bytes(id, RenderSpecial::No)),
            (None, State::Body(channel)) => {
                return vec![Part::Bytes(*channel, tokenizer.token_bytes(id, RenderSpecial::No).to_vec())];
            }
        }
        Vec::new()
    }
}

impl Header {
    fn extend(&mut self, bytes: &[u8]) {
        match self.field {
            Field::Role => self.role.extend_from_slice(bytes),
            Field::Channel => self.channel.extend_from_slice(bytes),
            Field::Constraint => self.constraint.extend_from_slice(bytes),
        }
    }

    /// Where the body belongs, and the name of the tool that it calls.
    fn destination(&self) -> (Channel, Option<String>) {
        let channel = String::from_utf8_lossy(&self.channel);
        let role = String::from_utf8_lossy(&self.role);
        if let Some(name) = recipient(&channel).or_else(|| recipient(&role)) {
            return (Channel::ToolArguments, Some(name.strip_prefix("functions.").unwrap_or(name).to_string()));
        }
        match channel.split_whitespace().next() {
            Some("analysis") => (Channel::Reasoning, None),
            _ => (Channel::Answer, None),
        }
    }
}

/// The word after `to=`.
fn recipient(field: &str) -> Option<&str> {
    field.split_whitespace().find_map(|word| word.strip_prefix("to=")).filter(|name| !name.is_empty())
}
