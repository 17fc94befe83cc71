//! The weight types that the kernels compute with, and the size of a row. Next: `block.rs`.

use gguf::GgmlType;

use crate::KernelError;

/// A type of weights that every backend computes with; a subset of [`GgmlType`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(non_camel_case_types, reason = "ggml's own names, as files and people write them")]
#[expect(missing_docs, reason = "the variants are ggml's names")]
pub enum WeightType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

use WeightType::*;

impl WeightType {
    /// All types, plain numbers first.
    pub const ALL: [WeightType; 16] =
        [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4];

    /// The type in files.
    pub const fn ggml(self) -> GgmlType {
        match self {
            F32 => GgmlType::F32,
            F16 => GgmlType::F16,
            BF16 => GgmlType::BF16,
            Q4_0 => GgmlType::Q4_0,
            Q4_1 => GgmlType::Q4_1,
            Q5_0 => GgmlType::Q5_0,
            Q5_1 => GgmlType::Q5_1,
            Q8_0 => GgmlType::Q8_0,
            Q2_K => GgmlType::Q2_K,
            Q3_K => GgmlType::Q3_K,
            Q4_K => GgmlType::Q4_K,
            Q5_K => GgmlType::Q5_K,
            Q6_K => GgmlType::Q6_K,
            IQ4_NL => GgmlType::IQ4_NL,
            IQ4_XS => GgmlType::IQ4_XS,
            MXFP4 => GgmlType::MXFP4,
        }
    }

    /// (values, bytes) of a block; plain numbers are blocks of one.
    pub const fn block(self) -> (usize, usize) {
        match self.ggml().block() {
            Some((elems, bytes)) => (elems as usize, bytes as usize),
            None => panic!("every weight type is a known ggml type"),
        }
    }

    /// Whether values are plain numbers (F32, F16, BF16) and not blocks of small integers.
    pub const fn is_plain(self) -> bool {
        matches!(self, F32 | F16 | BF16)
    }

    /// Bytes of a row of `cols` values in the file's layout.
    ///
    /// # Errors
    /// [`KernelError::RaggedRow`] if `cols` is not a multiple of the block.
    pub fn row_bytes(self, cols: usize) -> Result<usize, KernelError> {
        let (block_cols, block_bytes) = self.block();
        if !cols.is_multiple_of(block_cols) {
            return Err(KernelError::RaggedRow { ty: self, cols, block_cols });
        }
        (cols / block_cols).checked_mul(block_bytes).ok_or(KernelError::Overflow)
    }

    /// ggml's name.
    pub const fn name(self) -> &'static str {
        self.ggml().name()
    }
}

impl TryFrom<GgmlType> for WeightType {
    type Error = KernelError;

    fn try_from(ty: GgmlType) -> Result<Self, KernelError> {
        WeightType::ALL.into_iter().find(|w| w.ggml() == ty).ok_or(KernelError::UnsupportedType(ty))
    }
}

impl std::fmt::Display for WeightType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
