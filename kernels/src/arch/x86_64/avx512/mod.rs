//! AVX-512 with BW, VL, DQ, VNNI and VBMI.

pub(crate) mod bounds;
pub(crate) mod matmul;
pub(crate) mod ops;
