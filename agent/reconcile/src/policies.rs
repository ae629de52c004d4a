//! Which policies are in the kernel, under which ids, and for how many pods.
//!
//! A policy is written whole under a new id and never changes. Pods with equal policies use the same one.
//! Ids are never used twice. A policy that an earlier agent has written keeps its id, and with it its counters.

mod quota;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use sidetrack_common::{ids::PolicyId, policy::Policy};
use sidetrack_policy::compiled::{CompiledPolicy, ListRows, ListSizes};

pub use self::quota::{Excess, SHORT};

/// How long a policy's rows outlive the last pod row that names it: a kernel program that has just read
/// the pod's old row must find the lists that go with it.
pub const GRACE: Duration = Duration::from_secs(1);

/// The policies of this agent.
#[derive(Debug)]
pub struct Policies {
    in_use: HashMap<Arc<CompiledPolicy>, InUse>,
    retired: Vec<Retired>,
    /// Of earlier agents, complete, and not in use by this one.
    earlier: Vec<EarlierPolicy>,
    next: u32,
}

#[derive(Debug)]
struct InUse {
    id: PolicyId,
    pods: usize,
    /// Whether an earlier agent has written it. Rows of pods that this agent has not enrolled yet may name it.
    is_earlier: bool,
}

/// A policy that an earlier agent has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierPolicy {
    /// Its id.
    pub id: PolicyId,
    /// Its row.
    pub row: Policy,
    /// The rows of its lists.
    pub lists: ListRows,
}

/// A policy without pods.
#[derive(Clone, Debug)]
pub struct Retired {
    /// Its id.
    pub id: PolicyId,
    /// Its rows.
    pub policy: Arc<CompiledPolicy>,
    since: Instant,
    /// Whether its row is there. Without it no program reads the lists, but they must be removed.
    written: bool,
}

/// When there is room for a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Now.
    Now,
    /// Once the rows of retired policies are removed.
    Soon,
}

impl Retired {
    /// Whether its removal has not failed yet.
    #[must_use]
    pub fn is_first_try(&self) -> bool {
        self.written
    }

    fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= GRACE
    }
}

impl Policies {
    /// Starts above the highest id in the kernel. Pods of an earlier agent keep their policies until
    /// they are enrolled again, and then as well if those have not changed.
    #[must_use]
    pub fn after(highest: Option<PolicyId>, earlier: Vec<EarlierPolicy>) -> Self {
        Self {
            in_use: HashMap::new(),
            retired: Vec::new(),
            earlier,
            next: highest.map_or(1, |id| id.get().wrapping_add(1).max(1)),
        }
    }

    /// Whether there is room for a policy of a pod. `neighbors` are the policies of the other pods of its namespace,
    /// `own` is what it has so far.
    ///
    /// # Errors
    /// If its lists exceed the quota of a policy, of the namespace or of the node.
    pub fn check(
        &self,
        policy: &CompiledPolicy,
        neighbors: &BTreeSet<PolicyId>,
        own: Option<PolicyId>,
    ) -> Result<Room, Excess> {
        let mut of_namespace = ListSizes::default();
        let earlier = self.earlier.iter().map(|it| it.lists.sizes());
        let mut of_node = earlier.fold(ListSizes::default(), ListSizes::plus);
        for (other, used) in &self.in_use {
            let is_neighbors = neighbors.contains(&used.id);
            let is_it = **other == *policy;
            if is_it && is_neighbors {
                return Ok(Room::Now);
            }
            // What only this pod has goes when the new policy comes.
            if is_it || (own == Some(used.id) && used.pods == 1) {
                continue;
            }
            let sizes = other.list_sizes();
            of_node = of_node.plus(sizes);
            if is_neighbors {
                of_namespace = of_namespace.plus(sizes);
            }
        }
        quota::check(policy, &of_namespace, &of_node)?;
        let retired = self.retired.iter().map(|it| it.policy.list_sizes());
        let with_retired = retired.fold(of_node, ListSizes::plus);
        Ok(match quota::check(policy, &of_namespace, &with_retired) {
            Ok(()) => Room::Now,
            Err(_) => Room::Soon,
        })
    }

    /// The id under which a policy is written and the one copy of it, for one more pod; `None` if it has to be
    /// written.
    pub fn reuse(&mut self, policy: &CompiledPolicy) -> Option<(PolicyId, Arc<CompiledPolicy>)> {
        if let Some((shared, _)) = self.in_use.get_key_value(policy) {
            let shared = Arc::clone(shared);
            let used = self.in_use.get_mut(policy)?;
            used.pods += 1;
            return Some((used.id, shared));
        }
        let retired = |retired: &Retired| retired.written && *retired.policy == *policy;
        let retired = self.retired.iter().position(retired);
        let (id, is_earlier, policy) = match retired {
            Some(position) => {
                let retired = self.retired.swap_remove(position);
                (retired.id, false, retired.policy)
            }
            None => (self.take_earlier(policy)?, true, Arc::new(policy.clone())),
        };
        let pods = 1;
        let used = InUse {
            id,
            pods,
            is_earlier,
        };
        self.in_use.insert(Arc::clone(&policy), used);
        Some((id, policy))
    }

    /// The id that an earlier agent has given to a policy.
    fn take_earlier(&mut self, policy: &CompiledPolicy) -> Option<PolicyId> {
        let row = policy.row();
        let mut same_row = self.earlier.iter().filter(|it| it.row == row).peekable();
        same_row.peek()?;
        let lists = policy.list_rows();
        let id = same_row.find(|it| it.lists == lists)?.id;
        self.earlier.retain(|it| it.id != id);
        Some(id)
    }

    /// Rows of policies that no pod names were removed: these remain of earlier agents.
    pub fn swept(&mut self, earlier: Vec<EarlierPolicy>) {
        let own = self.ids();
        self.earlier = earlier;
        self.earlier.retain(|it| !own.contains(&it.id));
    }

    /// Whether there are policies of earlier agents that may still be used.
    #[must_use]
    pub fn has_earlier(&self) -> bool {
        !self.earlier.is_empty()
    }

    /// A new id. It is used up whatever follows.
    pub fn next_id(&mut self) -> PolicyId {
        let id = PolicyId::new(self.next);
        // 0 is no policy's id.
        self.next = self.next.wrapping_add(1).max(1);
        id
    }

    /// A policy was written, for one pod.
    pub fn written(&mut self, policy: &Arc<CompiledPolicy>, id: PolicyId) {
        let used = InUse {
            id,
            pods: 1,
            is_earlier: false,
        };
        self.in_use.insert(Arc::clone(policy), used);
    }

    /// A policy could not be written whole. What was written is removed with the retired ones.
    pub fn not_written(&mut self, policy: Arc<CompiledPolicy>, id: PolicyId, now: Instant) {
        self.retired.push(Retired {
            id,
            policy,
            since: now,
            written: false,
        });
    }

    /// A pod no longer uses a policy. Answers whether it is one of an earlier agent that is to be swept with the
    /// others, once no pod's row names it.
    pub fn release(&mut self, policy: &CompiledPolicy, now: Instant) -> bool {
        let Some(used) = self.in_use.get_mut(policy) else {
            return false;
        };
        used.pods -= 1;
        if used.pods > 0 {
            return false;
        }
        let (id, is_earlier) = (used.id, used.is_earlier);
        let Some((policy, _)) = self.in_use.remove_entry(policy) else {
            return false;
        };
        if is_earlier {
            self.earlier.push(EarlierPolicy {
                id,
                row: policy.row(),
                lists: policy.list_rows(),
            });
        } else {
            self.retired.push(Retired {
                id,
                policy,
                since: now,
                written: true,
            });
        }
        is_earlier
    }

    /// Takes a policy whose rows may be removed now. One that cannot be removed is passed to
    /// [`Policies::restore`].
    pub fn take_due(&mut self, now: Instant) -> Option<Retired> {
        let mut retired = self.retired.iter();
        let position = retired.position(|retired| retired.is_due(now))?;
        Some(self.retired.remove(position))
    }

    /// Whether there is one.
    #[must_use]
    pub fn has_due(&self, now: Instant) -> bool {
        self.retired.iter().any(|retired| retired.is_due(now))
    }

    /// A policy's rows could not be removed; it is tried again after a while. Parts of it may be gone.
    pub fn restore(&mut self, retired: Retired, now: Instant) {
        self.retired.push(Retired {
            since: now,
            written: false,
            ..retired
        });
    }

    /// The ids of this agent's policies, the retired ones included. Those of earlier agents are not among them until
    /// a pod uses them.
    #[must_use]
    pub fn ids(&self) -> BTreeSet<PolicyId> {
        let used = self.in_use.values().map(|used| used.id);
        used.chain(self.retired.iter().map(|retired| retired.id))
            .collect()
    }

    /// The policies that pods use.
    pub fn in_use(&self) -> impl Iterator<Item = (PolicyId, &CompiledPolicy)> {
        self.in_use
            .iter()
            .map(|(policy, used)| (used.id, &**policy))
    }
}

#[cfg(test)]
mod tests;
