//! A pod's rows as the fake node remembers them.

use std::collections::{BTreeMap, BTreeSet};

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::{PodRef, Policy};

use crate::{
    tables::{PodRow, Tables},
    world::Namespace,
};

/// Addresses, routes and interfaces as they were read.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub routes: BTreeMap<u32, u32>,
    pub ifaces: BTreeMap<u32, &'static str>,
    pub has_v6: bool,
}

impl Snapshot {
    pub fn of(namespace: &Namespace) -> Self {
        Self {
            routes: namespace.routes.clone(),
            ifaces: namespace.ifaces.clone(),
            has_v6: namespace.has_v6,
        }
    }

    /// Interfaces that a policy excludes.
    pub fn excluded(&self, policy: &Policy) -> BTreeSet<u32> {
        let all = self.ifaces.iter();
        all.filter(|(_, name)| policy.excluded_interfaces.iter().any(|it| it == *name))
            .map(|(index, _)| *index)
            .collect()
    }

    /// Rows of routes: whether each is excluded.
    pub fn route_rows(&self, policy: &Policy) -> BTreeMap<u32, bool> {
        let excluded = self.excluded(policy);
        let all = self.routes.iter();
        all.map(|(route, index)| (*route, excluded.contains(index)))
            .collect()
    }
}

/// A pod's rows.
#[derive(Clone, Debug)]
pub struct FakeRows {
    /// `None` for remains without a pod's row.
    pub pod: Option<PodRef>,
    pub uid: Option<String>,
    pub inode: NetnsInode,
    pub policy: Option<PolicyId>,
    /// The pod's row as this agent has written it.
    pub row: Option<PodRow>,
    pub routes: BTreeMap<u32, bool>,
    pub ifaces: BTreeSet<u32>,
    pub captures_v6: bool,
    pub added_v6: bool,
    pub snapshot: Option<Snapshot>,
    /// Whether listeners were searched.
    pub searched: bool,
    /// Listeners that the last search found.
    pub found: BTreeSet<(u16, u16)>,
    /// Whether removing the pod's row was tried.
    pub leaving: bool,
}

impl FakeRows {
    pub fn new(pod: &PodRef, uid: Option<&str>, inode: NetnsInode, present: Option<Self>) -> Self {
        let added_v6 = present.as_ref().is_some_and(|it| it.added_v6);
        let (routes, ifaces) = present.map(|it| (it.routes, it.ifaces)).unwrap_or_default();
        Self {
            pod: Some(pod.clone()),
            uid: uid.map(str::to_owned),
            inode,
            policy: None,
            row: None,
            routes,
            ifaces,
            captures_v6: false,
            added_v6,
            snapshot: None,
            searched: false,
            found: BTreeSet::new(),
            leaving: false,
        }
    }

    /// What the tables have of a namespace.
    pub fn earlier(tables: &Tables, cookie: NetnsCookie) -> Self {
        let row = tables.pods.get(&cookie);
        let of_pod = |(at, _): &(&(NetnsCookie, u32), &bool)| at.0 == cookie;
        let ifaces = tables.ifaces.iter().filter(|(at, _)| *at == cookie);
        Self {
            pod: row.map(|row| row.pod.clone()),
            uid: row.and_then(|row| row.uid.clone()),
            inode: row.map_or(NetnsInode::new(0), |row| row.inode),
            policy: row.map(|row| row.policy),
            row: None,
            routes: tables
                .routes
                .iter()
                .filter(of_pod)
                .map(|((_, route), excluded)| (*route, *excluded))
                .collect(),
            ifaces: ifaces.map(|(_, index)| *index).collect(),
            captures_v6: row.is_some_and(|row| row.captures_v6),
            added_v6: row.is_some_and(|row| row.added_v6),
            snapshot: None,
            searched: false,
            found: BTreeSet::new(),
            leaving: false,
        }
    }
}
