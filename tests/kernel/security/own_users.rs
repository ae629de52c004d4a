//! Root in a pod that has its own user namespace.

use std::{
    fs,
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::Agent,
    network::{FIRST_OWN_USER, Lab, PodNet},
    node::VIP,
    protocol::{APP, Identity, PROXY, ROOT},
    sidecar,
};
use nix::sched::{CloneFlags, setns};

use super::{attached, intercepted};
use crate::fixture::{PodFixture, at};

kernel_test!(a_pod_with_its_own_users_as_root);
/// Root with all capabilities in the user namespace that owns the pod's network namespace.
fn a_pod_with_its_own_users_as_root() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod_with_own_users("app", 2)?;
    let outside = lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    let inside = |user: &Identity| Identity::of(FIRST_OWN_USER + user.uid);
    let agent = Agent::start(lab.places())?;
    let fixture = PodFixture {
        client: pod.actor()?,
        outside,
        agent,
        pod,
        lab,
    };
    let sidecar = fixture.pod.actor()?;
    for port in [15001, 15006] {
        sidecar::listen(&sidecar, &inside(&PROXY), port)?;
    }
    fixture.enroll(&[])?;
    let app = inside(&APP);
    intercepted(&fixture, &app)?;
    let run = |script: &str| -> Result<bool> {
        let output = inside_own_users(&fixture.pod, script)?.output()?;
        Ok(output.status.success())
    };
    // It is root there, and administers its network.
    ensure!(run("test $(id -u) = 0 && ip link set eth0 mtu 1400")?);
    ensure!(run("grep -q 'CapEff:.*1ffffffffff' /proc/self/status")?);
    let (links, programs) = attached(&fixture.agent)?;
    let ids = links
        .iter()
        .map(|id| format!("bpftool link detach id {id}"));
    let more = programs
        .iter()
        .map(|id| format!("bpftool prog dump xlated id {id}"));
    let others = [
        "nsenter --net=/proc/1/ns/net true",
        "bpftool map show | grep HANDSHAKES",
    ];
    for attempt in ids.chain(more).chain(others.map(str::to_owned)) {
        ensure!(!run(&attempt)?, "`{attempt}` succeeded");
        intercepted(&fixture, &app).with_context(|| format!("after `{attempt}`"))?;
    }
    for own in [
        "ip address add 10.77.9.9/16 dev eth0",
        "ip route flush cache",
    ] {
        ensure!(run(own)?, "{own}");
        intercepted(&fixture, &app).with_context(|| format!("after `{own}`"))?;
    }
    Ok(())
}

/// A script as root of the user namespace that a pod's network namespace belongs to.
fn inside_own_users(pod: &PodNet, script: &str) -> Result<Command> {
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    let netns = fs::File::open(pod.path())?;
    // SAFETY: the request takes nothing and answers a new descriptor.
    let users = unsafe {
        let number = libc::ioctl(netns.as_raw_fd(), NS_GET_USERNS);
        ensure!(number >= 0, "no user namespace owns {}", pod.netns);
        OwnedFd::from_raw_fd(number)
    };
    let cgroup = pod.cgroup.join("cgroup.procs");
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    // SAFETY: system calls and a write, nothing that another thread could hold a lock of.
    unsafe {
        command.pre_exec(move || {
            fs::write(&cgroup, std::process::id().to_string())?;
            setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)?;
            setns(users.as_fd(), CloneFlags::CLONE_NEWUSER)?;
            nix::unistd::setgid(0.into())?;
            nix::unistd::setuid(0.into())?;
            Ok(())
        });
    }
    Ok(command)
}
