//! House rules that neither the compiler nor clippy checks: module docs, lengths, leftovers.
//! Not here: formatting (rustfmt) and SAFETY notes (clippy).

use crate::process;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

const LINE_COLUMNS_MAX: usize = 120;
const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
/// Kernels unroll by hand.
const KERNEL_LINES_MAX: usize = 120;

/// Files that are tables: long, and read by looking up, not from top to bottom.
const TABLES: &[&str] = &[];

/// Things that are left behind by accident. Spelled in halves so that this file passes its own check.
const LEFTOVERS: &[&str] = &[
    concat!("db", "g!("),
    concat!("tod", "o!("),
    concat!("unimple", "mented!("),
    concat!("FIX", "ME"),
    concat!("/wo", "rk/"),
];

/// Checks every Rust file that git tracks or would track; prints all findings, then fails if there are any.
pub fn run() -> Result<()> {
    let mut findings = Vec::new();
    for path in rust_files()? {
        let text = std::fs::read_to_string(process::root().join(&path))?;
        check_file(&path, &text, &mut findings);
    }
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    Ok(())
}

fn rust_files() -> Result<Vec<PathBuf>> {
    let mut git = std::process::Command::new("git");
    git.current_dir(process::root()).args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"]);
    let listed = String::from_utf8(git.output()?.stdout)?;
    Ok(listed.lines().map(PathBuf::from).filter(|path| process::root().join(path).exists()).collect())
}

fn check_file(path: &Path, text: &str, findings: &mut Vec<String>) {
    let name = path.to_string_lossy();
    let mut report = |line: usize, what: String| findings.push(format!("{name}:{line}: {what}"));
    if !text.starts_with("//!") {
        report(1, "does not open with `//!`: what the file is, what it is not, which is next".into());
    }
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > FILE_LINES_MAX && !TABLES.contains(&name.as_ref()) {
        report(lines.len(), format!("{} lines, at most {FILE_LINES_MAX}", lines.len()));
    }
    for (index, line) in lines.iter().enumerate() {
        if line.chars().count() > LINE_COLUMNS_MAX {
            report(index + 1, format!("longer than {LINE_COLUMNS_MAX} columns"));
        }
        if let Some(leftover) = LEFTOVERS.iter().find(|leftover| line.contains(*leftover)) {
            report(index + 1, format!("`{leftover}` left behind"));
        }
    }
    let limit = if name.starts_with("kernels/") { KERNEL_LINES_MAX } else { FUNCTION_LINES_MAX };
    for (start, length) in function_lengths(&lines) {
        if length > limit {
            report(start + 1, format!("function of {length} lines, at most {limit}"));
        }
    }
}

/// (first line, lines) of every function, by rustfmt's layout: it ends at the brace with its own indentation.
fn function_lengths(lines: &[&str]) -> Vec<(usize, usize)> {
    let starts = lines.iter().enumerate().filter(|(_, line)| is_function_start(line));
    starts
        .filter_map(|(start, line)| {
            let indent = line.len() - line.trim_start().len();
            let (body_end, declaration_end) = (format!("{:indent$}}}", ""), format!("{:indent$})", ""));
            let end = lines[start..].iter().position(|line| {
                line.trim_end() == body_end || (line.starts_with(&declaration_end) && line.ends_with(';'))
            })?;
            lines[start + end].ends_with('}').then_some((start, end + 1))
        })
        .collect()
}

fn is_function_start(line: &str) -> bool {
    let mut words = line.trim_start().split(' ').skip_while(|word| {
        matches!(*word, "pub" | "pub(crate)" | "pub(super)" | "const" | "async" | "unsafe" | "extern" | "\"C\"")
    });
    words.next() == Some("fn") && !line.trim_end().ends_with(';') && !line.trim_end().ends_with('}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_counted_from_signature_to_closing_brace() {
        let bodies = "impl X {\n    pub fn a() {\n        1;\n    }\n}\nfn b() {}\nunsafe fn c()\nwhere\n{\n}\n";
        let text = format!("{bodies}fn d(\n    x: u8,\n);\n");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(function_lengths(&lines), [(1, 3), (6, 4)]);
    }

    #[test]
    fn faults_are_found() {
        let mut findings = Vec::new();
        check_file(Path::new("x.rs"), &format!("fn x() {{}}\n{}\n", "a".repeat(121)), &mut findings);
        assert_eq!(findings.len(), 2, "{findings:?}");
    }
}
