//! Any bytes as a vocabulary are refused or work.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| text::oracle::check_vocabulary(bytes));
