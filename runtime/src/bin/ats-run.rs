//! `ats-run`: the runtime. Next: `runtime::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::cli::main()
}
