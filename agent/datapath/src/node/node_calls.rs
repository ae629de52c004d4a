//! Has connections that the node itself makes to a pod, such as kubelet's probes, reach the application.
//!
//! For pods whose proxy is not in the pod: with a sidecar, probes are rewritten to its own port.

use std::fs::File;

use anyhow::{Context as _, Result};
use sidetrack_common::pod::POD_NODE_CALLS;
use sidetrack_policy::{InboundPorts, Policy};
use sidetrack_reconcile::repairs::IngressProgram;

use super::PodLink;
use crate::{kernel::Datapath, netns::netns_id, rows::PodRows};

/// Attaches the program at every interface of the pod, after the one for forwarded packets, which gives the packet to
/// the listener that the rules choose. What cannot be done is said in the pod's notes: the connections then go to the
/// proxy, like all others.
///
/// # Errors
/// If a row or a pin cannot be changed.
pub(super) async fn follow(
    datapath: &mut Datapath,
    rows: &mut PodRows,
    link: &mut PodLink,
    policy: &Policy,
) -> Result<()> {
    let is_outside = policy.dialect.proxy_mark().is_some();
    if !is_outside || policy.inbound == InboundPorts::None {
        if rows.has(POD_NODE_CALLS) {
            link.node_calls.clear()?;
            rows.set(POD_NODE_CALLS, false);
            rows.write_flags(&datapath.maps)?;
        }
        link.node_calls.note = None;
        return Ok(());
    }
    let attached = attach_all(datapath, rows, link).await;
    link.node_calls.note = attached.err().map(|problem| {
        format!("connections of the node, such as kubelet's probes, go to ztunnel as all others do: {problem:#}")
    });
    Ok(())
}

async fn attach_all(datapath: &mut Datapath, rows: &mut PodRows, link: &mut PodLink) -> Result<()> {
    let path = datapath.node_netns.clone();
    let node = || format!("open the node's network namespace {}", path.display());
    let netns = File::open(&path).with_context(node)?;
    let id = link.inside(move || netns_id::of(&netns)).await;
    let id = id.context("give the node's network a number in the pod's")?;
    let (interfaces, _) = link.snapshot()?.entrances.interfaces(true);
    datapath.load_node_calls(&mut link.node_calls, id)?;
    rows.set(POD_NODE_CALLS, true);
    rows.write_flags(&datapath.maps)?;
    link.attach(IngressProgram::NodeCalls, &interfaces).await
}
