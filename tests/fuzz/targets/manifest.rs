//! Fuzzes [`checks::manifest`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| checks::manifest::check(input));
