//! What went wrong, and what to do about it, as a person reads it. Exit codes: 1 failed, 2 used wrongly, 130
//! interrupted. Not here: which error deserves which hint (the programs know).

use crate::output::say;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

/// Exit code of a command that failed.
const FAILED: u8 = 1;
/// Exit code of a command that was used wrongly.
const USAGE: u8 = 2;
/// Exit code of a command that Ctrl-C ended, as shells report it.
pub const INTERRUPTED: u8 = 130;

/// A command's failure.
#[derive(Debug)]
pub struct Failure {
    /// Nothing is said without.
    error: Option<anyhow::Error>,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// The command failed.
    pub fn failed(error: impl Into<anyhow::Error>) -> Self {
        Failure { error: Some(error.into()), hint: None, code: FAILED }
    }

    /// The command was used wrongly.
    pub fn usage(what: impl Display) -> Self {
        Failure { code: USAGE, ..Failure::failed(anyhow::Error::msg(format!("{what:#}"))) }
    }

    /// The user ended the command by Ctrl-C, and knows it.
    pub fn interrupted() -> Self {
        Failure { error: None, hint: None, code: INTERRUPTED }
    }

    /// Adds what to do.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Failure { hint: Some(hint.into()), ..self }
    }

    /// Puts the model's path in the place of `MODEL` in what to do.
    pub fn about(self, model: &Path) -> Self {
        let hint = self.hint.map(|hint| hint.replace("MODEL", &shell_word(&model.to_string_lossy())));
        Failure { hint, ..self }
    }

    /// Whether a reader went away (`| head`), which is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        let io = self.error.as_ref().and_then(|error| error.downcast_ref::<std::io::Error>());
        io.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
    }

    /// The program's exit code; 0 for a reader that went away.
    pub fn code(&self) -> u8 {
        if self.is_broken_pipe() { 0 } else { self.code }
    }

    /// Error, causes and hint, one line each; empty where there is nothing to say.
    pub fn text(&self) -> String {
        let error =
            self.error.iter().filter(|_| !self.is_broken_pipe()).map(|error| format!("error: {}", with_causes(error)));
        let hint = self.hint.iter().map(|hint| format!("hint: {hint}"));
        printable(&error.chain(hint).collect::<Vec<_>>().join("\n"))
    }

    /// Writes it to standard error and gives the exit code.
    pub fn report(&self) -> ExitCode {
        let text = self.text();
        if !text.is_empty() {
            say(text);
        }
        ExitCode::from(self.code())
    }
}

/// A text without characters that would act on the terminal: files and names may hold any.
pub fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// A word as a shell takes it.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// An error and its causes, but for those that it tells itself.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Of writing to standard output, which is all that fails this way in a command; other errors are given their names.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::failed(anyhow::Error::new(error).context("cannot write the output"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[track_caller]
    fn check(failure: &Failure, code: u8, text: &str) {
        assert_eq!((failure.code(), failure.text().as_str()), (code, text));
    }

    #[test]
    fn hints_name_the_model_as_a_shell_takes_it() {
        let cases = [
            ("/m/a-1.gguf", "compile /m/a-1.gguf --out x"),
            ("модель.gguf", "compile модель.gguf --out x"),
            ("my model.gguf", "compile 'my model.gguf' --out x"),
            ("it's", "compile 'it'\\''s' --out x"),
        ];
        for (model, hint) in cases {
            let failure =
                Failure::failed(anyhow::anyhow!("stale")).hint("compile MODEL --out x").about(Path::new(model));
            check(&failure, 1, &format!("error: stale\nhint: {hint}"));
        }
        check(&Failure::usage("no").about(Path::new("m")), 2, "error: no");
    }

    #[test]
    fn nothing_in_a_message_acts_on_the_terminal() {
        let failure = Failure::usage("no profile `\u{1b}[2J\r\u{9b}x`\nat all").hint("a\tb");
        check(&failure, 2, "error: no profile `\\u{1b}[2J\\r\\u{9b}x`\nat all\nhint: a\\tb");
    }

    #[test]
    fn failures_say_what_why_and_what_to_do() {
        let io = |kind| Err::<(), _>(std::io::Error::from(kind)).context("cannot read x").unwrap_err();
        check(&Failure::failed(io(ErrorKind::NotFound)), 1, "error: cannot read x: entity not found");
        check(&Failure::usage("no such size").hint("write 6G"), 2, "error: no such size\nhint: write 6G");
        check(&Failure::usage(io(ErrorKind::NotFound)), 2, "error: cannot read x: entity not found");
        let twice = std::io::Error::other("no room");
        let twice = anyhow::Error::new(twice).context("cannot write x: no room");
        check(&Failure::failed(twice), 1, "error: cannot write x: no room");
        check(&std::io::Error::other("no room").into(), 1, "error: cannot write the output: no room");
        check(&Failure::interrupted(), 130, "");
        check(&Failure::failed(io(ErrorKind::BrokenPipe)), 0, "");
        check(&std::io::Error::from(ErrorKind::BrokenPipe).into(), 0, "");
    }
}
