//! Python's string methods, and filters like them, on text with marks ([`super::marks`]).
//!
//! Each works on the text without marks and puts the marks back around the parts that it returns, so a template behaves
//! as if there were none. Methods that only tell something about a text see it without marks; everything else, and all
//! methods of lists and maps, are minijinja's own. Next file: [`super::environment`].

use std::ops::Range;

use minijinja::value::{Tuple, Value};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::marks::{self, Marked};

/// The callback for methods that minijinja does not know.
pub fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let marked = value.as_str().and_then(Marked::read);
    let Some(text) = marked else { return pycompat::unknown_method_callback(state, value, method, args) };
    let list = |ranges: Vec<Range<usize>>| Value::from_iter(ranges.into_iter().map(|range| text.part(range)));
    match method {
        "strip" => Ok(text.part(strip(&text.text, Side::Both, &char_set(args)?)).into()),
        "lstrip" => Ok(text.part(strip(&text.text, Side::Left, &char_set(args)?)).into()),
        "rstrip" => Ok(text.part(strip(&text.text, Side::Right, &char_set(args)?)).into()),
        "split" | "rsplit" => {
            let side = if method == "split" { Side::Left } else { Side::Right };
            Ok(list(split(&text.text, side, plain(args.first())?.as_deref(), limit(args.get(1))?)?))
        }
        "splitlines" => Ok(list(lines(&text.text, args.first().is_some_and(Value::is_true)))),
        "partition" | "rpartition" => partition(&text, method, args),
        "removeprefix" | "removesuffix" => remove_end(&text, method, args),
        "replace" => {
            let (Some(old), Some(new)) = (plain(args.first())?, args.get(1).and_then(Value::as_str)) else {
                return Err(bad("replace: expected two texts"));
            };
            replace(state, &text, &old, new, limit(args.get(2))?)
        }
        "capitalize" | "title" => Ok(recased(state, &text, method)?.into()),
        "find" | "rfind" | "count" | "startswith" | "endswith" | "isdigit" | "isnumeric" | "isalpha" | "isalnum"
        | "isascii" | "islower" | "isupper" | "isspace" => {
            let args: Vec<Value> = args.iter().map(unmarked).collect();
            pycompat::unknown_method_callback(state, &text.text.into(), method, &args)
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// The filter `trim`.
pub fn trim_filter(value: &Value, chars: Option<&Value>) -> Result<Value, Error> {
    let text = value.to_string();
    let chars = chars.map(|chars| char_set(std::slice::from_ref(chars))).transpose()?.flatten();
    Ok(match Marked::read(&text) {
        Some(marked) => marked.part(strip(&marked.text, Side::Both, &chars)).into(),
        None => text[strip(&text, Side::Both, &chars)].into(),
    })
}

/// The filter `replace`.
pub fn replace_filter(state: &State, value: &Value, old: &Value, new: &Value) -> Result<Value, Error> {
    let (text, old, new) = (value.to_string(), old.to_string(), new.to_string());
    let marked = Marked::read(&text).unwrap_or(Marked { text, user: Vec::new() });
    replace(state, &marked, &marks::without(&old), &new, None)
}

/// The filters `length` and `count`.
pub fn length_filter(value: &Value) -> Result<usize, Error> {
    match value.as_str() {
        Some(text) => Ok(marks::without(text).chars().count()),
        None => minijinja::filters::length(value),
    }
}

/// The filters `capitalize` and `title`.
pub fn recase_filter(state: &mut State, value: &Value, method: &str) -> Result<Value, Error> {
    let text = value.to_string();
    let marked = Marked::read(&text).unwrap_or(Marked { text, user: Vec::new() });
    Ok(recased(state, &marked, method)?.into())
}

/// A side of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    Both,
}

fn strip(text: &str, side: Side, chars: &Option<Vec<char>>) -> Range<usize> {
    let is_stripped = |symbol: char| match chars {
        Some(chars) => chars.contains(&symbol),
        // Python counts the separators of ASCII as white space, Unicode does not.
        None => symbol.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&symbol),
    };
    let start = match side {
        Side::Right => 0,
        Side::Left | Side::Both => text.len() - text.trim_start_matches(is_stripped).len(),
    };
    let end = match side {
        Side::Left => text.len(),
        Side::Right | Side::Both => text.trim_end_matches(is_stripped).len(),
    };
    start..end.max(start)
}

/// The places where `text` is split, from the left or from the right, at most `limit` times.
fn split(text: &str, side: Side, separator: Option<&str>, limit: Option<usize>) -> Result<Vec<Range<usize>>, Error> {
    let cuts = match separator {
        Some("") => return Err(bad("split: the separator is empty")),
        Some(separator) => cuts_at(text, separator, side),
        None => cuts_at_white_space(text),
    };
    let count = limit.unwrap_or(usize::MAX).min(cuts.len());
    let cuts = if side == Side::Right { &cuts[cuts.len() - count..] } else { &cuts[..count] };
    let mut ranges = Vec::with_capacity(cuts.len() + 1);
    let mut start = 0;
    for cut in cuts {
        ranges.push(start..cut.start);
        start = cut.end;
    }
    ranges.push(start..text.len());
    if separator.is_none() {
        trim_white_space_parts(text, &mut ranges);
    }
    Ok(ranges)
}

/// Where `separator` is, without overlaps, counted from one side.
fn cuts_at(text: &str, separator: &str, side: Side) -> Vec<Range<usize>> {
    let range = |(at, found): (usize, &str)| at..at + found.len();
    if side != Side::Right {
        return text.match_indices(separator).map(range).collect();
    }
    let mut cuts: Vec<_> = text.rmatch_indices(separator).map(range).collect();
    cuts.reverse();
    cuts
}

/// The runs of white space between words.
fn cuts_at_white_space(text: &str) -> Vec<Range<usize>> {
    let inner = strip(text, Side::Both, &None);
    let mut cuts: Vec<Range<usize>> = Vec::new();
    for (at, symbol) in text[inner.clone()].char_indices().filter(|(_, symbol)| symbol.is_whitespace()) {
        let at = inner.start + at;
        match cuts.last_mut() {
            Some(last) if last.end == at => last.end = at + symbol.len_utf8(),
            _ => cuts.push(at..at + symbol.len_utf8()),
        }
    }
    cuts
}

/// White space at the ends belongs to no part; a text of nothing else has none.
fn trim_white_space_parts(text: &str, ranges: &mut Vec<Range<usize>>) {
    let inner = strip(text, Side::Both, &None);
    if let Some(first) = ranges.first_mut() {
        first.start = inner.start;
    }
    if let Some(last) = ranges.last_mut() {
        last.end = inner.end;
    }
    ranges.retain(|range| !range.is_empty());
}

fn lines(text: &str, keep_ends: bool) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let rest = &text[start..];
        let len = rest.find(['\n', '\r']).unwrap_or(rest.len());
        let end = match &rest[len..] {
            tail if tail.starts_with("\r\n") => 2,
            "" => 0,
            _ => 1,
        };
        ranges.push(start..start + len + if keep_ends { end } else { 0 });
        start += len + end;
    }
    ranges
}

fn partition(text: &Marked, method: &str, args: &[Value]) -> Result<Value, Error> {
    let separator = plain(args.first())?.filter(|separator| !separator.is_empty());
    let separator = separator.ok_or_else(|| bad("partition: expected a text that is not empty"))?;
    let len = text.text.len();
    let (found, nothing) = match method {
        "partition" => (text.text.find(&separator), (0..len, len..len, len..len)),
        _ => (text.text.rfind(&separator), (0..0, 0..0, 0..len)),
    };
    let (before, at, after) = found.map_or(nothing, |at| (0..at, at..at + separator.len(), at + separator.len()..len));
    let part = |range| Value::from(text.part(range));
    Ok(Value::from(Tuple::from([part(before), part(at), part(after)])))
}

fn remove_end(text: &Marked, method: &str, args: &[Value]) -> Result<Value, Error> {
    let end = plain(args.first())?.ok_or_else(|| bad("removeprefix, removesuffix: expected a text"))?;
    let len = text.text.len();
    let range = match method {
        "removeprefix" if text.text.starts_with(&end) => end.len()..len,
        "removesuffix" if text.text.ends_with(&end) => 0..len - end.len(),
        _ => 0..len,
    };
    Ok(text.part(range).into())
}

/// Replaces `old`, which has no marks, by `new`, which may have. Where a user wrote any of `old`, the new text is the
/// user's as well.
fn replace(state: &State, text: &Marked, old: &str, new: &str, limit: Option<usize>) -> Result<Value, Error> {
    let found: Vec<usize> = text.text.match_indices(old).map(|(at, _)| at).take(limit.unwrap_or(usize::MAX)).collect();
    state.consume_fuel((found.len().saturating_mul(new.len()) / 64) as u64)?;
    let mut out = String::with_capacity(text.text.len());
    let mut at = 0;
    for start in found {
        out.push_str(&text.part(at..start));
        at = start + old.len();
        if text.is_user(start..at) && !new.is_empty() {
            out.push_str(&marks::wrap(&marks::without(new)));
        } else {
            out.push_str(new);
        }
    }
    out.push_str(&text.part(at..text.text.len()));
    Ok(out.into())
}

/// The text in other case. If that changes lengths, all of it counts as the user's where any was.
fn recased(state: &mut State, text: &Marked, method: &str) -> Result<String, Error> {
    let changed = pycompat::unknown_method_callback(state, &text.text.clone().into(), method, &[])?.to_string();
    let boundaries = text.user.iter().flat_map(|user| [user.start, user.end]);
    let fits = changed.len() == text.text.len() && boundaries.into_iter().all(|at| changed.is_char_boundary(at));
    let whole = 0..changed.len();
    let user = match (fits, text.user.is_empty()) {
        (true, _) => text.user.clone(),
        (false, true) => Vec::new(),
        (false, false) => Vec::from_iter((!whole.is_empty()).then_some(whole)),
    };
    let marked = Marked { text: changed, user };
    Ok(marked.part(0..marked.text.len()))
}

/// An argument that is a text, without marks; `None` if it is absent or none.
fn plain(arg: Option<&Value>) -> Result<Option<String>, Error> {
    let Some(arg) = arg.filter(|arg| !arg.is_none() && !arg.is_undefined()) else { return Ok(None) };
    let text = arg.as_str().ok_or_else(|| bad("expected a text"))?;
    Ok(Some(marks::without(text).into_owned()))
}

fn char_set(args: &[Value]) -> Result<Option<Vec<char>>, Error> {
    Ok(plain(args.first())?.map(|chars| chars.chars().collect()))
}

/// A count that is absent or negative means no limit.
fn limit(arg: Option<&Value>) -> Result<Option<usize>, Error> {
    let Some(arg) = arg.filter(|arg| !arg.is_none()) else { return Ok(None) };
    let count = i64::try_from(arg.clone()).map_err(|_| bad("expected a number"))?;
    Ok(usize::try_from(count).ok())
}

fn unmarked(value: &Value) -> Value {
    match value.as_str() {
        Some(text) => marks::without(text).as_ref().into(),
        None => value.clone(),
    }
}

fn bad(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
