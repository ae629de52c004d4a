//! What tests and the demo are made of: network namespaces and cgroups that go away by themselves,
//! a process inside a pod that dials and listens on command, the agent.
//!
//! Invariant: everything is named after the process that made it and removed on drop; what
//! remains of a killed run is removed by the next one.

pub mod actor;
pub mod agent;
pub mod apiserver;
pub mod attack;
pub mod command;
pub mod deploy;
pub mod envoy;
pub mod hanging;
pub mod helper;
pub mod injected;
pub mod ledger;
pub mod machine;
pub mod network;
pub mod node;
pub mod plugin;
pub mod private;
pub mod product;
pub mod protocol;
pub mod runtime;
pub mod sidecar;
pub mod terminal;
pub mod trace;
pub mod tricks;
pub mod udp;
pub mod wait;
pub mod webhook;
pub mod ztunnel;

/// The name of a test as it is listed and filtered: the topic, which is the module below the crate's
/// root, and the function.
#[must_use]
pub fn test_name(module: &str, function: &str) -> String {
    let topic = module.split("::").nth(1).unwrap_or(module);
    format!("{topic}::{function}")
}
