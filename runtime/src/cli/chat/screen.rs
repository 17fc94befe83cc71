//! How an answer looks: reasoning and tool calls apart from the answer, dimmed on a terminal, between lines of their
//! own elsewhere. Not here: what is reasoning (`text::channels`).

use crate::cli::terminal::harmless;
use std::io::{self, IsTerminal, Write};
use text::{Delta, Step};

/// How parts are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// By dimming; control characters in the text are taken out.
    Terminal,
    /// By marker lines, on a terminal that has or wants no colours; control characters are taken out as well.
    PlainTerminal,
    /// By marker lines.
    Plain,
}

/// Whether reasoning is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Reasoning {
    /// It is.
    Show,
    /// It is not.
    Hide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Answer,
    Reasoning,
    Tool,
}

/// Writes one answer.
#[derive(Debug)]
pub struct Screen<W> {
    out: W,
    look: Look,
    reasoning: Reasoning,
    part: Option<Part>,
    /// Whether the last character written was a line feed; nothing counts as one.
    at_line_start: bool,
}

const DIM: &str = "\x1b[2m";
const NORMAL: &str = "\x1b[0m";

impl Look {
    /// That of standard output.
    pub fn of_stdout() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match io::stdout().is_terminal() {
            true if dumb || unwanted => Look::PlainTerminal,
            true => Look::Terminal,
            false => Look::Plain,
        }
    }
}

impl<W: Write> Screen<W> {
    /// A screen for one answer.
    pub fn new(out: W, look: Look, reasoning: Reasoning) -> Self {
        Screen { out, look, reasoning, part: None, at_line_start: true }
    }

    /// Writes what a token added.
    pub fn show(&mut self, step: &Step) -> io::Result<()> {
        for delta in &step.deltas {
            match delta {
                Delta::Answer(text) => self.write(Part::Answer, text)?,
                Delta::Reasoning(_) if self.reasoning == Reasoning::Hide => {}
                Delta::Reasoning(text) => self.write(Part::Reasoning, text)?,
                Delta::ToolCall(name) => {
                    self.part = self.part.filter(|&part| part != Part::Tool);
                    self.enter(Part::Tool)?;
                    self.put(name)?;
                    self.put(" ")?;
                }
                Delta::ToolArguments(text) => self.write(Part::Tool, text)?,
            }
        }
        self.out.flush()
    }

    /// Ends the answer with its line.
    pub fn end(&mut self) -> io::Result<()> {
        if self.look == Look::Terminal && matches!(self.part, Some(Part::Reasoning | Part::Tool)) {
            self.out.write_all(NORMAL.as_bytes())?;
        }
        self.fresh_line()?;
        self.out.flush()
    }

    fn write(&mut self, part: Part, text: &str) -> io::Result<()> {
        self.enter(part)?;
        self.put(text)
    }

    /// Marks the change from one part to another. An answer without anything before it has no mark.
    fn enter(&mut self, part: Part) -> io::Result<()> {
        let before = self.part.replace(part);
        if before == Some(part) {
            return Ok(());
        }
        if before.is_some() || part == Part::Tool {
            self.fresh_line()?;
        }
        let mark = match (self.look, part) {
            (Look::Terminal, Part::Answer) if before.is_some() => "\x1b[0m\n",
            (Look::Terminal, Part::Reasoning) => DIM,
            (Look::Terminal, Part::Tool) => "\x1b[2mtool call: ",
            (_, Part::Answer) if before.is_some() => "[answer]\n",
            (_, Part::Reasoning) => "[reasoning]\n",
            (_, Part::Tool) => "[tool call] ",
            (_, Part::Answer) => "",
        };
        self.out.write_all(mark.as_bytes())
    }

    fn fresh_line(&mut self) -> io::Result<()> {
        if self.at_line_start { Ok(()) } else { self.put("\n") }
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        self.at_line_start = text.chars().next_back().map_or(self.at_line_start, |last| last == '\n');
        match self.look {
            Look::Plain => self.out.write_all(text.as_bytes()),
            Look::Terminal | Look::PlainTerminal => self.out.write_all(harmless(text).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(look: Look, reasoning: Reasoning, deltas: &[Delta], expected: &str) {
        let mut bytes = Vec::new();
        let mut screen = Screen::new(&mut bytes, look, reasoning);
        for delta in deltas {
            screen.show(&Step { deltas: vec![delta.clone()], finish: None }).expect("memory");
        }
        screen.end().expect("memory");
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    fn answer(text: &str) -> Delta {
        Delta::Answer(text.into())
    }

    fn reasoning(text: &str) -> Delta {
        Delta::Reasoning(text.into())
    }

    #[test]
    fn an_answer_alone_has_no_marks() {
        for look in [Look::Terminal, Look::PlainTerminal, Look::Plain] {
            check(look, Reasoning::Show, &[answer("fo"), answer("ur")], "four\n");
            check(look, Reasoning::Show, &[answer("four\n")], "four\n");
            check(look, Reasoning::Show, &[], "");
        }
    }

    #[test]
    fn reasoning_is_kept_apart() {
        let deltas = [reasoning("h"), reasoning("m"), answer("four")];
        check(Look::Terminal, Reasoning::Show, &deltas, "\x1b[2mhm\n\x1b[0m\nfour\n");
        check(Look::Plain, Reasoning::Show, &deltas, "[reasoning]\nhm\n[answer]\nfour\n");
        check(Look::Plain, Reasoning::Hide, &deltas, "four\n");
        check(Look::Terminal, Reasoning::Show, &[reasoning("cut")], "\x1b[2mcut\x1b[0m\n");
    }

    #[test]
    fn tool_calls_are_named() {
        let call = [Delta::ToolCall("get".into()), Delta::ToolArguments("{}".into())];
        let deltas = [&[answer("now")], &call[..], &call[..]].concat();
        check(Look::Plain, Reasoning::Show, &deltas, "now\n[tool call] get {}\n[tool call] get {}\n");
    }

    #[test]
    fn only_terminals_are_shielded_from_control_characters() {
        check(Look::PlainTerminal, Reasoning::Show, &[answer("a\x1b[2Jb")], "a\u{FFFD}[2Jb\n");
        check(Look::Plain, Reasoning::Show, &[answer("a\x1b[2Jb")], "a\x1b[2Jb\n");
    }
}
