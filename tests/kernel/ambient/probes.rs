//! Connections that the node itself makes to a pod in ambient mode, such as kubelet's probes.

use std::{collections::BTreeMap, os::fd::AsFd as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    product::sys,
    protocol::{APP, Dial, Listen, ROOT},
    wait::eventually,
};

use super::{Ambient, HBONE, INBOUND, OUTBOUND, arrives, by_app, start_agent};
use crate::fixture::{POD, VIP, at};

/// The outside as the node's own network.
fn on_node() -> Result<Ambient> {
    let ambient = Ambient::build(true)?;
    ambient.enroll(&[])?;
    ambient.listen()?;
    Ok(ambient)
}

/// The node's addresses.
const NODE: [&str; 2] = ["10.77.0.254", "fd77::fe"];

/// Connections that the rule for all inbound ports has captured.
fn captured(ambient: &Ambient, family: usize) -> Result<u64> {
    let flag = [&[][..], &["-6"]][family];
    let words = [&["rules", "test/app", "-o", "json"], flag].concat();
    let rows = ambient.agent.places.json(&words)?;
    let rows = rows.as_array().context("a list of rules")?;
    let all = rows.iter().filter(|row| row["name"] == "in-all");
    Ok(all.filter_map(|row| row["connections"].as_u64()).sum())
}

kernel_test!(probes_of_the_node_reach_the_app, needs NODE_CALLS);
fn probes_of_the_node_reach_the_app() -> Result<()> {
    let ambient = on_node()?;
    for family in [0, 1] {
        let (own, node) = (POD[family], NODE[family]);
        let made = arrives(&ambient.outside, Dial::new(&ROOT, at(own, 80)), 80)?;
        ensure!(
            made.server.peer.ip().to_canonical() == at(node, 0).ip(),
            "{made:?}"
        );
        // No process answers for an app that does not listen.
        let closed = ambient.outside.dial(Dial::new(&ROOT, at(own, 9)))?;
        ensure!(
            closed.as_ref().err() == Some(&libc::ECONNREFUSED),
            "{closed:?}"
        );
        arrives(&ambient.outside, Dial::new(&ROOT, at(own, HBONE)), HBONE)?;
        ensure!(captured(&ambient, family)? == 0, "a probe was captured");
        // Other pods are no node.
        let other = ambient.other.actor()?;
        arrives(&other, Dial::new(&APP, at(own, 80)), INBOUND)?;
        ensure!(captured(&ambient, family)? == 1, "another pod's was not");
    }
    Ok(())
}

kernel_test!(probes_reach_an_app_with_a_listener_for_each_worker, needs NODE_CALLS);
fn probes_reach_an_app_with_a_listener_for_each_worker() -> Result<()> {
    let ambient = on_node()?;
    ambient.app.listen_group(Listen {
        address: at("::", 81),
        owner: APP,
        sockets: 2,
        v6_only: false,
        transparent: false,
        mptcp: false,
    })?;
    for own in POD {
        arrives(&ambient.outside, Dial::new(&ROOT, at(own, 81)), 81)?;
    }
    Ok(())
}

kernel_test!(probes_need_no_ztunnel, needs NODE_CALLS);
fn probes_need_no_ztunnel() -> Result<()> {
    let ambient = Ambient::build(true)?;
    ambient.enroll(&[])?;
    for own in POD {
        arrives(&ambient.outside, Dial::new(&ROOT, at(own, 80)), 80)?;
        let other = ambient.other.actor()?;
        let refused = other.dial(Dial::new(&APP, at(own, 80)))?;
        ensure!(
            refused.as_ref().err() == Some(&libc::ECONNREFUSED),
            "{refused:?}"
        );
    }
    Ok(())
}

kernel_test!(probes_pass_the_program_for_forwarded_packets, needs NODE_CALLS);
/// Network plugins may add a second interface after the pod was enrolled. Then packets for other addresses follow the
/// rules as well.
fn probes_pass_the_program_for_forwarded_packets() -> Result<()> {
    let ambient = on_node()?;
    ambient
        .pod
        .ip("link add eth1 type veth peer name eth1-end")?;
    ambient.pod.ip("address add 10.79.0.2/24 dev eth1")?;
    ambient.pod.ip("link set eth1-end up")?;
    ambient.pod.ip("link set eth1 up")?;
    let places = &ambient.agent.places;
    eventually(Duration::from_secs(10), || {
        let pins = places.ingress_pins("forward-")?;
        ensure!(pins.len() > 1, "{pins:?}: {}", places.log());
        Ok(())
    })?;
    for own in POD {
        arrives(&ambient.outside, Dial::new(&ROOT, at(own, 80)), 80)?;
        let other = ambient.other.actor()?;
        arrives(&other, Dial::new(&APP, at(own, 80)), INBOUND)?;
    }
    Ok(())
}

kernel_test!(who_forges_the_node_s_address_is_captured, needs NODE_CALLS);
/// Also from a port where the node listens, or to which it has just connected from elsewhere.
fn who_forges_the_node_s_address_is_captured() -> Result<()> {
    let ambient = on_node()?;
    let other = ambient.other.actor()?;
    for family in [0, 1] {
        let (own, node) = (POD[family], NODE[family]);
        arrives(&ambient.outside, Dial::new(&ROOT, at(own, 80)), 80)?;
        for (count, port) in [(1, 80), (2, 40_123)] {
            let mut dial = Dial::new(&ROOT, at(own, 80));
            dial.source = Some(at(node, port));
            dial.transparent = true;
            dial.patience_ms = 300;
            let forged = other.dial(dial)?;
            ensure!(forged.is_err(), "its answer goes to the node: {forged:?}");
            // The pod may have to learn its neighbor first.
            eventually(Duration::from_secs(5), || {
                let found = captured(&ambient, family)?;
                ensure!(found == count, "{port}: {found} were captured");
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Where links attach the program for connections of the node.
fn pins(ambient: &Ambient) -> Result<BTreeMap<u32, PathBuf>> {
    ambient.agent.places.ingress_pins("node-calls-")
}

kernel_test!(the_program_for_probes_is_attached_again, needs NODE_CALLS);
fn the_program_for_probes_is_attached_again() -> Result<()> {
    let ambient = on_node()?;
    // A re-read of the pod's network may come before the look for repairs.
    for pin in pins(&ambient)?.into_values() {
        let link = sys::open_pin(&pin)?;
        sys::link_detach(link.as_fd())?;
    }
    ambient.pod.ip("link add late0 type veth peer name late1")?;
    let said = "the program for connections of the node was detached from interface";
    ambient.agent.places.wait_logged(said, 1)?;
    for own in POD {
        arrives(&ambient.outside, Dial::new(&ROOT, at(own, 80)), 80)?;
    }
    Ok(())
}

kernel_test!(a_released_pod_keeps_nothing_for_probes, needs NODE_CALLS);
fn a_released_pod_keeps_nothing_for_probes() -> Result<()> {
    let ambient = on_node()?;
    ensure!(pins(&ambient)?.len() == 1, "not attached");
    ambient.lab.release("app")?;
    ensure!(pins(&ambient)?.is_empty(), "still attached");
    Ok(())
}

kernel_test!(an_agent_that_is_killed_and_replaced_changes_nothing, needs NODE_CALLS);
fn an_agent_that_is_killed_and_replaced_changes_nothing() -> Result<()> {
    let mut ambient = on_node()?;
    let held = ambient.app.hold(by_app(at(VIP[0], 80)))?;
    ensure!(held.is_ok(), "{held:?}");
    let is_as_before = |ambient: &Ambient| -> Result<()> {
        ensure!(ambient.app.echo()? == 1, "the connection is lost");
        for (own, vip) in POD.into_iter().zip(VIP) {
            arrives(&ambient.app, by_app(at(vip, 80)), OUTBOUND)?;
            arrives(&ambient.outside, Dial::new(&ROOT, at(own, 80)), 80)?;
            let other = ambient.other.actor()?;
            arrives(&other, Dial::new(&APP, at(own, 80)), INBOUND)?;
        }
        Ok(())
    };
    ambient.agent.end(nix::sys::signal::Signal::SIGKILL)?;
    is_as_before(&ambient)?;
    ambient.agent = start_agent(&ambient.lab, true)?;
    ambient.agent.places.wait_enrolled("test/app")?;
    is_as_before(&ambient)
}
