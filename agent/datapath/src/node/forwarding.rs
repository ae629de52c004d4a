//! Follows where packets for other addresses may enter a pod.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use sidetrack_common::{
    names::{MPTCP_INBOUND, MPTCP_OUTBOUND},
    pod::POD_FORWARDS,
};
use sidetrack_policy::Policy;
use sidetrack_reconcile::repairs::IngressProgram;

use super::PodLink;
use crate::{
    kernel::{
        Datapath,
        forwarding::{attach, remove_all},
    },
    netns::{forward_routes, routes::entrances::MAX_ENTRANCES},
    rows::PodRows,
};

/// Interfaces that get the program at a time: for each the kernel waits for all CPUs, while the reconciler waits
/// for the kernel.
const BATCH: usize = 8;

/// Applies the rules to packets for other addresses than the pod's, at every interface by which they can enter, whether
/// the pod forwards them or not. Packets are marked only while a route leads them, and the route is there only while
/// the programs that mark them are.
///
/// # Errors
/// If something remains to do.
pub(super) async fn follow(
    datapath: &mut Datapath,
    rows: &mut PodRows,
    link: &mut PodLink,
    (policy, is_wanted): (&Policy, bool),
) -> Result<()> {
    // sk_lookup cannot choose a listener that is an MPTCP socket: the program at the interfaces does.
    let bits = datapath.maps.sidecar_bits.get(&link.netns().cookie())?;
    let has_mptcp = bits.is_some_and(|bits| bits & (MPTCP_INBOUND | MPTCP_OUTBOUND) != 0);
    let are_needed = !policy.virtual_interfaces.is_empty() || has_mptcp;
    let (mut interfaces, omitted) = link.snapshot()?.entrances.interfaces(are_needed);
    if is_wanted || has_mptcp {
        link.forwarding.note = note(omitted);
    } else {
        link.forwarding.note = note_if_unwanted(policy, !interfaces.is_empty());
        interfaces.clear();
    }
    if interfaces.is_empty() {
        if rows.has(POD_FORWARDS) {
            link.forwarding.clear()?;
            link.remove_forwarding().await?;
            rows.set(POD_FORWARDS, false);
            rows.write_flags(&datapath.maps)?;
        }
        return Ok(());
    }
    rows.set(POD_FORWARDS, true);
    rows.write_flags(&datapath.maps)?;
    link.add_forward_routes().await?;
    datapath.load_forwarding(&mut link.forwarding)?;
    link.attach(IngressProgram::Forwarded, &interfaces).await
}

fn note(omitted: usize) -> Option<String> {
    (omitted > 0).then(|| {
        format!(
            "it has more than {MAX_ENTRANCES} interfaces: what passes through it from {omitted} of them is not intercepted"
        )
    })
}

fn note_if_unwanted(policy: &Policy, has_several: bool) -> Option<String> {
    if !policy.virtual_interfaces.is_empty() {
        return Some(format!(
            "traffic that passes through the pod from {} to elsewhere is not redirected; traffic to the pod itself follows the rules",
            policy.virtual_interfaces.join(",")
        ));
    }
    has_several.then(|| {
        "it has several interfaces: what only passes through it is not intercepted".to_owned()
    })
}

impl PodLink {
    /// Attaches one of its programs at the next interfaces that do not have it.
    ///
    /// # Errors
    /// If something remains to do.
    pub(super) async fn attach(
        &mut self,
        program: IngressProgram,
        interfaces: &BTreeSet<u32>,
    ) -> Result<()> {
        let Some(missing) = self.ingress_mut(program).missing(interfaces)? else {
            return Ok(());
        };
        let attached = self.inside(move || attach(&missing, BATCH)).await;
        let purpose = program.purpose();
        let attach = || format!("attach the program for {purpose}");
        let attached = attached.with_context(attach)?;
        let rest = attached.rest;
        let kept = self.ingress_mut(program).keep(attached);
        kept.with_context(attach)?;
        if rest > 0 {
            bail!("{rest} of its interfaces do not have the program for {purpose} yet");
        }
        Ok(())
    }

    async fn add_forward_routes(&self) -> Result<()> {
        let added = self.inside(forward_routes::add).await;
        added.context("add the route for forwarded packets")
    }

    /// Removes the route again, and programs that filters attach. The namespace may be going away at the same time.
    pub(super) async fn remove_forwarding(&self) -> Result<()> {
        let filters = self.remove_filters(IngressProgram::Forwarded).await;
        let removed = self.inside(forward_routes::remove).await;
        // A failure of one does not keep the other.
        filters.and(removed.context("remove the route for forwarded packets"))
    }

    /// Removes a program that filters attach, which outlive their agent.
    pub(super) async fn remove_filters(&self, program: IngressProgram) -> Result<()> {
        if self.ingress(program).has_links {
            return Ok(());
        }
        let removed = self.inside(move || remove_all(program)).await;
        removed.with_context(|| format!("remove the program for {}", program.purpose()))
    }
}
