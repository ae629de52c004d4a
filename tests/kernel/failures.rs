//! The tables of `docs/failures.md` are so: each failure is made, and each command, metric and event says the words of
//! its row, not much later than the row says.

mod node;
mod table;

use std::{fs, os::fd::AsFd as _};

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::run,
    node::VIP,
    product::{CGROUP_HOOKS, Pins, hook_of_pod, sys},
    protocol::Request,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use self::{node::Node, table::Clock};
use crate::fixture::{ClusterFixture, at};

kernel_test!(a_sidecar_that_is_killed);
fn a_sidecar_that_is_killed() -> Result<()> {
    let mut node = Node::new()?;
    let clock = Clock::start();
    node.sidecar = None;
    let dialed = node.app_dials()?;
    ensure!(dialed == Err(libc::ECONNREFUSED), "{dialed:?}");
    node.says(&clock, "Sidecar killed")
}

kernel_test!(a_sidecar_that_is_stopped);
fn a_sidecar_that_is_stopped() -> Result<()> {
    let node = Node::new()?;
    node.sidecar.as_ref().context("a sidecar")?.stop()?;
    let clock = Clock::start();
    let client = node.pod.actor()?;
    client.flood(at(VIP, 80), 400)?;
    node.says(&clock, "Sidecar stopped")
}

kernel_test!(a_queue_that_is_full);
/// Of the outbound port only, and with the shortest backlog there is.
fn a_queue_that_is_full() -> Result<()> {
    let mut node = Node::new()?;
    node.sidecar = None;
    let sidecar = node.pod.actor()?;
    sidecar.ask(&Request::Hang(at("0.0.0.0", 15001)))?;
    let clock = Clock::start();
    let client = node.pod.actor()?;
    client.flood(at(VIP, 80), 20)?;
    node.says(&clock, "Accept queue full")
}

kernel_test!(an_annotation_that_cannot_be_used);
fn an_annotation_that_cannot_be_used() -> Result<()> {
    let node = Node::new()?;
    let ports = [("traffic.sidecar.istio.io/excludeOutboundPorts", "mysql")];
    let clock = Clock::start();
    node.lab.write_pod("app", &node.pod, &ports)?;
    node.says(&clock, "Bad annotation")?;
    ensure!(node.app_dials()? == Ok(15001), "the previous policy");
    Ok(())
}

kernel_test!(a_network_namespace_that_is_removed);
fn a_network_namespace_that_is_removed() -> Result<()> {
    let node = Node::new()?;
    let clock = Clock::start();
    run(&format!("ip netns del {}", node.pod.netns))?;
    node.says(&clock, "Network namespace removed")
}

kernel_test!(an_agent_that_is_killed);
fn an_agent_that_is_killed() -> Result<()> {
    let mut node = Node::new()?;
    let clock = Clock::start();
    node.agent.end(Signal::SIGKILL)?;
    node.says(&clock, "Agent killed")?;
    ensure!(node.app_dials()? == Ok(15001), "interception continues");
    Ok(())
}

kernel_test!(an_agent_that_is_stopped);
fn an_agent_that_is_stopped() -> Result<()> {
    let node = Node::new()?;
    let clock = Clock::start();
    kill(
        Pid::from_raw(node.agent.pid().cast_signed()),
        Signal::SIGSTOP,
    )?;
    node.says(&clock, "Agent stopped")?;
    ensure!(node.app_dials()? == Ok(15001), "interception continues");
    Ok(())
}

kernel_test!(hooks_that_are_detached);
fn hooks_that_are_detached() -> Result<()> {
    let node = Node::new()?;
    let pins = Pins::new(&node.agent.places.bpffs)?;
    let cookie = node.agent.places.cookie("test/app")?;
    let hooks = CGROUP_HOOKS.iter().map(|hook| {
        let path = hook_of_pod(&pins, hook.name, cookie);
        (hook.name, path)
    });
    for (hook, path) in hooks.chain([("sk_lookup", pins.pod_link(cookie))]) {
        let link = sys::open_pin(&path)?;
        let clock = Clock::start();
        sys::link_detach(link.as_fd())?;
        eprintln!("{hook}:");
        node.says_of(&clock, "Hook detached", hook)?;
    }
    Ok(())
}

kernel_test!(a_pin_that_is_removed);
fn a_pin_that_is_removed() -> Result<()> {
    let node = Node::new()?;
    let clock = Clock::start();
    fs::remove_file(node.agent.places.pins().join("links/connect4"))?;
    node.says(&clock, "Pin removed")
}

kernel_test!(a_map_that_is_full);
fn a_map_that_is_full() -> Result<()> {
    let node = Node::new()?;
    crate::bounds::full_maps::fill_counters(&node.agent.places)?;
    let clock = Clock::start();
    node.says(&clock, "Map full")?;
    ensure!(node.app_dials()? == Ok(15001), "interception continues");
    Ok(())
}

kernel_test!(a_file_system_that_is_full);
/// That of the control socket, beside which the agent keeps its files.
fn a_file_system_that_is_full() -> Result<()> {
    let node = Node::with(|places| {
        let dir = places.pods.with_file_name("small");
        fs::create_dir(&dir)?;
        run(&format!(
            "mount -t tmpfs -o size=64k tmpfs {}",
            dir.display()
        ))?;
        places.socket = dir.join("sidetrack.sock");
        Ok(())
    })?;
    let filler = node.agent.places.socket.with_file_name("filler");
    ensure!(fs::write(filler, [0; 1 << 17]).is_err(), "there is room");
    let clock = Clock::start();
    let ports = [("traffic.sidecar.istio.io/excludeOutboundPorts", "3306")];
    node.lab.write_pod("app", &node.pod, &ports)?;
    node.says(&clock, "Disk full")?;
    ensure!(node.app_dials()? == Ok(15001), "interception continues");
    Ok(())
}

kernel_test!(a_bpffs_that_is_read_only);
fn a_bpffs_that_is_read_only() -> Result<()> {
    let mut node = Node::new()?;
    let bpffs = node.agent.places.bpffs.display().to_string();
    run(&format!("mount -o remount,ro {bpffs}"))?;
    let clock = Clock::start();
    let other = node.lab.pod("other", 3)?;
    node.lab.write_pod("other", &other, &[])?;
    let said = node.says(&clock, "bpffs read-only");
    run(&format!("mount -o remount,rw {bpffs}"))?;
    said?;
    ensure!(node.app_dials()? == Ok(15001), "interception continues");
    node.agent.places.wait_enrolled("test/other").map(drop)
}

kernel_test!(an_api_server_that_is_away);
fn an_api_server_that_is_away() -> Result<()> {
    let cluster = ClusterFixture::new()?;
    let clock = Clock::start();
    cluster.api.down();
    table::says(&clock, "API server away", &cluster.agent.places, None, "")
}
