//! ats-run: maps model and plan, executes the op program, talks.
