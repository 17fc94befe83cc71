//! The element types of ggml: ids, names and block sizes. One table, no behaviour.
//! Not here: what a block's bytes mean (the kernels know). Next: `cursor.rs`.

use std::fmt;

/// A size was asked of a type without one, or for a row that is no whole number of blocks, or overflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The type id is not in the table.
    #[error("the tensor type {0} is unknown; its size cannot be told")]
    UnknownType(u32),
    /// The row length is not a multiple of the block.
    #[error("a row of {cols} values is not a multiple of {block_elems}, the block of {ty}")]
    RaggedRow {
        /// Values in the row.
        cols: u64,
        /// Values in a block.
        block_elems: u32,
        /// The type.
        ty: GgmlType,
    },
    /// More bytes than 63 bits can count.
    #[error("{0} values of that type do not fit any file")]
    Overflow(u64),
}

macro_rules! ggml_types {
    ($($variant:ident $id:literal $elems:literal $bytes:literal;)*) => {
        /// A ggml element type, as a tensor's 32-bit type id names it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(non_camel_case_types, reason = "ggml's own names, as files and people write them")]
        #[expect(missing_docs, reason = "the variants are a table of names that ggml defines")]
        pub enum GgmlType {
            $($variant,)*
            /// An id that this table does not have: listed, refused only when its size is needed.
            Unknown(u32),
        }

        impl GgmlType {
            /// Every known type, by id.
            pub const KNOWN: &[GgmlType] = &[$(GgmlType::$variant,)*];

            /// The type of an id in a file.
            pub const fn from_id(id: u32) -> Self {
                match id {
                    $($id => GgmlType::$variant,)*
                    other => GgmlType::Unknown(other),
                }
            }

            /// The id in a file.
            pub const fn id(self) -> u32 {
                match self {
                    $(GgmlType::$variant => $id,)*
                    GgmlType::Unknown(id) => id,
                }
            }

            /// ggml's name, or `unknown`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(GgmlType::$variant => stringify!($variant),)*
                    GgmlType::Unknown(_) => "unknown",
                }
            }

            /// (values, bytes) of a block; `None` when unknown.
            pub const fn block(self) -> Option<(u32, u32)> {
                match self {
                    $(GgmlType::$variant => Some(($elems, $bytes)),)*
                    GgmlType::Unknown(_) => None,
                }
            }
        }
    };
}

// name, id, values in a block, bytes of a block (ggml.h, ggml-common.h). 4, 5, 31-33 and 36-38 are withdrawn types.
ggml_types! {
    F32 0 1 4;
    F16 1 1 2;
    Q4_0 2 32 18;
    Q4_1 3 32 20;
    Q5_0 6 32 22;
    Q5_1 7 32 24;
    Q8_0 8 32 34;
    Q8_1 9 32 36;
    Q2_K 10 256 84;
    Q3_K 11 256 110;
    Q4_K 12 256 144;
    Q5_K 13 256 176;
    Q6_K 14 256 210;
    Q8_K 15 256 292;
    IQ2_XXS 16 256 66;
    IQ2_XS 17 256 74;
    IQ3_XXS 18 256 98;
    IQ1_S 19 256 50;
    IQ4_NL 20 32 18;
    IQ3_S 21 256 110;
    IQ2_S 22 256 82;
    IQ4_XS 23 256 136;
    I8 24 1 1;
    I16 25 1 2;
    I32 26 1 4;
    I64 27 1 8;
    F64 28 1 8;
    IQ1_M 29 256 56;
    BF16 30 1 2;
    TQ1_0 34 256 54;
    TQ2_0 35 256 66;
    MXFP4 39 32 17;
    NVFP4 40 64 36;
    Q1_0 41 128 18;
    Q2_0 42 64 18;
}

impl GgmlType {
    /// Values in a block (1 for plain number types).
    ///
    /// # Errors
    /// [`SizeError::UnknownType`].
    pub fn block_elems(self) -> Result<u32, SizeError> {
        self.block().map(|b| b.0).ok_or(SizeError::UnknownType(self.id()))
    }

    /// Bytes of a block.
    ///
    /// # Errors
    /// [`SizeError::UnknownType`].
    pub fn block_bytes(self) -> Result<u32, SizeError> {
        self.block().map(|b| b.1).ok_or(SizeError::UnknownType(self.id()))
    }

    /// Bytes of a row of `cols` values.
    ///
    /// # Errors
    /// An unknown type, a row that is no whole number of blocks, or more than 2^63-1 bytes.
    pub fn row_bytes(self, cols: u64) -> Result<u64, SizeError> {
        let (elems, bytes) = self.block().ok_or(SizeError::UnknownType(self.id()))?;
        if !cols.is_multiple_of(u64::from(elems)) {
            return Err(SizeError::RaggedRow { cols, block_elems: elems, ty: self });
        }
        let total = (cols / u64::from(elems)).checked_mul(u64::from(bytes));
        total.filter(|&n| n <= i64::MAX as u64).ok_or(SizeError::Overflow(cols))
    }

    /// Bytes of a tensor of the given dimensions (ggml order, unused ones 1); 0 if any dimension is 0.
    ///
    /// # Errors
    /// As [`GgmlType::row_bytes`].
    pub fn tensor_bytes(self, dims: [u64; 4]) -> Result<u64, SizeError> {
        let empty = dims.contains(&0);
        let row = match self.row_bytes(dims[0]) {
            Err(SizeError::Overflow(_)) if empty => 0,
            other => other?,
        };
        if empty {
            return Ok(0);
        }
        let rows = dims[1].checked_mul(dims[2]).and_then(|n| n.checked_mul(dims[3]));
        let total = rows.and_then(|n| n.checked_mul(row));
        total.filter(|&n| n <= i64::MAX as u64).ok_or(SizeError::Overflow(dims[0]))
    }

    /// The type of a name, in any case (`q4_k`, `Q4_K`).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::KNOWN.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgmlType::Unknown(id) => write!(f, "unknown type {id}"),
            known => f.write_str(known.name()),
        }
    }
}
