//! The `tojson` filter, printing what Python's `json.dumps` prints.
//!
//! Chat templates were written for it, and models were trained on its bytes: insertion order, `", "` and `": "`, no
//! HTML escapes, non-ASCII as it is. The arguments `ensure_ascii`, `indent`, `separators` and `sort_keys` mean what
//! they mean in Python. Marks of user text ([`super::marks`]) stay as they are in any case.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::marks;

/// How deep values may be nested.
const DEPTH_MAX: usize = 128;

/// The arguments of `json.dumps`.
struct Style {
    ensure_ascii: bool,
    /// What a level of nesting is indented by; `None` for a single line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value | tojson(indent)` with keyword arguments.
pub fn tojson(state: &State, value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let style = Style::of(indent, &kwargs)?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(state, value, 0, &mut out)?;
    Ok(Value::from(out))
}

impl Style {
    fn of(indent: Option<Value>, kwargs: &Kwargs) -> Result<Style, Error> {
        let indent = match indent {
            Some(indent) => Some(indent),
            None => kwargs.get::<Option<Value>>("indent")?,
        };
        let indent = indent.filter(|indent| !indent.is_none() && !indent.is_undefined());
        let indent = indent.map(|indent| indent_text(&indent)).transpose()?;
        let separators = kwargs.get::<Option<Value>>("separators")?.filter(|pair| !pair.is_none());
        let (item_separator, key_separator) = match separators {
            Some(pair) => separator_pair(&pair)?,
            None if indent.is_some() => (",".into(), ": ".into()),
            None => (", ".into(), ": ".into()),
        };
        Ok(Style {
            ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
            indent,
            item_separator,
            key_separator,
            sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        })
    }

    fn write(&self, state: &State, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(bad(format!("tojson: values nested deeper than {DEPTH_MAX}")));
        }
        state.consume_fuel(1)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_list(state, &items, depth, out)?;
            }
            ValueKind::Map => self.write_map(state, value, depth, out)?,
            kind => return Err(bad(format!("tojson: a value of type {kind} is not JSON"))),
        }
        Ok(())
    }

    fn write_list(&self, state: &State, items: &[Value], depth: usize, out: &mut String) -> Result<(), Error> {
        out.push('[');
        for (at, item) in items.iter().enumerate() {
            self.begin_item(at, depth, out);
            self.write(state, item, depth + 1, out)?;
        }
        self.end_items(items.len(), depth, out);
        out.push(']');
        Ok(())
    }

    fn write_map(&self, state: &State, map: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let mut keys = map.try_iter()?.map(|key| Ok((key_text(&key)?, key))).collect::<Result<Vec<_>, Error>>()?;
        if self.sort_keys {
            keys.sort_by(|(a, _), (b, _)| marks::without(a).cmp(&marks::without(b)));
        }
        out.push('{');
        for (at, (text, key)) in keys.iter().enumerate() {
            self.begin_item(at, depth, out);
            self.write_text(text, out);
            out.push_str(&self.key_separator);
            self.write(state, &map.get_item(key)?, depth + 1, out)?;
        }
        self.end_items(keys.len(), depth, out);
        out.push('}');
        Ok(())
    }

    fn begin_item(&self, at: usize, depth: usize, out: &mut String) {
        if at > 0 {
            out.push_str(&self.item_separator);
        }
        self.new_line(depth + 1, out);
    }

    fn end_items(&self, count: usize, depth: usize, out: &mut String) {
        if count > 0 {
            self.new_line(depth, out);
        }
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for symbol in text.chars() {
            match symbol {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{C}' => out.push_str("\\f"),
                marks::OPEN | marks::CLOSE => out.push(symbol),
                '\0'..='\u{1F}' => escape(symbol, out),
                '\u{7F}'.. if self.ensure_ascii => escape(symbol, out),
                _ => out.push(symbol),
            }
        }
        out.push('"');
    }
}

/// `\uXXXX`, as a pair of surrogates where needed. Python leaves U+007F as it is.
fn escape(symbol: char, out: &mut String) {
    if symbol == '\u{7F}' {
        return out.push(symbol);
    }
    let mut units = [0; 2];
    for unit in symbol.encode_utf16(&mut units) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}

/// Integers as they are; floats as Python's `repr`: the shortest digits that read back the same, with an exponent
/// below 1e-4 and from 1e16 on.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    float_repr(float)
}

/// Python's `repr` of a float, in JSON's spelling of those that are no numbers.
pub fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "NaN".into();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = float.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

fn indent_text(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.into());
    }
    let columns = i64::try_from(indent.clone()).map_err(|_| bad("tojson: `indent` must be a number or text".into()))?;
    match columns {
        ..0 => Ok(String::new()),
        0..=64 => Ok(" ".repeat(columns as usize)),
        _ => Err(bad(format!("tojson: an indent of {columns} columns; at most 64 are accepted"))),
    }
}

fn separator_pair(pair: &Value) -> Result<(String, String), Error> {
    let list: Vec<Value> = pair.try_iter()?.collect();
    match list.as_slice() {
        [item, key] => Ok((item.to_string(), key.to_string())),
        _ => Err(bad("tojson: `separators` must be a pair of texts".into())),
    }
}

/// Keys that are no texts become what Python makes of them.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().into()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(bad(format!("tojson: a key of type {kind} is not JSON"))),
    }
}

fn bad(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_printed_as_python_prints_them() {
        let cases = [
            (1.0, "1.0"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (123456.789, "123456.789"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (float, expected) in cases {
            assert_eq!(float_repr(float), expected);
        }
    }
}
