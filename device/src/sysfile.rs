//! Small text files of the kernel below a root folder: `/` in earnest, a folder of fixtures in tests.

use std::path::{Path, PathBuf};

use crate::DeviceError;

/// The folder that stands for `/`.
#[derive(Debug, Clone)]
pub struct SysRoot(PathBuf);

impl SysRoot {
    /// A root; paths given to the methods are relative to it.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The content of a text file. Errors: not readable.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String, DeviceError> {
        let path = self.0.join(path);
        std::fs::read_to_string(&path).map_err(|source| DeviceError::SystemFile { path, source })
    }

    /// Names in a folder, sorted; none when the folder is missing.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.0.join(path)) else { return Vec::new() };
        let mut names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The error for a file whose content is not `expected`.
    pub fn odd(&self, path: impl AsRef<Path>, content: &str, expected: &'static str) -> DeviceError {
        let content = content.trim().chars().take(80).collect();
        DeviceError::SystemFileContent { path: self.0.join(path), content, expected }
    }
}
