//! Any template with any message is refused or rendered.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| text::oracle::check_template(bytes));
