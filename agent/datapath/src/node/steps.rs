//! Each step of a plan, done on the real kernel.

use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result};
use sidetrack_common::{
    ids::{NetnsCookie, PolicyId},
    pod::{POD_ADDED_SELF_V6, POD_CAPTURE_V6, POD_DNS, POD_FORWARDS},
};
use sidetrack_policy::Policy;
use sidetrack_reconcile::{Phase, Step, repairs::IngressProgram};

use super::{KernelNode, PodLink, forwarding, node_calls, queries};
use crate::{
    kernel::{Datapath, maps::Maps},
    netns::{listeners::Search, processes::Processes},
    rows::PodRows,
};

pub(super) async fn run(
    node: &mut KernelNode,
    cookie: NetnsCookie,
    rows: &mut PodRows,
    link: Option<&mut PodLink>,
    step: &Step<'_, Processes>,
) -> Result<()> {
    match link {
        Some(link) => write(node, cookie, rows, link, step).await,
        None => remove(node, cookie, rows, step),
    }
}

async fn write(
    node: &mut KernelNode,
    cookie: NetnsCookie,
    rows: &mut PodRows,
    link: &mut PodLink,
    step: &Step<'_, Processes>,
) -> Result<()> {
    let datapath = &mut node.datapath;
    let maps = &datapath.maps;
    match step {
        Step::ReadNamespace => read(node, link).await,
        Step::WriteNamespace(policy, phase) => {
            // Packets from outside for these targets could not be refused otherwise.
            let with_targets_v6 = rows.has(POD_CAPTURE_V6) && node.sees_entrance;
            if with_targets_v6 && policy.rules_ignore_capture_range() {
                link.add_target_route().await;
            }
            let wanted = (*policy, *phase, with_targets_v6);
            let into = (maps, &mut node.row_quotas);
            let notes = rows.write_namespace(link.snapshot()?, wanted, into)?;
            link.set_network_notes(notes);
            // Not before: the flags of the pod's row go with its policy.
            if *phase == Phase::After {
                return after_namespace(node, rows, link, policy).await;
            }
            Ok(())
        }
        Step::CaptureV6(policy) => capture_v6(maps, rows, link, policy).await,
        Step::SetReturnRoute(policy, phase) => {
            let wanted = policy.return_route();
            link.set_return_route(wanted, *phase, rows.has(POD_CAPTURE_V6))
                .await
        }
        Step::AttachPrograms => {
            datapath.cover(rows.uid().as_deref())?;
            datapath.attach_callbacks(cookie, rows.uid_of_cgroup().as_deref())?;
            datapath.attach_pod(cookie, link.netns().as_fd())
        }
        Step::AdoptListeners(policy, processes) => {
            // A namespace that was made a moment ago.
            if processes.is_none() {
                return Ok(());
            }
            let search = Search {
                netns: link.shared_netns(),
                ports: policy.listener_ports(),
                outbound_port: policy.outbound_port,
                inbound_port: policy.inbound_port,
                is_outside: policy.dialect.proxy_mark().is_some(),
            };
            // A listener that is not found is a pod whose sidecar is down: no reason to leave the pod's
            // connections alone.
            node.adopter.search(search).await;
            Ok(())
        }
        Step::AllowBeforeSidecar(policy) => {
            let is_served = link.is_served(policy.outbound_port)?;
            if !is_served.context("the pod's namespace is gone")? {
                let written = maps.before_sidecar.insert(&cookie.get(), &1);
                written.context("let the pod reach the network until its sidecar listens")?;
            }
            Ok(())
        }
        Step::WritePod(policy, id) => write_pod(datapath, cookie, rows, link, (policy, *id)).await,
        Step::EndBeforeSidecar(policy) => end_before_sidecar(cookie, link, policy, maps).map(drop),
        Step::DetachPrograms => {
            node.make_opaque(link);
            let datapath = &mut node.datapath;
            // Before the routes: packets are marked only while a route leads them.
            let cleared = IngressProgram::ALL.map(|program| link.ingress_mut(program).clear());
            let cleared = cleared.into_iter().fold(Ok(()), Result::and);
            datapath.detach_pod(cookie).and(cleared)
        }
        Step::RestoreNamespace => {
            link.restore(rows.has(POD_ADDED_SELF_V6)).await;
            if rows.has(POD_FORWARDS) {
                // The namespace may be going away at the same time.
                let _ = link.remove_forwarding().await;
            }
            if rows.has(POD_DNS) {
                let _ = link.remove_filters(IngressProgram::Queries).await;
            }
            Ok(())
        }
        Step::RemovePod => {
            node.stale_destinations.forget(cookie.get());
            node.departed.add(cookie.get(), link.shared_netns());
            leave_answers(cookie, maps);
            rows.remove_pod(maps)
        }
        _ => remove(node, cookie, rows, step),
    }
}

/// Reads the namespace; destinations follow its addresses.
async fn read(node: &mut KernelNode, link: &mut PodLink) -> Result<()> {
    link.read().await?;
    let own = link.snapshot()?.addresses.iter();
    let own = own.map(|assigned| assigned.net.addr().into()).collect();
    node.stale_destinations.follow(link.shared_netns(), own);
    Ok(())
}

/// Captures IPv6 from the next write of the pod's row on, if the pod has it. A pod that was captured stays so; one whose
/// change has failed is as its row says.
async fn capture_v6(
    maps: &Maps,
    rows: &mut PodRows,
    link: &mut PodLink,
    policy: &Policy,
) -> Result<()> {
    let captures = link.snapshot()?.captures_v6(policy);
    rows.set(POD_CAPTURE_V6, rows.was_captured_v6());
    if captures && policy.dialect.exempts_self() && link.lacks_self_v6()? {
        // Before, and at once where there is a row: what is added when nothing waits for it any more, or by an agent that is
        // killed then, has to be removed as well.
        rows.set(POD_ADDED_SELF_V6, true);
        rows.write_flags(maps)?;
        let is_ours = link.add_self_v6().await?;
        rows.set(POD_ADDED_SELF_V6, is_ours);
        rows.write_flags(maps)?;
    }
    rows.set(POD_CAPTURE_V6, captures || rows.was_captured_v6());
    Ok(())
}

/// Writes the pod's row, and attaches what only some policies ask for.
async fn write_pod(
    datapath: &mut Datapath,
    cookie: NetnsCookie,
    rows: &mut PodRows,
    link: &mut PodLink,
    (policy, id): (&Policy, PolicyId),
) -> Result<()> {
    // Before the row says so, and after it no longer does.
    let captures_dns = policy.dns_block().is_some();
    if captures_dns {
        let attached = queries::attach(datapath, link, policy).await;
        if let Err(problem) = attached.and(datapath.capture_dns(cookie)) {
            // It is repaired, or a problem.
            tracing::warn!(%cookie, "{problem:#}");
        }
    }
    rows.set(POD_DNS, captures_dns);
    let former = rows.policy_id();
    rows.write_pod(policy, id, &datapath.maps)?;
    if let Err(problem) = rows.remove_former_listeners(former, policy, &datapath.maps) {
        tracing::warn!(%cookie, "{problem:#}");
    }
    if !captures_dns && let Err(problem) = datapath.release_dns(cookie) {
        // The programs look at the row, and leave the pod alone.
        tracing::warn!(%cookie, "{problem:#}");
    }
    let lost = datapath.set_acceleration(cookie, policy.accelerate).err();
    link.set_not_accelerated(lost.map(|problem| format!("{problem:#}")));
    Ok(())
}

/// What the namespace needs once its rows are those of the active policy.
async fn after_namespace(
    node: &mut KernelNode,
    rows: &mut PodRows,
    link: &mut PodLink,
    policy: &Policy,
) -> Result<()> {
    rows.write_flags(&node.datapath.maps)?;
    let wanted = (policy, node.captures_forwarded);
    let has_forwarded = rows.has(POD_FORWARDS);
    let followed = forwarding::follow(&mut node.datapath, rows, link, wanted).await;
    if has_forwarded && !rows.has(POD_FORWARDS) {
        node.make_opaque(link);
    }
    let followed = followed.and(node_calls::follow(&mut node.datapath, rows, link, policy).await);
    let attached = queries::attach(&mut node.datapath, link, policy).await;
    let followed = followed
        .and(attached)
        .and(queries::detach(link, policy).await);
    link.drop_snapshot();
    node.make_transparent(rows, link, policy);
    followed
}

/// Connections that the sidecar has accepted and not yet looked at get their original destination although the
/// pod leaves. [`Departed`](super::destinations::Departed) removes the row later.
fn leave_answers(cookie: NetnsCookie, maps: &Maps) {
    let counts = &maps.destinations_by_pod;
    let written = match counts.get(&cookie.get()) {
        Ok(None) => counts.insert(&cookie.get(), &0),
        other => other.map(drop),
    };
    if let Err(error) = written {
        tracing::warn!(%cookie, "connections that the sidecar has just accepted may fail: {error}");
    }
}

/// Steps that need no connection into the namespace, which may be gone.
fn remove(
    node: &mut KernelNode,
    cookie: NetnsCookie,
    rows: &mut PodRows,
    step: &Step<'_, Processes>,
) -> Result<()> {
    let datapath = &mut node.datapath;
    let maps = &datapath.maps;
    match step {
        Step::RemovePod => {
            node.stale_destinations.forget(cookie.get());
            rows.remove_pod(maps)
        }
        Step::DetachPrograms => datapath.detach_pod(cookie),
        Step::RemoveBeforeSidecar => rows.remove_own(
            &maps.before_sidecar,
            "the pod's leave to go past its sidecar",
        ),
        Step::RemoveHandshakeCount => {
            rows.remove_own(&maps.handshakes_by_pod, "the pod's count of handshakes")
        }
        Step::RemoveRoutes => rows.remove_routes(maps, &mut node.row_quotas),
        Step::RemoveIfaces => rows.remove_ifaces(maps, &mut node.row_quotas),
        Step::RemoveListeners => {
            node.adopter.cancel(cookie.get());
            rows.remove_listeners(maps)
        }
        Step::RemoveCounters => rows.remove_counters(maps, &datapath.removed_counts),
        Step::RestoreNamespace => Ok(()),
        _ => anyhow::bail!("{step:?} needs the pod's namespace"),
    }
}

/// Whether the leave to go past the sidecar is to end, because the sidecar listens.
pub(super) fn may_end_before_sidecar(
    cookie: NetnsCookie,
    link: &PodLink,
    policy: &Policy,
    maps: &Maps,
) -> Result<bool> {
    let passes = maps.before_sidecar.get(&cookie.get())?.is_some();
    Ok(passes && link.is_served(policy.outbound_port)? == Some(true))
}

/// Ends that leave then; answers whether it did.
pub(super) fn end_before_sidecar(
    cookie: NetnsCookie,
    link: &PodLink,
    policy: &Policy,
    maps: &Maps,
) -> Result<bool> {
    let ends = may_end_before_sidecar(cookie, link, policy, maps)?;
    Ok(ends && maps.before_sidecar.remove(&cookie.get())?)
}
