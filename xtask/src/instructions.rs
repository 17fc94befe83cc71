//! Instruction counts of the CPU kernels under callgrind: a figure that no other program on the machine disturbs. Fails
//! when one differs by more than [`TOLERANCE_PERCENT`] % from the committed table, better or worse: a better one is to
//! be committed, too. Not here: what is run (`kernels/examples/instructions.rs`), speed (benches).

use crate::process::{self, cargo};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Relative difference that is allowed: code around a call may be compiled a little differently.
const TOLERANCE_PERCENT: u64 = 2;

/// The committed table: `case,instructions`.
const TABLE: &str = "kernels/instructions.csv";

/// Counts and compares; with `--write` in `arguments`, counts and writes the table.
pub fn run(arguments: &[String]) -> Result<()> {
    let program = build()?;
    need_valgrind()?;
    let table = process::root().join(TABLE);
    let names = output(Command::new(&program))?;
    let counts = names.lines().map(|name| Ok((name.to_owned(), count(&program, name)?)));
    let counts = counts.collect::<Result<Vec<_>>>()?;
    if arguments.iter().any(|argument| argument == "--write") {
        return Ok(std::fs::write(&table, to_csv(&counts))?);
    }
    let known = std::fs::read_to_string(&table).with_context(|| format!("cannot read {}", table.display()))?;
    compare(&from_csv(&known)?, &counts)
}

/// The example, compiled as what ships.
fn build() -> Result<PathBuf> {
    process::run(cargo().args(["build", "--release", "--quiet", "--package", "kernels", "--example", "instructions"]))?;
    Ok(process::target().join("release/examples/instructions"))
}

/// Valgrind is there, or is installed from the system's packages.
fn need_valgrind() -> Result<()> {
    let is_there = || Command::new("valgrind").arg("--version").output().is_ok_and(|found| found.status.success());
    if is_there() {
        return Ok(());
    }
    for arguments in [&["update", "-qq"][..], &["install", "-y", "-qq", "valgrind"]] {
        // Whether it worked shows below.
        let _ = process::run(Command::new("apt-get").args(arguments));
    }
    ensure!(is_there(), "valgrind is missing: install the package `valgrind`, then run this again");
    Ok(())
}

/// Instructions of a case inside the counted function.
fn count(program: &Path, name: &str) -> Result<u64> {
    let file = process::target().join(format!("callgrind-{name}.out"));
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet", "--collect-atstart=no", "--toggle-collect=counted_case"]);
    command.arg(format!("--callgrind-out-file={}", file.display())).arg(program).arg(name);
    output(command)?;
    let text = std::fs::read_to_string(&file)?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    let total = total.with_context(|| format!("{} has no totals", file.display()))?;
    let count = total.trim().parse().with_context(|| format!("callgrind's total of {name}: `{total}`"))?;
    ensure!(count > 0, "callgrind counted nothing of {name}: does the program still call `counted_case`?");
    Ok(count)
}

fn output(mut command: Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}:\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn compare(known: &[(String, u64)], counts: &[(String, u64)]) -> Result<()> {
    let mut faults = String::new();
    for (name, count) in counts {
        match known.iter().find(|(known, _)| known == name) {
            None => writeln!(faults, "  {name}: {count}, not in the table")?,
            Some((_, expected)) => {
                let change = *count as f64 / *expected as f64 - 1.0;
                println!("{name:>18} {count:>10} instructions, {:+.2} %", 100.0 * change);
                if count.abs_diff(*expected) * 100 > *expected * TOLERANCE_PERCENT {
                    writeln!(faults, "  {name}: {count} instead of {expected}, {:+.2} %", 100.0 * change)?;
                }
            }
        }
    }
    let gone = known.iter().filter(|(name, _)| !counts.iter().any(|(counted, _)| counted == name));
    for (name, _) in gone {
        writeln!(faults, "  {name}: in the table, but no longer counted")?;
    }
    ensure!(
        faults.is_empty(),
        "instruction counts differ from {TABLE} by more than {} %:\n{faults}If that is meant, run \
         `cargo xtask instructions --write` and commit the table",
        TOLERANCE_PERCENT
    );
    Ok(())
}

fn to_csv(counts: &[(String, u64)]) -> String {
    let lines = counts.iter().map(|(name, count)| format!("{name},{count}\n"));
    std::iter::once("case,instructions\n".to_owned()).chain(lines).collect()
}

fn from_csv(text: &str) -> Result<Vec<(String, u64)>> {
    let line = |line: &str| {
        let (name, count) = line.split_once(',').with_context(|| format!("{TABLE}: `{line}` has no comma"))?;
        Ok((name.to_owned(), count.parse().with_context(|| format!("{TABLE}: `{count}` is no count"))?))
    };
    text.lines().skip(1).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(known: &str, counted: &str, is_good: bool) {
        let table = |text: &str| from_csv(&format!("case,instructions\n{text}")).expect("a table");
        assert_eq!(compare(&table(known), &table(counted)).is_ok(), is_good, "{known:?} {counted:?}");
    }

    #[test]
    fn two_percent_either_way_are_allowed() {
        check("a,1000\n", "a,1020\n", true);
        check("a,1000\n", "a,980\n", true);
        check("a,1000\n", "a,1021\n", false);
        check("a,1000\n", "a,979\n", false);
    }

    #[test]
    fn cases_may_neither_come_nor_go_unnoticed() {
        check("a,1000\n", "a,1000\nb,1\n", false);
        check("a,1000\nb,1\n", "a,1000\n", false);
    }

    #[test]
    fn tables_come_back_from_their_text() {
        let counts = vec![("a-1".to_owned(), 5), ("b".to_owned(), 7)];
        assert_eq!(from_csv(&to_csv(&counts)).expect("a table"), counts);
        assert!(from_csv("case,instructions\na;5\n").is_err());
    }
}
