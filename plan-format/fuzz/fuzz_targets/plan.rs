//! Any bytes are a plan or an error; the oracle says what must hold of what was accepted.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| plan_format::oracle::check_plan(bytes));
