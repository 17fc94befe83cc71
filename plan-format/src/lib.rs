//! The plan artifact: container, op program, schedules, cost evaluator, verifier.
