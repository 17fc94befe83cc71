//! Stop strings in text that comes in pieces.
//!
//! The text ends before the stop string that is complete first; of several that are complete at the same character,
//! before the longest. That does not depend on where the pieces are cut. What may be the beginning of a stop string is
//! held back, and given out as soon as it cannot be one any more, or at the end. Each stop string is followed by the
//! automaton of Knuth, Morris and Pratt, so nothing is compared twice.

/// One stop string with its automaton.
#[derive(Clone, Debug)]
struct Stop {
    bytes: Vec<u8>,
    /// `border[n]` is the length of the longest proper prefix of the first n bytes that is also their suffix.
    border: Vec<usize>,
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Stop {
        let bytes = text.as_bytes().to_vec();
        let mut border = vec![0; bytes.len() + 1];
        for end in 1..bytes.len() {
            let mut len = border[end];
            while len > 0 && bytes[end] != bytes[len] {
                len = border[len];
            }
            border[end + 1] = if bytes[end] == bytes[len] { len + 1 } else { 0 };
        }
        Stop { bytes, border, matched: 0 }
    }

    /// Whether the stop string is complete with `byte`.
    fn is_complete_with(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes.get(self.matched) != Some(&byte) {
            self.matched = self.border[self.matched];
        }
        self.matched += usize::from(self.bytes.get(self.matched) == Some(&byte));
        self.matched == self.bytes.len()
    }
}

/// Follows a text until a stop string is complete.
#[derive(Clone, Debug)]
pub struct StopStream {
    stops: Vec<Stop>,
    held: String,
}

/// What [`StopStream::push`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopStep {
    /// Text that is certain now.
    pub text: String,
    /// Which stop string is complete, by its position in the list. Nothing may be pushed after it.
    pub stopped_by: Option<usize>,
}

impl StopStream {
    /// Follows `stops`; empty strings among them stop nothing.
    pub fn new(stops: &[String]) -> StopStream {
        StopStream { stops: stops.iter().map(|stop| Stop::new(stop)).collect(), held: String::new() }
    }

    /// The text that is certain once `text` has come.
    pub fn push(&mut self, text: &str) -> StopStep {
        let start = self.held.len();
        self.held.push_str(text);
        for at in start..self.held.len() {
            let byte = self.held.as_bytes()[at];
            let mut complete: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate().filter(|(_, stop)| !stop.bytes.is_empty()) {
                let longest = complete.map_or(0, |(len, _)| len);
                if stop.is_complete_with(byte) && stop.bytes.len() > longest {
                    complete = Some((stop.bytes.len(), index));
                }
            }
            if let Some((len, index)) = complete {
                let mut text = std::mem::take(&mut self.held);
                text.truncate(at + 1 - len);
                return StopStep { text, stopped_by: Some(index) };
            }
        }
        let open = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - open);
        StopStep { text: std::mem::replace(&mut self.held, rest), stopped_by: None }
    }

    /// What is held back at the end.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(pieces: &[&str], stops: &[&str]) -> (String, Option<usize>) {
        let mut stream = StopStream::new(&stops.iter().map(ToString::to_string).collect::<Vec<_>>());
        let mut text = String::new();
        for piece in pieces {
            let step = stream.push(piece);
            text += &step.text;
            if step.stopped_by.is_some() {
                return (text, step.stopped_by);
            }
        }
        (text + &stream.finish(), None)
    }

    /// Pieces, stop strings, the text that comes out, which stop string ended it.
    type Case = (&'static [&'static str], &'static [&'static str], &'static str, Option<usize>);

    /// R12, and what lies near it.
    #[test]
    fn stop_strings_over_borders_neither_leak_nor_swallow() {
        let cases: [Case; 12] = [
            (&["DEF", "G", "HI", "J"], &["DEFGHIJ"], "", Some(0)),
            (&["DEF", "G", "X"], &["DEFGHIJ"], "DEFGX", None),
            (&["DEF"], &["DEFGHIJ"], "DEF", None),
            (&["hi>>", "> A", "\nx"], &[">>> A", ">>> A\n"], "hi", Some(0)),
            (&["a", "a", "b"], &["ab"], "a", Some(0)),
            (&["aab", "aac"], &["aabaac"], "", Some(0)),
            (&["aabaabaac"], &["aabaac"], "aab", Some(0)),
            (&["abcd"], &["abcd", "bc"], "a", Some(1)),
            (&["xy", "z"], &["yz", "xyz"], "", Some(1)),
            (&["日", "本"], &["本"], "日", Some(0)),
            (&["text"], &[], "text", None),
            (&["text"], &[""], "text", None),
        ];
        for (pieces, stops, text, stopped_by) in cases {
            assert_eq!(run(pieces, stops), (text.to_string(), stopped_by), "{pieces:?} {stops:?}");
        }
    }

    #[test]
    fn what_cannot_be_a_stop_is_given_out_at_once() {
        let mut stream = StopStream::new(&["###".into()]);
        assert_eq!(stream.push("a#").text, "a");
        assert_eq!(stream.push("#").text, "");
        assert_eq!(stream.push("b").text, "##b");
    }

    /// The definition, by looking at every prefix of the whole text.
    fn oracle(text: &str, stops: &[String]) -> String {
        for (end, _) in text.char_indices().map(|(at, symbol)| (at + symbol.len_utf8(), symbol)) {
            let complete = stops.iter().filter(|stop| !stop.is_empty() && text[..end].ends_with(stop.as_str()));
            if let Some(len) = complete.map(String::len).max() {
                return text[..end - len].to_string();
            }
        }
        text.to_string()
    }

    proptest! {
        #[test]
        fn any_cut_gives_what_the_whole_text_gives(
            pieces in proptest::collection::vec("[abé]{0,4}", 0..8),
            stops in proptest::collection::vec("[abé]{0,4}", 0..4),
        ) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let borrowed: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&pieces, &borrowed).0, oracle(&pieces.concat(), &stops));
        }
    }
}
