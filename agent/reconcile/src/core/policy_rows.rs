//! The rows of policies: each is written before the first pod names it, and removed when no pod has named it for a while.

use std::{io, sync::Arc};

use sidetrack_common::ids::PolicyId;
use sidetrack_policy::{PodRef, compiled::CompiledPolicy};
use tracing::error;

use super::Core;
use crate::{
    node::{EnrollError, Node, NodeError, PolicyRows as _},
    policies::{GRACE, Room},
    state::{Record, SLOW_RETRY},
};

impl<N: Node> Core<N> {
    /// Whether the lists of a pod's new policy have room.
    pub(super) fn check_quota(
        &self,
        name: &PodRef,
        policy: &CompiledPolicy,
    ) -> Result<(), EnrollError> {
        let own = self.pods.get(name).and_then(Record::enrollment);
        let in_namespace = |other: &PodRef| other != name && other.namespace == name.namespace;
        let neighbors = self.enrollments().filter(|(other, _)| in_namespace(other));
        let neighbors = neighbors.map(|(_, it)| it.policy_id).collect();
        let own = own.map(|it| it.policy_id);
        match self.policies.check(policy, &neighbors, own)? {
            Room::Now => Ok(()),
            Room::Soon => Err(NodeError::NotYet(
                "the rows of policies that were in use until now are removed first".to_owned(),
            )
            .into()),
        }
    }

    /// The id of a policy, written if it is new, for a pod that has not used it so far.
    pub(super) fn acquire(
        &mut self,
        name: &PodRef,
        policy: CompiledPolicy,
    ) -> Result<(PolicyId, Arc<CompiledPolicy>), EnrollError> {
        self.check_quota(name, &policy)?;
        if let Some(shared) = self.policies.reuse(&policy) {
            return Ok(shared);
        }
        let policy = Arc::new(policy);
        let id = self.policies.next_id();
        self.turn.add(&policy);
        let rows = self.node.policies();
        let lists = rows.write_lists(id, &policy);
        // The row comes last: a policy whose row is there is complete.
        let written = lists.and_then(|()| rows.write_row(id, &policy));
        match written {
            Ok(()) => {
                self.policies.written(&policy, id);
                Ok((id, policy))
            }
            Err(error) => {
                // No pod row has named it, so what was written goes at once.
                let removed = rows.remove_row(id);
                let removed = removed.and_then(|()| rows.remove_lists(id, &policy));
                if removed.is_err() {
                    let now = self.node.now();
                    self.policies.not_written(policy, id, now);
                }
                Err(NodeError::Failed(format!(
                    "write the policy; if a map is full, shorten the pods' port and CIDR lists: {error}"
                ))
                .into())
            }
        }
    }

    /// A row of an earlier agent's pod was replaced or removed: its policy may be out of use.
    pub(super) fn sweep_later(&mut self) {
        self.sweep_at = Some(self.node.now() + GRACE);
    }

    /// Removes policies of earlier agents that no pod's row names. The others may still be used.
    fn sweep_policies(&mut self) -> io::Result<()> {
        let rows = self.node.policies();
        rows.sweep(&self.policies.ids())?;
        if self.policies.has_earlier() {
            let earlier = rows.complete()?;
            self.policies.swept(earlier);
        }
        Ok(())
    }

    /// Removes the rows of policies that have been out of use for long enough.
    pub(super) fn tidy_policies(&mut self) {
        let now = self.node.now();
        while self.turn.remaining() > 0
            && let Some(retired) = self.policies.take_due(now)
        {
            self.turn.add(&retired.policy);
            let rows = self.node.policies();
            let removed = rows.remove_row(retired.id);
            let removed = removed.and_then(|()| rows.remove_lists(retired.id, &retired.policy));
            if let Err(problem) = removed {
                if retired.is_first_try() {
                    error!(policy = %retired.id, "remove the rows of a policy: {problem}");
                }
                self.policies.restore(retired, now);
            }
        }
        if self.sweep_at.is_some_and(|at| now >= at) {
            match self.sweep_policies() {
                Ok(()) => self.sweep_at = None,
                Err(problem) => {
                    error!("remove policies of an earlier agent: {problem}");
                    self.sweep_at = Some(now + SLOW_RETRY);
                }
            }
        }
    }
}
