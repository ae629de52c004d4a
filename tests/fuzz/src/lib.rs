//! Checks that hold for every input, one module per fuzz target. The targets call them with inputs
//! from libFuzzer, the test `fuzz-seeds` with the committed seeds. Random routing tables need root: the
//! kernel tests check them (`tests/kernel/lifecycle/route_tables.rs`).

pub mod manifest;
#[path = "../../../agent/policy/tests/rule_text"]
mod rule_text {
    pub mod netfilter;
}
pub mod netlink;
mod outline;
pub mod policy;
pub mod proc;
pub mod webhook;
