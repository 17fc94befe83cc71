//! All CPU operators that are not products with weights.
//!
//! Each operator is written once over sixteen f32 lanes (`simd.rs`) and runs as plain Rust, AVX2 or AVX-512 with the
//! same bits. `oracle.rs` holds the same mathematics as plainly as it can be written, in f64: it defines what is right,
//! and every backend is compared with it. Operators take the part of the work that one thread does: each says how it
//! may be split, and no split, batch or thread count changes a bit of any result.
//!
//! Operands are windows on matrices (`view.rs`), one row per token. Shapes that do not fit are a fault of the caller:
//! the program's verifier excludes them, and operators panic on them. Not here: threads, memory, what a model is.

pub mod attention;
pub mod cases;
pub mod conv;
pub mod delta;
pub mod elementwise;
pub mod embed;
pub mod experts;
#[cfg(test)]
mod known;
pub mod kv;
pub(crate) mod math;
pub mod norm;
pub mod oracle;
pub mod rope;
pub mod router;
pub(crate) mod simd;
pub mod softmax;
#[cfg(test)]
mod tests;
pub mod view;

pub use view::{View, ViewMut};
