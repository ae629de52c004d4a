//! The agent and its commands; the binary only starts them.
//!
//! See docs/architecture.md for how the parts fit together.

#![forbid(unsafe_code)]

// From the bottom up: no module uses one that stands below it in this list.
pub mod api;
pub mod client;

pub mod cni;

pub mod observe;

pub mod sources;

pub mod server;

pub mod cleanup;

pub mod daemon;

pub mod cli;
