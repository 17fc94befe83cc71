//! `ats-run chat`: a conversation with a model, on a terminal or from a script.
//! Not here: what lines mean (`command.rs`), the model's side (`session.rs`), how an answer looks (`screen.rs`).

mod command;
mod conversation;
mod input;
mod screen;
mod session;

use super::common::{ModelArgs, exactness};
use super::interrupt::Interrupt;
use super::sampling::Sampling;
use super::{Failure, common};
use clap::Args;
use command::{Command, Typed};
use conversation::Conversation;
use input::{Event, Input};
use screen::Reasoning;
use serde_json::Value;
use session::Session;
use shared_cli::output::{say, write_whole};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use text::Finish;

/// With whom and how to talk.
#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// What the model is told before the conversation.
    #[arg(long, short, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer [default: until it ends or the context is full].
    #[arg(long, short = 'n', value_name = "N")]
    max_tokens: Option<usize>,
    /// A chat template in place of the model's own: chatml, gemma, llama2, llama3, or a file.
    #[arg(long, value_name = "NAME|FILE")]
    template: Option<String>,
    /// A variable of the template, such as enable_thinking=false; JSON, or else text; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    variable: Vec<(String, Value)>,
    /// Whether the model's reasoning is shown besides its answer.
    #[arg(long, value_enum, default_value = "show")]
    reasoning: Reasoning,
    /// Compute the whole conversation again for every answer. Changes the time only.
    #[arg(long)]
    no_reuse: bool,
    /// Print counts and speeds after each answer even where standard error is no terminal.
    #[arg(long)]
    stats: bool,
    /// Oracle kernels, F32 activations, F32 caches.
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    sampling: Sampling,
}

fn parse_variable(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not of the form NAME=VALUE"))?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into()));
    Ok((name.into(), value))
}

/// Whether the conversation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It does.
    Input,
    /// It does, after an answer that the user stopped.
    InputAfterStop,
    /// The user leaves.
    Leave,
}

/// Talks until the user leaves.
pub fn run(args: &ChatArgs) -> Result<(), Failure> {
    let chosen = args.sampling.choose(None)?;
    let interrupt = Interrupt::install()?;
    let source = session::template_source(args)?;
    let engine = args.model.open(None, exactness(args.exact))?;
    let mut session = Session::new(args, chosen, interrupt, engine, &source)?;
    let mut input = Input::open()?;
    if input.is_terminal() {
        let name = args.model.model.file_stem().unwrap_or_default().to_string_lossy();
        say(format_args!("{name}, context {} tokens; /help lists the commands", session.context_tokens()));
        talk(args, &mut session, &mut input)
    } else {
        follow_script(args, &mut session, &mut input)
    }
}

/// A person's conversation: what goes wrong is said, and the conversation goes on.
fn talk(args: &ChatArgs, session: &mut Session, input: &mut Input) -> Result<(), Failure> {
    let mut next = Next::Input;
    while next != Next::Leave {
        let done = match input.next()? {
            Event::End => return Ok(()),
            Event::Interrupted if next == Next::InputAfterStop => return Err(Failure::interrupted()),
            Event::Interrupted => {
                say("Ctrl-C again leaves, and so does Ctrl-D");
                Ok(Next::InputAfterStop)
            }
            Event::Typed(typed) => act(args, session, typed),
        };
        next = match done {
            Err(failure) if failure.is_broken_pipe() => return Err(failure),
            Err(failure) => {
                failure.report();
                Next::Input
            }
            Ok(next) => next,
        };
    }
    Ok(())
}

/// A script's conversation: what goes wrong ends it, and so does the first Ctrl-C.
fn follow_script(args: &ChatArgs, session: &mut Session, input: &mut Input) -> Result<(), Failure> {
    while let Event::Typed(typed) = input.next()? {
        match act(args, session, typed)? {
            Next::Input => {}
            Next::InputAfterStop => return Err(Failure::interrupted()),
            Next::Leave => break,
        }
    }
    Ok(())
}

fn act(args: &ChatArgs, session: &mut Session, typed: Typed) -> Result<Next, Failure> {
    match typed {
        Typed::Nothing => Ok(Next::Input),
        Typed::Message(text) => {
            session.conversation.ask(text);
            answer(args, session)
        }
        Typed::Command(Command::Regen) if session.conversation.unanswer() => answer(args, session),
        Typed::Command(Command::Regen) => Err(Failure::usage("there is no message yet that could be answered again")),
        Typed::Command(Command::Quit) => Ok(Next::Leave),
        Typed::Command(command) => obey(session, command).map(|()| Next::Input),
        Typed::Wrong(text) => Err(Failure::usage(text)),
    }
}

fn answer(args: &ChatArgs, session: &mut Session) -> Result<Next, Failure> {
    let outcome = session.answer()?;
    if args.stats || std::io::stderr().is_terminal() {
        say(session::terse(&outcome));
    }
    if session::is_context_full(&outcome) {
        let context = session.context_tokens();
        say(format_args!("the context of {context} tokens is full: /reset forgets the conversation"));
    }
    Ok(if outcome.finish == Finish::Cancelled { Next::InputAfterStop } else { Next::Input })
}

/// Does what needs no answer.
fn obey(session: &mut Session, command: Command) -> Result<(), Failure> {
    match command {
        Command::Help => say(command::help()),
        Command::Reset => session.conversation.reset(),
        Command::System(Some(text)) => session.conversation.set_system(text),
        Command::System(None) => say(session.conversation.system().unwrap_or("there is no system prompt")),
        Command::Save(path) => {
            write_whole(&home(&path), session.conversation.to_json().as_bytes())?;
            say(format_args!("{} saved to {}", turns(&session.conversation), path.display()));
        }
        Command::Load(path) => {
            session.conversation = load(&home(&path))?;
            say(format_args!("{} loaded", turns(&session.conversation)));
        }
        Command::Stats => say(session.stats()),
        Command::Regen | Command::Quit => {}
    }
    Ok(())
}

fn turns(conversation: &Conversation) -> String {
    match conversation.turns() {
        1 => "1 turn".into(),
        count => format!("{count} turns"),
    }
}

fn load(path: &Path) -> Result<Conversation, Failure> {
    let wrong = |what: &str| Failure::failed(anyhow::anyhow!("{} is no conversation: {what}", path.display()));
    let text = String::from_utf8(common::read_text(path)?).map_err(|_| wrong("it is not UTF-8"))?;
    Conversation::from_json(&text).map_err(|what| wrong(&what))
}

/// `~/` is the user's home, as in a shell.
fn home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.into(),
    }
}
