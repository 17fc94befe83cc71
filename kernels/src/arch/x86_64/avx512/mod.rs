//! AVX-512 with BW, VL, DQ, VNNI and VBMI.

pub(crate) mod ops;
