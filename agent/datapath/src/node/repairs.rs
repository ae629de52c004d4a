//! Looks at everything that is in the kernel, and carries out repairs. What has to be repaired is decided by
//! [`sidetrack_reconcile::repairs`].

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsFd as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::compiled::CompiledPolicy;
use sidetrack_reconcile::{
    Enrollment, Processes as _,
    node::Look,
    repairs::{EarlierFinding, Findings, IngressProgram, LinkId, LinkLoss, Repair},
};

use super::{
    KernelNode, handshakes,
    steps::{end_before_sidecar, may_end_before_sidecar},
};
use crate::{
    kernel::{Datapath, maps::Maps},
    netns::{Netns, NetnsError, inode_of},
    rows::RowCheck,
};

/// How long one question to all pods may take.
const WAIT_TIMEOUT: Duration = Duration::from_millis(200);

pub(super) fn look(node: &mut KernelNode, at: Look<'_, KernelNode>) -> Findings {
    match at {
        Look::InboundLinks => Findings {
            links: node.datapath.inbound_losses(false).collect(),
            ..Findings::default()
        },
        Look::All {
            policies,
            pods,
            earlier,
        } => Findings {
            earlier: look_at_earlier(node, earlier),
            ..look_at_all(node, policies, &pods)
        },
    }
}

/// Looks at the pods of earlier agents whose link for inbound connections is not in its namespace, with its program.
fn look_at_earlier(
    node: &KernelNode,
    mut earlier: Vec<(NetnsCookie, NetnsInode)>,
) -> Vec<EarlierFinding> {
    earlier.retain(|(cookie, inode)| !node.datapath.is_attached(*cookie, *inode));
    if earlier.is_empty() {
        return Vec::new();
    }
    let inodes = earlier.iter().map(|(_, inode)| inode.get()).collect();
    let processes = node.processes_in(inodes, None);
    let with_cookie = |path: PathBuf| {
        let cookie = match Netns::open(&path) {
            Ok(netns) => Some(NetnsCookie::new(netns.cookie())),
            // The agent's own or the node's has the inode now.
            Err(NetnsError::Host(_)) => Some(NetnsCookie::new(0)),
            Err(_) => None,
        };
        (path, cookie)
    };
    let findings = earlier.into_iter().map(|(cookie, inode)| EarlierFinding {
        cookie,
        inode,
        found: processes.path_of(inode).map(with_cookie),
        has_processes: processes.any_in(inode),
    });
    findings.collect()
}

fn look_at_all(
    node: &mut KernelNode,
    policies: Vec<(PolicyId, &CompiledPolicy)>,
    pods: &[&Enrollment<KernelNode>],
) -> Findings {
    let mut findings = Findings::default();
    let datapath = &mut node.datapath;
    let maps = &datapath.maps;
    match node.policies.damaged(policies, maps) {
        Ok(policies) => findings.policies = policies,
        Err(error) => problem(
            &mut findings,
            format!("compare the rows of policies: {error}"),
        ),
    }
    let mut ends = passing_too_long(pods, maps, &mut node.last_passing);
    let cookies = || pods.iter().map(|pod| pod.cookie);
    findings.not_asked = cookies().filter(|it| !ends.contains_key(it)).collect();
    for pod in pods {
        let ends = ends.remove(&pod.cookie).unwrap_or(Ok(0));
        match ends.and_then(|ends| Ok(ends + differing(pod, maps)?)) {
            Ok(0) => {}
            Ok(rows) => findings.rows.push((pod.cookie, rows)),
            Err(error) => {
                let (namespace, name, _) = pod.rows.names();
                let text = format!("compare the rows of pod {namespace}/{name}: {error:#}");
                problem(&mut findings, text);
            }
        }
    }
    match maps.pods.keys() {
        Ok(cookies) => findings.pods = cookies.into_iter().map(NetnsCookie::new).collect(),
        Err(error) => problem(&mut findings, format!("list pods: {error}")),
    }
    let of_pod = |netns| pods.iter().find(|pod| pod.cookie.get() == netns);
    let netns_of = |netns| of_pod(netns).map(|pod| pod.link.netns());
    match node.lingering.stale(maps, netns_of) {
        Ok(handshakes) => findings.handshakes = handshakes,
        Err(error) => {
            let text = format!("look for handshakes that remain: {error:#}");
            problem(&mut findings, text);
        }
    }
    datapath.look(&mut findings);
    findings.links.extend(datapath.inbound_losses(true));
    let uids: Vec<_> = pods
        .iter()
        .map(|pod| (pod.cookie, pod.rows.uid_of_cgroup()))
        .collect();
    findings.links.extend(datapath.callback_losses(&uids));
    findings.links.extend(datapath.dns_losses());
    let mut not_asked: BTreeSet<NetnsCookie> = cookies().collect();
    in_turns(pods, &mut node.last_ingress, |pod| {
        not_asked.remove(&pod.cookie);
        for program in IngressProgram::ALL {
            let id = |ifindex| LinkId::Ingress(pod.cookie, program, ifindex);
            let losses = pod.link.ingress(program).losses().into_iter();
            let losses = losses.map(|(ifindex, loss)| (id(ifindex), loss));
            findings.links.extend(losses);
        }
    });
    findings.not_asked.extend(not_asked);
    findings
}

fn problem(findings: &mut Findings, text: String) {
    findings.problems.push(text);
}

fn differing(pod: &Enrollment<KernelNode>, maps: &Maps) -> Result<usize> {
    let mut check = RowCheck::comparing();
    pod.rows.check(maps, &mut check)?;
    Ok(check.differing)
}

/// Asks as many pods as there is time for, beginning after the `last` one of the look before. An answer may wait for locks
/// that a pod can hold, such as RTNL.
fn in_turns<'a>(
    pods: &[&'a Enrollment<KernelNode>],
    last: &mut NetnsCookie,
    mut ask: impl FnMut(&'a Enrollment<KernelNode>),
) {
    let until = Instant::now() + WAIT_TIMEOUT;
    let mut pods = pods.to_vec();
    pods.sort_by_key(|pod| pod.cookie);
    let (later, earlier): (Vec<_>, Vec<_>) = pods.into_iter().partition(|pod| pod.cookie > *last);
    for pod in later.into_iter().chain(earlier) {
        if Instant::now() >= until {
            break;
        }
        *last = pod.cookie;
        ask(pod);
    }
}

/// Rows of pods that let them go past their sidecar although it listens: the kernel programs see the first listener, unless they are
/// detached just then.
fn passing_too_long(
    pods: &[&Enrollment<KernelNode>],
    maps: &Maps,
    last: &mut NetnsCookie,
) -> BTreeMap<NetnsCookie, Result<usize>> {
    let mut found = BTreeMap::new();
    in_turns(pods, last, |pod| {
        let ends = may_end_before_sidecar(pod.cookie, &pod.link, &pod.policy, maps);
        found.insert(pod.cookie, ends.map(usize::from));
    });
    found
}

/// Answers whether there was something to repair.
pub(super) fn carry_out(
    node: &mut KernelNode,
    repair: &Repair,
    pod: Option<&Enrollment<KernelNode>>,
) -> Result<bool> {
    let datapath = &mut node.datapath;
    match (repair, pod) {
        (Repair::WritePolicies(policies), _) => {
            let mut rows = 0;
            for id in policies.keys() {
                rows += node.policies.write(*id, &datapath.maps)?;
            }
            Ok(rows > 0)
        }
        (Repair::WriteRows(..), Some(pod)) => {
            let maps = &datapath.maps;
            let mut check = RowCheck::repairing();
            pod.rows.check(maps, &mut check)?;
            let ended = end_before_sidecar(pod.cookie, &pod.link, &pod.policy, maps)?;
            Ok(check.differing > 0 || ended)
        }
        (Repair::RemoveRows(cookies), _) => {
            let mut was_there = false;
            for cookie in cookies {
                was_there |= datapath.maps.pods.remove(&cookie.get())?;
            }
            Ok(was_there)
        }
        (Repair::PinMap(name, path), _) => datapath.pin_map(name, path).map(|()| true),
        (Repair::ActivateInbound, _) => datapath.activate_inbound().map(|()| true),
        (Repair::FollowCgroup(state), _) => datapath.follow_cgroup(state).map(|()| true),
        (Repair::LockDirectory(_), _) => datapath.lock_again().map(|()| true),
        (
            Repair::AttachEarlier {
                cookie,
                inode,
                path,
            },
            _,
        ) => {
            // The namespace may be about to be replaced; then the pod is enrolled again.
            if inode_of(path).ok() != Some(inode.get()) {
                return Ok(false);
            }
            let netns = Netns::open(path)?;
            let is_it = netns.cookie() == cookie.get();
            Ok(is_it && datapath.restore_inbound(*cookie, netns.as_fd(), &LinkLoss::Detached)?)
        }
        (Repair::RemoveHandshakes(rows), _) => handshakes::remove(rows, &datapath.maps),
        (Repair::RestoreLink(link, loss), pod) => restore(datapath, *link, loss, pod),
        (Repair::WriteRows(..), None) | (Repair::ForgetEarlier(_), _) => Ok(false),
    }
}

fn restore(
    datapath: &mut Datapath,
    link: LinkId,
    loss: &LinkLoss,
    pod: Option<&Enrollment<KernelNode>>,
) -> Result<bool> {
    let pod = || pod.context("there is no such pod");
    match link {
        LinkId::Hook(name) => datapath.restore_hook(name, loss).map(|()| true),
        // The agent holds the namespace, so that it is there.
        LinkId::Inbound(cookie) => {
            datapath.restore_inbound(cookie, pod()?.link.netns().as_fd(), loss)
        }
        LinkId::Callbacks(cookie) => {
            let uid = pod()?.rows.uid_of_cgroup();
            let restored = datapath.restore_callbacks(cookie, uid.as_deref(), loss);
            restored.map(|()| true)
        }
        LinkId::Dns(cookie) => datapath.restore_dns(cookie),
        LinkId::Ingress(_, program, ifindex) => pod()?.link.ingress(program).restore(ifindex, loss),
    }
}
