//! Any text through any kind of tokenizer; the oracle says what must hold.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| text::oracle::check_tokenizer(bytes));
