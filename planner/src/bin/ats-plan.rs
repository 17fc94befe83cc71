//! `ats-plan`, the offline compiler. Everything is in the library (`planner::cli`).

fn main() -> std::process::ExitCode {
    planner::cli::main()
}
