//! The template engine as chat templates expect it: Hugging Face's Jinja2 settings, Python's methods, limits.
//!
//! Templates come out of model files and are not trusted: they have no access to anything but the conversation, and
//! instructions, memory (fuel pays for both) and recursion are limited. Next file: [`super`].

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};

use super::{json, methods};

/// Fuel that any rendering gets; one unit is an instruction, or 64 bytes. 256 MiB at most.
pub const FUEL_BASE: u64 = 4_000_000;
/// Fuel for each byte of the conversation, since templates walk over the messages again and again.
pub const FUEL_PER_BYTE: u64 = 4;

/// How deep macros, loops and conditions may be nested while rendering.
const RECURSION_MAX: usize = 300;

/// Name of the one template in its environment.
pub const NAME: &str = "chat";

/// What `raise_exception` was called with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Raised(pub String);

/// An environment with `source` as its only template.
pub fn with_template(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_unknown_method_callback(methods::call);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", |state: &State, value: &Value, indent: Option<Value>, kwargs: Kwargs| {
        json::tojson(state, value, indent, kwargs)
    });
    environment.add_filter("trim", |value: &Value, chars: Option<&Value>| methods::trim_filter(value, chars));
    environment.add_filter("replace", |state: &State, value: &Value, old: &Value, new: &Value| {
        methods::replace_filter(state, value, old, new)
    });
    environment.add_filter("length", methods::length_filter);
    environment.add_filter("count", methods::length_filter);
    for method in ["capitalize", "title"] {
        environment
            .add_filter(method, move |state: &mut State, value: &Value| methods::recase_filter(state, value, method));
    }
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(environment)
}

/// Jinja2's `is iterable`: not for none, in contrast to minijinja's.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Jinja2's `is sequence`: whatever has a length and items by key, so texts and maps as well.
fn is_sequence(value: &Value) -> bool {
    value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// `{% generation %}` and `{% endgeneration %}` mark what a model is trained on and mean nothing here. They become a
/// condition that always holds, so that white space around them is treated as before.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let len = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(len);
        match tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_are_passed_over_with_their_white_space_rules() {
        let cases = [
            ("a{% generation %}b{% endgeneration %}c", "a{% if true %}b{% endif %}c"),
            ("{%- generation -%}", "{%- if true -%}"),
            ("{% set generation = 1 %}{% if x %}", "{% set generation = 1 %}{% if x %}"),
            ("{% unfinished", "{% unfinished"),
        ];
        for (source, expected) in cases {
            assert_eq!(without_generation_tags(source), expected);
        }
    }
}
