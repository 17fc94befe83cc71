//! Models in several files, `NAME-00001-of-0000N.gguf`: naming, and the checks that the parts belong together.
//! Not here: mapping (`model.rs`). Next: `write.rs`.

use std::path::{Path, PathBuf};

use crate::error::GgufError;
use crate::model::Shard;

/// This part's number, from 0.
pub const KEY_SPLIT_NO: &str = "split.no";
/// How many parts there are.
pub const KEY_SPLIT_COUNT: &str = "split.count";
/// How many tensors all parts have together.
pub const KEY_SPLIT_TENSORS: &str = "split.tensors.count";

/// The path of part `number` (from 1) of `count`, for a prefix such as `dir/name`.
pub fn shard_path(prefix: &Path, number: u32, count: u32) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(format!("-{number:05}-of-{count:05}.gguf"));
    name.into()
}

/// The prefix of a part's path, if its name ends as part `number` (from 1) of `count` does.
fn shard_prefix(path: &Path, number: u32, count: u32) -> Option<PathBuf> {
    let suffix = format!("-{number:05}-of-{count:05}.gguf");
    let name = path.file_name()?.as_encoded_bytes();
    let stem = name.strip_suffix(suffix.as_bytes())?;
    let stem_len = path.as_os_str().len() - (name.len() - stem.len());
    let whole = path.as_os_str().as_encoded_bytes().get(..stem_len)?;
    prefix_from_bytes(whole)
}

#[cfg(unix)]
fn prefix_from_bytes(bytes: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(bytes)))
}

#[cfg(not(unix))]
fn prefix_from_bytes(bytes: &[u8]) -> Option<PathBuf> {
    std::str::from_utf8(bytes).ok().map(PathBuf::from)
}

/// Given any part, opens all of them, in order. A file that is no split is returned alone.
pub(crate) fn open_all(given: Shard) -> Result<Vec<Shard>, GgufError> {
    let in_file = |source| GgufError::InFile { path: given.path.clone(), source: Box::new(source) };
    let count = given.metadata().opt_u32(KEY_SPLIT_COUNT).map_err(in_file)?.unwrap_or(1);
    if count <= 1 {
        return Ok(vec![given]);
    }
    let no = given.metadata().u32(KEY_SPLIT_NO).map_err(in_file)?;
    if no >= count {
        return Err(mismatch(&given.path, KEY_SPLIT_NO, no, &format!("less than {KEY_SPLIT_COUNT}, {count}")));
    }
    let Some(prefix) = shard_prefix(&given.path, no + 1, count) else {
        return Err(GgufError::SplitName { path: given.path.clone(), number: no + 1, count });
    };
    let total = given.metadata().u32(KEY_SPLIT_TENSORS).map_err(in_file)?;
    let mut given = Some(given);
    let mut shards = Vec::new();
    for i in 0..count {
        let shard = match given.take_if(|_| i == no) {
            Some(shard) => shard,
            None => open_part(&prefix, i, count)?,
        };
        check_part(&shard, i, count, total)?;
        shards.push(shard);
    }
    check_total(&shards, total)?;
    Ok(shards)
}

fn open_part(prefix: &Path, no: u32, count: u32) -> Result<Shard, GgufError> {
    let path = shard_path(prefix, no + 1, count);
    Shard::open(&path).map_err(|e| match e {
        GgufError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            GgufError::MissingShard { path, number: no + 1, count }
        }
        other => other,
    })
}

fn check_part(shard: &Shard, no: u32, count: u32, total: u32) -> Result<(), GgufError> {
    for (key, expected) in [(KEY_SPLIT_NO, no), (KEY_SPLIT_COUNT, count), (KEY_SPLIT_TENSORS, total)] {
        let found = shard.metadata().get(key);
        if found.and_then(|v| v.as_integer()) != Some(expected.into()) {
            let found = found.map_or("missing".to_owned(), |v| v.to_string());
            return Err(mismatch(&shard.path, key, found, &expected.to_string()));
        }
    }
    Ok(())
}

fn check_total(shards: &[Shard], total: u32) -> Result<(), GgufError> {
    let found: usize = shards.iter().map(Shard::tensor_count).sum();
    match shards.first() {
        Some(first) if found as u64 != u64::from(total) => {
            Err(mismatch(&first.path, KEY_SPLIT_TENSORS, total, &format!("{found}, the tensors in all parts")))
        }
        _ => Ok(()),
    }
}

fn mismatch(path: &Path, key: &'static str, found: impl ToString, expected: &str) -> GgufError {
    GgufError::ShardMismatch { path: path.into(), key, found: found.to_string(), expected: expected.to_owned() }
}
