//! Output files that appear whole or not at all, texts for people and programs, and progress that is quiet when nobody
//! watches. Not here: what is written.

use crate::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writes a file that appears whole or not at all; see [`NewFile`]. A plan takes another plan's place.
///
/// # Errors
/// The place cannot be written; the message names it.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut file = if bytes.starts_with(PLAN_MAGIC) { NewFile::create_plan(path) } else { NewFile::create(path) }?;
    file.write_all(bytes).map_err(|error| cannot_write(path, error))?;
    file.keep()
}

/// Refuses to write over what is read: a result in the place of its model would destroy it.
///
/// # Errors
/// `path` is one of `inputs`, under whatever name.
pub fn refuse_inputs<'a>(path: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    let Ok(target) = path.canonicalize() else { return Ok(()) };
    let is_target = |input: &&Path| input.canonicalize().is_ok_and(|input| input == target);
    match inputs.into_iter().find(is_target) {
        Some(_) => Err(Failure::usage(format!("{} would be written over the file that is read", path.display()))
            .hint("choose another place")),
        None => Ok(()),
    }
}

/// Refuses places for results before the work that makes them: what is read, models and plans, and one place for two.
///
/// # Errors
/// The first place that may not be written.
pub fn refuse_places(places: &[&Path], inputs: &[&Path]) -> Result<(), Failure> {
    for (index, place) in places.iter().enumerate() {
        refuse_inputs(place, inputs.iter().copied())?;
        refuse_model(place)?;
        refuse_plan(place)?;
        let same = |other: &&Path| is_same_file(other, place);
        if places[..index].iter().any(same) {
            let what = format!("{} was named for two results", place.display());
            return Err(Failure::usage(what).hint("name two files"));
        }
    }
    Ok(())
}

/// Whether two places are one file, there or to be. Devices and pipes take as many results as there are.
fn is_same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b && a.is_file(),
        _ => a == b,
    }
}

/// Reads all of standard input.
///
/// # Errors
/// It cannot be read.
pub fn read_input() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).map_err(cannot_read_input)?;
    Ok(bytes)
}

/// The failure of reading standard input.
pub fn cannot_read_input(error: std::io::Error) -> Failure {
    Failure::failed(anyhow::Error::new(error).context("cannot read standard input"))
}

/// The failure of writing to a place.
pub fn cannot_write(path: &Path, error: std::io::Error) -> Failure {
    Failure::failed(anyhow::Error::new(error).context(format!("cannot write {}", path.display())))
}

/// A file under construction. It is written under a temporary name beside its place, and [`NewFile::keep`] makes it
/// durable and renames it. Without that nothing is left behind, and a file that was there stays as it was. What is no
/// file, such as `/dev/stdout`, is written to as it is; a link stays one. No result takes a model's place: it
/// may be all that its owner has; nor does any but a plan take a plan's.
#[derive(Debug)]
pub struct NewFile {
    /// The place that was named.
    named: PathBuf,
    file: File,
    /// Temporary name and the one that follows; none for what is no file.
    rename: Option<(PathBuf, PathBuf)>,
}

impl NewFile {
    /// Begins a file.
    ///
    /// # Errors
    /// The place is a folder, holds a model or a plan, or cannot be written.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        refuse_plan(path)?;
        NewFile::create_plan(path)
    }

    /// Begins the file of a plan, which may replace another.
    fn create_plan(path: &Path) -> Result<Self, Failure> {
        refuse_model(path)?;
        let begin = || match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => Ok((OpenOptions::new().write(true).open(path)?, None)),
            Ok(_) => create_beside(path.canonicalize()?),
            Err(_) => create_beside(path.into()),
        };
        let (file, rename) = begin().map_err(|error| cannot_write(path, error))?;
        Ok(NewFile { named: path.into(), file, rename })
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn keep(mut self) -> Result<(), Failure> {
        let Some((temporary, path)) = self.rename.take() else { return Ok(()) };
        let kept = self.file.sync_all().and_then(|()| std::fs::rename(&temporary, &path));
        match kept {
            Ok(()) => File::open(folder_of(&path)).and_then(|folder| folder.sync_all()),
            Err(error) => {
                remove(&temporary);
                Err(error)
            }
        }
        .map_err(|error| cannot_write(&self.named, error))
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.rename {
            remove(temporary);
        }
    }
}

/// How GGUF files begin.
const MODEL_MAGIC: &[u8] = b"GGUF";
/// How plans begin.
const PLAN_MAGIC: &[u8] = plan_format::container::MAGIC;

/// Whether a file begins so. A place that cannot be read is left to whoever writes.
fn begins_with(path: &Path, magic: &[u8]) -> bool {
    let mut begin = vec![0; magic.len()];
    // Devices and pipes hold no model, and some would wait for somebody to write.
    path.is_file() && File::open(path).and_then(|mut file| file.read_exact(&mut begin)).is_ok() && begin == magic
}

/// Refuses the place of a model.
fn refuse_model(path: &Path) -> Result<(), Failure> {
    if !begins_with(path, MODEL_MAGIC) {
        return Ok(());
    }
    let what = format!("{} is a model and would be written over", path.display());
    Err(Failure::usage(what).hint("choose another place, or remove it first"))
}

/// Refuses the place of a plan to anything else.
fn refuse_plan(path: &Path) -> Result<(), Failure> {
    if !begins_with(path, PLAN_MAGIC) {
        return Ok(());
    }
    let what = format!("{} is a plan and would be written over by something else", path.display());
    Err(Failure::usage(what).hint("choose another place, or remove it first"))
}

/// Takes a temporary file away. What matters is the error before.
fn remove(temporary: &Path) {
    let _ = std::fs::remove_file(temporary);
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Names that are tried for a temporary file: others may have left some behind.
const TEMPORARY_NAMES: u32 = 100;

/// A new file `.<name>.<process>-<n>.tmp` in the same folder, and both names. Names need not be UTF-8.
fn create_beside(path: PathBuf) -> std::io::Result<(File, Option<(PathBuf, PathBuf)>)> {
    let name = path.file_name().ok_or_else(|| std::io::Error::new(ErrorKind::InvalidInput, "it is no file name"))?;
    for number in 0..TEMPORARY_NAMES {
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}-{number}.tmp", std::process::id()));
        let temporary = path.with_file_name(temporary);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((file, Some((temporary, path)))),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
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
    pub fn step(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Writes a text to standard output.
///
/// # Errors
/// It cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}

/// A line for people on standard error. Nobody is told if that is gone.
pub fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
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
        let in_file = as_folder.join("kept/plan");
        for path in [as_folder.clone(), folder.path().join("missing/plan"), in_file, "/dev/full".into(), "..".into()] {
            let failure = write_whole(&path, b"bytes").unwrap_err();
            assert!(failure.text().contains(&format!("cannot write {}: ", path.display())), "{failure:?}");
            assert_eq!(failure.code(), 1);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read(as_folder.join("kept")).unwrap(), b"x");
    }

    #[test]
    fn a_file_that_is_not_kept_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan");
        write_whole(&path, b"old").unwrap();
        let mut file = NewFile::create(&path).unwrap();
        file.write_all(b"ne").unwrap();
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn leftovers_of_others_are_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan");
        std::fs::write(folder.path().join(format!(".plan.{}-0.tmp", std::process::id())), b"left").unwrap();
        write_whole(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[cfg(unix)]
    #[test]
    fn what_is_read_is_not_written_over_under_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let (model, link) = (folder.path().join("model"), folder.path().join("link"));
        std::fs::write(&model, b"weights").unwrap();
        std::os::unix::fs::symlink(&model, &link).unwrap();
        for out in [&model, &link, &folder.path().join("./model")] {
            let failure = refuse_inputs(out, [model.as_path()]).unwrap_err();
            assert_eq!(failure.code(), 2, "{failure:?}");
        }
        refuse_inputs(&folder.path().join("other"), [model.as_path()]).unwrap();
        refuse_inputs(&model, [link.with_file_name("other").as_path()]).unwrap();
    }

    #[test]
    fn a_model_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any name");
        let cases = [(b"GGUF\x03\0\0\0".as_slice(), true), (b"GGUF", true), (b"GGU", false), (b"", false)];
        for (before, is_kept) in cases {
            std::fs::write(&path, before).unwrap();
            let written = write_whole(&path, b"new").map_err(|failure| failure.code());
            assert_eq!(written, if is_kept { Err(2) } else { Ok(()) }, "{before:?}");
            assert_eq!(std::fs::read(&path).unwrap(), if is_kept { before } else { b"new" });
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_plan_gives_way_to_plans_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any name");
        let plan = b"ATSPLAN\0 one".as_slice();
        for (new, is_written) in
            [(b"a page".as_slice(), false), (b"", false), (b"ATSPLAN", false), (b"ATSPLAN\0 two", true)]
        {
            std::fs::write(&path, plan).unwrap();
            let written = write_whole(&path, new).map_err(|failure| failure.code());
            assert_eq!(written, if is_written { Ok(()) } else { Err(2) }, "{new:?}");
            assert_eq!(std::fs::read(&path).unwrap(), if is_written { new } else { plan });
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn places_are_refused_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let (model, plan) = (file("m", b"GGUF\x03\0\0\0"), file("p", b"ATSPLAN\0"));
        let (input, old, new) = (file("i", b"{}"), file("o", b"old"), folder.path().join("new"));
        let here = folder.path().join("./o");
        let null = PathBuf::from("/dev/null");
        let cases: [(&[&Path], Option<&str>); 9] = [
            (&[], None),
            (&[&new, &old], None),
            (&[&null, &old, &null], None),
            (&[&model], Some("is a model")),
            (&[&old, &plan], Some("is a plan")),
            (&[&input], Some("that is read")),
            (&[&new, &new], Some("two results")),
            (&[&old, &here], Some("two results")),
            (&[&old, &new, &null], None),
        ];
        for (places, refused) in cases {
            let result = refuse_places(places, &[input.as_path()]).map_err(|failure| failure.text());
            match refused {
                None => assert_eq!(result, Ok(()), "{places:?}"),
                Some(why) => assert!(result.clone().is_err_and(|text| text.contains(why)), "{places:?}: {result:?}"),
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_links_and_devices_stay_devices() {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        std::fs::write(&target, b"old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write_whole(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        write_whole(Path::new("/dev/null"), b"new").unwrap();
        assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
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
