//! The table of `top --once`, and numbers as text.

use super::report::{PerSecond, Row};
use crate::{Connections, output::or_dash};

/// A heading, and a pod's cell below it.
type Column = (&'static str, fn(&Row) -> String);

static COLUMNS: [Column; 7] = [
    ("STATE", |row| row.state.clone()),
    ("SIDECAR", |row| or_dash(row.sidecar.as_ref())),
    ("OUT/S", |row| rate(row, |of| of.outbound_redirected)),
    ("IN/S", |row| rate(row, |of| of.inbound_redirected)),
    ("REFUSED/S", |row| rate(row, |of| of.refused)),
    ("REFUSED", |row| count(row, |of| of.refused)),
    ("UNTOUCHED", |row| count(row, |of| of.untouched)),
];
/// What wide output adds.
static WIDE: [Column; 8] = [
    ("UNTOUCHED/S", |row| rate(row, |of| of.untouched)),
    ("OUT", |row| count(row, |of| of.outbound_redirected)),
    ("IN", |row| count(row, |of| of.inbound_redirected)),
    ("WAITING", waiting),
    ("GIVEN-UP", |row| count(row, |of| of.given_up)),
    ("BEFORE-SIDECAR", |row| count(row, |of| of.before_sidecar)),
    ("UDP", |row| count(row, |of| of.udp)),
    ("REASON", |row| or_dash(row.reason.as_ref())),
];

fn columns(wide: bool) -> impl Iterator<Item = &'static Column> {
    COLUMNS.iter().chain(WIDE.iter().filter(move |_| wide))
}

/// The headings. With nodes, the second column is the pod's.
#[must_use]
pub fn header(with_node: bool, wide: bool) -> Vec<&'static str> {
    let first = ["POD"].into_iter().chain(with_node.then_some("NODE"));
    first
        .chain(columns(wide).map(|(heading, _)| *heading))
        .collect()
}

/// A pod's cells.
#[must_use]
pub fn cells(row: &Row, node: Option<&str>, wide: bool) -> Vec<String> {
    let first = [row.full_name()].into_iter().chain(node.map(str::to_owned));
    first
        .chain(columns(wide).map(|(_, cell)| cell(row)))
        .collect()
}

/// Connections that wait for a sidecar that hangs.
pub(super) fn waiting(row: &Row) -> String {
    or_dash(row.waiting)
}

/// One of a pod's counts.
pub(super) fn count(row: &Row, of: fn(&Connections) -> u64) -> String {
    or_dash(row.connections.as_ref().map(of))
}

/// One of a pod's rates.
pub(super) fn rate(row: &Row, of: fn(&PerSecond) -> f64) -> String {
    or_dash(row.per_second.as_ref().map(of).map(per_second))
}

/// A rate in at most five characters, unless it is beyond any node. One decimal of what is small: one
/// connection in ten seconds is not none.
fn per_second(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        ..0.1 => "<0.1".to_owned(),
        ..9.95 => format!("{rate:.1}"),
        ..99_999.5 => format!("{rate:.0}"),
        _ => format!("{:.0}k", rate / 1000.0),
    }
}

#[cfg(test)]
mod tests;
