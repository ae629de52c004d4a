//! Which pods are shown, and in which order.

use std::cmp::Ordering;

use super::{PodKey, View};
use crate::top::report::{PerSecond, Row};

/// A pod in the list.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Its node.
    pub node: &'a str,
    /// The pod.
    pub row: &'a Row,
    /// Whether its node does not answer, and this is from before.
    pub is_stale: bool,
}

impl Shown<'_> {
    /// Which pod it is.
    pub fn key(&self) -> PodKey {
        PodKey {
            node: self.node.to_owned(),
            name: self.row.full_name(),
        }
    }
}

/// What the list is sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Sidecars that hang or do not listen first.
    #[default]
    Sidecar,
    /// Namespace and name.
    Pod,
    /// Outbound connections a second, most first.
    Out,
    /// Inbound connections a second, most first.
    In,
    /// Refused connections a second, then all refused ones, most first.
    Refused,
    /// Connections past the sidecar, most first.
    Untouched,
}

impl Sort {
    /// The next one.
    pub fn next(self) -> Self {
        match self {
            Self::Sidecar => Self::Out,
            Self::Out => Self::In,
            Self::In => Self::Refused,
            Self::Refused => Self::Untouched,
            Self::Untouched => Self::Pod,
            Self::Pod => Self::Sidecar,
        }
    }

    /// The heading of its column.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Pod => "POD",
            Self::Sidecar => "SIDECAR",
            Self::Out => "OUT/S",
            Self::In => "IN/S",
            Self::Refused => "REFUSED",
            Self::Untouched => "UNTOUCHED",
        }
    }

    fn compare(self, one: &Row, other: &Row) -> Ordering {
        // Most first; what is not known comes last.
        let rates = |of: fn(&PerSecond) -> f64| {
            let rate = |row: &Row| row.per_second.as_ref().map_or(-1.0, of);
            rate(other).total_cmp(&rate(one))
        };
        let counts = |of: fn(&crate::Connections) -> u64| {
            let count = |row: &Row| row.connections.as_ref().map(of);
            count(other).cmp(&count(one))
        };
        match self {
            Self::Pod => Ordering::Equal,
            Self::Sidecar => one.urgency().cmp(&other.urgency()),
            Self::Out => rates(|of| of.outbound_redirected),
            Self::In => rates(|of| of.inbound_redirected),
            Self::Refused => rates(|of| of.refused).then_with(|| counts(|of| of.refused)),
            Self::Untouched => counts(|of| of.untouched),
        }
    }
}

/// The pods that are shown, in order.
pub fn shown(view: &View) -> Vec<Shown<'_>> {
    let wanted = |row: &Row| {
        let namespace = view.settings.namespace.as_ref();
        namespace.is_none_or(|namespace| *namespace == row.namespace)
            && row.full_name().contains(&view.filter)
    };
    let mut rows: Vec<Shown<'_>> = Vec::new();
    for (node, state) in &view.nodes {
        let is_stale = state.report.origin == crate::top::Origin::Nowhere;
        let of_node = state.report.pods.iter().filter(|row| wanted(row));
        rows.extend(of_node.map(|row| Shown {
            node,
            row,
            is_stale,
        }));
    }
    rows.sort_by(|one, other| {
        let order = view.sort.compare(one.row, other.row);
        let order = if view.is_reversed {
            order.reverse()
        } else {
            order
        };
        let name = |shown: &Shown<'_>| (shown.row.full_name(), shown.node.to_owned());
        let by_name = name(one).cmp(&name(other));
        match view.is_reversed && view.sort == Sort::Pod {
            true => by_name.reverse(),
            false => order.then(by_name),
        }
    });
    rows
}
