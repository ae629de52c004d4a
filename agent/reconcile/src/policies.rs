//! Which policies are in the kernel, under which ids, and for how many pods.
//!
//! A policy is written whole under a new id and never changes. Pods with equal policies share one.
//! Ids are never used twice.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use sidetrack_common::ids::PolicyId;
use sidetrack_policy::compiled::CompiledPolicy;

/// How long a policy's rows outlive the last pod row that names it: a kernel program that has just read
/// the pod's old row must find the lists that go with it.
pub const GRACE: Duration = Duration::from_secs(1);

/// The policies of this agent.
#[derive(Debug)]
pub struct Policies {
    in_use: HashMap<CompiledPolicy, InUse>,
    retired: Vec<Retired>,
    next: u32,
}

#[derive(Debug)]
struct InUse {
    id: PolicyId,
    pods: usize,
}

/// A policy without pods.
#[derive(Clone, Debug)]
pub struct Retired {
    /// Its id.
    pub id: PolicyId,
    /// Its rows.
    pub policy: CompiledPolicy,
    since: Instant,
    /// Whether its row is there. Without it no program reads the lists, but they must be removed.
    written: bool,
}

impl Retired {
    /// Whether its removal has not failed yet.
    #[must_use]
    pub fn is_first_try(&self) -> bool {
        self.written
    }
}

impl Policies {
    /// Starts above the highest id in the kernel. Pods of an earlier agent keep their policies until
    /// they are enrolled again.
    #[must_use]
    pub fn after(highest: Option<PolicyId>) -> Self {
        Self {
            in_use: HashMap::new(),
            retired: Vec::new(),
            next: highest.map_or(1, |id| id.get().wrapping_add(1).max(1)),
        }
    }

    /// The id under which a policy is written, for one more pod; `None` if it has to be written.
    pub fn share(&mut self, policy: &CompiledPolicy) -> Option<PolicyId> {
        if let Some(used) = self.in_use.get_mut(policy) {
            used.pods += 1;
            return Some(used.id);
        }
        let retired = |retired: &Retired| retired.written && retired.policy == *policy;
        let position = self.retired.iter().position(retired)?;
        let id = self.retired.swap_remove(position).id;
        self.in_use.insert(policy.clone(), InUse { id, pods: 1 });
        Some(id)
    }

    /// A new id. It is used up whatever follows.
    pub fn next_id(&mut self) -> PolicyId {
        let id = PolicyId::new(self.next);
        // 0 is no policy's id.
        self.next = self.next.wrapping_add(1).max(1);
        id
    }

    /// A policy was written, for one pod.
    pub fn written(&mut self, policy: &CompiledPolicy, id: PolicyId) {
        self.in_use.insert(policy.clone(), InUse { id, pods: 1 });
    }

    /// A policy could not be written whole. What was written is removed with the retired ones.
    pub fn not_written(&mut self, policy: &CompiledPolicy, id: PolicyId, now: Instant) {
        self.retired.push(Retired {
            id,
            policy: policy.clone(),
            since: now,
            written: false,
        });
    }

    /// A pod has left a policy.
    pub fn release(&mut self, policy: &CompiledPolicy, now: Instant) {
        let Some(used) = self.in_use.get_mut(policy) else {
            return;
        };
        used.pods -= 1;
        if used.pods == 0 {
            self.retired.push(Retired {
                id: used.id,
                policy: policy.clone(),
                since: now,
                written: true,
            });
            self.in_use.remove(policy);
        }
    }

    /// Takes the policies whose rows may be removed now. One that cannot be is given back with
    /// [`Policies::give_back`].
    pub fn take_due(&mut self, now: Instant) -> Vec<Retired> {
        let all = std::mem::take(&mut self.retired);
        let (due, young) = all
            .into_iter()
            .partition(|retired| now.saturating_duration_since(retired.since) >= GRACE);
        self.retired = young;
        due
    }

    /// A policy's rows could not be removed; it is tried again. Parts of it may be gone.
    pub fn give_back(&mut self, retired: Retired) {
        self.retired.push(Retired {
            written: false,
            ..retired
        });
    }

    /// The ids of this agent's policies, the retired ones included.
    #[must_use]
    pub fn ids(&self) -> BTreeSet<PolicyId> {
        let used = self.in_use.values().map(|used| used.id);
        used.chain(self.retired.iter().map(|retired| retired.id))
            .collect()
    }

    /// The policies that pods use.
    pub fn in_use(&self) -> impl Iterator<Item = (PolicyId, &CompiledPolicy)> {
        self.in_use.iter().map(|(policy, used)| (used.id, policy))
    }
}

#[cfg(test)]
mod tests;
