//! What was typed, read as each program's command line says. Not here: what can be typed (each program's `cli`).

use clap::{ArgMatches, Command, Parser};

/// The command line of this process; help, version and usage errors end it, as people expect.
pub fn parse<A: Parser>() -> A {
    let found = with_numbers(A::command()).get_matches();
    A::from_arg_matches(&found).unwrap_or_else(|error| error.exit())
}

/// A value such as `-1` is the flag's, to be judged by it: else it is taken for a flag that nobody knows, with advice
/// that leads nowhere.
fn with_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() && !arg.is_positional() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(with_numbers)
}

/// As [`parse`], of other words than this process's.
///
/// # Errors
/// The usage error.
pub fn matches_of<A: Parser>(words: &[&str]) -> Result<ArgMatches, clap::Error> {
    with_numbers(A::command()).try_get_matches_from(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Subcommand;

    #[derive(Debug, Parser)]
    struct Toy {
        #[command(subcommand)]
        command: Toys,
    }

    #[derive(Debug, Subcommand)]
    enum Toys {
        Run {
            file: Option<String>,
            #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
            tokens: Option<u32>,
            #[arg(long)]
            heat: Option<f32>,
            #[arg(long)]
            loud: bool,
        },
    }

    #[test]
    fn negative_numbers_are_judged_by_their_flags() {
        let error = |words: &[&str]| matches_of::<Toy>(words).map(drop).map_err(|error| error.to_string());
        let text = error(&["toy", "run", "--tokens", "-1"]).unwrap_err();
        assert!(text.contains("invalid value '-1' for '--tokens") && !text.contains("tip:"), "{text}");
        let text = error(&["toy", "run", "--tokens", "0"]).unwrap_err();
        assert!(text.contains("--tokens"), "{text}");
        assert!(error(&["toy", "run", "--heat", "-0.5", "--loud", "file"]).is_ok());
        assert!(error(&["toy", "run", "--heat", "-x"]).unwrap_err().contains("-x"));
        assert!(error(&["toy", "run", "--tokens", "--loud"]).unwrap_err().contains("--tokens"));
    }
}
