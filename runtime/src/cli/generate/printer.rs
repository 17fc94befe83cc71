//! Writes what is generated: text as it comes, ids at the end, or JSON events line by line.
//! Not here: when a text ends (`text::stream`).

use crate::cli::common::{delta_text, finish_word};
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::{Progress, harmless};
use crate::engine::Engine;
use crate::generation::{Flow, Listener, Outcome};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use text::{RenderSpecial, Sampled, Step, TokenId, Tokenizer};

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As text, as soon as it is certain.
    Text,
    /// As ids in one JSON object at the end.
    Ids,
    /// As JSON events.
    Json,
}

/// Writes one generation to standard output.
pub struct Printer<'a> {
    form: Form,
    tokenizer: Arc<Tokenizer>,
    interrupt: &'a Interrupt,
    round_tokens: usize,
    progress: Progress,
    is_terminal: bool,
    ids: Vec<u32>,
    /// The first error of writing; nothing is written after it.
    result: io::Result<()>,
}

impl<'a> Printer<'a> {
    /// A printer for one generation.
    pub fn new(form: Form, engine: &Engine, interrupt: &'a Interrupt) -> Self {
        Printer {
            form,
            tokenizer: Arc::clone(engine.tokenizer()),
            interrupt,
            round_tokens: engine.round_tokens(),
            progress: Progress::default(),
            is_terminal: io::stdout().is_terminal(),
            ids: Vec::new(),
            result: Ok(()),
        }
    }

    /// Writes what belongs to the beginning.
    pub fn begin(&self, prompt: &[u32]) -> io::Result<()> {
        match self.form {
            Form::Json => writeln!(io::stdout(), "{}", json!({"event": "prompt", "ids": prompt})),
            Form::Text | Form::Ids => Ok(()),
        }
    }

    /// Writes what belongs to the end; or the error that ended the writing.
    pub fn end(self, outcome: &Outcome) -> io::Result<()> {
        self.result?;
        let mut out = io::stdout();
        match self.form {
            Form::Text => writeln!(out),
            Form::Ids => writeln!(out, "{}", json!({"ids": self.ids})),
            Form::Json => writeln!(out, "{}", end_event(outcome)),
        }
    }

    fn flow(&self) -> Flow {
        if self.result.is_err() || self.interrupt.asked() { Flow::Stop } else { Flow::Continue }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout();
        out.write_all(if self.is_terminal { harmless(text) } else { text.into() }.as_bytes())?;
        out.flush()
    }

    fn token_event(&self, token: &Sampled, text: &str) -> Value {
        let mut event = json!({"event": "token", "token": token.id.0, "text": text});
        if let Some(logprobs) = &token.logprobs {
            event["logprob"] = logprobs.chosen.into();
            event["top_logprobs"] = logprobs.top.iter().map(|&(id, logprob)| self.candidate(id, logprob)).collect();
        }
        event
    }

    /// A token that may be a part of a character only, so its bytes are written besides.
    fn candidate(&self, id: TokenId, logprob: f32) -> Value {
        let bytes = self.tokenizer.token_bytes(id, RenderSpecial::Yes);
        json!({"token": id.0, "text": String::from_utf8_lossy(bytes), "bytes": bytes, "logprob": logprob})
    }
}

impl Listener for Printer<'_> {
    fn prefill(&mut self, done: usize, total: usize) -> Flow {
        self.progress.show(done, total, self.round_tokens);
        self.flow()
    }

    fn token(&mut self, token: &Sampled, step: &Step) -> Flow {
        self.progress.clear();
        self.ids.push(token.id.0);
        let text = step_text(step);
        self.result = match self.form {
            Form::Text => self.write(&text),
            Form::Ids => Ok(()),
            Form::Json => writeln!(io::stdout(), "{}", self.token_event(token, &text)),
        };
        self.flow()
    }

    fn stopped(&mut self, rest: &Step) {
        self.progress.clear();
        let text = step_text(rest);
        if self.result.is_err() || text.is_empty() {
            return;
        }
        self.result = match self.form {
            Form::Text => self.write(&text),
            Form::Ids => Ok(()),
            Form::Json => writeln!(io::stdout(), "{}", json!({"event": "rest", "text": text})),
        };
    }
}

fn step_text(step: &Step) -> String {
    step.deltas.iter().map(delta_text).collect()
}

fn end_event(outcome: &Outcome) -> Value {
    let timing = &outcome.timing;
    json!({
        "event": "end",
        "finish": finish_word(outcome.finish),
        "prompt_tokens": timing.prompt_tokens,
        "generated_tokens": outcome.generated_tokens,
        "prefill_tokens_per_s": timing.prompt_rate(),
        "decode_tokens_per_s": timing.decode_rate(),
    })
}
