//! How full the maps are, and what it means when one is.

use std::io;

use sidetrack_common::names::{self, HANDSHAKE_SHARE};

use super::maps::Maps;

/// From this share of its rows on a map is a problem.
const NEARLY: (u64, u64) = (9, 10);

/// One map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its name.
    pub map: &'static str,
    /// Rows it has.
    pub rows: u64,
    /// Rows it can have.
    pub capacity: u64,
}

/// What happens when a map is full, and what helps.
const LIMITS: [(&str, &str, &str); 12] = [
    (
        names::POD_BY_NETNS,
        "further pods are refused, and say so",
        "move pods to other nodes",
    ),
    (
        names::POLICY_BY_ID,
        "pods with further policies are refused, and say so",
        "let more pods have the same port and range lists",
    ),
    (
        names::PORT_RULES,
        "pods with further lists of ports are refused, and say so",
        "shorten the pods' lists of ports",
    ),
    (
        names::OWNER_RULES,
        "pods with further lists of users or groups are refused, and say so",
        "shorten the pods' lists of users and groups",
    ),
    (
        names::RANGE_RULES,
        "pods with further lists of ranges are refused, and say so",
        "shorten the pods' lists of ranges",
    ),
    (
        names::ROUTE_BY_POD,
        "what a missing row would tell is judged by a wider route or refused, further pods are refused, and all say so",
        "find the pods with many routes",
    ),
    (
        names::IFACE_BY_POD,
        "pods that name further interfaces are refused, and say so",
        "name fewer interfaces",
    ),
    (
        names::HANDSHAKES,
        "connections that would be redirected are refused",
        "restart the sidecars that do not accept connections",
    ),
    (
        names::HANDSHAKES_BY_POD,
        "further pods' handshakes are limited only together",
        "move pods to other nodes",
    ),
    (
        names::LISTENERS,
        "inbound connections of sidecars that start to listen are refused",
        "let sidecars listen on fewer sockets",
    ),
    (
        names::COUNT_BY_RULE,
        "further rules' connections are judged and not counted",
        "shorten the pods' lists",
    ),
    (
        names::BEFORE_SIDECAR,
        "further pods that are to reach the network before their sidecar are refused, and say so",
        "move pods to other nodes",
    ),
];

impl Usage {
    /// What people should know, if it is nearly full.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let (part, whole) = NEARLY;
        if self.rows * whole < self.capacity * part {
            return None;
        }
        let (_, then, cure) = LIMITS.iter().find(|(map, ..)| *map == self.map)?;
        Some(format!(
            "map {} has {} of {} rows; when it is full, {then}: {cure}",
            self.map, self.rows, self.capacity
        ))
    }
}

impl Maps {
    /// How full every map is that has rows.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn fill(&self) -> io::Result<Vec<Usage>> {
        // Their rows come and go all the time, and the programs count them.
        let counted = self.handshake_count.get(&0)?.unwrap_or_default() as i64;
        let handshakes = (counted.max(0) as u64, u64::from(names::HANDSHAKE_CAPACITY));
        let all = [
            (names::POD_BY_NETNS, self.pods.usage()?),
            (names::POLICY_BY_ID, self.policies.usage()?),
            (names::PORT_RULES, self.ports.usage()?),
            (names::OWNER_RULES, self.owners.usage()?),
            (names::RANGE_RULES, self.ranges.usage()?),
            (names::ROUTE_BY_POD, self.routes.usage()?),
            (names::IFACE_BY_POD, self.ifaces.usage()?),
            (names::HANDSHAKES, handshakes),
            (names::HANDSHAKES_BY_POD, self.handshakes_by_pod.usage()?),
            (names::LISTENERS, self.listeners.usage()?),
            (names::COUNT_BY_RULE, self.counts.usage()?),
            (names::BEFORE_SIDECAR, self.before_sidecar.usage()?),
        ];
        let fill = |(map, (rows, capacity))| Usage {
            map,
            rows,
            capacity,
        };
        Ok(all.map(fill).into())
    }

    /// Pods that have nearly all the handshakes a pod may have: network namespace and how many.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn crowded(&self) -> io::Result<Vec<(u64, u64)>> {
        let (part, whole) = NEARLY;
        let enough = u64::from(HANDSHAKE_SHARE) * part / whole;
        let mut rows = self.handshakes_by_pod.rows()?;
        rows.retain(|(_, count)| *count as i64 >= enough as i64);
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::{LIMITS, Usage};

    #[test]
    fn a_problem_from_nine_tenths_on() {
        let fill = |rows| Usage {
            map: "LISTENERS",
            rows,
            capacity: 65_536,
        };
        assert_eq!(fill(58_982).problem(), None);
        let problem = fill(58_983).problem().expect("nearly full");
        assert!(
            problem.starts_with("map LISTENERS has 58983 of 65536 rows; when it is full, inbound")
        );
    }

    #[test]
    fn every_map_has_a_limit_that_is_known() {
        for (map, then, cure) in LIMITS {
            let full = Usage {
                map,
                rows: 1,
                capacity: 1,
            };
            let problem = full.problem().expect("full");
            assert!(
                problem.contains(then) && problem.contains(cure),
                "{problem}"
            );
        }
    }
}
