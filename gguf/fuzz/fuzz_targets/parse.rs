//! Any bytes are a GGUF file or an error; the oracle says what must hold of what was accepted.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gguf::oracle::check_parse(bytes));
