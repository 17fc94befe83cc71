//! What went wrong, and what to do about it, as a person reads it. Not here: the errors themselves (`error.rs`).

use super::{interrupt, terminal};
use crate::Error;
use std::process::ExitCode;

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
        Failure { error: Some(error.into()), hint: None, code: 1 }
    }

    /// The command was used wrongly.
    pub fn usage(text: impl Into<String>) -> Self {
        Failure { code: 2, ..Failure::failed(anyhow::anyhow!(text.into())) }
    }

    /// The user ended the command by Ctrl-C, and knows it.
    pub fn interrupted() -> Self {
        Failure { error: None, hint: None, code: interrupt::EXIT_CODE }
    }

    /// Whether a reader went away (`| head`), which is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        let io = self.error.as_ref().and_then(|error| error.downcast_ref::<std::io::Error>());
        io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// Adds what to do.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Failure { hint: Some(hint.into()), ..self }
    }

    /// Writes it to standard error and says the exit code.
    pub fn report(&self) -> ExitCode {
        if self.is_broken_pipe() {
            return ExitCode::SUCCESS;
        }
        if let Some(error) = &self.error {
            terminal::say(format_args!("error: {error:#}"));
        }
        if let Some(hint) = &self.hint {
            terminal::say(format_args!("hint: {hint}"));
        }
        ExitCode::from(self.code)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let hint = match &error {
            Error::StalePlan { path, .. } | Error::PlanFile { path, .. } => {
                Some(format!("make it again: ats-plan compile MODEL --out {}", path.display()))
            }
            Error::ForeignPlan { path, .. } => Some(format!(
                "make one for this machine: ats-plan compile MODEL --out {}; or run it with --force-device",
                path.display()
            )),
            Error::PlanTooShort { path, needed, .. } => {
                Some(format!("make it again: ats-plan compile MODEL --context {needed} --out {}", path.display()))
            }
            Error::ContextFull { needed, .. } => {
                Some(format!("shorten the input, or plan for more: ats-plan compile MODEL --context {needed}"))
            }
            Error::StartPlanner { .. } => Some("ats-plan must lie beside ats-run or be on the PATH".into()),
            Error::NotFinite { .. } => {
                Some("the model file is damaged, or its weights overflow; try another file".into())
            }
            _ => None,
        };
        let failure = Failure::failed(error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::failed(error)
    }
}
