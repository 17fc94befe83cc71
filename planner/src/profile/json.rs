//! How a profile is written: objects of the first levels over several lines, curves and points on one line each, so
//! that a diff of two profiles can be read.

use super::Profile;
use serde_json::Value;

/// Nesting at which a value is written on one line.
const COMPACT_DEPTH: usize = 2;

/// The profile as text.
pub(super) fn render(profile: &Profile) -> String {
    // Serialising plain structs of numbers, strings and vectors cannot fail; an empty text would not parse back.
    let value = serde_json::to_value(profile).unwrap_or(Value::Null);
    let mut text = String::new();
    write(&value, 0, &mut text);
    text.push('\n');
    text
}

fn write(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(fields) if depth < COMPACT_DEPTH && !fields.is_empty() => {
            let entries = fields.iter().map(|(key, value)| (Some(key.as_str()), value));
            block('{', '}', entries, depth, out);
        }
        Value::Array(values) if values.first().is_some_and(Value::is_string) || is_table(values, depth) => {
            block('[', ']', values.iter().map(|value| (None, value)), depth, out);
        }
        other => out.push_str(&other.to_string().replace("\",\"", "\", \"").replace(",\"", ", \"")),
    }
}

/// A list of objects near the root: one line each.
fn is_table(values: &[Value], depth: usize) -> bool {
    depth < COMPACT_DEPTH + 1 && values.first().is_some_and(Value::is_object)
}

fn block<'a>(
    open: char,
    close: char,
    entries: impl Iterator<Item = (Option<&'a str>, &'a Value)>,
    depth: usize,
    out: &mut String,
) {
    out.push(open);
    let indent = "  ".repeat(depth + 1);
    for (index, (key, value)) in entries.enumerate() {
        out.push_str(if index == 0 { "\n" } else { ",\n" });
        out.push_str(&indent);
        if let Some(key) = key {
            out.push_str(&format!("\"{key}\": "));
        }
        write(value, depth + 1, out);
    }
    out.push('\n');
    out.push_str(&"  ".repeat(depth));
    out.push(close);
}
