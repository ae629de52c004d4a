//! Collects the lines of one family's table.

use ipnet::IpNet;
use sidetrack_common::{addr::Family, rule::Rule};

use super::{Line, TableName};

/// The lines so far of one family.
pub(super) struct Lines {
    pub(super) table: TableName,
    pub(super) family: Family,
    pub(super) lines: Vec<Line>,
}

impl Lines {
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
