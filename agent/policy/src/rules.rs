//! A policy as the nat rules that istio-iptables would have programmed for it, line by line, each
//! with the name of the decision it stands for.

mod tables;

use std::fmt::Write as _;

use ipnet::IpNet;
use sidetrack_common::{
    addr::Family,
    decide::{Decision, virtual_index},
    rule::Rule,
};

pub use self::tables::{KnownRoutes, ListTables, Routes};
use crate::{
    dialect::Dialect,
    policy::{InboundPorts, OutboundRanges, Policy},
};

/// One `-A` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Chain it is in.
    pub chain: &'static str,
    /// What follows the chain, as `iptables -S` spells it.
    pub text: String,
    /// The decision it stands for, with the position in the list it came from. Lines that only
    /// lead to another chain have none.
    pub decision: Option<(Rule, u32)>,
}

impl Line {
    /// The whole line, as `iptables -S` prints it.
    #[must_use]
    pub fn command(&self) -> String {
        format!("-A {} {}", self.chain, self.text)
    }
}

const PREROUTING: &str = "PREROUTING";
const OUTPUT: &str = "OUTPUT";
const INBOUND: &str = "ISTIO_INBOUND";
const IN_REDIRECT: &str = "ISTIO_IN_REDIRECT";
const ISTIO_OUTPUT: &str = "ISTIO_OUTPUT";
const REDIRECT: &str = "ISTIO_REDIRECT";

/// The nat rules of one family, in the order `iptables -S` prints them.
#[must_use]
pub fn nat(policy: &Policy, family: Family) -> Vec<Line> {
    let mut list = Lines {
        family,
        lines: Vec::new(),
    };
    list.prerouting(policy);
    list.output(policy);
    list.inbound(policy);
    let redirect = |port| format!("-p tcp -j REDIRECT --to-ports {port}");
    list.jump(IN_REDIRECT, redirect(policy.inbound_port));
    list.istio_output(policy);
    list.jump(REDIRECT, redirect(policy.outbound_port));
    list.lines
}

/// The rules as a complete input for iptables-restore (ip6tables-restore for IPv6).
#[must_use]
pub fn restore(policy: &Policy, family: Family) -> String {
    let mut text = String::from("*nat\n");
    for chain in [PREROUTING, "INPUT", OUTPUT, "POSTROUTING"] {
        let _ = writeln!(text, ":{chain} ACCEPT [0:0]");
    }
    for chain in chains(policy) {
        let _ = writeln!(text, ":{chain} - [0:0]");
    }
    for line in nat(policy, family) {
        let _ = writeln!(text, "{}", line.command());
    }
    text.push_str("COMMIT\n");
    text
}

/// The chains istio-iptables adds.
#[must_use]
pub fn chains(policy: &Policy) -> Vec<&'static str> {
    let inbound = (policy.inbound != InboundPorts::None).then_some(INBOUND);
    inbound
        .into_iter()
        .chain([IN_REDIRECT, ISTIO_OUTPUT, REDIRECT])
        .collect()
}

/// The line that gave a decision; `None` for decisions that no rule gave.
#[must_use]
pub fn line_of(policy: &Policy, family: Family, decision: &Decision) -> Option<Line> {
    let wanted = (decision.rule, decision.index);
    nat(policy, family)
        .into_iter()
        .find(|line| line.decision == Some(wanted))
}

fn line_index(interface: usize, range: usize) -> usize {
    virtual_index(interface as u32, range as u32) as usize
}

struct Lines {
    family: Family,
    lines: Vec<Line>,
}

impl Lines {
    fn jump(&mut self, chain: &'static str, text: String) {
        self.lines.push(Line {
            chain,
            text,
            decision: None,
        });
    }

    fn rule(&mut self, chain: &'static str, text: String, rule: Rule, index: usize) {
        self.lines.push(Line {
            chain,
            text,
            decision: Some((rule, index as u32)),
        });
    }

    fn ranges<'a>(
        &self,
        ranges: &'a [IpNet],
    ) -> impl Iterator<Item = (usize, &'a IpNet)> + use<'a> {
        let v6 = self.family == Family::V6;
        ranges
            .iter()
            .enumerate()
            .filter(move |(_, range)| range.addr().is_ipv6() == v6)
    }

    fn prerouting(&mut self, policy: &Policy) {
        for (index, name) in policy.virtual_interfaces.iter().enumerate() {
            match &policy.outbound {
                OutboundRanges::All => {
                    let text = format!("-i {name} -j {REDIRECT}");
                    self.rule(
                        PREROUTING,
                        text,
                        Rule::VirtualInterface,
                        line_index(index, 0),
                    );
                }
                OutboundRanges::Only(only) => {
                    for (range_index, range) in self.ranges(only) {
                        let text = format!("-d {} -i {name} -j {REDIRECT}", range.trunc());
                        self.rule(
                            PREROUTING,
                            text,
                            Rule::VirtualInterface,
                            line_index(index, range_index),
                        );
                    }
                }
            }
            let text = format!("-i {name} -j RETURN");
            self.rule(PREROUTING, text, Rule::VirtualInterfaceNoMatch, index);
        }
        for (index, name) in policy.excluded_interfaces.iter().enumerate() {
            let text = format!("-i {name} -j RETURN");
            self.rule(PREROUTING, text, Rule::InInterface, index);
        }
        if policy.inbound != InboundPorts::None {
            self.jump(PREROUTING, format!("-p tcp -j {INBOUND}"));
        }
    }

    fn output(&mut self, policy: &Policy) {
        for (index, name) in policy.excluded_interfaces.iter().enumerate() {
            let text = format!("-o {name} -j RETURN");
            self.rule(OUTPUT, text, Rule::OutInterface, index);
        }
        self.jump(OUTPUT, format!("-p tcp -j {ISTIO_OUTPUT}"));
    }

    fn inbound(&mut self, policy: &Policy) {
        let port = |port: u16, target: &str| format!("-p tcp -m tcp --dport {port} -j {target}");
        let (except, only) = match &policy.inbound {
            InboundPorts::None => return,
            InboundPorts::AllExcept(except) => (except.as_slice(), None),
            InboundPorts::Only(only) => (&[][..], Some(only)),
        };
        let exempts_tunnel = !matches!(policy.dialect, Dialect::V1_1 | Dialect::V1_5);
        if exempts_tunnel {
            let text = port(policy.tunnel_port, "RETURN");
            self.rule(INBOUND, text, Rule::TunnelPort, 0);
        }
        let exempts_ssh = !matches!(policy.dialect, Dialect::V1_13 | Dialect::Current);
        if exempts_ssh && only.is_none() {
            self.rule(INBOUND, port(22, "RETURN"), Rule::SshPort, 0);
        }
        for (index, number) in except.iter().enumerate() {
            self.rule(
                INBOUND,
                port(*number, "RETURN"),
                Rule::InPortExcluded,
                index,
            );
        }
        match only {
            None => {
                let text = format!("-p tcp -j {IN_REDIRECT}");
                self.rule(INBOUND, text, Rule::AllInbound, 0);
            }
            Some(only) => {
                for (index, number) in only.iter().enumerate() {
                    let text = port(*number, IN_REDIRECT);
                    self.rule(INBOUND, text, Rule::InPortIncluded, index);
                }
            }
        }
    }

    fn istio_output(&mut self, policy: &Policy) {
        for (index, port) in policy.excluded_outbound_ports.iter().enumerate() {
            let text = format!("-p tcp -m tcp --dport {port} -j RETURN");
            self.rule(ISTIO_OUTPUT, text, Rule::OutPortExcluded, index);
        }
        let (own, loopback) = match self.family {
            Family::V4 => (
                "127.0.0.6/32".to_owned(),
                policy.loopback_v4.trunc().to_string(),
            ),
            Family::V6 => ("::6/128".to_owned(), "::1/128".to_owned()),
        };
        if policy.dialect == Dialect::V1_1 {
            let text = format!("! -d {loopback} -o lo -j {REDIRECT}");
            self.rule(ISTIO_OUTPUT, text, Rule::LocalCaptured, 0);
        } else {
            let text = format!("-s {own} -o lo -j RETURN");
            self.rule(ISTIO_OUTPUT, text, Rule::SelfSource, 0);
        }
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
                self.owner(policy, &loopback, (kind, *id), rules, index);
            }
        }
        self.groups(policy);
        let text = format!("-d {loopback} -j RETURN");
        self.rule(ISTIO_OUTPUT, text, Rule::Loopback, 0);
        for (index, range) in self.ranges(&policy.excluded_ranges) {
            let text = format!("-d {} -j RETURN", range.trunc());
            self.rule(ISTIO_OUTPUT, text, Rule::RangeExcluded, index);
        }
        for (index, port) in policy.included_outbound_ports.iter().enumerate() {
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
            let tunnel = if policy.dialect == Dialect::Current {
                format!("-p tcp -m tcp ! --dport {} ", policy.tunnel_port)
            } else {
                String::new()
            };
            let text = format!(
                "! -d {loopback} -o lo {tunnel}-m owner --{kind}-owner {id} -j {IN_REDIRECT}"
            );
            self.rule(ISTIO_OUTPUT, text, local, index);
            if !policy.includes_loopback() {
                let text = format!("-o lo -m owner ! --{kind}-owner {id} -j RETURN");
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

#[cfg(test)]
mod tests;
