//! A policy as the nat rules that istio-iptables would have programmed for it, line by line, each
//! with the name of the decision it stands for.

mod inbound;
mod lines;
mod outbound;
mod tables;

use std::fmt::Write as _;

use sidetrack_common::{addr::Family, decide::Decision, rule::Rule};

use self::lines::Lines;
pub use self::tables::{KnownRoutes, ListTables, Routes};
use crate::policy::{InboundPorts, Policy};

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

#[cfg(test)]
mod tests;
