//! The rows of policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use sidetrack_common::{
    ids::PolicyId,
    policy::{OwnerKey, Policy, PortKey, RangeKey},
};
use sidetrack_policy::compiled::{CompiledPolicy, ListRows};
use sidetrack_reconcile::{node::PolicyRows, policies::EarlierPolicy};

use super::RowCheck;
use crate::kernel::maps::Maps;

impl PolicyRows for Maps {
    fn write_lists(&mut self, id: PolicyId, policy: &CompiledPolicy) -> io::Result<()> {
        for (key, position) in policy.port_rows(id.get()) {
            self.ports.insert(&key, &position)?;
        }
        for (key, position) in policy.owner_rows(id.get()) {
            self.owners.insert(&key, &position)?;
        }
        for (key, position) in policy.range_rows(id.get()) {
            self.ranges.insert(&key, &position)?;
        }
        Ok(())
    }

    fn write_row(&mut self, id: PolicyId, policy: &CompiledPolicy) -> io::Result<()> {
        self.policies.insert(&id.get(), &policy.row())
    }

    fn remove_row(&mut self, id: PolicyId) -> io::Result<()> {
        self.policies.remove(&id.get()).map(drop)
    }

    fn remove_lists(&mut self, id: PolicyId, policy: &CompiledPolicy) -> io::Result<()> {
        for (key, _) in policy.port_rows(id.get()) {
            self.ports.remove(&key)?;
        }
        for (key, _) in policy.owner_rows(id.get()) {
            self.owners.remove(&key)?;
        }
        for (key, _) in policy.range_rows(id.get()) {
            self.ranges.remove(&key)?;
        }
        Ok(())
    }

    fn highest(&self) -> io::Result<Option<PolicyId>> {
        let ports = self.ports.keys()?.into_iter().map(|key| key.policy);
        let owners = self.owners.keys()?.into_iter().map(|key| key.policy);
        let ranges = self.ranges.keys()?.into_iter().map(|key| key.policy);
        let policies = self.policies.keys()?.into_iter();
        let counters = self.counts.keys()?.into_iter().map(|key| key.policy);
        let lists = ports.chain(owners).chain(ranges);
        let highest = policies.chain(lists).chain(counters).max();
        Ok(highest.map(PolicyId::new))
    }

    fn complete(&self) -> io::Result<Vec<EarlierPolicy>> {
        let rows = self.policies.rows()?.into_iter();
        let mut earlier: BTreeMap<u32, EarlierPolicy> = rows
            .map(|(id, row)| {
                let policy = EarlierPolicy {
                    id: PolicyId::new(id),
                    row,
                    lists: ListRows::default(),
                };
                (id, policy)
            })
            .collect();
        if earlier.is_empty() {
            return Ok(Vec::new());
        }
        for (key, position) in self.ports.rows()? {
            if let Some(policy) = earlier.get_mut(&key.policy) {
                policy.lists.add_port(&key, position);
            }
        }
        for (key, position) in self.owners.rows()? {
            if let Some(policy) = earlier.get_mut(&key.policy) {
                policy.lists.add_owner(&key, position);
            }
        }
        for (key, position) in self.ranges.rows()? {
            if let Some(policy) = earlier.get_mut(&key.policy) {
                policy.lists.add_range(&key, position);
            }
        }
        Ok(earlier.into_values().collect())
    }

    fn sweep(&mut self, keep: &BTreeSet<PolicyId>) -> io::Result<()> {
        let pods = self.pods.rows()?.into_iter();
        let named: BTreeSet<u32> = pods.map(|(_, pod)| pod.policy).collect();
        let stale = |id: u32| !named.contains(&id) && !keep.contains(&PolicyId::new(id));
        for id in self.policies.keys()?.into_iter().filter(|id| stale(*id)) {
            self.policies.remove(&id)?;
        }
        for key in self.ports.keys()?.iter().filter(|key| stale(key.policy)) {
            self.ports.remove(key)?;
        }
        for key in self.owners.keys()?.iter().filter(|key| stale(key.policy)) {
            self.owners.remove(key)?;
        }
        for key in self.ranges.keys()?.iter().filter(|key| stale(key.policy)) {
            self.ranges.remove(key)?;
        }
        Ok(())
    }
}

/// The rows of a policy. They are computed once: that takes longer than comparing them.
#[derive(Debug)]
struct WrittenPolicy {
    ports: Vec<(PortKey, u32)>,
    owners: Vec<(OwnerKey, u32)>,
    ranges: Vec<(RangeKey, u32)>,
    row: Policy,
}

impl WrittenPolicy {
    fn of(policy: &CompiledPolicy, id: u32) -> Self {
        Self {
            ports: policy.port_rows(id).collect(),
            owners: policy.owner_rows(id).collect(),
            ranges: policy.range_rows(id).collect(),
            row: policy.row(),
        }
    }

    fn len(&self) -> usize {
        self.ports.len() + self.owners.len() + self.ranges.len()
    }

    /// Compares its rows. Lists come before the row that says they are there.
    fn check(&self, id: PolicyId, maps: &Maps, check: &mut RowCheck) -> io::Result<()> {
        for (key, position) in &self.ports {
            check.row(&maps.ports, key, position)?;
        }
        for (key, position) in &self.owners {
            check.row(&maps.owners, key, position)?;
        }
        for (key, position) in &self.ranges {
            check.row(&maps.ranges, key, position)?;
        }
        check.row(&maps.policies, &id.get(), &self.row)
    }
}

/// So many rows of lists are compared in one go. The rest follows in the next.
const LIST_ROWS_AT_A_TIME: usize = 10_000;

/// The policies that pods use, as they were written.
#[derive(Debug, Default)]
pub struct WrittenPolicies {
    written: BTreeMap<PolicyId, WrittenPolicy>,
    /// The policy whose lists are compared first the next time.
    next: Option<PolicyId>,
}

impl WrittenPolicies {
    /// How many rows of each are missing or different.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn damaged(
        &mut self,
        mut used: Vec<(PolicyId, &CompiledPolicy)>,
        maps: &Maps,
    ) -> io::Result<BTreeMap<PolicyId, usize>> {
        used.sort_unstable_by_key(|(id, _)| *id);
        self.written
            .retain(|id, _| used.binary_search_by_key(id, |(id, _)| *id).is_ok());
        let next = self.next.take();
        let first = used.partition_point(|(id, _)| next.is_some_and(|next| *id < next));
        used.rotate_left(first);
        let mut remaining = LIST_ROWS_AT_A_TIME;
        let mut damaged = BTreeMap::new();
        for (id, policy) in used {
            let mut own = RowCheck::comparing();
            own.row(&maps.policies, &id.get(), &policy.row())?;
            // A policy without its row refuses everything, so its lists are compared now.
            if remaining == 0 && own.differing == 0 {
                self.next.get_or_insert(id);
                continue;
            }
            let written = self.written.entry(id);
            let written = written.or_insert_with(|| WrittenPolicy::of(policy, id.get()));
            remaining = remaining.saturating_sub(written.len());
            let mut check = RowCheck::comparing();
            written.check(id, maps, &mut check)?;
            if check.differing > 0 {
                damaged.insert(id, check.differing);
            }
        }
        Ok(damaged)
    }

    /// Writes rows of a policy again that are missing or different; answers how many.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn write(&self, id: PolicyId, maps: &Maps) -> io::Result<usize> {
        let mut check = RowCheck::repairing();
        if let Some(written) = self.written.get(&id) {
            written.check(id, maps, &mut check)?;
        }
        Ok(check.differing)
    }
}
