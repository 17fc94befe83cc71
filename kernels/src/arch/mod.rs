//! Vector code by processor family. Each file is an instantiation of an operator of `cpu/`, never a new meaning.

#[cfg(target_arch = "x86_64")]
pub mod x86_64;
