//! Static placement: which items are resident in GPU memory.
//!
//! `chain` is the problem, `knapsack` the solver, `moe` the policy for mixtures of experts, `ilp` the cross-check on
//! the true graph. It decides residency only: streaming is `crate::transfer`.

pub mod chain;
pub mod ilp;
pub mod knapsack;
pub mod moe;
