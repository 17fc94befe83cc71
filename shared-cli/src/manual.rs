//! Completions and man pages, made from the same definition as the help texts, so they are never out of date.
//! Not here: what can be typed (each program's `cli`).

use crate::{Failure, output};
use clap::{Args, Command};
use clap_complete::Shell;
use std::path::PathBuf;

/// Which shell to make completions for.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Where man pages go.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// A folder for one page per command; it is made if it is missing.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,
}

/// Prints the completions of `command`.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions(args: &CompletionsArgs, command: Command) -> Result<(), Failure> {
    output::print(&completion_text(args.shell, command))
}

fn completion_text(shell: Shell, mut command: Command) -> String {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes the man pages of `command` and of everything below it, and prints their names.
///
/// # Errors
/// The folder cannot be written.
pub fn man(args: &ManArgs, command: Command) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.out).map_err(|error| output::cannot_write(&args.out, error))?;
    let mut names = String::new();
    for (name, page) in man_pages(command)? {
        let path = args.out.join(name);
        output::write_whole(&path, &page)?;
        names.push_str(&format!("{}\n", path.display()));
    }
    output::print(&names)
}

/// Name and text of every page, `ats-run.1` and `ats-run-chat.1`.
fn man_pages(mut command: Command) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    command.build();
    let is_for_people = |sub: &&Command| sub.get_name() != "help" && !sub.is_hide_set();
    let below: Vec<Command> = command.get_subcommands().filter(is_for_people).cloned().collect();
    let all = std::iter::once(command).chain(below);
    all.map(page).collect()
}

fn page(command: Command) -> Result<(String, Vec<u8>), Failure> {
    let man = clap_mangen::Man::new(command.disable_help_subcommand(true));
    let mut text = Vec::new();
    man.render(&mut text)?;
    Ok((man.get_filename(), text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, ValueEnum};

    fn program() -> Command {
        let run = Command::new("run").about("Runs it.").arg(Arg::new("speed").long("speed").help("How fast."));
        Command::new("toy")
            .about("A toy.")
            .subcommand(run)
            .subcommand(Command::new("stop"))
            .subcommand(Command::new("inner").hide(true))
    }

    #[test]
    fn every_shell_completes_commands_and_flags() {
        for shell in Shell::value_variants() {
            let text = completion_text(*shell, program());
            assert!(["toy", "run", "speed", "stop"].iter().all(|word| text.contains(word)), "{shell}");
        }
    }

    #[test]
    fn every_command_has_a_page() {
        let pages = man_pages(program()).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["toy.1", "toy-run.1", "toy-stop.1"]);
        let run = String::from_utf8(pages[1].1.clone()).unwrap();
        for part in [".TH toy-run 1", "Runs it.", "speed", "How fast."] {
            assert!(run.contains(part), "{part} is not in {run}");
        }
    }
}
