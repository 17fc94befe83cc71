//! What a byte string becomes before a BPE tokenizer splits it: valid text.
//!
//! Model files come with tokenizers that were trained on text, users paste anything. Like the reference, each byte that
//! begins no code point becomes U+FFFD on its own, overlong forms are written in their short form, and surrogates keep
//! their three bytes. The reference gives up at code points past U+10FFFF; here their bytes become U+FFFD too.
//! SPM never comes here: it keeps all bytes.

use std::borrow::Cow;

/// A text in two views of equal length.
pub struct Normal<'a> {
    /// For splitting: valid UTF-8, with U+E000 (a character of no class, as long) in place of each surrogate.
    pub text: Cow<'a, str>,
    /// For merging: the bytes themselves; `None` where they are those of `text`.
    pub bytes: Option<Vec<u8>>,
}

impl Normal<'_> {
    /// The bytes that are merged.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or(self.text.as_bytes())
    }
}

/// The text that `bytes` are taken for.
pub fn normalize(bytes: &[u8]) -> Normal<'_> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Normal { text: Cow::Borrowed(text), bytes: None },
        Err(_) => repair(bytes),
    }
}

fn repair(bytes: &[u8]) -> Normal<'static> {
    let mut text = String::with_capacity(bytes.len() + 16);
    let mut kept = Vec::with_capacity(bytes.len() + 16);
    let mut buffer = [0; 4];
    let mut rest = bytes;
    while !rest.is_empty() {
        let (code, len) = code_point(rest).unwrap_or((0xFFFD, 1));
        match char::from_u32(code) {
            Some(symbol) => {
                text.push(symbol);
                kept.extend_from_slice(symbol.encode_utf8(&mut buffer).as_bytes());
            }
            None => {
                text.push('\u{E000}');
                kept.extend_from_slice(&rest[..len]);
            }
        }
        rest = &rest[len..];
    }
    Normal { text: Cow::Owned(text), bytes: Some(kept) }
}

/// The code point at the start of `bytes` and its length, lenient about overlong forms and surrogates.
fn code_point(bytes: &[u8]) -> Option<(u32, usize)> {
    let lead = u32::from(*bytes.first()?);
    let (len, bits) = match lead {
        0x00..=0x7F => return Some((lead, 1)),
        0xC0..=0xDF => (2, lead & 0x1F),
        0xE0..=0xEF => (3, lead & 0x0F),
        0xF0..=0xF7 => (4, lead & 0x07),
        _ => return None,
    };
    let mut code = bits;
    for &byte in bytes.get(1..len)? {
        if byte & 0xC0 != 0x80 {
            return None;
        }
        code = code << 6 | u32::from(byte & 0x3F);
    }
    (code <= 0x10_FFFF).then_some((code, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_bytes_become_replacement_characters_one_by_one() {
        let cases: [(&[u8], &str); 7] = [
            (b"a\xFFb", "a\u{FFFD}b"),
            (b"\xE6\x97", "\u{FFFD}\u{FFFD}"),
            (b"\x80", "\u{FFFD}"),
            (b"\xC3", "\u{FFFD}"),
            (b"\xC1\x81x", "Ax"),
            (b"\xF7\xBF\xBF\xBF", "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}"),
            ("日".as_bytes(), "日"),
        ];
        for (bytes, text) in cases {
            let normal = normalize(bytes);
            assert_eq!(normal.text, text, "{bytes:X?}");
            assert_eq!(normal.bytes(), text.as_bytes(), "{bytes:X?}");
        }
    }

    #[test]
    fn surrogates_keep_their_bytes() {
        let normal = normalize(b"a\xED\xA0\x80b");
        assert_eq!(normal.text, "a\u{E000}b");
        assert_eq!(normal.bytes(), b"a\xED\xA0\x80b");
    }
}
