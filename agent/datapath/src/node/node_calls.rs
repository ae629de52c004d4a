//! Has connections that the node itself makes to a pod, such as kubelet's probes, reach the application.
//!
//! For pods whose proxy is not in the pod: with a sidecar, probes are rewritten to its own port.

use std::fs::File;

use anyhow::{Context as _, Result};
use sidetrack_common::pod::POD_NODE_CALLS;
use sidetrack_policy::{InboundPorts, Policy};
use sidetrack_reconcile::repairs::IngressProgram;

use super::PodLink;
use crate::{
    kernel::Datapath,
    netns::{netns_id, routes::entrances::MAX_ENTRANCES},
    rows::PodRows,
};

/// Attaches the program at every interface of the pod, before the one for forwarded packets. Where the node cannot have
/// it, the pod's notes say so: the connections then go to the proxy, like all others.
///
/// # Errors
/// If something remains to do.
pub(super) async fn follow(
    datapath: &mut Datapath,
    rows: &mut PodRows,
    link: &mut PodLink,
    policy: &Policy,
) -> Result<()> {
    link.node_calls.note = None;
    let is_outside = policy.dialect.proxy_mark().is_some();
    if !is_outside || policy.inbound == InboundPorts::None {
        if rows.has(POD_NODE_CALLS) {
            link.node_calls.clear()?;
            rows.set(POD_NODE_CALLS, false);
            rows.write_flags(&datapath.maps)?;
        }
        return Ok(());
    }
    let path = datapath.node_netns.clone();
    let node = || format!("open the node's network namespace {}", path.display());
    let netns = match File::open(&path).with_context(node) {
        Ok(netns) => netns,
        Err(problem) => {
            link.node_calls.note = note(&problem);
            return Ok(());
        }
    };
    let id = link.inside(move || netns_id::of(&netns)).await;
    let id = id.context("give the node's network a number in the pod's")?;
    if let Err(problem) = datapath.load_node_calls(&mut link.node_calls, id) {
        link.node_calls.note = note(&problem);
        return Ok(());
    }
    rows.set(POD_NODE_CALLS, true);
    rows.write_flags(&datapath.maps)?;
    let (interfaces, omitted) = link.snapshot()?.entrances.interfaces(true);
    if omitted > 0 {
        link.node_calls.note = Some(format!(
            "it has more than {MAX_ENTRANCES} interfaces: connections of the node by {omitted} of them go to ztunnel as all others do"
        ));
    }
    link.attach(IngressProgram::NodeCalls, &interfaces).await
}

fn note(problem: &anyhow::Error) -> Option<String> {
    Some(format!(
        "connections of the node, such as kubelet's probes, go to ztunnel as all others do: {problem:#}"
    ))
}
