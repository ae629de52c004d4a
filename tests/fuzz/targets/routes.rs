//! Fuzzes the rows of random routing tables.

#![no_main]

#[path = "../src/routes.rs"]
mod routes;

use std::cell::LazyCell;

thread_local! {
    // libFuzzer calls the target from one thread, whose namespace this is.
    static TABLES: LazyCell<routes::Tables> = LazyCell::new(routes::Tables::new);
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| TABLES.with(|tables| tables.check(input)));
