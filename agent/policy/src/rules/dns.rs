//! The lines of DNS capture. UDP answers find their way back by connection tracking: table raw keeps the queries of the
//! pod and those of its sidecar in zones of their own.

use std::net::IpAddr;

use ipnet::IpNet;
use sidetrack_common::{addr::Family, rule::Rule};

use super::lines::{INBOUND, ISTIO_OUTPUT, Line, Lines, OUTPUT, PREROUTING, REDIRECT, TableName};
use crate::{dialect::Dialect, policy::Policy};

/// The chain of the current dialect.
const OUTPUT_DNS: &str = "ISTIO_OUTPUT_DNS";
const POSTROUTING: &str = "POSTROUTING";

/// The chains that istio-iptables adds to table raw.
pub(super) const RAW_CHAINS: [&str; 2] = [INBOUND, OUTPUT_DNS];

/// Whether the rules apply to UDP as far as they name no protocol.
pub(super) fn is_for_udp(policy: &Policy) -> bool {
    let block = policy.dns_block();
    block.is_some_and(|block| block.has_udp_exclusions())
}

/// The chains of table nat, beside those without DNS capture.
pub(super) fn nat_chains(policy: &Policy) -> Option<&'static str> {
    is_for_udp(policy).then_some(OUTPUT_DNS)
}

/// The rules of table raw of one family; none if no query is captured.
pub(super) fn raw(policy: &Policy, family: Family) -> Vec<Line> {
    let mut list = Lines {
        table: TableName::Raw,
        family,
        lines: Vec::new(),
    };
    let has_no_zones = matches!(
        policy.dialect,
        Dialect::V1_8 | Dialect::Consul | Dialect::Ambient
    );
    let has_no_rules = policy.ipv4_only && family == Family::V6;
    // Kuma has none for a family without servers either.
    let is_kuma = policy.dialect == Dialect::Kuma;
    let has_no_rules = has_no_rules || is_kuma && list.servers(policy).is_empty();
    let has_no_zones = has_no_zones || policy.exclusions.dns_in_one_zone;
    if policy.dns_block().is_none() || has_no_zones || has_no_rules {
        return list.lines;
    }
    let has_chains = is_for_udp(policy);
    let (input, output) = match has_chains {
        true => (INBOUND, OUTPUT_DNS),
        false => (PREROUTING, OUTPUT),
    };
    let servers = list.servers(policy);
    if has_chains {
        if !servers.is_empty() {
            list.jump(PREROUTING, format!("-j {INBOUND}"));
        }
        list.jump(OUTPUT, format!("-j {OUTPUT_DNS}"));
    }
    for (_, server) in &servers {
        let source = address("-s", server);
        let text = format!("{source}-p udp -m udp --sport 53 -j CT --zone 1");
        list.jump(input, text);
    }
    let uids = policy
        .proxy_uids
        .iter()
        .map(|id| format!("--uid-owner {id}"));
    let gids = policy
        .proxy_gids
        .iter()
        .map(|id| format!("--gid-owner {id}"));
    for owner in uids.chain(gids) {
        for (port, zone) in [
            ("--dport 53".to_owned(), 1),
            (format!("--sport {}", policy.dns_port), 2),
        ] {
            let text = format!("-p udp -m udp {port} -m owner {owner} -j CT --zone {zone}");
            list.jump(output, text);
        }
    }
    for (_, server) in &servers {
        let destination = address("-d", server);
        let text = format!("{destination}-p udp -m udp --dport 53 -j CT --zone 2");
        list.jump(output, text);
        if is_kuma && server.addr().is_loopback() && server.prefix_len() > 0 {
            // Its answers, where another program has changed the port of the query.
            let text = format!(
                "-s {server} -d {} -p udp -j CT --zone 1",
                list.loopback(policy)
            );
            list.jump(output, text);
        }
    }
    list.lines
}

/// An option with an address; nothing for all addresses.
pub(super) fn address(option: &str, range: &IpNet) -> String {
    match range.prefix_len() {
        0 => String::new(),
        _ => format!("{option} {range} "),
    }
}

impl Lines {
    /// The servers of this family.
    pub(super) fn servers(&self, policy: &Policy) -> Vec<(usize, IpNet)> {
        let ranges = policy.dns_ranges();
        let own = self.ranges(&ranges);
        own.map(|(index, range)| (index, *range)).collect()
    }

    /// In chain ISTIO_OUTPUT, after the owners.
    pub(super) fn dns(&mut self, policy: &Policy) {
        let servers = self.servers(policy);
        if is_for_udp(policy) {
            if !servers.is_empty() {
                self.jump(ISTIO_OUTPUT, format!("-j {OUTPUT_DNS}"));
            }
        } else if policy.dialect != Dialect::V1_8 {
            self.captures(
                ISTIO_OUTPUT,
                &servers,
                ("tcp", policy.dns_port),
                Rule::DnsTcp,
            );
        }
    }

    /// Chain ISTIO_OUTPUT_DNS.
    pub(super) fn output_dns(&mut self, policy: &Policy) {
        if is_for_udp(policy) {
            let servers = self.servers(policy);
            self.captures(OUTPUT_DNS, &servers, ("tcp", policy.dns_port), Rule::DnsTcp);
            self.captures(OUTPUT_DNS, &servers, ("udp", policy.dns_port), Rule::DnsUdp);
        }
    }

    fn captures(
        &mut self,
        chain: &'static str,
        servers: &[(usize, IpNet)],
        (protocol, port): (&str, u16),
        rule: Rule,
    ) {
        for (index, server) in servers {
            let destination = address("-d", server);
            let text = format!(
                "{destination}-p {protocol} -m {protocol} --dport 53 -j REDIRECT --to-ports {port}"
            );
            self.rule(chain, text, rule, *index);
        }
    }

    /// In chain OUTPUT, until the current dialect. The lines by owner decide as those in ISTIO_OUTPUT, which stand for the
    /// decision.
    pub(super) fn udp_in_output(&mut self, policy: &Policy) {
        if policy.dns_block().is_none() || is_for_udp(policy) {
            return;
        }
        let servers = self.servers(policy);
        let is_for_family = policy.dialect != Dialect::V1_8 || !servers.is_empty();
        if !is_for_family {
            return;
        }
        let query = "-p udp -m udp --dport 53";
        let uids = policy
            .proxy_uids
            .iter()
            .map(|id| format!("--uid-owner {id}"));
        let gids = policy.proxy_gids.iter().chain(&policy.excluded_groups);
        let owners = uids.chain(gids.map(|id| format!("--gid-owner {id}")));
        for owner in owners {
            self.jump(OUTPUT, format!("{query} -m owner {owner} -j RETURN"));
        }
        if let Some(groups) = policy.included_groups.as_ref().filter(|it| !it.is_empty()) {
            let none_of: String = groups
                .iter()
                .map(|gid| format!("-m owner ! --gid-owner {gid} "))
                .collect();
            self.jump(OUTPUT, format!("{query} {none_of}-j RETURN"));
        }
        if policy.dialect == Dialect::V1_8 {
            let to = IpAddr::from([127, 0, 0, 1]);
            let text = format!("{query} -j DNAT --to-destination {to}:{}", policy.dns_port);
            self.rule(OUTPUT, text, Rule::DnsUdp, 0);
            let port = policy.dns_port;
            let text = format!("-p udp -m udp --dport {port} -j SNAT --to-source {to}");
            self.jump(POSTROUTING, text);
        } else {
            self.captures(OUTPUT, &servers, ("udp", policy.dns_port), Rule::DnsUdp);
        }
    }

    /// In chain ISTIO_REDIRECT of version 1.8.
    pub(super) fn tcp_in_redirect(&mut self, policy: &Policy) {
        let has_servers = !self.servers(policy).is_empty();
        if policy.dialect == Dialect::V1_8 && has_servers {
            let port = policy.dns_port;
            let text = format!("-p tcp -m tcp --dport 53 -j REDIRECT --to-ports {port}");
            self.jump(REDIRECT, text);
        }
    }
}
