//! The wires: a bridge in a namespace of its own, and pods on it.

use anyhow::Result;

use crate::command::{run, run_words};

/// The bridge's MAC address. A bridge without one of its own takes the lowest of its ports' addresses. Then the
/// gateway's address changes when that port's pod goes, and the other pods send to the old one until their
/// neighbor entries are corrected. For IPv4 any ARP request of the gateway does that, because it is
/// broadcast; for IPv6 only a solicitation for that very pod.
pub const GATEWAY_MAC: &str = "02:00:0a:4d:00:fe";

/// Adds a network namespace that has lo.
pub fn namespace(name: &str) -> Result<()> {
    run(&format!("ip netns add {name}"))?;
    run(&format!("ip -n {name} link set lo up")).map(drop)
}

/// Gives a namespace the bridge br0, with addresses such as 10.77.0.254/16.
pub fn add_bridge(netns: &str, addresses: &[&str]) -> Result<()> {
    run(&format!(
        "ip -n {netns} link add br0 address {GATEWAY_MAC} type bridge"
    ))?;
    run(&format!("ip -n {netns} link set br0 up"))?;
    add_addresses(netns, "br0", addresses)
}

/// Connects a pod's namespace with the bridge in another: its eth0 has these addresses and these gateways.
/// `name` is the bridge's port.
pub fn connect(
    (name, netns): (&str, &str),
    bridge: &str,
    addresses: &[&str],
    gateways: &[&str],
) -> Result<()> {
    run(&format!(
        "ip link add eth0 netns {netns} type veth peer name {name} netns {bridge}"
    ))?;
    run(&format!("ip -n {bridge} link set {name} master br0 up"))?;
    add_addresses(netns, "eth0", addresses)?;
    run(&format!("ip -n {netns} link set eth0 up"))?;
    for gateway in gateways {
        run(&format!(
            "ip -n {netns} route add default via {gateway} dev eth0"
        ))?;
    }
    // As container runtimes do, so that an app that is not root can serve port 80.
    set_sysctl(netns, "net/ipv4/ip_unprivileged_port_start", "0")
}

fn add_addresses(netns: &str, interface: &str, addresses: &[&str]) -> Result<()> {
    for address in addresses {
        // No other interface has it: it is usable at once.
        let nodad = if address.contains(':') { " nodad" } else { "" };
        run(&format!(
            "ip -n {netns} address add {address} dev {interface}{nodad}"
        ))?;
    }
    Ok(())
}

/// Sets a kernel parameter of a namespace.
pub fn set_sysctl(netns: &str, name: &str, value: &str) -> Result<()> {
    let line = format!("echo {value} > /proc/sys/{name}");
    run_words(&["ip", "netns", "exec", netns, "sh", "-c", &line]).map(drop)
}
