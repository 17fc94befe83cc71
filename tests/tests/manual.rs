//! Help, completions and man pages of both programs come from one definition: whatever can be typed is in all of them.

use tests::run;

const PROGRAMS: [&str; 2] = ["ats-plan", "ats-run"];

/// The commands that a program's help lists.
fn commands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The long flags in a text, sorted.
fn flags(text: &str) -> Vec<String> {
    let is_name = |symbol: char| symbol.is_ascii_lowercase() || symbol == '-';
    let starts = text.match_indices("--").map(|(at, _)| &text[at..]);
    let names = starts.map(|rest| rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())].to_owned());
    let mut names: Vec<String> = names.filter(|name| name.len() > 2 && !name.ends_with('-')).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn every_command_and_flag_is_in_help_completions_and_man_pages() {
    for program in PROGRAMS {
        let folder = tempfile::tempdir().expect("a folder");
        let good = |arguments: &[&str]| run(program, folder.path(), arguments).good();
        let commands = commands(&good(&["--help"]));
        assert!(commands.len() >= 4 && commands.iter().any(|command| command == "man"), "{commands:?}");
        let pages = folder.path().join("new/man1");
        let written = good(&["man", "--out", pages.to_str().expect("UTF-8")]);
        assert_eq!(written.lines().count(), commands.len() + 1, "{written}");
        let completions = ["bash", "zsh", "fish", "elvish", "powershell"].map(|shell| good(&["completions", shell]));
        for command in &commands {
            let help = good(&[command.as_str(), "--help"]);
            let page = std::fs::read_to_string(pages.join(format!("{program}-{command}.1"))).expect("a page");
            let page = page.replace("\\-", "-");
            for flag in flags(&help).iter().filter(|flag| help.contains(&format!(" {flag}"))) {
                assert!(page.contains(flag.as_str()), "{program} {command}: {flag} is not in the man page");
            }
            for text in &completions {
                assert!(text.contains(command.as_str()), "{program}: completions lack {command}");
            }
        }
    }
}

#[test]
fn unknown_commands_and_flags_are_usage_errors() {
    for program in PROGRAMS {
        let folder = tempfile::tempdir().expect("a folder");
        let wrong: [&[&str]; 4] = [&[], &["explode"], &["completions"], &["completions", "tcsh"]];
        for arguments in wrong {
            run(program, folder.path(), arguments).fails(2, &["--help"]);
        }
        run(program, folder.path(), &["man", "--out", "/dev/null/x"]).fails(1, &["cannot write /dev/null/x"]);
    }
}
