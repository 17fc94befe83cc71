//! `ats-run`: the runtime. Next: `runtime::cli`.

fn main() {}
