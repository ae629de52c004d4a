//! Kuma: pkg/transparentproxy/iptables/builder, without comments.

use sidetrack_common::{addr::Family, rule::Rule};

use super::{
    dns::address,
    lines::{Line, Lines, OUTPUT, PREROUTING, TableName, multiport},
};
use crate::{
    exclusions::{OwnerExclusion, Protocol, Span},
    policy::{InboundPorts, OutboundRanges, Policy},
};

pub(super) const CHAINS: [&str; 4] = [
    "KUMA_MESH_INBOUND",
    "KUMA_MESH_OUTBOUND",
    "KUMA_MESH_INBOUND_REDIRECT",
    "KUMA_MESH_OUTBOUND_REDIRECT",
];
const IN: &str = CHAINS[0];
const OUT: &str = CHAINS[1];
const IN_REDIRECT: &str = CHAINS[2];
const OUT_REDIRECT: &str = CHAINS[3];

/// The rules of table nat.
pub(super) fn nat(policy: &Policy, family: Family) -> Vec<Line> {
    let mut list = Lines::new(TableName::Nat, family);
    list.jump(PREROUTING, format!("-p tcp -j {IN}"));
    list.kuma_output(policy);
    list.kuma_inbound(policy);
    list.kuma_outbound(policy);
    for (chain, port) in [
        (IN_REDIRECT, policy.inbound_port),
        (OUT_REDIRECT, policy.outbound_port),
    ] {
        list.jump(chain, format!("-p tcp -j REDIRECT --to-ports {port}"));
    }
    list.lines
}

/// What is not redirected by user.
fn excluded(entry: &OwnerExclusion) -> String {
    let protocol = match entry.protocol {
        Some(Protocol::Udp) => "udp",
        Some(Protocol::Tcp) | None => "tcp",
    };
    let (ports, users) = (multiport(&entry.ports), entry.users);
    format!("-p {protocol} {ports} -m owner --uid-owner {users} -j RETURN")
}

impl Lines {
    fn kuma_output(&mut self, policy: &Policy) {
        for (index, entry) in policy.exclusions.owners.iter().enumerate() {
            self.rule(OUTPUT, excluded(entry), Rule::OwnerExcluded, index);
        }
        for (index, range) in self.ranges(&policy.exclusions.destinations) {
            let text = format!("-d {} -j RETURN", range.trunc());
            self.rule(OUTPUT, text, Rule::RangeExcluded, index);
        }
        let servers = self.servers(policy);
        let query = "-p udp -m udp --dport 53";
        let mut direct = String::new();
        for id in policy.proxy_uids.iter().filter(|_| !servers.is_empty()) {
            self.jump(
                OUTPUT,
                format!("{query} -m owner --uid-owner {id} -j RETURN"),
            );
            direct = format!("-p tcp -m tcp --dport 53 -m owner ! --uid-owner {id} -j RETURN");
        }
        for (index, server) in &servers {
            let (to, port) = (address("-d", server), policy.dns_port);
            let text = format!("{to}{query} -j REDIRECT --to-ports {port}");
            self.rule(OUTPUT, text, Rule::DnsUdp, *index);
        }
        let captures = format!("-p tcp -j {OUT}");
        if policy.exclusions.captures_dns_over_tcp {
            self.jump(OUTPUT, captures.clone());
        }
        if !servers.is_empty() {
            self.rule(OUTPUT, direct, Rule::DnsDirect, 0);
        }
        if !policy.exclusions.captures_dns_over_tcp {
            self.jump(OUTPUT, captures);
        }
    }

    fn kuma_inbound(&mut self, policy: &Policy) {
        let port = |port: &Span, target: &str| {
            format!("-p tcp -m tcp --dport {} -j {target}", port.text(':'))
        };
        for (index, range) in self.ranges(&policy.exclusions.sources) {
            let text = format!("-s {} -j RETURN", range.trunc());
            self.rule(IN, text, Rule::SourceExcluded, index);
        }
        match &policy.inbound {
            InboundPorts::None => {
                self.rule(IN, "-p tcp -j RETURN".to_owned(), Rule::InboundOff, 0);
            }
            InboundPorts::Only(only) => {
                for (index, number) in only.iter().enumerate() {
                    self.rule(IN, port(number, IN_REDIRECT), Rule::InPortIncluded, index);
                }
            }
            InboundPorts::AllExcept(except) => {
                for (index, number) in except.iter().enumerate() {
                    self.rule(IN, port(number, "RETURN"), Rule::InPortExcluded, index);
                }
                let text = format!("-p tcp -j {IN_REDIRECT}");
                self.rule(IN, text, Rule::AllInbound, 0);
            }
        }
    }

    fn kuma_outbound(&mut self, policy: &Policy) {
        if policy.exclusions.outbound_off {
            self.rule(OUT, "-p tcp -j RETURN".to_owned(), Rule::OutNoMatch, 0);
            return;
        }
        for (index, port) in policy.excluded_outbound_ports.iter().enumerate() {
            let port = port.text(':');
            let text = format!("-p tcp -m tcp --dport {port} -j RETURN");
            self.rule(OUT, text, Rule::OutPortExcluded, index);
        }
        let (own, loopback) = (self.own(), self.loopback(policy));
        self.rule(
            OUT,
            format!("-s {own} -o lo -j RETURN"),
            Rule::SelfSource,
            0,
        );
        for (index, id) in policy.proxy_uids.iter().enumerate() {
            let user = format!("--uid-owner {id}");
            let text = format!("! -d {loopback} -o lo -p tcp -m owner {user} -j {IN_REDIRECT}");
            self.rule(OUT, text, Rule::ProxyUidLocal, index);
            let text = format!("-o lo -p tcp -m owner ! {user} -j RETURN");
            self.rule(OUT, text, Rule::NotProxyUidLocal, index);
            self.rule(
                OUT,
                format!("-m owner {user} -j RETURN"),
                Rule::ProxyUid,
                index,
            );
        }
        self.rule(OUT, format!("-d {loopback} -j RETURN"), Rule::Loopback, 0);
        match &policy.outbound {
            OutboundRanges::All => {
                self.rule(OUT, format!("-j {OUT_REDIRECT}"), Rule::AllOutbound, 0);
            }
            OutboundRanges::Only(_) => {
                for (index, port) in policy.included_outbound_ports.iter().enumerate() {
                    let port = port.text(':');
                    let text = format!("-p tcp -m tcp --dport {port} -j {OUT_REDIRECT}");
                    self.rule(OUT, text, Rule::OutPortIncluded, index);
                }
            }
        }
    }
}
