//! Metadata values: scalars decoded, strings and arrays as views of the file's bytes.
//! Not here: finding a value by its key (`metadata.rs`). Next: `metadata.rs`.

use std::fmt;

use crate::cursor::Cursor;
use crate::error::GgufError;

/// Arrays may hold arrays this deep (an array of numbers is 1 deep).
pub const MAX_ARRAY_DEPTH: u32 = 8;

/// The type of a metadata value, with GGUF's ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say all")]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type of an id; `None` if there is no such type.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The id in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of a value, `None` where they vary (strings and arrays).
    pub(crate) fn fixed_bytes(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }

    /// The fewest bytes that a value of the type takes.
    fn least_bytes(self) -> u64 {
        match self {
            ValueType::String => 8,
            ValueType::Array => 12,
            fixed => fixed.fixed_bytes().unwrap_or(1),
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        })
    }
}

/// A metadata value. Strings are bytes: GGUF says UTF-8, but token lists of real files do not always keep to it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "the names say all")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a [u8]),
    Array(ArrayView<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value as an integer, if it is one.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Value::U8(n) => Some(n.into()),
            Value::I8(n) => Some(n.into()),
            Value::U16(n) => Some(n.into()),
            Value::I16(n) => Some(n.into()),
            Value::U32(n) => Some(n.into()),
            Value::I32(n) => Some(n.into()),
            Value::U64(n) => Some(n.into()),
            Value::I64(n) => Some(n.into()),
            _ => None,
        }
    }

    /// The value as an `f32`, if it is an F32 or F64.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            _ => None,
        }
    }

    /// The value as text, if it is a string of valid UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match self {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The value as an array, if it is one.
    pub fn as_array(&self) -> Option<ArrayView<'a>> {
        match self {
            Value::Array(view) => Some(*view),
            _ => None,
        }
    }
}

/// Scalars and strings as they stand, arrays by their type and length: for messages and lists.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::F32(x) => write!(f, "{x}"),
            Value::F64(x) => write!(f, "{x}"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::String(bytes) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Value::Array(view) => write!(f, "array of {} {}", view.len(), view.element()),
            integer => write!(f, "{}", integer.as_integer().unwrap_or_default()),
        }
    }
}

/// An array as it stands in the file: checked when the header was parsed, decoded while it is iterated.
#[derive(Clone, Copy, PartialEq)]
pub struct ArrayView<'a> {
    key: &'a str,
    element: ValueType,
    len: u64,
    bytes: &'a [u8],
}

impl fmt::Debug for ArrayView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArrayView({} of {} {})", self.key, self.len, self.element)
    }
}

impl<'a> ArrayView<'a> {
    /// The elements' type.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// The number of elements. It never exceeds the bytes present, so it fits a `usize`.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The encoded elements.
    pub fn encoded(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements as values of any type, nested arrays too.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (key, element) = (self.key, self.element);
        let mut cursor = Cursor::new(self.bytes, 0);
        // Checked when the header was parsed, so decoding does not fail; if it did, the iterator would end.
        (0..self.len).map_while(move |_| decode(&mut cursor, key, element, 1).ok())
    }

    /// The strings' bytes.
    ///
    /// # Errors
    /// The array holds something else.
    pub fn iter_bytes(&self) -> Result<impl Iterator<Item = &'a [u8]> + use<'a>, GgufError> {
        if self.element != ValueType::String {
            return Err(self.wrong_element("an array of strings"));
        }
        let mut cursor = Cursor::new(self.bytes, 0);
        Ok((0..self.len).map_while(move |_| cursor.string(String::new).ok()))
    }

    /// The strings as text.
    ///
    /// # Errors
    /// The array holds something else, or a string in it is not UTF-8 (the message says which).
    pub fn iter_str(&self) -> Result<impl Iterator<Item = &'a str> + use<'a>, GgufError> {
        for (i, bytes) in self.iter_bytes()?.enumerate() {
            if std::str::from_utf8(bytes).is_err() {
                return Err(self.wrong_value(i, "a string that is not UTF-8", "UTF-8 text"));
            }
        }
        Ok(self.iter_bytes()?.map(|bytes| std::str::from_utf8(bytes).unwrap_or_default()))
    }

    /// The elements as `u32`: any integer type whose values all fit.
    ///
    /// # Errors
    /// The array holds something else, or a value that does not fit (the message says which).
    pub fn iter_u32(&self) -> Result<impl Iterator<Item = u32> + use<'a>, GgufError> {
        self.integers::<u32>("integers from 0 to 2^32-1")
    }

    /// The elements as `i32`: any integer type whose values all fit.
    ///
    /// # Errors
    /// The array holds something else, or a value that does not fit (the message says which).
    pub fn iter_i32(&self) -> Result<impl Iterator<Item = i32> + use<'a>, GgufError> {
        self.integers::<i32>("integers from -2^31 to 2^31-1")
    }

    /// The elements as `f32`: F32, or F64 rounded.
    ///
    /// # Errors
    /// The array holds something else.
    pub fn iter_f32(&self) -> Result<impl Iterator<Item = f32> + use<'a>, GgufError> {
        if !matches!(self.element, ValueType::F32 | ValueType::F64) {
            return Err(self.wrong_element("an array of f32"));
        }
        Ok(self.iter().map_while(|v| v.as_f32()))
    }

    /// The elements as truth values.
    ///
    /// # Errors
    /// The array holds something else.
    pub fn iter_bool(&self) -> Result<impl Iterator<Item = bool> + use<'a>, GgufError> {
        if self.element != ValueType::Bool {
            return Err(self.wrong_element("an array of bool"));
        }
        Ok(self.bytes.iter().map(|&b| b != 0))
    }

    fn integers<T: TryFrom<i128> + 'a>(
        &self,
        accepted: &str,
    ) -> Result<impl Iterator<Item = T> + use<'a, T>, GgufError> {
        for (i, value) in self.iter().enumerate() {
            let Some(n) = value.as_integer() else {
                return Err(self.wrong_element(&format!("an array of {accepted}")));
            };
            if T::try_from(n).is_err() {
                return Err(self.wrong_value(i, &n.to_string(), accepted));
            }
        }
        Ok(self.iter().map_while(|v| v.as_integer().and_then(|n| T::try_from(n).ok())))
    }

    fn wrong_element(&self, accepted: &str) -> GgufError {
        GgufError::WrongValue {
            key: self.key.to_owned(),
            found: format!("an array of {}", self.element),
            accepted: accepted.to_owned(),
        }
    }

    fn wrong_value(&self, index: usize, found: &str, accepted: &str) -> GgufError {
        GgufError::WrongValue {
            key: self.key.to_owned(),
            found: format!("an array whose element {index} is {found}"),
            accepted: accepted.to_owned(),
        }
    }
}

/// Reads the value type that stands before a value.
pub(crate) fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, GgufError> {
    let id = cursor.u32(|| format!("the type of metadata key `{key}`"))?;
    ValueType::from_id(id).ok_or_else(|| GgufError::UnknownValueType { key: key.to_owned(), found: id })
}

/// Decodes one value, checking all that lies in it. `depth` counts the arrays around it.
pub(crate) fn decode<'a>(
    cursor: &mut Cursor<'a>,
    key: &'a str,
    ty: ValueType,
    depth: u32,
) -> Result<Value<'a>, GgufError> {
    let what = || format!("the value of metadata key `{key}`");
    match ty {
        ValueType::String => return Ok(Value::String(cursor.string(what)?)),
        ValueType::Array => return Ok(Value::Array(decode_array(cursor, key, depth)?)),
        _ => {}
    }
    let len = ty.fixed_bytes().unwrap_or_default();
    let mut raw = [0; 8];
    let taken = cursor.take(len, what)?;
    raw[..taken.len()].copy_from_slice(taken);
    let wide = u64::from_le_bytes(raw);
    Ok(match ty {
        ValueType::U8 => Value::U8(wide as u8),
        ValueType::I8 => Value::I8(wide as i8),
        ValueType::U16 => Value::U16(wide as u16),
        ValueType::I16 => Value::I16(wide as i16),
        ValueType::U32 => Value::U32(wide as u32),
        ValueType::I32 => Value::I32(wide as i32),
        ValueType::F32 => Value::F32(f32::from_bits(wide as u32)),
        ValueType::Bool => Value::Bool(bool_of(key, wide as u8)?),
        ValueType::I64 => Value::I64(wide as i64),
        ValueType::F64 => Value::F64(f64::from_bits(wide)),
        ValueType::U64 | ValueType::String | ValueType::Array => Value::U64(wide),
    })
}

fn decode_array<'a>(cursor: &mut Cursor<'a>, key: &'a str, depth: u32) -> Result<ArrayView<'a>, GgufError> {
    if depth >= MAX_ARRAY_DEPTH {
        return Err(GgufError::Nesting { key: key.to_owned(), most: MAX_ARRAY_DEPTH });
    }
    let element = read_type(cursor, key)?;
    let len = cursor.u64(|| format!("the length of the array of metadata key `{key}`"))?;
    cursor.check_count(len, element.least_bytes(), || format!("the length of the array of metadata key `{key}`"))?;
    let mut inside = cursor.clone();
    match element.fixed_bytes() {
        Some(size) => {
            let taken = inside.take(len.saturating_mul(size), || format!("the array of metadata key `{key}`"))?;
            if element == ValueType::Bool {
                taken.iter().try_for_each(|&b| bool_of(key, b).map(drop))?;
            }
        }
        None => (0..len).try_for_each(|_| decode(&mut inside, key, element, depth + 1).map(drop))?,
    }
    let bytes = cursor.take((inside.at() - cursor.at()) as u64, String::new)?;
    Ok(ArrayView { key, element, len, bytes })
}

fn bool_of(key: &str, byte: u8) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(GgufError::NotABool { key: key.to_owned(), found }),
    }
}
