//! Lines of rules, and what collects those of one family's table.

use ipnet::IpNet;
use sidetrack_common::{addr::Family, rule::Rule};

use crate::{exclusions::Span, interfaces, policy::Policy};

/// One `-A` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Table it is in.
    pub table: TableName,
    /// Chain it is in.
    pub chain: &'static str,
    /// What follows the chain, as `iptables -S` spells it.
    pub text: String,
    /// The decision it stands for, with the position in the list it came from. Lines that only
    /// lead to another chain have none.
    pub decision: Option<(Rule, u32)>,
}

impl Line {
    /// The whole line, as a command of iptables: as `iptables -S` prints it, with the table unless it is nat.
    #[must_use]
    pub fn command(&self) -> String {
        match self.table {
            TableName::Nat => self.in_table(),
            TableName::Mangle => format!("-t mangle {}", self.in_table()),
            TableName::Raw => format!("-t raw {}", self.in_table()),
        }
    }

    /// The whole line, as `iptables -S` prints it.
    pub(super) fn in_table(&self) -> String {
        format!("-A {} {}", self.chain, self.text)
    }
}

/// A table of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableName {
    /// Table nat.
    Nat,
    /// Table mangle.
    Mangle,
    /// Table raw.
    Raw,
}

pub(super) const PREROUTING: &str = "PREROUTING";
pub(super) const OUTPUT: &str = "OUTPUT";
pub(super) const INBOUND: &str = "ISTIO_INBOUND";
pub(super) const IN_REDIRECT: &str = "ISTIO_IN_REDIRECT";
pub(super) const ISTIO_OUTPUT: &str = "ISTIO_OUTPUT";
pub(super) const REDIRECT: &str = "ISTIO_REDIRECT";

/// The lines so far of one family.
pub(super) struct Lines {
    pub(super) table: TableName,
    pub(super) family: Family,
    pub(super) lines: Vec<Line>,
}

/// `-m multiport --dports 80,8000:9000`.
pub(super) fn multiport(ports: &[Span]) -> String {
    let ports: Vec<String> = ports.iter().map(|port| port.text(':')).collect();
    format!("-m multiport --dports {}", ports.join(","))
}

impl Lines {
    /// None yet.
    pub(super) const fn new(table: TableName, family: Family) -> Self {
        Self {
            table,
            family,
            lines: Vec::new(),
        }
    }

    /// Adds a line that only leads to another chain.
    pub(super) fn jump(&mut self, chain: &'static str, text: String) {
        self.lines.push(Line {
            table: self.table,
            chain,
            text,
            decision: None,
        });
    }

    /// Adds a line that stands for a decision.
    pub(super) fn rule(&mut self, chain: &'static str, text: String, rule: Rule, index: usize) {
        self.lines.push(Line {
            table: self.table,
            chain,
            text,
            decision: Some((rule, index as u32)),
        });
    }

    /// Adds what returns at the interfaces that the policy excludes. It stands for a decision unless another table
    /// decides.
    pub(super) fn excluded_interfaces(
        &mut self,
        (chain, option): (&'static str, &str),
        policy: &Policy,
        decision: Option<Rule>,
    ) {
        for (index, name) in policy.excluded_interfaces.iter().enumerate() {
            let text = format!("{}-j RETURN", interfaces::option(option, name));
            match decision {
                Some(rule) => self.rule(chain, text, rule, index),
                None => self.jump(chain, text),
            }
        }
    }

    /// The address from which the sidecar calls the app.
    pub(super) const fn own(&self) -> &'static str {
        match self.family {
            Family::V4 => "127.0.0.6/32",
            Family::V6 => "::6/128",
        }
    }

    /// The destinations that count as loopback.
    pub(super) fn loopback(&self, policy: &Policy) -> String {
        match self.family {
            Family::V4 => policy.loopback_v4.trunc().to_string(),
            Family::V6 => "::1/128".to_owned(),
        }
    }

    /// The ranges of this family with their positions in the list of both.
    pub(super) fn ranges<'a>(
        &self,
        ranges: &'a [IpNet],
    ) -> impl Iterator<Item = (usize, &'a IpNet)> + use<'a> {
        let v6 = self.family == Family::V6;
        ranges
            .iter()
            .enumerate()
            .filter(move |(_, range)| range.addr().is_ipv6() == v6)
    }
}
