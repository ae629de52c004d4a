//! Fuzzes [`checks::policy`].

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| checks::policy::check(input));
