//! AVX2 with FMA and F16C.

pub(crate) mod act;
pub(crate) mod bounds;
pub(crate) mod matmul;
pub(crate) mod ops;
