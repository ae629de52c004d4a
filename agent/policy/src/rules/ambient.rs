//! istio-cni in ambient mode: cni/pkg/iptables/iptables.go.

use sidetrack_common::{addr::Family, policy::PROXY_MARK_BITS, rule::Rule};

use super::lines::{Line, Lines, OUTPUT, PREROUTING, TableName};
use crate::{
    interfaces,
    policy::{InboundPorts, Policy},
};

pub(super) const CHAINS: [&str; 2] = ["ISTIO_OUTPUT", "ISTIO_PRERT"];
const OUT: &str = CHAINS[0];
const IN: &str = CHAINS[1];

/// The address that istio-cni gives to the host's probes.
const fn probes(family: Family) -> &'static str {
    match family {
        Family::V4 => "169.254.7.127/32",
        Family::V6 => "fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128",
    }
}

fn mark(mark: u32) -> String {
    format!("{mark:#x}/{PROXY_MARK_BITS:#x}")
}

/// The rules of table mangle. They lead the answers to ztunnel's calls of the app back to it.
pub(super) fn mangle(policy: &Policy, family: Family) -> Vec<Line> {
    let mut list = Lines::new(TableName::Mangle, family);
    list.jump(PREROUTING, format!("-j {IN}"));
    list.jump(OUTPUT, format!("-j {OUT}"));
    let calls = mark(policy.tproxy_mark);
    list.jump(
        OUT,
        format!(
            "-m connmark --mark {calls} -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff"
        ),
    );
    if let Some(own) = policy.dialect.proxy_mark() {
        let text = format!(
            "-m mark --mark {} -j CONNMARK --set-xmark {calls}",
            mark(own)
        );
        list.jump(IN, text);
    }
    list.lines
}

/// The rules of table nat.
pub(super) fn nat(policy: &Policy, family: Family) -> Vec<Line> {
    let mut list = Lines::new(TableName::Nat, family);
    list.jump(OUTPUT, format!("-j {OUT}"));
    list.jump(PREROUTING, format!("-j {IN}"));
    let not_own = match policy.dialect.proxy_mark() {
        Some(own) => format!("-m mark ! --mark {}", mark(own)),
        None => String::new(),
    };
    let probes = probes(family);
    let elsewhere = format!("! -d {}", list.loopback(policy));
    list.jump(OUT, format!("-d {probes} -p tcp -m tcp -j ACCEPT"));
    for (index, _) in list.servers(policy) {
        let to = format!("-j REDIRECT --to-ports {}", policy.dns_port);
        let text = format!("! -o lo -p udp {not_own} -m udp --dport 53 {to}");
        list.rule(OUT, text, Rule::DnsUdp, index);
        let text = format!("{elsewhere} -p tcp -m tcp --dport 53 {not_own} {to}");
        list.rule(OUT, text, Rule::DnsTcp, index);
    }
    let calls = mark(policy.tproxy_mark);
    list.jump(OUT, format!("-p tcp -m mark --mark {calls} -j ACCEPT"));
    list.rule(OUT, format!("{elsewhere} -o lo -j ACCEPT"), Rule::OverLo, 0);
    let to = format!("-j REDIRECT --to-ports {}", policy.outbound_port);
    let text = format!("{elsewhere} -p tcp {not_own} {to}");
    list.rule(OUT, text, Rule::AllOutbound, 0);
    for (index, name) in policy.virtual_interfaces.iter().enumerate() {
        let entering = interfaces::option("-i", name);
        let text = format!("{entering}-p tcp {to}");
        list.rule(IN, text, Rule::VirtualInterface, virtual_position(index));
        list.jump(IN, format!("{entering}-j RETURN"));
    }
    if policy.inbound != InboundPorts::None {
        list.jump(IN, format!("-s {probes} -p tcp -m tcp -j ACCEPT"));
        let text = format!(
            "{elsewhere} -p tcp -m tcp ! --dport {} {not_own} -j REDIRECT --to-ports {}",
            policy.tunnel_port, policy.inbound_port
        );
        list.rule(IN, text, Rule::AllInbound, 0);
    }
    list.lines
}

/// The position of an interface's only line, which is for all destinations.
fn virtual_position(interface: usize) -> usize {
    sidetrack_common::decide::virtual_index(interface as u32, 0) as usize
}
