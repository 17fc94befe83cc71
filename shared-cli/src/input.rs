//! Reading files that are named on the command line: never more than such a file can be, so that a model named by
//! mistake, or a file without an end, is refused at once. Not here: writing (`output.rs`). Next: `failure.rs`.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// No profile, table of counts or table of golden figures is larger.
pub const TABLE_BYTES_MOST: u64 = 64 << 20;
/// No plan is larger.
pub const PLAN_BYTES_MOST: u64 = 256 << 20;
/// No text that a context could hold is larger.
pub const TEXT_BYTES_MOST: u64 = 1 << 30;

/// The bytes of a file of at most `bytes_most`.
///
/// # Errors
/// It cannot be read, or is larger.
pub fn read_at_most(path: &Path, bytes_most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_most {
        let mib = bytes_most >> 20;
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it is larger than {mib} MiB, so it is another file")));
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// It cannot be read, is larger, or is no UTF-8.
pub fn text_at_most(path: &Path, bytes_most: u64) -> Result<String> {
    String::from_utf8(read_at_most(path, bytes_most)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_long_as_such_a_file_may_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "12345").expect("writes");
        assert_eq!(text_at_most(&path, 5).expect("fits"), "12345");
        assert_eq!(read_at_most(&path, 4).expect_err("is too large").kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_at_most(Path::new("/dev/zero"), 9).expect_err("has no end").kind(), ErrorKind::FileTooLarge);
        std::fs::write(&path, [0xFF, 0xFE]).expect("writes");
        assert_eq!(text_at_most(&path, 5).expect_err("is no text").kind(), ErrorKind::InvalidData);
    }
}
