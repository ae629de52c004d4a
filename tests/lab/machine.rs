//! A machine behind a pod: another network namespace, whose packets the pod forwards.

use anyhow::Result;

use crate::network::{Lab, PodNet, set_sysctl};

/// The machine's addresses.
pub const MACHINE: [&str; 2] = ["10.79.0.2", "fd79::2"];
/// The networks they are in.
pub const BEHIND: [&str; 2] = ["10.79.0.0/24", "fd79::/64"];

/// A machine behind a pod, by an interface of the pod with this name. The outside has routes to it.
pub fn behind(lab: &mut Lab, pod: &PodNet, interface: &str) -> Result<PodNet> {
    let outside = lab.outside();
    let machine = PodNet {
        netns: lab.empty_namespace()?,
        ..outside.clone()
    };
    machine.ip("link set lo up")?;
    for (network, pod) in BEHIND.into_iter().zip([pod.v4, pod.v6]) {
        outside.ip(&format!("route add {network} via {pod} metric 1"))?;
    }
    plug_in(&machine, pod, interface)?;
    Ok(machine)
}

/// Gives a pod the interface toward its machine.
pub fn plug_in(machine: &PodNet, pod: &PodNet, interface: &str) -> Result<()> {
    pod.ip(&format!(
        "link add {interface} type veth peer name eth0 netns {}",
        machine.netns
    ))?;
    for line in [
        format!("address add 10.79.0.1/24 dev {interface}"),
        format!("address add fd79::1/64 dev {interface} nodad"),
        format!("link set {interface} up"),
    ] {
        pod.ip(&line)?;
    }
    for line in [
        "address add 10.79.0.2/24 dev eth0",
        "address add fd79::2/64 dev eth0 nodad",
        "link set eth0 up",
        "route add default via 10.79.0.1",
        "-6 route add default via fd79::1",
    ] {
        machine.ip(line)?;
    }
    Ok(())
}

/// Has a pod forward, or not.
pub fn set_forwarding(pod: &PodNet, on: bool) -> Result<()> {
    let value = if on { "1" } else { "0" };
    for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        set_sysctl(&pod.netns, &format!("net/{setting}"), value)?;
    }
    Ok(())
}
