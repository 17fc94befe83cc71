//! Output files that appear whole or not at all, and progress that is quiet when nobody watches.

use super::Failure;
use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writes a file under a temporary name beside its place, makes it durable and renames it. If anything fails, nothing
/// is left behind and a file that was there stays as it was.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let folder = folder_of(path);
    let temporary = temporary_path(path).map_err(Failure::usage)?;
    let written = write_and_rename(&temporary, path, folder, bytes);
    if written.is_err() {
        // It may not exist; what matters is the first error.
        let _ = std::fs::remove_file(&temporary);
    }
    let hint = "choose another place with --out";
    written.with_context(|| format!("cannot write {}", path.display())).map_err(|e| Failure::failed(e).hint(hint))
}

fn write_and_rename(temporary: &Path, path: &Path, folder: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    std::fs::rename(temporary, path)?;
    File::open(folder)?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// `.<name>.<process>.tmp` in the same folder. Names need not be UTF-8.
fn temporary_path(path: &Path) -> anyhow::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| anyhow!("{} is no file name", path.display()))?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    Ok(folder_of(path).join(temporary))
}

/// A spinner with the current step on standard error, from the first second on, and only on a terminal.
#[derive(Debug)]
pub struct Progress(ProgressBar);

/// How long a command may take before it shows that it works.
const QUIET: Duration = Duration::from_millis(900);

impl Progress {
    /// Starts in silence.
    pub fn start() -> Self {
        if !std::io::stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        // The first tick comes after that long; nothing is drawn before.
        bar.enable_steady_tick(QUIET);
        Progress(bar)
    }

    /// Names what happens now.
    pub fn step(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Writes a text to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_whole_and_replaces_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("модель-模型 1.atsplan");
        for bytes in [b"first".as_slice(), b"second"] {
            write_whole(&path, bytes).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let as_folder = folder.path().join("plan.atsplan");
        std::fs::create_dir(&as_folder).unwrap();
        std::fs::write(as_folder.join("kept"), b"x").unwrap();
        for path in [as_folder.clone(), folder.path().join("missing/plan.atsplan"), as_folder.join("kept/plan")] {
            let failure = write_whole(&path, b"bytes").unwrap_err();
            assert!(format!("{:#}", failure.error).contains(path.to_str().unwrap()), "{failure:?}");
            assert_eq!(failure.code, 1);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read(as_folder.join("kept")).unwrap(), b"x");
    }

    #[cfg(unix)]
    #[test]
    fn names_need_not_be_utf8() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(std::ffi::OsStr::from_bytes(b"mod\xffel.atsplan"));
        write_whole(&path, b"bytes").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"bytes");
    }
}
