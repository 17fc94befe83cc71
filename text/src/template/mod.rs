//! Chat templates: a conversation to the text, or the tokens, that a model was trained on.
//!
//! Templates are Jinja2 programs out of the model file. A template that fails is an error to the caller, and so is a
//! file without one; nothing is ever put in its place unasked ([`Builtin`] has templates to choose by name).
//!
//! [`ChatTemplate::render_tokens`] is what generation uses: markers that stand in the text of messages or tools become
//! ordinary tokens there, only the template's own become control tokens ([`marks`] says how that is known).
//! [`ChatTemplate::render`] is for people to look at. Next file: [`marks`].

mod builtin;
mod clock;
mod environment;
mod json;
mod marks;
mod methods;
mod tokens;

pub use builtin::Builtin;
pub use clock::CivilTime;
pub use json::float_repr;

use std::collections::BTreeMap;

use minijinja::Environment;
use minijinja::value::{Serde, Value};
use serde_json::{Map, Value as Json};

use crate::error::{Result, TextError};
use crate::tokenizer::{RenderSpecial, Tokenizer};

/// Whether the text ends with the beginning of the assistant's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// It does: the model is to answer.
    Add,
    /// It does not.
    Omit,
}

/// A conversation and what else a template may ask for.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// The messages as they come: objects with `role`, `content`, `tool_calls` and so on, in order of their keys.
    pub messages: Vec<Json>,
    /// Descriptions of tools; empty for none.
    pub tools: Vec<Json>,
    /// How the text ends.
    pub generation_prompt: GenerationPrompt,
    /// Further variables, such as `enable_thinking`.
    pub variables: Map<String, Json>,
    /// The moment that `strftime_now` prints.
    pub now: CivilTime,
}

/// A model's chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_text: String,
    eos_text: String,
}

impl ChatTemplate {
    /// The template in a model file.
    ///
    /// # Errors
    /// The file has none, or it does not compile.
    pub fn from_gguf(model: &gguf::Model, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let source = model.opt_str("tokenizer.chat_template")?.ok_or(TextError::NoTemplate)?;
        Self::for_tokenizer(source, tokenizer)
    }

    /// A template of its own for a tokenizer, whose BOS and EOS texts it gets.
    ///
    /// # Errors
    /// It does not compile.
    pub fn for_tokenizer(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let text = |id| {
            let bytes = tokenizer.token_bytes(id, RenderSpecial::Yes);
            String::from_utf8_lossy(bytes).into_owned()
        };
        Self::new(source, tokenizer.bos().map(text).unwrap_or_default(), tokenizer.eos().map(text).unwrap_or_default())
    }

    /// A template with the texts of `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// It does not compile.
    pub fn new(source: &str, bos_text: String, eos_text: String) -> Result<ChatTemplate> {
        let environment =
            environment::with_template(source).map_err(|error| TextError::TemplateSyntax { why: describe(&error) })?;
        Ok(ChatTemplate { environment, source: source.into(), bos_text, eos_text })
    }

    /// The template as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The conversation as text.
    ///
    /// # Errors
    /// The template fails, raises an exception of its own, or takes more than its share of time or memory.
    pub fn render(&self, request: &ChatRequest) -> Result<String> {
        self.render_inputs(request, &Inputs::of(request, &Json::clone))
    }

    fn render_inputs(&self, request: &ChatRequest, inputs: &Inputs) -> Result<String> {
        let mut environment = self.environment.clone();
        let mut text_bytes = 0;
        inputs.for_each_text(&mut |text| text_bytes += text.len() as u64 + 16);
        environment.set_fuel(Some(environment::FUEL_BASE + environment::FUEL_PER_BYTE * text_bytes));
        let context = self.context(request, inputs);
        let template = environment.get_template(environment::NAME).map_err(|error| render_error(&error))?;
        template.render(context).map_err(|error| render_error(&error))
    }

    fn context(&self, request: &ChatRequest, inputs: &Inputs) -> Value {
        let now = request.now;
        let tools = if inputs.tools.is_empty() { Value::from(()) } else { Value::from(Serde(&inputs.tools)) };
        let own = [
            ("bos_token", Value::from(self.bos_text.as_str())),
            ("eos_token", Value::from(self.eos_text.as_str())),
            ("messages", Value::from(Serde(&inputs.messages))),
            ("tools", tools),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(request.generation_prompt == GenerationPrompt::Add)),
            ("strftime_now", Value::from_function(move |format: &str| now.strftime(format))),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_string(), value));
        let variables = inputs.variables.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value))));
        Value::from(own.chain(variables).collect::<BTreeMap<String, Value>>())
    }
}

/// What a template gets of a request, perhaps with marks.
struct Inputs {
    messages: Vec<Json>,
    tools: Vec<Json>,
    variables: Map<String, Json>,
}

impl Inputs {
    /// The inputs of `request` with every value changed by `change`.
    fn of(request: &ChatRequest, change: &dyn Fn(&Json) -> Json) -> Inputs {
        let variables = request.variables.iter().map(|(name, value)| (name.clone(), change(value)));
        Inputs {
            messages: request.messages.iter().map(change).collect(),
            tools: request.tools.iter().map(change).collect(),
            variables: variables.collect(),
        }
    }

    fn for_each_text(&self, see: &mut dyn FnMut(&str)) {
        let values = self.messages.iter().chain(&self.tools).chain(self.variables.values());
        values.for_each(|value| marks::for_each_text(value, see));
    }
}

/// What the template itself raised, or what went wrong in it.
fn render_error(error: &minijinja::Error) -> TextError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(inner) = cause {
        if let Some(raised) = inner.downcast_ref::<environment::Raised>() {
            return TextError::TemplateRaised { message: raised.0.clone() };
        }
        cause = inner.source();
    }
    TextError::TemplateFailed { why: describe(error) }
}

fn describe(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
