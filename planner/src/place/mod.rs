//! Static placement: which items are resident in GPU memory.
//!
//! `chain` is the problem, `knapsack` the solver, `moe` the policy for mixtures of experts, `ilp` the cross-check on
//! the true graph; `weigh` makes both from a priced model, `memory` counts bytes, `seeds` are the splits people make by
//! hand, `held` uses prefill's memory for decode, `candidates` asks them all and `search` judges; `hot` is the
//! candidate that divides layers' experts (`divide`); `explain` and `ablation` say what came of it and why. Streaming
//! is `crate::transfer`.

pub mod ablation;
pub mod candidates;
pub mod chain;
pub mod divide;
pub mod explain;
pub mod held;
pub mod hot;
pub mod ilp;
pub mod knapsack;
pub mod memory;
pub mod moe;
pub mod search;
pub mod seeds;
pub mod summary;
pub mod weigh;
