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
    use_gateways(netns, gateways)
}

/// Brings eth0 up, with default routes by these gateways.
fn use_gateways(netns: &str, gateways: &[&str]) -> Result<()> {
    run(&format!("ip -n {netns} link set eth0 up"))?;
    for gateway in gateways {
        run(&format!(
            "ip -n {netns} route add default via {gateway} dev eth0"
        ))?;
    }
    // As container runtimes do, so that an app that is not root can serve port 80.
    set_sysctl(netns, "net/ipv4/ip_unprivileged_port_start", "0")
}

/// How network plugins connect a pod, other than by a veth pair on a bridge.
#[derive(Clone, Copy, Debug)]
pub enum Wire {
    /// A veth pair alone, as ptp, Calico and clouds' plugins make it: the pod has addresses without a network, and the
    /// other end is its gateway by an address that is on no network either.
    PointToPoint,
    /// An interface of this type on one of the node's (`macvlan`, `ipvlan`), in the mode that connects them as a bridge
    /// does.
    Child(&'static str, &'static str),
}

/// Connects a pod's namespace with the one of a bridge in another way. `name` is unique there.
pub fn connect_by(
    wire: Wire,
    (name, netns): (&str, &str),
    bridge: &str,
    [v4, v6]: [&str; 2],
) -> Result<()> {
    match wire {
        Wire::PointToPoint => {
            run(&format!(
                "ip link add eth0 netns {netns} type veth peer name {name} netns {bridge}"
            ))?;
            add_addresses(bridge, name, &["169.254.1.1/32", "fe80::77/64"])?;
            run(&format!("ip -n {bridge} link set {name} up"))?;
            add_addresses(netns, "eth0", &[v4, v6])?;
            use_gateways(netns, &[])?;
            for (netns, route) in [
                (bridge, format!("{v4}/32 dev {name}")),
                (bridge, format!("{v6}/128 dev {name} metric 1")),
                (netns, "169.254.1.1 dev eth0 scope link".to_owned()),
                (netns, "default via 169.254.1.1 dev eth0".to_owned()),
                (netns, "default via fe80::77 dev eth0".to_owned()),
            ] {
                run(&format!("ip -n {netns} route add {route}"))?;
            }
            Ok(())
        }
        Wire::Child(kind, mode) => {
            let parent = format!("{name}-up");
            run(&format!(
                "ip -n {bridge} link add {name} type veth peer name {parent}"
            ))?;
            run(&format!("ip -n {bridge} link set {name} master br0 up"))?;
            run(&format!("ip -n {bridge} link set {parent} up"))?;
            run(&format!(
                "ip -n {bridge} link add link {parent} name eth0 netns {netns} type {kind} mode {mode}"
            ))?;
            add_addresses(netns, "eth0", &[&format!("{v4}/16"), &format!("{v6}/64")])?;
            use_gateways(netns, &["10.77.0.254", "fd77::fe"])
        }
    }
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
