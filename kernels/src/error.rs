//! What the checked entry points of this crate refuse. Next: `quant/types.rs`.

use gguf::GgmlType;

use crate::quant::WeightType;

/// Why weights or operands cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// No kernel reads weights of this type.
    #[error(
        "no kernel reads weights of type {0}; supported are F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K to Q6_K \
         IQ4_NL IQ4_XS MXFP4"
    )]
    UnsupportedType(GgmlType),
    /// The row length is not a whole number of blocks.
    #[error("a row of {cols} {ty} weights is not a whole number of blocks of {block_cols}")]
    RaggedRow {
        /// The weights' type.
        ty: WeightType,
        /// Columns of the row.
        cols: usize,
        /// Columns of a block.
        block_cols: usize,
    },
    /// A buffer does not have the size that its shape says.
    #[error("{what} has {have} {unit}, its shape needs {need}")]
    Size {
        /// The buffer.
        what: &'static str,
        /// What is counted.
        unit: &'static str,
        /// What it has.
        have: usize,
        /// What it should have.
        need: usize,
    },
    /// A shape whose size does not fit a machine word.
    #[error("the shape is too large for this machine's address space")]
    Overflow,
}

impl KernelError {
    /// `Ok` if a buffer has at least the size it needs.
    pub(crate) fn check_size(
        what: &'static str,
        unit: &'static str,
        have: usize,
        need: usize,
    ) -> Result<(), KernelError> {
        if have >= need { Ok(()) } else { Err(KernelError::Size { what, unit, have, need }) }
    }
}
