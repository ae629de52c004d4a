//! The kernel's tables, and the invariants of policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::{PodRef, Policy, compiled::CompiledPolicy};
use sidetrack_reconcile::policies::GRACE;

use crate::world::World;

/// A pod's row.
#[derive(Clone, Debug, PartialEq)]
pub struct PodRow {
    pub pod: PodRef,
    pub uid: Option<String>,
    pub inode: NetnsInode,
    pub policy: PolicyId,
    pub captures_v6: bool,
    pub added_v6: bool,
    /// The policy it was written for, with what is not part of the compiled one.
    pub source: Policy,
}

/// The lists of a policy.
#[derive(Clone, Debug)]
pub struct Lists {
    pub policy: CompiledPolicy,
    pub complete: bool,
}

/// All tables.
#[derive(Debug, Default)]
pub struct Tables {
    pub lists: BTreeMap<PolicyId, Lists>,
    pub policies: BTreeMap<PolicyId, CompiledPolicy>,
    pub pods: BTreeMap<NetnsCookie, PodRow>,
    /// Whether each route's interface is excluded.
    pub routes: BTreeMap<(NetnsCookie, u32), bool>,
    pub ifaces: BTreeSet<(NetnsCookie, u32)>,
    /// The agent whose program is attached.
    pub lookups: BTreeMap<NetnsCookie, u32>,
    pub listeners: BTreeSet<(NetnsCookie, u16, u16)>,
    pub before_sidecar: BTreeSet<NetnsCookie>,
    /// Where each hook is attached, by the number of the pods' cgroup; 0 is nowhere.
    pub hooks: BTreeMap<&'static str, u32>,
    /// Maps without their pin.
    pub unpinned: BTreeSet<&'static str>,
    pub handshakes: BTreeSet<NetnsCookie>,
    pub counters: BTreeSet<NetnsCookie>,
    /// When a pod's row last named a policy.
    pub last_named: BTreeMap<PolicyId, Instant>,
    /// Ids that this agent has used.
    pub used: BTreeSet<PolicyId>,
}

impl Tables {
    /// Ids that any row of a policy has.
    pub fn policy_ids(&self) -> BTreeSet<PolicyId> {
        let all = self.lists.keys().chain(self.policies.keys());
        all.copied().collect()
    }

    pub fn named(&self) -> BTreeSet<PolicyId> {
        self.pods.values().map(|row| row.policy).collect()
    }

    /// Namespaces that any row but a pod's is of.
    pub fn cookies_besides_pods(&self) -> BTreeSet<NetnsCookie> {
        let mut all: BTreeSet<NetnsCookie> = self.lookups.keys().copied().collect();
        all.extend(self.routes.keys().map(|(cookie, _)| *cookie));
        all.extend(self.ifaces.iter().map(|(cookie, _)| *cookie));
        all.extend(self.listeners.iter().map(|(cookie, ..)| *cookie));
        all.extend(&self.before_sidecar);
        all.extend(&self.handshakes);
        all.extend(&self.counters);
        all
    }

    /// Namespaces that any row is of.
    pub fn cookies(&self) -> BTreeSet<NetnsCookie> {
        let pods = self.pods.keys().copied();
        self.cookies_besides_pods()
            .into_iter()
            .chain(pods)
            .collect()
    }
}

impl World {
    pub fn write_lists(&mut self, id: PolicyId, policy: &CompiledPolicy, complete: bool) {
        let is_new = self.tables.used.insert(id)
            && !self.tables.policy_ids().contains(&id)
            && !self.tables.named().contains(&id);
        self.require(is_new, || format!("policy id {id} is used again"));
        let policy = policy.clone();
        self.tables.lists.insert(id, Lists { policy, complete });
    }

    pub fn write_policy(&mut self, id: PolicyId, policy: &CompiledPolicy) {
        let lists = self.tables.lists.get(&id);
        let whole = lists.is_some_and(|it| it.complete && it.policy == *policy);
        self.require(whole, || format!("policy {id} is written before its lists"));
        self.tables.policies.insert(id, policy.clone());
    }

    pub fn remove_policy(&mut self, id: PolicyId) {
        self.check_unused(id);
        self.tables.policies.remove(&id);
    }

    pub fn remove_lists(&mut self, id: PolicyId, whole: bool) {
        let has_row = self.tables.policies.contains_key(&id);
        self.require(!has_row, || {
            format!("the lists of policy {id} are removed before its row")
        });
        self.check_unused(id);
        if whole {
            self.tables.lists.remove(&id);
        } else if let Some(lists) = self.tables.lists.get_mut(&id) {
            lists.complete = false;
        }
    }

    pub fn sweep(&mut self, keep: &BTreeSet<PolicyId>) {
        let named = self.tables.named();
        for id in self.tables.policy_ids() {
            if !keep.contains(&id) && !named.contains(&id) {
                self.remove_policy(id);
                self.remove_lists(id, true);
            }
        }
    }

    /// A pod's row is about to be replaced or removed.
    pub fn stops_naming(&mut self, cookie: NetnsCookie) {
        if let Some(row) = self.tables.pods.get(&cookie) {
            self.tables.last_named.insert(row.policy, self.now);
        }
    }

    fn check_unused(&mut self, id: PolicyId) {
        let named = self.tables.pods.values().any(|row| row.policy == id);
        self.require(!named, || {
            format!("rows of policy {id} are removed while a pod names it")
        });
        let since = self.tables.last_named.get(&id);
        let rested = since.is_none_or(|at| self.now.duration_since(*at) >= GRACE);
        self.require(rested, || {
            format!("rows of policy {id} are removed too early")
        });
    }
}
