//! What a user typed: a message over one or several lines, or a command. Pure.
//!
//! A line that ends with a backslash goes on in the next one. Text between lines that begin and end with `"""` is taken
//! as it is, so a message may begin with `/` or hold backslashes at line ends. Not here: reading (`input.rs`).

use std::path::PathBuf;

/// A whole input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    /// Nothing but white space.
    Nothing,
    /// A message to the model.
    Message(String),
    /// Something for the program to do.
    Command(Command),
    /// A command that does not exist, or lacks what it needs: what is wrong.
    Wrong(String),
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// List the commands.
    Help,
    /// Forget the conversation, keep the system prompt.
    Reset,
    /// Set the system prompt; `None` shows it, an empty one takes it away.
    System(Option<String>),
    /// Answer the last message again.
    Regen,
    /// Write the conversation to a file.
    Save(PathBuf),
    /// Go on with the conversation in a file.
    Load(PathBuf),
    /// Show counts and speeds.
    Stats,
    /// Leave.
    Quit,
}

/// Names, arguments and meanings of the commands.
const TABLE: [(&str, &str, &str); 8] = [
    ("/help", "", "list the commands"),
    ("/reset", "", "forget the conversation, keep the system prompt"),
    ("/system", "[TEXT]", "set the system prompt (\"\" for none), or show it"),
    ("/regen", "", "answer the last message again"),
    ("/save", "FILE", "write the conversation to a file"),
    ("/load", "FILE", "go on with the conversation in a file"),
    ("/stats", "", "show counts and speeds"),
    ("/quit", "", "leave, as Ctrl-D does"),
];

const FENCE: &str = "\"\"\"";

/// What the lines in `buffer` mean; `None` if more lines are to come.
pub fn read(buffer: &str) -> Option<Typed> {
    let text = buffer.trim();
    if let Some(block) = text.strip_prefix(FENCE) {
        let block = block.strip_suffix(FENCE)?;
        let block = block.strip_prefix('\n').unwrap_or(block);
        let block = block.strip_suffix('\n').unwrap_or(block);
        return Some(if block.trim().is_empty() { Typed::Nothing } else { Typed::Message(block.into()) });
    }
    if buffer.ends_with('\\') { None } else { Some(read_lines(buffer)) }
}

/// The same where no more lines come. Error: a block that is not closed.
pub fn read_last(buffer: &str) -> Result<Typed, &'static str> {
    let whole = read(buffer).or_else(|| read(buffer.strip_suffix('\\')?));
    whole.ok_or("the input ends inside a \"\"\" block")
}

fn read_lines(buffer: &str) -> Typed {
    let text = buffer.replace("\\\n", "\n");
    let text = text.trim_end();
    match text.trim_start() {
        "" => Typed::Nothing,
        command if command.starts_with('/') => read_command(command),
        _ => Typed::Message(text.into()),
    }
}

fn read_command(text: &str) -> Typed {
    let (name, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let argument = argument.trim();
    let Some((_, takes, _)) = TABLE.iter().find(|(known, ..)| *known == name) else {
        return Typed::Wrong(format!(
            "`{name}` is no command: /help lists them; a message that begins with / goes between {FENCE} and {FENCE}"
        ));
    };
    match (*takes, argument) {
        ("", argument) if !argument.is_empty() => Typed::Wrong(format!("{name} takes nothing, not `{argument}`")),
        ("FILE", "") => Typed::Wrong(format!("{name} needs the name of a file")),
        _ => Typed::Command(command(name, argument)),
    }
}

/// The command of a name in the table.
fn command(name: &str, argument: &str) -> Command {
    match name {
        "/reset" => Command::Reset,
        "/system" => Command::System(system(argument)),
        "/regen" => Command::Regen,
        "/save" => Command::Save(argument.into()),
        "/load" => Command::Load(argument.into()),
        "/stats" => Command::Stats,
        "/quit" => Command::Quit,
        _ => Command::Help,
    }
}

fn system(argument: &str) -> Option<String> {
    match argument {
        "" => None,
        "\"\"" => Some(String::new()),
        text => Some(text.into()),
    }
}

/// The list that `/help` shows.
pub fn help() -> String {
    let mut text = String::new();
    for (name, argument, meaning) in TABLE {
        text.push_str(&format!("{:<16}{meaning}\n", format!("{name} {argument}")));
    }
    text + "A line that ends with \\ goes on in the next one; text between \"\"\" and \"\"\" is taken as it is.\n\
            Ctrl-C stops an answer, a second one leaves; Ctrl-D leaves."
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Option<Typed> {
        Some(Typed::Message(text.into()))
    }

    #[test]
    fn messages_may_have_several_lines() {
        for (buffer, typed) in [
            ("hello", message("hello")),
            ("  hello ", message("  hello")),
            ("one\\", None),
            ("one\\\ntwo", message("one\ntwo")),
            ("one\\\ntwo\\", None),
            ("pasted\nlines", message("pasted\nlines")),
            ("\"\"\"", None),
            ("\"\"\"one", None),
            ("\"\"\"\none\\\ntwo\n", None),
            ("\"\"\"\none\\\n  two\n\"\"\"", message("one\\\n  two")),
            ("\"\"\"/not a command\"\"\"", message("/not a command")),
            ("\"\"\"\n\n\"\"\"", Some(Typed::Nothing)),
            ("say \"\"\" twice", message("say \"\"\" twice")),
            ("", Some(Typed::Nothing)),
            (" \t", Some(Typed::Nothing)),
        ] {
            assert_eq!(read(buffer), typed, "{buffer:?}");
        }
    }

    #[test]
    fn input_that_ends_early_is_taken_or_refused() {
        assert_eq!(read_last("one\\"), Ok(Typed::Message("one".into())));
        assert!(read_last("\"\"\"one").is_err());
    }

    #[test]
    fn commands_are_read() {
        for (line, command) in [
            ("/help", Command::Help),
            ("/reset", Command::Reset),
            ("/system", Command::System(None)),
            ("/system \"\"", Command::System(Some(String::new()))),
            ("/system Be brief.\\\nBe kind.", Command::System(Some("Be brief.\nBe kind.".into()))),
            ("/regen ", Command::Regen),
            ("/save a b.json", Command::Save("a b.json".into())),
            ("/load x", Command::Load("x".into())),
            (" /stats", Command::Stats),
            ("/quit", Command::Quit),
        ] {
            assert_eq!(read(line), Some(Typed::Command(command)), "{line:?}");
        }
    }

    #[test]
    fn wrong_commands_are_named() {
        for (line, words) in [("/bogus x", "`/bogus`"), ("/save", "/save needs"), ("/reset all", "`all`"), ("/", "`/`")]
        {
            match read(line) {
                Some(Typed::Wrong(text)) => assert!(text.contains(words), "{text}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn every_command_of_the_table_is_a_command_of_its_own() {
        let known: Vec<Command> = TABLE.iter().map(|(name, ..)| command(name, "x")).collect();
        let doubled = (0..known.len()).find(|&at| known[..at].contains(&known[at]));
        assert_eq!(doubled.map(|at| TABLE[at].0), None);
    }
}
