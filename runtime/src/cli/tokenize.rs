//! `ats-run tokenize`: standard input to a JSON list of token ids. Needs no plan.

use super::Failure;
use crate::Error;
use clap::{ArgAction, Args};
use shared_cli::output::read_input;
use std::io::Write;
use std::path::PathBuf;
use text::{AddSpecial, ParseSpecial, Tokenizer};

/// How to read the text.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// The model: a .gguf file, or any file of a split one.
    model: PathBuf,
    /// Add BOS and EOS as the model says.
    #[arg(long, value_name = "0|1", num_args = 0..=1, require_equals = true, action = ArgAction::Set,
          default_value = "0", default_missing_value = "1", value_parser = ["0", "1"])]
    add_special: String,
    /// Read special tokens in the text.
    #[arg(long, value_name = "0|1", num_args = 0..=1, require_equals = true, action = ArgAction::Set,
          default_value = "0", default_missing_value = "1", value_parser = ["0", "1"])]
    parse_special: String,
}

/// Prints the ids.
pub fn run(args: &TokenizeArgs) -> Result<(), Failure> {
    let model = gguf::Model::open(&args.model).map_err(Error::from)?;
    let tokenizer = Tokenizer::from_gguf(&model).map_err(Error::from)?;
    let text = read_input()?;
    let add = if args.add_special == "1" { AddSpecial::Yes } else { AddSpecial::No };
    let parse = if args.parse_special == "1" { ParseSpecial::Yes } else { ParseSpecial::No };
    let ids: Vec<String> = tokenizer.encode(&text, add, parse).iter().map(ToString::to_string).collect();
    writeln!(std::io::stdout(), "[{}]", ids.join(", "))?;
    Ok(())
}
