//! What hostile pods and clients cannot do; docs/security.md names these tests.

mod control_socket;
mod crowd;
mod excess;
mod foreign_source;
mod health;
mod held;
mod metrics;
mod net_admin;
mod other_protocols;
mod own_users;
mod sidecar_scope;

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, limited},
    command::{output, run},
    network::{Lab, PodNet},
    node::VIP,
    product::CGROUP_HOOKS,
    protocol::{Identity, ROOT},
};

use crate::fixture::{PodFixture, at};

/// A script as a container would run it: in the pod's cgroup and network namespace, without the node's
/// bpffs, cgroups and sidetrack's files.
fn contained(pod: &PodNet, lab: &Lab, script: &str) -> Command {
    const ENTER: &str = "echo $$ > $1/cgroup.procs; lab=$2; netns=$3; shift 3; \
        exec unshare --mount sh -ec 'lab=$1; netns=$2; shift 2; cd /; \
        for dir in $lab /sys/fs/bpf /sys/fs/cgroup; do mount -t tmpfs none $dir; done; \
        exec nsenter --net=$netns \"$@\"' sh $lab $netns \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-ec", ENTER, "sh"]);
    command.arg(&pod.cgroup).arg(lab.dir()).arg(pod.path());
    let mut inner = Command::new("sh");
    inner.args(["-c", script]);
    let capabilities = ["NET_ADMIN".to_owned(), "NET_RAW".to_owned()];
    let inner = limited(&inner, &capabilities);
    command.arg(inner.get_program()).args(inner.get_args());
    command
}

/// What a pod may try, each with whether it is allowed to a pod with NET_ADMIN.
fn attempts(links: &[u64], programs: &[u64]) -> Vec<(String, bool)> {
    let ours = |what: &str| (what.to_owned(), true);
    let theirs = |what: String| (what, false);
    let mut all = vec![
        ours("iptables -t nat -F"),
        ours("iptables -t nat -X"),
        ours("iptables -F"),
        ours("ip6tables -t nat -F"),
        ours("ip route flush cache"),
        ours("ip rule show"),
        theirs("nsenter --net=/proc/1/ns/net true".to_owned()),
        theirs("unshare --net true".to_owned()),
        theirs("mount -t bpf bpf /mnt".to_owned()),
        theirs("mount -t cgroup2 none /mnt".to_owned()),
        theirs("bpftool prog show | grep st_".to_owned()),
        theirs("bpftool map show | grep HANDSHAKES".to_owned()),
        theirs("bpftool link show | grep prog".to_owned()),
    ];
    all.extend(
        links
            .iter()
            .map(|id| theirs(format!("bpftool link detach id {id}"))),
    );
    all.extend(
        programs
            .iter()
            .map(|id| theirs(format!("bpftool prog dump xlated id {id}"))),
    );
    all
}

/// Links and programs that are attached now.
fn attached(agent: &Agent) -> Result<(Vec<u64>, Vec<u64>)> {
    let status = agent.places.json(&["status", "-o", "json"])?;
    let hooks = status["hooks"].as_array().context("hooks")?;
    // The callbacks' links are among the pods'.
    let of_all = hooks.iter().filter(|hook| hook["pods"].is_null());
    let ids = |name: &str| -> Result<Vec<u64>> {
        let ids = of_all.clone().map(|hook| hook[name].as_u64());
        ids.map(|id| id.context("an id")).collect()
    };
    let mut links = ids("link_id")?;
    for dir in fs::read_dir(agent.places.pins().join("pods"))? {
        for pin in fs::read_dir(dir?.path())? {
            let pin = pin?.path();
            let shown = run(&format!("bpftool -j link show pinned {}", pin.display()))?;
            let shown: serde_json::Value = serde_json::from_str(&shown)?;
            links.push(shown["id"].as_u64().context("a link's id")?);
        }
    }
    Ok((links, ids("program_id")?))
}

/// Both directions are intercepted.
fn intercepted(fixture: &PodFixture, app: &Identity) -> Result<()> {
    let out = fixture.client.connect(app, at(VIP, 80))?;
    ensure!(out.accepted_by == 15001, "outbound: {out:?}");
    ensure!(
        out.server.original_v4 == Ok(at(VIP, 80)),
        "outbound: {out:?}"
    );
    let arrived = fixture.outside.connect(&ROOT, at("10.77.0.2", 80))?;
    ensure!(arrived.accepted_by == 15006, "inbound: {arrived:?}");
    Ok(())
}

/// Tries everything, and looks after each whether the pod is intercepted.
fn try_all(
    fixture: &PodFixture,
    app: &Identity,
    allowed: bool,
    mut run: impl FnMut(&str) -> Result<bool>,
) -> Result<()> {
    let (links, programs) = attached(&fixture.agent)?;
    ensure!(
        links.len() == CGROUP_HOOKS.len() + 1,
        "the hooks and the pod's: {links:?}"
    );
    // What is refused below is there to be had.
    for look in [
        "bpftool prog show | grep st_",
        "bpftool map show | grep HANDSHAKES",
    ] {
        ensure!(output(&["sh", "-c", look])?.status.success(), "{look}");
    }
    for (attempt, own) in attempts(&links, &programs) {
        let succeeded = run(&attempt)?;
        ensure!(
            succeeded == (own && allowed),
            "`{attempt}` {}",
            if succeeded { "succeeded" } else { "failed" }
        );
        intercepted(fixture, app).with_context(|| format!("after `{attempt}`"))?;
    }
    Ok(())
}

fn descriptors(agent: &Agent) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{}/fd", agent.pid()))?.count())
}
