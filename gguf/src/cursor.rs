//! A bounds-checked little-endian reader over a byte slice: no read beyond the end, no wrapping arithmetic.
//! Not here: what the bytes mean (`value.rs`, `header.rs`). Next: `value.rs`.

use crate::error::GgufError;

/// A position in `bytes`. Invariant: `at <= bytes.len()`.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

macro_rules! read_le {
    ($($name:ident $ty:ty;)*) => {$(
        pub(crate) fn $name(&mut self, what: impl Fn() -> String) -> Result<$ty, GgufError> {
            let raw = self.array(what)?;
            Ok(<$ty>::from_le_bytes(raw))
        }
    )*};
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Cursor { bytes, at: at.min(bytes.len()) }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `len` bytes; `what` is asked only for the error.
    pub(crate) fn take(&mut self, len: u64, what: impl Fn() -> String) -> Result<&'a [u8], GgufError> {
        let end = usize::try_from(len).ok().and_then(|n| self.at.checked_add(n));
        let Some(taken) = end.and_then(|end| self.bytes.get(self.at..end)) else {
            return Err(GgufError::Truncated {
                what: what(),
                at_byte: self.at as u64,
                needed_bytes: len,
                len_bytes: self.bytes.len() as u64,
            });
        };
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: impl Fn() -> String) -> Result<[u8; N], GgufError> {
        let taken = self.take(N as u64, what)?;
        let mut raw = [0; N];
        raw.copy_from_slice(taken);
        Ok(raw)
    }

    read_le! {
        u32 u32;
        u64 u64;
    }

    /// A string: 64-bit length, then its bytes.
    pub(crate) fn string(&mut self, what: impl Fn() -> String) -> Result<&'a [u8], GgufError> {
        let len = self.u64(&what)?;
        self.take(len, what)
    }

    /// A count of things of at least `least_bytes` each, refused when the bytes left cannot hold them.
    pub(crate) fn check_count(&self, count: u64, least_bytes: u64, what: impl Fn() -> String) -> Result<(), GgufError> {
        let most = self.left() / least_bytes;
        if count > most {
            return Err(GgufError::Count { what: what(), count, most, left_bytes: self.left() });
        }
        Ok(())
    }
}
