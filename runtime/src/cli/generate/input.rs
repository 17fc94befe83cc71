//! Where a prompt comes from. Not here: how text becomes tokens (`text::tokenizer`).

use crate::cli::Failure;
use crate::cli::common::{read_ids, read_text};
use clap::Args;
use shared_cli::output::read_input;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use text::{ParseSpecial, Tokenizer};

/// Where the prompt comes from; standard input if nothing is given.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct Input {
    /// The prompt.
    #[arg(long, short, value_name = "TEXT")]
    prompt: Option<String>,
    /// A file with the prompt, `-` for standard input; a line feed at its very end is not part of the prompt.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A file with token ids that white space separates, used as they are.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
}

/// A prompt as it was given.
#[derive(Debug)]
pub enum Prompt {
    /// Token ids, used as they are.
    Ids(Vec<u32>),
    /// Text, which need not be UTF-8.
    Text(Vec<u8>),
}

impl Input {
    /// The file that it is read from, if it is one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_deref().or(self.tokens.as_deref())
    }

    /// Reads it.
    pub fn read(&self) -> Result<Prompt, Failure> {
        if let Some(path) = &self.tokens {
            return read_ids(path).map(Prompt::Ids);
        }
        if let Some(text) = &self.prompt {
            return Ok(Prompt::Text(text.clone().into_bytes()));
        }
        let mut text = match self.file.as_deref() {
            Some(path) if path != Path::new("-") => read_text(path)?,
            None if std::io::stdin().is_terminal() => return Err(nothing_given()),
            _ => read_input()?,
        };
        text.truncate(text.strip_suffix(b"\n").map_or(text.len(), <[u8]>::len));
        Ok(Prompt::Text(text))
    }
}

fn nothing_given() -> Failure {
    Failure::usage("there is no prompt").hint("give --prompt TEXT, --file FILE, or pipe a text in")
}

impl Prompt {
    /// Its tokens.
    pub fn ids(self, tokenizer: &Tokenizer) -> Vec<u32> {
        match self {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => tokenizer.encode_prompt(&text, ParseSpecial::Yes).iter().map(|id| id.0).collect(),
        }
    }
}
