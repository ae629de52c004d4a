//! Consul: sdk/iptables/iptables.go.

use sidetrack_common::{addr::Family, rule::Rule};

use super::lines::{Line, Lines, OUTPUT, PREROUTING, TableName};
use crate::{exclusions::Span, policy::Policy};

pub(super) const CHAINS: [&str; 5] = [
    "CONSUL_DNS_REDIRECT",
    "CONSUL_PROXY_INBOUND",
    "CONSUL_PROXY_IN_REDIRECT",
    "CONSUL_PROXY_OUTPUT",
    "CONSUL_PROXY_REDIRECT",
];
const DNS: &str = CHAINS[0];
const IN: &str = CHAINS[1];
const IN_REDIRECT: &str = CHAINS[2];
const OUT: &str = CHAINS[3];
const REDIRECT: &str = CHAINS[4];

fn ports(list: &mut Lines, policy: &Policy, chain: &'static str, ports: &[Span], rule: Rule) {
    let rules = policy.port_rules(ports);
    for (index, port) in rules.iter().flatten().enumerate() {
        let text = format!("-p tcp -m tcp --dport {} -j RETURN", port.text(':'));
        list.rule(chain, text, rule, index);
    }
}

/// The rules of table nat.
pub(super) fn nat(policy: &Policy, family: Family) -> Vec<Line> {
    let mut list = Lines::new(TableName::Nat, family);
    list.jump(PREROUTING, format!("-p tcp -j {IN}"));
    let servers = list.servers(policy);
    let protocols = [("udp", Rule::DnsUdp), ("tcp", Rule::DnsTcp)];
    let queries = |server: &ipnet::IpNet, protocol: &str| {
        format!("-d {server} -p {protocol} -m {protocol} --dport 53")
    };
    for (_, server) in &servers {
        for (protocol, _) in protocols {
            list.jump(OUTPUT, format!("{} -j {DNS}", queries(server, protocol)));
        }
    }
    list.jump(OUTPUT, format!("-p tcp -j {OUT}"));
    for (index, server) in &servers {
        for (protocol, rule) in protocols {
            let port = policy.dns_port;
            let to = match family {
                Family::V4 => format!("127.0.0.1:{port}"),
                Family::V6 => format!("[::1]:{port}"),
            };
            let text = format!(
                "{} -j DNAT --to-destination {to}",
                queries(server, protocol)
            );
            list.rule(DNS, text, rule, *index);
        }
    }
    let exclusions = &policy.exclusions;
    ports(
        &mut list,
        policy,
        IN,
        &exclusions.inbound_ports,
        Rule::InPortExcluded,
    );
    list.rule(IN, format!("-p tcp -j {IN_REDIRECT}"), Rule::AllInbound, 0);
    list.jump(
        IN_REDIRECT,
        format!("-p tcp -j REDIRECT --to-ports {}", policy.inbound_port),
    );
    for (index, entry) in exclusions.owners.iter().enumerate() {
        let text = format!("-m owner --uid-owner {} -j RETURN", entry.users);
        list.rule(OUT, text, Rule::OwnerExcluded, index);
    }
    for (index, range) in list.ranges(&exclusions.destinations) {
        let text = format!("-d {} -j RETURN", range.trunc());
        list.rule(OUT, text, Rule::RangeExcluded, index);
    }
    ports(
        &mut list,
        policy,
        OUT,
        &exclusions.outbound_ports,
        Rule::OutPortExcluded,
    );
    for (index, id) in policy.proxy_uids.iter().enumerate() {
        let text = format!("-m owner --uid-owner {id} -j RETURN");
        list.rule(OUT, text, Rule::ProxyUid, index);
    }
    let text = format!("-d {} -j RETURN", list.loopback(policy));
    list.rule(OUT, text, Rule::Loopback, 0);
    list.rule(OUT, format!("-j {REDIRECT}"), Rule::AllOutbound, 0);
    list.jump(
        REDIRECT,
        format!("-p tcp -j REDIRECT --to-ports {}", policy.outbound_port),
    );
    list.lines
}
