//! Where a user's files lie that no command names, by the XDG specification: environment variables that are no absolute
//! paths count as not set. Not here: what lies there.

use std::ffi::OsString;
use std::path::PathBuf;

/// Name of both programs' folder among the user's.
const OURS: &str = plan_format::find::CACHE_FOLDER;

/// The folder for what can be made again: `$XDG_CACHE_HOME/ats`, else `~/.cache/ats`; `None` if neither is known.
pub fn cache() -> Option<PathBuf> {
    ours("XDG_CACHE_HOME", ".cache", |name| std::env::var_os(name))
}

/// The folder for what is kept between runs: `$XDG_STATE_HOME/ats`, else `~/.local/state/ats`.
pub fn state() -> Option<PathBuf> {
    ours("XDG_STATE_HOME", ".local/state", |name| std::env::var_os(name))
}

fn ours(variable: &str, below_home: &str, value: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| value(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = folder(variable).or_else(|| Some(folder("HOME")?.join(below_home)))?;
    Some(base.join(OURS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_absolute_or_none() {
        for (variable, home, expected) in [
            (Some("/x"), Some("/home/u"), Some("/x/ats")),
            (Some(""), Some("/home/u"), Some("/home/u/.cache/ats")),
            (Some("relative"), Some("/home/u"), Some("/home/u/.cache/ats")),
            (None, Some("/home/u"), Some("/home/u/.cache/ats")),
            (None, Some(""), None),
            (None, None, None),
        ] {
            let value = |name: &str| if name == "HOME" { home } else { variable }.map(OsString::from);
            assert_eq!(ours("XDG_CACHE_HOME", ".cache", value), expected.map(PathBuf::from), "{variable:?} {home:?}");
        }
    }
}
