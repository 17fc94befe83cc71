//! Marks around text that a user wrote, which stay with it on its way through a template.
//!
//! Each string of messages and tools is put between two characters that no text may contain (noncharacters of Unicode,
//! set aside for use inside a program). The methods and filters that a template may use on it ([`super::methods`]) work
//! on the text without the marks and put them back around what they return. What comes out is checked twice: the marks
//! must be in pairs, and without them the text must be what the template gives for unmarked messages. So a template
//! that takes strings apart in ways that are not followed is noticed, never misread. Next file: [`super::methods`].

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

/// Stands before text of a user.
pub const OPEN: char = '\u{FDD0}';
/// Stands behind text of a user.
pub const CLOSE: char = '\u{FDD1}';

/// Whether `text` has any mark.
pub fn is_marked(text: &str) -> bool {
    text.contains([OPEN, CLOSE])
}

/// `text` without marks.
pub fn without(text: &str) -> Cow<'_, str> {
    if is_marked(text) { Cow::Owned(text.replace([OPEN, CLOSE], "")) } else { Cow::Borrowed(text) }
}

/// A text with its marks taken off, and where they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marked {
    /// The text.
    pub text: String,
    /// The ranges of it that a user wrote: ascending, apart, none empty.
    pub user: Vec<Range<usize>>,
}

impl Marked {
    /// Takes the marks off; `None` if they are not in pairs.
    pub fn read(marked: &str) -> Option<Marked> {
        let mut found = Marked::default();
        let mut open = None;
        for symbol in marked.chars() {
            match (symbol, open) {
                (OPEN, None) => open = Some(found.text.len()),
                (CLOSE, Some(start)) => {
                    found.add_user(start..found.text.len());
                    open = None;
                }
                (OPEN, Some(_)) | (CLOSE, None) => return None,
                _ => found.text.push(symbol),
            }
        }
        open.is_none().then_some(found)
    }

    fn add_user(&mut self, range: Range<usize>) {
        match self.user.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.user.push(range),
        }
    }

    /// A part of the text, with marks.
    pub fn part(&self, range: Range<usize>) -> String {
        let mut part = String::with_capacity(range.len() + 8);
        let mut at = range.start;
        for user in &self.user {
            let (start, end) = (user.start.max(range.start), user.end.min(range.end));
            if start < end {
                part.push_str(&self.text[at..start]);
                part.push(OPEN);
                part.push_str(&self.text[start..end]);
                part.push(CLOSE);
                at = end;
            }
        }
        part.push_str(&self.text[at..range.end]);
        part
    }

    /// Whether any of the range is a user's.
    pub fn is_user(&self, range: Range<usize>) -> bool {
        let after = self.user.partition_point(|user| user.end <= range.start);
        !range.is_empty() && self.user.get(after).is_some_and(|user| user.start < range.end)
    }
}

/// `text` between marks.
pub fn wrap(text: &str) -> String {
    format!("{OPEN}{text}{CLOSE}")
}

/// Roles that templates compare with and write themselves; any other is a user's text.
const ROLES: [&str; 11] = [
    "system",
    "user",
    "assistant",
    "tool",
    "developer",
    "function",
    "ipython",
    "model",
    "observation",
    "context",
    "documents",
];

/// A copy of `value` with every string marked, except words that cannot be a part of a marker: `has_special` says
/// whether a text contains one as a whole. Roles other than the known ones are marked in any case.
pub fn mark(value: &Value, has_special: &dyn Fn(&str) -> bool) -> Value {
    match value {
        Value::String(text) => Value::String(mark_text(text, &['_', '-', '.'], has_special)),
        Value::Array(list) => list.iter().map(|item| mark(item, has_special)).collect(),
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                let value = match (key.as_str(), value) {
                    ("role", Value::String(role)) if !ROLES.contains(&role.as_str()) => Value::String(marked(role)),
                    _ => mark(value, has_special),
                };
                (mark_text(key, &['_', '-', '.', '$', '@', ':', '/'], has_special), value)
            };
            map.iter().map(entry).collect()
        }
        other => other.clone(),
    }
}

fn mark_text(text: &str, joiners: &[char], has_special: &dyn Fn(&str) -> bool) -> String {
    let is_word = text.chars().all(|symbol| symbol.is_ascii_alphanumeric() || joiners.contains(&symbol));
    if is_word && !has_special(text) { text.to_string() } else { marked(text) }
}

fn marked(text: &str) -> String {
    wrap(&sanitized(text))
}

/// `text` with U+FFFD in place of the two noncharacters that serve as marks.
fn sanitized(text: &str) -> Cow<'_, str> {
    if is_marked(text) { Cow::Owned(text.replace([OPEN, CLOSE], "\u{FFFD}")) } else { Cow::Borrowed(text) }
}

/// A copy of `value` with U+FFFD in place of mark characters in all its strings.
pub fn sanitize(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(sanitized(text).into_owned()),
        Value::Array(list) => list.iter().map(sanitize).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (sanitized(key).into_owned(), sanitize(value))).collect(),
        other => other.clone(),
    }
}

/// Calls `see` with every string in `value`, keys included.
pub fn for_each_text(value: &Value, see: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(list) => list.iter().for_each(|item| for_each_text(item, see)),
        Value::Object(map) => {
            for (key, value) in map {
                see(key);
                for_each_text(value, see);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_off_and_go_back() {
        let text = format!("a{}b{}", wrap("xy"), wrap("z"));
        let marked = Marked::read(&text).expect("in pairs");
        assert_eq!((marked.text.as_str(), marked.user.as_slice()), ("axybz", &[1..3, 4..5][..]));
        assert_eq!(marked.part(0..5), text);
        assert_eq!(marked.part(2..4), format!("{}b", wrap("y")));
        assert_eq!(marked.part(3..4), "b");
        for (range, expected) in [(0..1, false), (0..2, true), (3..4, false), (4..5, true), (2..2, false)] {
            assert_eq!(marked.is_user(range.clone()), expected, "{range:?}");
        }
    }

    #[test]
    fn marks_out_of_order_are_noticed() {
        for text in ["\u{FDD0}a", "a\u{FDD1}", "\u{FDD0}\u{FDD0}a\u{FDD1}\u{FDD1}", "\u{FDD1}a\u{FDD0}"] {
            assert_eq!(Marked::read(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_words_and_known_roles_stay_unmarked() {
        let value = serde_json::json!({
            "role": "user", "content": "hi there", "type": "text", "n": 1, "<x>": "a|b",
            "tool_calls": [{"name": "get_time", "role": "endoftext"}], "$ref": "EOT", "empty": ""
        });
        let marked = mark(&value, &|text| text == "EOT");
        let expected = serde_json::json!({
            "role": "user", "content": wrap("hi there"), "type": "text", "n": 1, wrap("<x>"): wrap("a|b"),
            "tool_calls": [{"name": "get_time", "role": wrap("endoftext")}], "$ref": wrap("EOT"), "empty": ""
        });
        assert_eq!(marked, expected);
    }
}
