//! Ways to write a laid-out file: streamed in order, or as a header with a hole that others fill at known places.
//! Not here: how the layout is made (`write.rs`). This is the crate's last file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use crate::error::GgufError;
use crate::write::{FileSpec, Layout, Placed, TensorSpec};

impl Layout {
    /// The header with its padding: everything before the tensor data.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The tensors' places, in the order of [`FileSpec::tensors`].
    pub fn tensors(&self) -> &[Placed] {
        &self.tensors
    }

    /// The length of the finished file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The bytes of tensor number `i`, from the start of the file.
    pub fn file_range(&self, i: usize) -> Option<Range<u64>> {
        let placed = self.tensors.get(i)?;
        let start = self.header.len() as u64 + placed.offset_bytes;
        Some(start..start + placed.size_bytes)
    }

    /// Writes a file whose tensor data is a hole: it reads as zeros and takes no disk space where the file system
    /// knows holes. Returns it open for writing, so that others may fill it at [`Layout::file_range`].
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_sparse(&self, path: &Path) -> Result<File, GgufError> {
        let write = || {
            let mut file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
            file.write_all(&self.header)?;
            file.set_len(self.file_bytes)?;
            Ok(file)
        };
        write().map_err(|source| GgufError::Io { path: path.into(), source })
    }
}

/// Counts what goes through, so that a tensor's data can be held to its size.
struct Counted<W> {
    inner: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl FileSpec {
    /// Streams the file to `out`: the header, then `data` is called for each tensor in order and writes exactly its
    /// bytes.
    ///
    /// # Errors
    /// The layout is refused, writing fails, or `data` wrote another number of bytes than the tensor has.
    pub fn write_to(
        &self,
        out: impl Write,
        mut data: impl FnMut(&TensorSpec, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), GgufError> {
        let layout = self.layout()?;
        let mut out = Counted { inner: out, written: 0 };
        let io = |source| GgufError::Io { path: "<output>".into(), source };
        out.write_all(&layout.header).map_err(io)?;
        for (i, spec) in self.tensors().iter().enumerate() {
            let range = layout.file_range(i).unwrap_or_default();
            pad_to(&mut out, range.start).map_err(io)?;
            data(spec, &mut out).map_err(io)?;
            if out.written != range.end {
                let wrote = out.written - range.start;
                let why = format!("its data has {wrote} bytes, its shape and type need {}", range.end - range.start);
                return Err(GgufError::Unwritable { what: spec.name.clone(), why });
            }
        }
        pad_to(&mut out, layout.file_bytes).and_then(|()| out.flush()).map_err(io)
    }

    /// Writes the file to `path`, by way of `<path>.partial`, which is renamed when complete.
    ///
    /// # Errors
    /// As [`FileSpec::write_to`].
    pub fn write_file(
        &self,
        path: &Path,
        data: impl FnMut(&TensorSpec, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), GgufError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let io = |source| GgufError::Io { path: path.into(), source };
        let file = File::create(&partial).map_err(io)?;
        let written = self.write_to(BufWriter::with_capacity(1 << 20, file), data);
        match written {
            Ok(()) => std::fs::rename(&partial, path).map_err(io),
            Err(error) => {
                // The first error is the one to tell; a left-over partial file harms nobody.
                drop(std::fs::remove_file(&partial));
                Err(match error {
                    GgufError::Io { source, .. } => io(source),
                    other => other,
                })
            }
        }
    }
}

fn pad_to<W: Write>(out: &mut Counted<W>, end: u64) -> io::Result<()> {
    let missing = end.saturating_sub(out.written);
    io::copy(&mut io::Read::take(io::repeat(0), missing), out).map(drop)
}
