//! Everything that touches the kernel: programs, maps and links, and the network namespaces of pods.
//!
//! What is to be done is decided elsewhere: by `sidetrack_common` for a connection, by
//! `sidetrack_reconcile` for a pod. This crate does it.

// From the bottom up: no module uses one that stands below it in this list.
pub mod kernel;

pub mod foreign_files;

pub mod netns;

pub mod rows;

pub mod node;

pub mod reconcile;
