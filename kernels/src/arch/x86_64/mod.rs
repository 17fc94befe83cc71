//! x86-64: `avx2/` and `avx512/`. Functions are `#[target_feature]`; the dispatchers in `cpu/` check the ISA.

pub mod avx2;
pub mod avx512;
mod matmul;
