//! What tests and tools use of the product. They import `sidetrack` from here alone, so that a module
//! that moves there is renamed here once.

pub use sidetrack::{
    bpf::{hooks::CGROUP_HOOKS, maps::Maps, pins::Pins, sys, table::Table},
    cni::attach::PATH as CNI_REQUESTS_PATH,
    manifests, mesh,
    pod::{LABEL, NETNS_ANNOTATION},
    policy::{InboundPorts, Inputs, OutboundRanges, Policy, dialect},
    rules::{ListTables, MapRoutes},
};
