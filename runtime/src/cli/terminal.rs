//! What terminals need and pipes do not: control characters taken out of a model's text, a line of progress.
//! Not here: the look of a chat (`chat/screen.rs`).

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

/// `text` with nothing in it that moves a terminal's cursor, changes its state or makes it answer: models write what
/// they have read. Line feeds and tabs stay.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let harmful = |symbol: char| symbol.is_control() && !matches!(symbol, '\n' | '\t');
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let kept = text.chars().filter(|&symbol| symbol != '\r');
    kept.map(|symbol| if harmful(symbol) { char::REPLACEMENT_CHARACTER } else { symbol }).collect()
}

/// A line on standard error, if that is a terminal, which says how far a long prompt has come.
#[derive(Debug, Default)]
pub struct Progress {
    is_shown: bool,
}

impl Progress {
    /// Shows it, for prompts that take more than one round.
    pub fn show(&mut self, done: usize, total: usize, round_tokens: usize) {
        let mut err = std::io::stderr();
        if total - done > round_tokens && err.is_terminal() || self.is_shown {
            self.is_shown = true;
            // Progress that cannot be shown is no fault.
            let _ = write!(err, "\r\x1b[Kprompt: {done} of {total} tokens");
        }
    }

    /// Takes it away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_taken_out() {
        for (text, shown) in [
            ("plain\n\ttext 日本", "plain\n\ttext 日本"),
            ("a\r\nb", "a\nb"),
            ("\x1b[2J\x07", "\u{FFFD}[2J\u{FFFD}"),
            ("\u{9b}31m\x7f", "\u{FFFD}31m\u{FFFD}"),
        ] {
            assert_eq!(harmless(text), shown);
        }
    }
}
