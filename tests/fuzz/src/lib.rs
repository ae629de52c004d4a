//! What must hold for every input, however strange: one module per fuzz target. The targets call
//! them with what libFuzzer invents, the test `fuzz-seeds` with the committed seeds.

pub mod manifest;
#[path = "../../../agent/policy/tests/rule_text/netfilter/mod.rs"]
mod netfilter;
mod outline;
pub mod policy;
pub mod webhook;
