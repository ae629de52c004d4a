//! The table of `top --once`, and numbers as text.

use super::report::{PerSecond, Row};
use crate::{Connections, output::or_dash};

const COLUMNS: [&str; 7] = [
    "STATE",
    "SIDECAR",
    "OUT/S",
    "IN/S",
    "REFUSED/S",
    "REFUSED",
    "UNTOUCHED",
];
/// What wide output adds.
const WIDE: [&str; 8] = [
    "UNTOUCHED/S",
    "OUT",
    "IN",
    "WAITING",
    "GIVEN-UP",
    "BEFORE-SIDECAR",
    "UDP",
    "REASON",
];

/// The headings. With nodes, the second column is the pod's.
#[must_use]
pub fn header(with_node: bool, wide: bool) -> Vec<&'static str> {
    let mut header = vec!["POD"];
    header.extend(with_node.then_some("NODE"));
    header.extend(COLUMNS);
    header.extend(wide.then_some(WIDE).into_iter().flatten());
    header
}

/// A pod's cells.
#[must_use]
pub fn cells(row: &Row, node: Option<&str>, wide: bool) -> Vec<String> {
    let text = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let mut cells = vec![row.full_name()];
    cells.extend(node.map(str::to_owned));
    cells.extend([
        row.state.clone(),
        text(row.sidecar.as_deref()),
        rate(row, |of| of.outbound_redirected),
        rate(row, |of| of.inbound_redirected),
        rate(row, |of| of.refused),
        count(row, |of| of.refused),
        count(row, |of| of.untouched),
    ]);
    if wide {
        cells.extend([
            rate(row, |of| of.untouched),
            count(row, |of| of.outbound_redirected),
            count(row, |of| of.inbound_redirected),
            waiting(row),
            count(row, |of| of.given_up),
            count(row, |of| of.before_sidecar),
            count(row, |of| of.udp),
            text(row.reason.as_deref()),
        ]);
    }
    cells
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
