//! Checks that hold for every input, one module per fuzz target. The targets call them with inputs
//! from libFuzzer, the test `fuzz-seeds` with the committed seeds.

pub mod manifest;
#[path = "../../../agent/policy/tests/rule_text/netfilter/mod.rs"]
mod netfilter;
mod outline;
pub mod policy;
pub mod webhook;
