//! The rows of policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use anyhow::Result;
use sidetrack_common::{
    ids::PolicyId,
    policy::{OwnerKey, PortKey, RangeKey},
};
use sidetrack_policy::compiled::{CompiledPolicy, ListRows};
use sidetrack_reconcile::policies::LeftPolicy;

use crate::kernel::maps::Maps;

/// Writes the lists of a policy.
///
/// # Errors
/// If a map is full.
pub fn write_lists(id: PolicyId, policy: &CompiledPolicy, maps: &Maps) -> io::Result<()> {
    for (key, position) in policy.port_rows(id.get()) {
        maps.ports.insert(&key, &position)?;
    }
    for (key, position) in policy.owner_rows(id.get()) {
        maps.owners.insert(&key, &position)?;
    }
    for (key, position) in policy.range_rows(id.get()) {
        maps.ranges.insert(&key, &position)?;
    }
    Ok(())
}

/// Removes the lists of a policy.
///
/// # Errors
/// If a map cannot be written.
pub fn remove_lists(id: PolicyId, policy: &CompiledPolicy, maps: &Maps) -> io::Result<()> {
    for (key, _) in policy.port_rows(id.get()) {
        maps.ports.remove(&key)?;
    }
    for (key, _) in policy.owner_rows(id.get()) {
        maps.owners.remove(&key)?;
    }
    for (key, _) in policy.range_rows(id.get()) {
        maps.ranges.remove(&key)?;
    }
    Ok(())
}

/// The highest id that any row names. Lists count as well: an agent that was killed while it wrote or
/// removed a policy leaves lists without their row, and a policy under that id would have them among its
/// own. So do counters of policies that are gone.
///
/// # Errors
/// If a map cannot be read.
pub fn highest(maps: &Maps) -> io::Result<Option<PolicyId>> {
    let ports = maps.ports.keys()?.into_iter().map(|key| key.policy);
    let owners = maps.owners.keys()?.into_iter().map(|key| key.policy);
    let ranges = maps.ranges.keys()?.into_iter().map(|key| key.policy);
    let policies = maps.policies.keys()?.into_iter();
    let counters = maps.counts.keys()?.into_iter().map(|key| key.policy);
    let lists = ports.chain(owners).chain(ranges);
    let highest = policies.chain(lists).chain(counters).max();
    Ok(highest.map(PolicyId::new))
}

/// Every policy that has its row. The row is written last and removed first, so that its lists are complete.
///
/// # Errors
/// If a map cannot be read.
pub fn left(maps: &Maps) -> io::Result<Vec<LeftPolicy>> {
    let rows = maps.policies.rows()?.into_iter();
    let mut left: BTreeMap<u32, LeftPolicy> = rows
        .map(|(id, row)| {
            let policy = LeftPolicy {
                id: PolicyId::new(id),
                row,
                lists: ListRows::default(),
            };
            (id, policy)
        })
        .collect();
    if left.is_empty() {
        return Ok(Vec::new());
    }
    for (key, position) in maps.ports.rows()? {
        if let Some(policy) = left.get_mut(&key.policy) {
            policy.lists.add_port(&key, position);
        }
    }
    for (key, position) in maps.owners.rows()? {
        if let Some(policy) = left.get_mut(&key.policy) {
            policy.lists.add_owner(&key, position);
        }
    }
    for (key, position) in maps.ranges.rows()? {
        if let Some(policy) = left.get_mut(&key.policy) {
            policy.lists.add_range(&key, position);
        }
    }
    Ok(left.into_values().collect())
}

/// Removes the rows of all policies but these, and but those that pod rows name.
///
/// # Errors
/// If a map cannot be read or written.
pub fn sweep(keep: &BTreeSet<PolicyId>, maps: &Maps) -> io::Result<()> {
    let pods = maps.pods.rows()?.into_iter();
    let named: BTreeSet<u32> = pods.map(|(_, pod)| pod.policy).collect();
    let stale = |id: u32| !named.contains(&id) && !keep.contains(&PolicyId::new(id));
    for id in maps.policies.keys()?.into_iter().filter(|id| stale(*id)) {
        maps.policies.remove(&id)?;
    }
    for key in maps.ports.keys()?.iter().filter(|key| stale(key.policy)) {
        maps.ports.remove(key)?;
    }
    for key in maps.owners.keys()?.iter().filter(|key| stale(key.policy)) {
        maps.owners.remove(key)?;
    }
    for key in maps.ranges.keys()?.iter().filter(|key| stale(key.policy)) {
        maps.ranges.remove(key)?;
    }
    Ok(())
}

/// The rows of a policy's lists. They are computed once: that takes longer than comparing them.
#[derive(Debug)]
struct WrittenLists {
    ports: Vec<(PortKey, u32)>,
    owners: Vec<(OwnerKey, u32)>,
    ranges: Vec<(RangeKey, u32)>,
}

impl WrittenLists {
    fn of(policy: &CompiledPolicy, id: u32) -> Self {
        Self {
            ports: policy.port_rows(id).collect(),
            owners: policy.owner_rows(id).collect(),
            ranges: policy.range_rows(id).collect(),
        }
    }

    fn len(&self) -> usize {
        self.ports.len() + self.owners.len() + self.ranges.len()
    }

    /// Writes rows that are missing or different; answers how many.
    fn repair(&self, maps: &Maps, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let mut repaired = 0;
        for (key, position) in &self.ports {
            repaired += usize::from(maps.ports.repair(key, position, buffer)?);
        }
        for (key, position) in &self.owners {
            repaired += usize::from(maps.owners.repair(key, position, buffer)?);
        }
        for (key, position) in &self.ranges {
            repaired += usize::from(maps.ranges.repair(key, position, buffer)?);
        }
        Ok(repaired)
    }
}

/// So many rows of lists are compared in one go. The rest follows in the next.
const LIST_ROWS_AT_A_TIME: usize = 10_000;

/// Compares the rows of policies with what they should be, and repairs them.
#[derive(Debug, Default)]
pub struct PolicyRepair {
    lists: BTreeMap<PolicyId, WrittenLists>,
    /// The policy whose lists are compared first the next time.
    next: Option<PolicyId>,
}

impl PolicyRepair {
    /// Writes rows of policies again that are missing or different; answers how many. Lists come before
    /// the row that says they are there.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn repair<'a>(
        &mut self,
        in_use: impl Iterator<Item = (PolicyId, &'a CompiledPolicy)>,
        maps: &Maps,
        buffer: &mut Vec<u8>,
    ) -> Result<usize> {
        let mut used: Vec<(PolicyId, &CompiledPolicy)> = in_use.collect();
        used.sort_unstable_by_key(|(id, _)| *id);
        self.lists
            .retain(|id, _| used.binary_search_by_key(id, |(id, _)| *id).is_ok());
        let next = self.next.take();
        let first = used.partition_point(|(id, _)| next.is_some_and(|next| *id < next));
        used.rotate_left(first);
        let mut left = LIST_ROWS_AT_A_TIME;
        let mut repaired = 0;
        for (id, policy) in used {
            // A policy without its row refuses everything, so its lists are compared now.
            let is_whole = maps.policies.holds(&id.get(), &policy.row(), buffer)?;
            if left > 0 || !is_whole {
                let rows = self
                    .lists
                    .entry(id)
                    .or_insert_with(|| WrittenLists::of(policy, id.get()));
                repaired += rows.repair(maps, buffer)?;
                left = left.saturating_sub(rows.len());
            } else if self.next.is_none() {
                self.next = Some(id);
            }
            if !is_whole {
                maps.policies.insert(&id.get(), &policy.row())?;
                repaired += 1;
            }
        }
        Ok(repaired)
    }
}
