//! sidetrack: sidecar traffic interception with eBPF socket hooks instead of iptables.
//!
//! The library is the agent and its commands; the binary only starts them. See
//! docs/architecture.md for how the parts fit together.

// From the bottom up: no module uses one that stands below it in this list.

pub mod api;
pub mod client;
pub mod cni;
pub mod timings;

pub mod events;
pub mod refusals;

pub mod counters;
pub mod map_routes;
pub mod snapshot;
pub mod sources;
pub mod status;

pub mod connections;
pub mod last_policies;
pub mod trace;
pub mod validate;

pub mod metrics;
pub mod metrics_http;

pub mod control_socket;

pub mod cleanup;
pub mod daemon;

pub mod cli;
