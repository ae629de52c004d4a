//! What the kernel and the reconciler know, for people: counters, refusals, connections, traces, the agent's state.
//!
//! It reads maps and the reconciler's snapshot, and writes nothing that decides a connection.

// From the bottom up: no module uses one that stands below it in this list.
pub mod events;
pub mod history;
pub mod timings;

pub mod cost;
pub mod refusals;
pub mod sidecars;

pub mod counters;
pub mod map_routes;
pub mod pinned_pods;
pub mod snapshot;

pub mod connections;
pub mod status;

pub mod kept_file;

pub mod last_policies;
pub mod trace;
pub mod watch;
