//! What a pod's manifest means for its connections: which pods are enrolled, by which policy, and that
//! policy as iptables rules.
//!
//! Everything here is pure: no kernel, no network, no async. It builds and its tests run without root
//! and without the kernel programs.

mod arguments;
pub mod compiled;
pub mod dialect;
pub mod error;
pub mod facts;
#[cfg(test)]
mod fixture;
pub mod ids;
pub mod inputs;
pub mod interfaces;
pub mod manifest;
pub mod mesh;
pub mod migration;
pub mod names;
mod parse;
pub mod pod_ref;
pub mod policy;
pub mod record;
pub mod rules;
pub mod select;
mod sources;
pub mod text;
pub mod webhook;

pub use self::{
    dialect::Dialect,
    error::PolicyError,
    inputs::{Input, Inputs},
    pod_ref::PodRef,
    policy::{InboundPorts, Mode, OutboundRanges, Policy, ReturnRoute},
};
