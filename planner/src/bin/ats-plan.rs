//! `ats-plan`: the offline compiler. Next: `planner::cli`.

fn main() {}
