//! sidetrack: sidecar traffic interception with eBPF socket hooks instead of iptables.
//!
//! The library is the agent and its commands; the binary only parses arguments. See
//! docs/architecture.md for how the parts fit together.

pub mod api;
pub mod kernel;

pub mod cli;
pub mod client;
pub mod cluster;
pub mod cni;
pub mod manifests;

pub mod netns;
pub mod node;

pub mod pod_cgroups;

pub mod map_routes;
pub mod reconcile;
pub mod rows;
pub mod sandboxes;
pub mod server;
pub mod source;
pub mod validate;
pub mod web;
pub mod webhook;

/// This build's version: the package's, unless whoever builds it has set SIDETRACK_VERSION.
pub const VERSION: &str = match option_env!("SIDETRACK_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
