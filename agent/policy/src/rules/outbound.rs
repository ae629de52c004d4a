//! Chains that connections of the pod go through.

use sidetrack_common::rule::Rule;

use super::{
    dns,
    lines::{IN_REDIRECT, ISTIO_OUTPUT, Lines, OUTPUT, REDIRECT},
};
use crate::{
    dialect::Dialect,
    policy::{OutboundRanges, Policy},
};

impl Lines {
    /// Chain OUTPUT.
    pub(super) fn output(&mut self, policy: &Policy) {
        self.excluded_interfaces((OUTPUT, "-o"), policy, Some(Rule::OutInterface));
        let protocol = if dns::is_for_udp(policy) {
            ""
        } else {
            "-p tcp "
        };
        self.jump(OUTPUT, format!("{protocol}-j {ISTIO_OUTPUT}"));
        self.udp_in_output(policy);
    }

    /// Chain ISTIO_OUTPUT.
    pub(super) fn istio_output(&mut self, policy: &Policy) {
        for (index, port) in policy.excluded_outbound_ports.iter().enumerate() {
            let port = port.text(':');
            let text = format!("-p tcp -m tcp --dport {port} -j RETURN");
            self.rule(ISTIO_OUTPUT, text, Rule::OutPortExcluded, index);
            if dns::is_for_udp(policy) {
                // It stands for the same decision, which the line above has.
                let text = format!("-p udp -m udp --dport {port} -j RETURN");
                self.jump(ISTIO_OUTPUT, text);
            }
        }
        let (own, loopback) = (self.own(), self.loopback(policy));
        if policy.dialect == Dialect::V1_1 {
            let text = format!("! -d {loopback} -o lo -j {REDIRECT}");
            self.rule(ISTIO_OUTPUT, text, Rule::LocalCaptured, 0);
        } else {
            let text = format!("-s {own} -o lo -j RETURN");
            self.rule(ISTIO_OUTPUT, text, Rule::SelfSource, 0);
        }
        self.owners(policy, &loopback);
        self.groups(policy);
        self.dns(policy);
        let text = format!("-d {loopback} -j RETURN");
        self.rule(ISTIO_OUTPUT, text, Rule::Loopback, 0);
        self.destinations(policy);
    }

    /// Rules by the proxy's users and groups.
    fn owners(&mut self, policy: &Policy, loopback: &str) {
        for (kind, ids, rules) in [
            (
                "uid",
                &policy.proxy_uids,
                [Rule::ProxyUidLocal, Rule::NotProxyUidLocal, Rule::ProxyUid],
            ),
            (
                "gid",
                &policy.proxy_gids,
                [Rule::ProxyGidLocal, Rule::NotProxyGidLocal, Rule::ProxyGid],
            ),
        ] {
            for (index, id) in ids.iter().enumerate() {
                self.owner(policy, loopback, (kind, *id), rules, index);
            }
        }
    }

    /// Rules by address and port.
    fn destinations(&mut self, policy: &Policy) {
        for (index, range) in self.ranges(&policy.excluded_ranges) {
            let text = format!("-d {} -j RETURN", range.trunc());
            self.rule(ISTIO_OUTPUT, text, Rule::RangeExcluded, index);
        }
        for (index, port) in policy.included_outbound_ports.iter().enumerate() {
            let port = port.text(':');
            let text = format!("-p tcp -m tcp --dport {port} -j {REDIRECT}");
            self.rule(ISTIO_OUTPUT, text, Rule::OutPortIncluded, index);
        }
        match &policy.outbound {
            OutboundRanges::All => {
                let text = format!("-j {REDIRECT}");
                self.rule(ISTIO_OUTPUT, text, Rule::AllOutbound, 0);
            }
            OutboundRanges::Only(only) => {
                for (index, range) in self.ranges(only) {
                    let text = format!("-d {} -j {REDIRECT}", range.trunc());
                    self.rule(ISTIO_OUTPUT, text, Rule::RangeIncluded, index);
                }
            }
        }
    }

    fn owner(
        &mut self,
        policy: &Policy,
        loopback: &str,
        (kind, id): (&str, u32),
        [local, not_local, anywhere]: [Rule; 3],
        index: usize,
    ) {
        if policy.dialect != Dialect::V1_1 {
            let passes_dns = policy.dns_passes_local();
            let (tunnel, is_uid) = (policy.tunnel_port, kind == "uid");
            let ports = match policy.dialect {
                Dialect::Current if passes_dns && is_uid => {
                    format!("-p tcp -m multiport ! --dports 53,{tunnel} ")
                }
                Dialect::Current => format!("-p tcp -m tcp ! --dport {tunnel} "),
                _ if passes_dns && is_uid => "-p tcp -m tcp ! --dport 53 ".to_owned(),
                // Before ISTIO_OUTPUT had UDP.
                _ => String::new(),
            };
            let text = format!(
                "! -d {loopback} -o lo {ports}-m owner --{kind}-owner {id} -j {IN_REDIRECT}"
            );
            self.rule(ISTIO_OUTPUT, text, local, index);
            if !policy.includes_loopback() {
                let ports = if passes_dns {
                    "-p tcp -m tcp ! --dport 53 "
                } else {
                    ""
                };
                let text = format!("-o lo {ports}-m owner ! --{kind}-owner {id} -j RETURN");
                self.rule(ISTIO_OUTPUT, text, not_local, index);
            }
        }
        let text = format!("-m owner --{kind}-owner {id} -j RETURN");
        self.rule(ISTIO_OUTPUT, text, anywhere, index);
    }

    fn groups(&mut self, policy: &Policy) {
        for (index, gid) in policy.excluded_groups.iter().enumerate() {
            let text = format!("-m owner --gid-owner {gid} -j RETURN");
            self.rule(ISTIO_OUTPUT, text, Rule::GroupExcluded, index);
        }
        if let Some(groups) = policy
            .included_groups
            .as_ref()
            .filter(|groups| !groups.is_empty())
        {
            let none_of: String = groups
                .iter()
                .map(|gid| format!("-m owner ! --gid-owner {gid} "))
                .collect();
            let text = format!("{none_of}-j RETURN");
            self.rule(ISTIO_OUTPUT, text, Rule::GroupNotIncluded, 0);
        }
    }
}
