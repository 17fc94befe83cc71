//! PTX texts put together: names at the scope of a module made its own, so that several fit one image. Text in, text
//! out; nothing here knows the driver.

use std::collections::BTreeSet;

/// One text of several.
pub struct Merged {
    pub text: String,
    pub kernels: usize,
}

/// A text whose module-wide names start with the module's name. Directives (`.shared`) and
/// instructions (`add.u32`) may be called as a variable is; the point before or after them tells.
pub fn renamed(module: &str, text: &str) -> String {
    let names = module_names(text);
    let mut out = String::with_capacity(text.len() * 2);
    let mut words = words(text).peekable();
    while let Some(word) = words.next() {
        let is_instruction = words.peek().is_some_and(|next| next.starts_with('.'));
        if names.contains(word) && !is_instruction && !out.ends_with('.') {
            out.push_str(module);
            out.push_str("__");
        }
        out.push_str(word);
    }
    out
}

/// All texts as one, for the newest chip that one of them is for.
pub fn joined(texts: &[(String, String)]) -> Result<Merged, String> {
    let directive = |name: &str| {
        let lines = texts.iter().flat_map(|(_, text)| text.lines());
        lines.filter(|line| line.starts_with(name)).max().ok_or_else(|| format!("no text has `{name}`"))
    };
    let head = [".version", ".target", ".address_size"].map(directive);
    let mut text = String::new();
    for line in head {
        text.push_str(line?);
        text.push('\n');
    }
    let is_head = |line: &&str| {
        !line.starts_with(".version") && !line.starts_with(".target") && !line.starts_with(".address_size")
    };
    let mut kernels = 0;
    for (module, ptx) in texts {
        let ptx = renamed(module, &stripped(ptx));
        kernels += kernels::cuda::entries(&ptx).count();
        ptx.lines().filter(is_head).for_each(|line| {
            text.push_str(line);
            text.push('\n');
        });
    }
    Ok(Merged { text, kernels })
}

/// A text without the constants that nothing in it reads.
pub fn stripped(text: &str) -> String {
    let is_constant = |line: &str| line.starts_with(".global ");
    let used: BTreeSet<&str> = text.lines().filter(|line| !is_constant(line)).flat_map(words).collect();
    let keep = |line: &&str| !is_constant(line) || declared(line).is_none_or(|name| used.contains(name));
    text.lines().filter(keep).flat_map(|line| [line, "\n"]).collect()
}

/// Names that a text declares outside all braces.
fn module_names(text: &str) -> BTreeSet<&str> {
    let mut depth = 0usize;
    let mut names = BTreeSet::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        if depth == 0 {
            names.extend(declared(line));
        }
        // Constants with initial values open and close theirs in one line.
        let opened = line.matches('{').count();
        depth = (depth + opened).saturating_sub(line.matches('}').count());
    }
    names
}

/// The name that a line declares, if it declares a variable or a kernel.
fn declared(line: &str) -> Option<&str> {
    const STARTS: [&str; 6] = [".visible .entry ", ".entry ", ".global ", ".const ", ".shared ", ".extern .shared "];
    if !STARTS.iter().any(|start| line.starts_with(start)) {
        return None;
    }
    words(line)
        .find(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !is_attribute(line, word))
}

/// Whether a word is part of a directive (`.align`) rather than a name.
fn is_attribute(line: &str, word: &str) -> bool {
    let at = word.as_ptr() as usize - line.as_ptr() as usize;
    line[..at].ends_with('.')
}

/// A text cut into identifiers (with a register's `%` or a label's `$`) and what stands between them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        rest = tail;
        Some(word)
    })
}
