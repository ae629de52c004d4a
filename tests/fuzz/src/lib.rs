//! What must hold for every input, however strange: one module per fuzz target. The targets call
//! them with what libFuzzer invents, the test `fuzz-seeds` with the committed seeds.

mod connections;
mod firewall;
pub mod manifest;
mod outline;
pub mod policy;
