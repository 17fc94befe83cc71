//! Dynamic transfer: which host items a schedule streams to the GPU, through which slots.
//!
//! `paper` is Algorithm 2.

pub mod paper;
