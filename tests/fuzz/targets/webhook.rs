//! Fuzzes [`checks::webhook`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| checks::webhook::check(input));
