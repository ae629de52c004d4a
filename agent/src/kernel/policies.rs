//! Policies in the kernel: rows written whole under a new id, shared between pods that have equal
//! ones, removed when the last pod has left them.

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use sidetrack_common::policy::{OwnerKey, PortKey, RangeKey};
use sidetrack_policy::compiled::CompiledPolicy;

use super::maps::Maps;

/// Writes the lists of a policy, then its row: a policy whose row exists is complete.
fn write(policy: &CompiledPolicy, id: u32, maps: &Maps) -> io::Result<()> {
    for (key, position) in policy.port_rows(id) {
        maps.ports.insert(&key, &position)?;
    }
    for (key, position) in policy.owner_rows(id) {
        maps.owners.insert(&key, &position)?;
    }
    for (key, position) in policy.range_rows(id) {
        maps.ranges.insert(&key, &position)?;
    }
    maps.policies.insert(&id, &policy.row())
}

fn erase(policy: &CompiledPolicy, id: u32, maps: &Maps) -> io::Result<()> {
    maps.policies.remove(&id)?;
    for (key, _) in policy.port_rows(id) {
        maps.ports.remove(&key)?;
    }
    for (key, _) in policy.owner_rows(id) {
        maps.owners.remove(&key)?;
    }
    for (key, _) in policy.range_rows(id) {
        maps.ranges.remove(&key)?;
    }
    Ok(())
}

/// How long a policy's rows outlive its last pod: a program that has just read the pod's old row
/// must find the lists that go with it, or it would judge by half a policy.
const GRACE: Duration = Duration::from_secs(1);

/// The policies in use.
#[derive(Debug)]
pub struct Policies {
    in_use: HashMap<CompiledPolicy, Used>,
    retired: Vec<Retired>,
    /// When to look for rows of an earlier agent that no pod names any more.
    sweep_at: Option<Instant>,
    next_id: u32,
    /// The policy whose lists are looked at first the next time.
    look_from: u32,
}

#[derive(Debug)]
struct Retired {
    id: u32,
    policy: CompiledPolicy,
    since: Instant,
}

#[derive(Debug)]
struct Used {
    id: u32,
    pods: usize,
    /// Its lists' rows, once they have been looked at.
    rows: Option<ListRows>,
}

impl Used {
    const fn new(id: u32) -> Self {
        Self {
            id,
            pods: 1,
            rows: None,
        }
    }
}

/// The rows of a policy's lists: working out the ranges' takes longer than looking them up.
#[derive(Debug)]
struct ListRows {
    ports: Vec<(PortKey, u32)>,
    owners: Vec<(OwnerKey, u32)>,
    ranges: Vec<(RangeKey, u32)>,
}

impl ListRows {
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

    /// Writes what is missing or different; how many rows that were.
    fn mend(&self, maps: &Maps, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let mut mended = 0;
        for (key, position) in &self.ports {
            mended += usize::from(maps.ports.repair(key, position, buffer)?);
        }
        for (key, position) in &self.owners {
            mended += usize::from(maps.owners.repair(key, position, buffer)?);
        }
        for (key, position) in &self.ranges {
            mended += usize::from(maps.ranges.repair(key, position, buffer)?);
        }
        Ok(mended)
    }
}

/// So many rows of lists are looked at in one go; what is left has its turn in the next.
const LIST_ROWS_AT_A_TIME: usize = 10_000;

impl Policies {
    /// Starts above the ids of whatever an earlier agent left; pods still judged by those keep
    /// them until they are given one of ours. Lists count as well: an agent that was killed while it
    /// wrote or erased a policy leaves lists without their row, and whoever took that id again would
    /// have them among its own.
    pub fn new(maps: &Maps) -> Result<Self> {
        let policies = maps.policies.keys().context("list policies")?;
        let ports = maps.ports.keys().context("list ports")?;
        let owners = maps.owners.keys().context("list owners")?;
        let ranges = maps.ranges.keys().context("list ranges")?;
        let highest = policies
            .into_iter()
            .chain(ports.iter().map(|key| key.policy))
            .chain(owners.iter().map(|key| key.policy))
            .chain(ranges.iter().map(|key| key.policy))
            .max();
        Ok(Self {
            in_use: HashMap::new(),
            retired: Vec::new(),
            sweep_at: None,
            next_id: highest.map_or(1, |id| id.wrapping_add(1)),
            look_from: 0,
        })
    }

    /// The id of a policy, written if it is new, for one more pod.
    pub fn acquire(&mut self, policy: &CompiledPolicy, maps: &Maps) -> Result<u32> {
        if let Some(used) = self.in_use.get_mut(policy) {
            used.pods += 1;
            return Ok(used.id);
        }
        if let Some(position) = self
            .retired
            .iter()
            .position(|retired| &retired.policy == policy)
        {
            let id = self.retired.swap_remove(position).id;
            self.in_use.insert(policy.clone(), Used::new(id));
            return Ok(id);
        }
        // Taken whatever comes of it: what cannot be erased again must not be another's.
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        if let Err(error) = write(policy, id, maps) {
            let _ = erase(policy, id, maps);
            return Err(error).context(
                "write the policy; if a map is full, shorten the pods' port and CIDR lists",
            );
        }
        self.in_use.insert(policy.clone(), Used::new(id));
        Ok(id)
    }

    /// A pod has left a policy; when the last one has, its rows go after a while.
    pub fn release(&mut self, policy: &CompiledPolicy) {
        let Some(used) = self.in_use.get_mut(policy) else {
            return;
        };
        used.pods -= 1;
        if used.pods == 0 {
            self.retired.push(Retired {
                id: used.id,
                policy: policy.clone(),
                since: Instant::now(),
            });
            self.in_use.remove(policy);
        }
    }

    /// Asks for rows that an earlier agent left and no pod names any more to be removed.
    pub fn sweep_later(&mut self) {
        self.sweep_at.get_or_insert_with(|| Instant::now() + GRACE);
    }

    /// Writes rows of policies in use again that are missing or different; how many that were. Lists
    /// come before the row that says they are there.
    pub fn mend(&mut self, maps: &Maps, buffer: &mut Vec<u8>) -> Result<usize> {
        let mut used: Vec<(&CompiledPolicy, &mut Used)> = self.in_use.iter_mut().collect();
        used.sort_unstable_by_key(|(_, used)| used.id);
        let first = used.partition_point(|(_, used)| used.id < self.look_from);
        used.rotate_left(first);
        self.look_from = 0;
        let mut left = LIST_ROWS_AT_A_TIME;
        let mut mended = 0;
        for (policy, used) in used {
            // One whose row is gone refuses everything, so that it is looked at now.
            let whole = maps.policies.holds(&used.id, &policy.row(), buffer)?;
            if left > 0 || !whole {
                let rows = used
                    .rows
                    .get_or_insert_with(|| ListRows::of(policy, used.id));
                mended += rows.mend(maps, buffer)?;
                left = left.saturating_sub(rows.len());
            } else if self.look_from == 0 {
                self.look_from = used.id;
            }
            if !whole {
                maps.policies.insert(&used.id, &policy.row())?;
                mended += 1;
            }
        }
        Ok(mended)
    }

    /// Removes what has been out of use for long enough. To be called now and then.
    pub fn tidy(&mut self, maps: &Maps) -> Result<()> {
        let retired = std::mem::take(&mut self.retired);
        let (old, young): (Vec<_>, Vec<_>) = retired
            .into_iter()
            .partition(|retired| retired.since.elapsed() >= GRACE);
        self.retired = young;
        for retired in old {
            erase(&retired.policy, retired.id, maps).context("remove a policy's rows")?;
        }
        if self.sweep_at.is_some_and(|at| Instant::now() >= at) {
            self.sweep_at = None;
            self.sweep(maps)
                .context("remove policies of an earlier agent")?;
        }
        Ok(())
    }

    fn sweep(&self, maps: &Maps) -> Result<()> {
        let named: Vec<u32> = maps
            .pods
            .rows()?
            .into_iter()
            .map(|(_, pod)| pod.policy)
            .collect();
        let retired = self.retired.iter().map(|retired| retired.id);
        let ours: Vec<u32> = self
            .in_use
            .values()
            .map(|used| used.id)
            .chain(retired)
            .collect();
        let stale = |id: u32| !named.contains(&id) && !ours.contains(&id);
        for id in maps.policies.keys()? {
            if stale(id) {
                maps.policies.remove(&id)?;
            }
        }
        for key in maps.ports.keys()? {
            if stale(key.policy) {
                maps.ports.remove(&key)?;
            }
        }
        for key in maps.owners.keys()? {
            if stale(key.policy) {
                maps.owners.remove(&key)?;
            }
        }
        for key in maps.ranges.keys()? {
            if stale(key.policy) {
                maps.ranges.remove(&key)?;
            }
        }
        Ok(())
    }
}
