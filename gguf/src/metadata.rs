//! The keys of a file: a small index over its bytes, with typed getters whose errors name key, finding and wish.
//! Not here: the bytes' layout (`value.rs`). Next: `header.rs`.

use std::collections::HashMap;
use std::ops::Range;

use crate::cursor::Cursor;
use crate::error::GgufError;
use crate::value::{ArrayView, Value, ValueType, decode, read_type};

/// Where each key and value stands. Owns no value; kept beside the bytes that it describes.
#[derive(Debug, Default)]
pub(crate) struct KeyIndex {
    entries: Vec<Entry>,
    by_key: HashMap<Box<str>, usize>,
}

#[derive(Debug)]
struct Entry {
    key: Range<usize>,
    ty: ValueType,
    value_at: usize,
}

impl KeyIndex {
    /// Reads `count` key-value pairs and checks everything in them.
    pub(crate) fn parse(cursor: &mut Cursor<'_>, count: u64) -> Result<Self, GgufError> {
        // A pair is at least: key length 8, type 4, value 1.
        cursor.check_count(count, 13, || "the number of metadata keys".to_owned())?;
        let mut index = KeyIndex::default();
        for i in 0..count {
            let raw = cursor.string(|| format!("metadata key number {i}"))?;
            let end = cursor.at();
            let start = end - raw.len();
            let key = std::str::from_utf8(raw)
                .map_err(|_| GgufError::NotUtf8 { what: format!("metadata key number {i}"), at_byte: start as u64 })?;
            let ty = read_type(cursor, key)?;
            let value_at = cursor.at();
            decode(cursor, key, ty, 0)?;
            if index.by_key.insert(key.into(), index.entries.len()).is_some() {
                return Err(GgufError::DuplicateKey { key: key.to_owned() });
            }
            index.entries.push(Entry { key: start..end, ty, value_at });
        }
        Ok(index)
    }
}

/// The metadata of one file: look-up and typed getters. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Metadata<'a> {
    bytes: &'a [u8],
    index: &'a KeyIndex,
}

macro_rules! typed_getters {
    ($($name:ident $opt:ident $ty:ty, $accepted:literal, $convert:expr;)*) => {$(
        #[doc = concat!("The value of `key`: ", $accepted, ".")]
        ///
        /// # Errors
        /// The key is missing or has another value; the message names key, finding and what is accepted.
        pub fn $name(&self, key: &str) -> Result<$ty, GgufError> {
            self.$opt(key)?.ok_or_else(|| missing(key, $accepted))
        }

        #[doc = concat!("The value of `key` if it is there: ", $accepted, ".")]
        ///
        /// # Errors
        /// The key has another value; the message names key, finding and what is accepted.
        pub fn $opt(&self, key: &str) -> Result<Option<$ty>, GgufError> {
            let Some(value) = self.get(key) else { return Ok(None) };
            let convert: fn(&Value<'a>) -> Option<$ty> = $convert;
            convert(&value).map(Some).ok_or_else(|| wrong(key, &value, $accepted))
        }
    )*};
}

impl<'a> Metadata<'a> {
    pub(crate) fn new(bytes: &'a [u8], index: &'a KeyIndex) -> Self {
        Metadata { bytes, index }
    }

    /// The value of a key, of whatever type.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        let entry = self.index.entries.get(*self.index.by_key.get(key)?)?;
        self.value(entry).map(|(_, value)| value)
    }

    /// All keys with their values, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let this = *self;
        this.index.entries.iter().filter_map(move |entry| this.value(entry))
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.index.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.index.entries.is_empty()
    }

    /// Decodes an entry; it was checked when the index was made from the same bytes.
    fn value(&self, entry: &Entry) -> Option<(&'a str, Value<'a>)> {
        let key = std::str::from_utf8(self.bytes.get(entry.key.clone())?).ok()?;
        let value = decode(&mut Cursor::new(self.bytes, entry.value_at), key, entry.ty, 0).ok()?;
        Some((key, value))
    }

    typed_getters! {
        u32 opt_u32 u32, "an integer from 0 to 2^32-1", |v| v.as_integer().and_then(|n| n.try_into().ok());
        u64 opt_u64 u64, "an integer from 0 to 2^64-1", |v| v.as_integer().and_then(|n| n.try_into().ok());
        i32 opt_i32 i32, "an integer from -2^31 to 2^31-1", |v| v.as_integer().and_then(|n| n.try_into().ok());
        f32 opt_f32 f32, "a number of type f32 or f64", |v| v.as_f32();
        bool opt_bool bool, "a bool", |v| if let Value::Bool(b) = v { Some(*b) } else { None };
        str opt_str &'a str, "a string of UTF-8 text", |v| v.as_str();
        bytes opt_bytes &'a [u8], "a string", |v| if let Value::String(s) = v { Some(s) } else { None };
        array opt_array ArrayView<'a>, "an array", |v| v.as_array();
    }

    /// One integer for each of `len` things: an array of `len` integers, or one integer for all of them.
    ///
    /// # Errors
    /// The key is missing, of another type, or an array of another length.
    pub fn u32_each(&self, key: &str, len: usize) -> Result<Vec<u32>, GgufError> {
        self.opt_u32_each(key, len)?.ok_or_else(|| missing(key, &each_accepted(len)))
    }

    /// As [`Metadata::u32_each`], `None` if the key is not there.
    ///
    /// # Errors
    /// The key is of another type, or an array of another length.
    pub fn opt_u32_each(&self, key: &str, len: usize) -> Result<Option<Vec<u32>>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value {
            Value::Array(view) if view.len() == len => Ok(Some(view.iter_u32()?.collect())),
            Value::Array(_) => Err(wrong(key, &value, &each_accepted(len))),
            _ => match value.as_integer().and_then(|n| n.try_into().ok()) {
                Some(n) => Ok(Some(vec![n; len])),
                None => Err(wrong(key, &value, &each_accepted(len))),
            },
        }
    }
}

fn each_accepted(len: usize) -> String {
    format!("an integer from 0 to 2^32-1, or an array of {len} of them")
}

fn missing(key: &str, accepted: &str) -> GgufError {
    GgufError::MissingKey { key: key.to_owned(), accepted: accepted.to_owned() }
}

/// Longest piece of a wrong value that a message shows.
const SHOWN_CHARS: usize = 60;

fn wrong(key: &str, value: &Value<'_>, accepted: &str) -> GgufError {
    let mut shown = value.to_string();
    if let Some((cut, _)) = shown.char_indices().nth(SHOWN_CHARS) {
        shown.truncate(cut);
        shown.push('…');
    }
    let found = match value {
        Value::Array(_) => format!("an {shown}"),
        scalar => format!("{shown} (of type {})", scalar.value_type()),
    };
    GgufError::WrongValue { key: key.to_owned(), found, accepted: accepted.to_owned() }
}
