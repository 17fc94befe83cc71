//! Where what the user types comes from: a line editor with history on a terminal, plain lines from a pipe.
//! Not here: what it means (`command.rs`).

use super::command::{self, Typed};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, Config, Editor, Helper};
use shared_cli::output::{cannot_read_input, say};
use shared_cli::{Failure, folders};
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

/// Name of the history in the user's folder of states.
const HISTORY_FILE: &str = "chat-history";
/// Inputs that the history keeps.
const HISTORY_ENTRIES: usize = 1000;

/// What the user did.
#[derive(Debug)]
pub enum Event {
    /// Gave a whole input.
    Typed(Typed),
    /// Pressed Ctrl-C at the prompt.
    Interrupted,
    /// Ended the input.
    End,
}

/// A source of inputs.
pub enum Input {
    /// A person.
    Terminal(Box<Editor<Lines, FileHistory>>, Option<PathBuf>),
    /// A script.
    Pipe,
}

/// Tells the editor whether Enter ends the input or begins a new line.
pub struct Lines;

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        let is_whole = command::read(context.input()).is_some();
        Ok(if is_whole { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for Lines {
    type Candidate = String;
}

impl Hinter for Lines {
    type Hint = String;
}

impl Highlighter for Lines {}

impl Helper for Lines {}

impl Input {
    /// That of standard input.
    pub fn open() -> Result<Self, Failure> {
        if !std::io::stdin().is_terminal() {
            return Ok(Input::Pipe);
        }
        let config = Config::builder().max_history_size(HISTORY_ENTRIES).map_err(Failure::failed)?;
        // Standard output may be a file; the editor then draws on the terminal itself.
        let config = config.behavior(Behavior::PreferTerm).build();
        let mut editor = Editor::with_config(config).map_err(Failure::failed)?;
        editor.set_helper(Some(Lines));
        let history = folders::state().map(|folder| folder.join(HISTORY_FILE));
        let history = history.filter(|path| prepare(path, &mut editor));
        Ok(Input::Terminal(Box::new(editor), history))
    }

    /// Whether a person is there.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(..))
    }

    /// Waits for the next input.
    pub fn next(&mut self) -> Result<Event, Failure> {
        match self {
            Input::Terminal(editor, history) => next_edited(editor, history.as_deref()),
            Input::Pipe => next_piped(),
        }
    }
}

fn next_edited(editor: &mut Editor<Lines, FileHistory>, history: Option<&Path>) -> Result<Event, Failure> {
    let text = match editor.readline("> ") {
        Ok(text) => text,
        Err(ReadlineError::Interrupted) => return Ok(Event::Interrupted),
        Err(ReadlineError::Eof) => return Ok(Event::End),
        Err(error) => return Err(Failure::failed(error)),
    };
    let typed = command::read(&text).unwrap_or(Typed::Nothing);
    if typed != Typed::Nothing {
        editor.add_history_entry(&text).map_err(Failure::failed)?;
        if let Some(Err(error)) = history.map(|path| editor.append_history(path)) {
            say(format_args!("the history cannot be kept: {error}"));
        }
    }
    Ok(Event::Typed(typed))
}

fn next_piped() -> Result<Event, Failure> {
    let mut stdin = std::io::stdin().lock();
    let mut buffer = String::new();
    loop {
        if stdin.read_line(&mut buffer).map_err(cannot_read_input)? == 0 {
            let typed = command::read_last(&buffer).map_err(Failure::usage)?;
            return Ok(if typed == Typed::Nothing { Event::End } else { Event::Typed(typed) });
        }
        if let Some(line) = buffer.strip_suffix('\n') {
            buffer.truncate(line.strip_suffix('\r').unwrap_or(line).len());
            if let Some(typed) = command::read(&buffer) {
                return Ok(Event::Typed(typed));
            }
            buffer.push('\n');
        }
    }
}

/// Reads the history. False if it cannot be kept, which is said once.
fn prepare(path: &Path, editor: &mut Editor<Lines, FileHistory>) -> bool {
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let loaded = folder.map_err(ReadlineError::from).and_then(|()| match path.exists() {
        true => editor.load_history(path),
        false => Ok(()),
    });
    if let Err(error) = &loaded {
        say(format_args!("no history is kept: {}: {error}", path.display()));
    }
    loaded.is_ok()
}
