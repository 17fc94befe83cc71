//! Project chores: `cargo xtask demo`, `cargo xtask test`. Next: `demo.rs`, `test.rs`.

fn main() {}
