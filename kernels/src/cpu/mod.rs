//! Operators on the CPU and the instruction set they are run with.
//!
//! Every operator takes the [`Isa`] to use, so a caller (or a test, or valgrind, which decodes no AVX-512)
//! can force one. Each file holds one family of operators: the portable code is the oracle, `arch/` holds the
//! vector code. Not here: threads; operators take the part of the work that one thread does.

pub mod bounds;
mod isa;
pub mod matmul;
pub mod ops;
mod prefetch;

pub use isa::Isa;
pub use prefetch::prefetch;
