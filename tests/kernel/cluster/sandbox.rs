//! A pod's network namespace is found through its processes, whatever they do.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Places, is},
    command::Process,
    injected::injected,
    network::PodNet,
    protocol::ROOT,
    sidecar,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use super::{accepted_by, labeled, wait_for};
use crate::fixture::{ClusterFixture, at, start_agent};

kernel_test!(a_recreated_sandbox_is_followed);
fn a_recreated_sandbox_is_followed() -> Result<()> {
    let mut node = ClusterFixture::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    let outside = node.lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    // The object is there before any process is.
    node.api.apply(injected("web", &node.lab.uid(1)))?;
    node.soon("shop/web", is("waiting", "no process"))?;
    let first = node
        .lab
        .pod("first", 2)?
        .under_kubelet(&node.lab, &node.lab.uid(1))?;
    let pause = sidecar::start(&first, &[])?;
    node.wait_enrollment("shop/web", true)?;
    ensure!(accepted_by(&first.actor()?)? == 15001);
    let inode = |places: &Places| -> Result<Value> {
        Ok(places.pod("shop/web")?.context("the pod")?["netns"]["inode"].clone())
    };
    let before = inode(node.places())?;
    // Another process keeps the namespace; the one it was found by goes.
    let other = first.actor()?;
    drop(pause);
    thread::sleep(Duration::from_millis(700));
    node.wait_enrollment("shop/web", true)?;
    ensure!(inode(node.places())? == before);
    // A new sandbox under the same UID.
    drop(other);
    let second = node
        .lab
        .pod("second", 3)?
        .under_kubelet(&node.lab, &node.lab.uid(1))?;
    let _sidecar = sidecar::start(&second, &[])?;
    node.places().wait_pod("shop/web", |pod| {
        pod.is_some_and(|pod| pod["state"] == "enrolled" && pod["netns"]["inode"] != before)
    })?;
    ensure!(accepted_by(&second.actor()?)? == 15001);
    ensure!(node.places().map("POD_BY_NETNS")?.len() == 1);
    // The same name, another pod.
    drop(_sidecar);
    node.api.delete("Pod", "shop", "web")?;
    node.api.apply(injected("web", &node.lab.uid(2)))?;
    let third = node
        .lab
        .pod("third", 4)?
        .under_kubelet(&node.lab, &node.lab.uid(2))?;
    let _sidecar = sidecar::start(&third, &[])?;
    node.places().wait_pod("shop/web", |pod| {
        pod.is_some_and(|pod| pod["state"] == "enrolled" && pod["uid"] == node.lab.uid(2))
    })?;
    ensure!(accepted_by(&third.actor()?)? == 15001);
    Ok(())
}

/// A process that is no child of the test.
struct EndedWithTest(i32);

impl Drop for EndedWithTest {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0), Signal::SIGKILL);
    }
}

kernel_test!(the_runtimes_namespace_is_never_enrolled);
/// Where the runtime is in a network namespace that is neither the agent's nor that of process 1 (nodes in
/// containers), a container's first process is for a moment in the pod's cgroup and in that namespace.
fn the_runtimes_namespace_is_never_enrolled() -> Result<()> {
    let mut node = ClusterFixture::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    let uid = node.lab.uid(1);
    let pod = node.lab.pod("pod", 2)?.under_kubelet(&node.lab, &uid)?;
    let runtimes = node.lab.empty_namespace()?;
    // Start times are in hundredths of a second.
    const SHIM: &str = "sleep 0.03; sleep 1000 & echo $!; wait";
    let mut shim = Command::new("ip");
    shim.args(["netns", "exec", &runtimes, "sh", "-c", SHIM])
        .stdout(Stdio::piped());
    let mut shim = Process::start(&mut shim)?;
    let mut said = String::new();
    let stdout = shim.stdout.take().context("its output")?;
    BufReader::new(stdout).read_line(&mut said)?;
    let first_of_pod: i32 = said.trim().parse()?;
    let _first = EndedWithTest(first_of_pod);
    fs::write(pod.cgroup.join("cgroup.procs"), said.trim())?;
    let inode = |pid: i32| fs::metadata(format!("/proc/{pid}/ns/net")).map(|it| it.ino());
    node.api.apply(injected("web", &uid))?;
    node.soon("shop/web", is("waiting", ""))?;
    thread::sleep(Duration::from_millis(1200));
    let row = node.places().pod("shop/web")?.context("the pod")?;
    ensure!(row["state"] == "waiting", "{row}");
    ensure!(node.places().map("POD_BY_NETNS")?.is_empty());
    let _sidecar = sidecar::start(&pod, &[])?;
    node.wait_enrollment("shop/web", true)?;
    let row = node.places().pod("shop/web")?.context("the pod")?;
    ensure!(row["netns"]["inode"] != inode(first_of_pod)?, "{row}");
    ensure!(accepted_by(&pod.actor()?)? == 15001);
    Ok(())
}

const CLONE_NEWNET: i32 = 0x4000_0000;
const CLONE_NEWUSER: i32 = 0x1000_0000;

fn netns_of(pid: u32) -> Result<PathBuf> {
    Ok(fs::read_link(format!("/proc/{pid}/ns/net"))?)
}

/// A process of a pod that makes namespaces for itself when its standard input ends.
fn first_process(pod: &PodNet, flags: i32) -> Result<Process> {
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", &pod.netns, "/usr/bin/python3", "-c"])
        .arg(format!(
            "import ctypes, sys, time\nsys.stdin.read()\nctypes.CDLL(None).unshare({flags})\ntime.sleep(1000)",
        ))
        .stdin(Stdio::piped());
    let process = Process::start(&mut command)?;
    let pid = process.id();
    fs::write(pod.cgroup.join("cgroup.procs"), pid.to_string())?;
    let own = fs::read_link("/proc/self/ns/net")?;
    wait_for(|| Ok(netns_of(pid)? != own))?;
    Ok(process)
}

/// The same, after it has made them.
fn moved_process(pod: &PodNet, flags: i32) -> Result<Process> {
    let mut process = first_process(pod, flags)?;
    let before = netns_of(process.id())?;
    drop(process.stdin.take());
    wait_for(|| Ok(netns_of(process.id())? != before))?;
    Ok(process)
}

/// A further container of a pod.
fn container(pod: &PodNet, name: &str) -> Result<PodNet> {
    let cgroup = pod.own_cgroup().join(name);
    fs::create_dir_all(&cgroup)?;
    Ok(PodNet {
        cgroup,
        ..pod.clone()
    })
}

kernel_test!(a_namespace_that_the_pod_has_made_is_not_enrolled);
/// CRI-O keeps no process of the sandbox. The first process of the first container is in namespaces of its own before
/// the pod is opted in.
fn a_namespace_that_the_pod_has_made_is_not_enrolled() -> Result<()> {
    let (node, _outside, pod) = labeled()?;
    let first = moved_process(&pod, CLONE_NEWNET | CLONE_NEWUSER)?;
    node.api.apply(injected("web", &node.lab.uid(1)))?;
    let reason = format!("process {} has made one for itself", first.id());
    node.soon("shop/web", is("waiting", &reason))?;
    ensure!(node.places().map("POD_BY_NETNS")?.is_empty());
    let _sidecar = sidecar::start(&container(&pod, "cri-containerd-proxy.scope")?, &[])?;
    node.wait_enrollment("shop/web", true)?;
    let client = pod.actor()?;
    // It is in the pod's namespace once it answers.
    ensure!(accepted_by(&client)? == 15001);
    let row = node.places().pod("shop/web")?.context("the pod")?;
    let inode = format!("net:[{}]", row["netns"]["inode"]);
    let pods = netns_of(client.pid())?;
    ensure!(pods.as_os_str() == inode.as_str(), "{row} and not {pods:?}");
    Ok(())
}

kernel_test!(of_several_namespaces_none_is_the_pods_for_certain);
/// With privileges the first process makes a network namespace that looks like one of the runtime's.
fn of_several_namespaces_none_is_the_pods_for_certain() -> Result<()> {
    let (node, _outside, pod) = labeled()?;
    let first = moved_process(&pod, CLONE_NEWNET)?;
    let proxy = container(&pod, "cri-containerd-proxy.scope")?;
    let sidecar = sidecar::start(&proxy, &[])?;
    node.api.apply(injected("web", &node.lab.uid(1)))?;
    let pids = format!("its processes {} and {}", first.id(), sidecar.pid());
    node.soon("shop/web", is("partial", &pids))?;
    // With one more container most are in the pod's own.
    let app = container(&pod, "cri-containerd-app.scope")?.actor()?;
    let pids = format!("its processes {} and {}", sidecar.pid(), first.id());
    node.soon("shop/web", is("partial", &pids))?;
    ensure!(accepted_by(&app)? == 15001);
    // A process that ends is noticed in a later turn.
    drop(first);
    node.places().wait_pod("shop/web", is("enrolled", ""))?;
    ensure!(accepted_by(&app)? == 15001);
    Ok(())
}

kernel_test!(a_process_cannot_take_its_pod_out);
/// The oldest process of a pod makes a network namespace of its own; another pod claims this one's
/// processes.
fn a_process_cannot_take_its_pod_out() -> Result<()> {
    let (mut node, _outside, pod) = labeled()?;
    let mut oldest = first_process(&pod, CLONE_NEWNET)?;
    let pid = oldest.id();
    let before = netns_of(pid)?;
    node.api.apply(injected("web", &node.lab.uid(1)))?;
    node.wait_enrollment("shop/web", true)?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let client = pod.actor()?;

    let mut evil = injected("a-evil", &node.lab.uid(2));
    evil["metadata"]["annotations"]["kubernetes.io/config.hash"] = json!(node.lab.uid(1));
    node.api.apply(evil)?;
    drop(oldest.stdin.take());
    wait_for(|| Ok(netns_of(pid)? != before))?;
    let settled = |node: &ClusterFixture| -> Result<()> {
        thread::sleep(Duration::from_millis(1200));
        let rows = node.places().map("POD_BY_NETNS")?.len();
        let row = node.places().pod("shop/web")?.unwrap_or_default();
        let inode = format!("net:[{}]", row["netns"]["inode"]);
        ensure!(
            rows == 1 && before.as_os_str() == inode.as_str() && row["state"] == "enrolled",
            "{row}\n{}",
            node.places().log()
        );
        let evil = node.places().pod("shop/a-evil")?.unwrap_or_default();
        ensure!(evil["state"] == "waiting", "{evil}");
        ensure!(accepted_by(&client)? == 15001);
        Ok(())
    };
    settled(&node)?;
    node.agent.end(Signal::SIGKILL)?;
    node.agent = start_agent(&node.lab, &node.api)?;
    settled(&node)
}
