//! Bytes that come in any pieces to text that comes in whole characters.
//!
//! Bytes that can never become a character turn into U+FFFD as soon as that is sure, one for each maximal bad run, and
//! an unfinished character at the end turns into one. So the pieces joined are always `String::from_utf8_lossy` of the
//! bytes joined.

/// Holds the beginning of a character until the rest comes.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    held: Vec<u8>,
}

impl Utf8Stream {
    /// The text that is complete once `bytes` have come.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(good) => {
                    text.push_str(good);
                    rest = &[];
                }
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(good).unwrap_or_default());
                    rest = bad;
                    let Some(len) = error.error_len() else { break };
                    text.push('\u{FFFD}');
                    rest = &rest[len..];
                }
            }
        }
        self.held = rest.to_vec();
        text
    }

    /// What is left at the end: one U+FFFD for an unfinished character, or nothing.
    pub fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.held).is_empty() { "" } else { "\u{FFFD}" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn characters_are_never_cut() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"\xF0\x9F\x98"), "");
        assert_eq!(stream.push(b"\x80"), "\u{1F600}");
        assert_eq!(stream.push(b"\xE6"), "");
        assert_eq!(stream.push(b"\x97"), "");
        assert_eq!(stream.push(b"\xA5"), "日");
        assert_eq!(stream.push(b"\xFF"), "\u{FFFD}");
        assert_eq!(stream.push(b"a\xE6\x97"), "a");
        assert_eq!(stream.finish(), "\u{FFFD}");
        assert_eq!(stream.finish(), "");
    }

    proptest! {
        #[test]
        fn pieces_joined_are_the_lossy_text_of_the_bytes_joined(pieces: Vec<Vec<u8>>) {
            let mut stream = Utf8Stream::default();
            let mut text: String = pieces.iter().map(|piece| stream.push(piece)).collect();
            text += stream.finish();
            let bytes = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
