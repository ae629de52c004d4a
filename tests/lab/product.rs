//! What tests and tools use of the product. They import `sidetrack` from here alone, so that a module
//! that moves there is renamed here once.

use std::path::PathBuf;

pub use sidetrack::observe::map_routes::MapRoutes;
pub use sidetrack::{api::PodStatus, client::Client};
pub use sidetrack_base::runtime::block_on;
pub use sidetrack_datapath::{
    kernel::{
        Datapath,
        hooks::{CALLBACKS, CGROUP_HOOKS},
        kernel_log::LogLevel,
        maps::{Maps, PINNED},
        pins::Pins,
        sock_records::{OpenSocket, Records},
        sys,
        table::Table,
    },
    netns::Netns,
};
pub use sidetrack_policy::{
    InboundPorts, Inputs, Mode, OutboundRanges, Policy, ReturnRoute, dialect,
    facts::{ContainerFacts, PodFacts},
    manifest::{self, NETNS_ANNOTATION},
    mesh,
    record::ANNOTATION as ISTIO_INIT_ANNOTATION,
    rules::{self, ListTables},
    select::LABEL,
    webhook::REPLACED,
};
pub use sidetrack_reconcile::{PodState, cni::PATH as CNI_REQUESTS_PATH};

/// The link of a hook for one pod: the callbacks are on the pod's own cgroup where that is known.
pub fn hook_of_pod(pins: &Pins, hook: &str, netns: u64) -> PathBuf {
    match hook == CALLBACKS {
        true => pins.pod_callbacks(netns),
        false => pins.link(hook),
    }
}
