//! How much one turn writes. Between two turns other events are handled: a pod with short lists does not wait until
//! those with long ones are written.

use std::{collections::VecDeque, time::Duration};

use sidetrack_policy::{
    PodRef,
    compiled::{CompiledPolicy, ListSizes},
};

use super::Core;
use crate::node::Node;

/// Rows of lists that a turn writes or removes before it ends. The policy that exceeds them is written whole, which
/// has at most an eighth of the maps' rows.
pub(super) const MAX_ROWS: usize = 8_192;

/// How long a turn opens namespaces that are released. Beyond it their rows are removed without.
const MAX_OPENING: Duration = Duration::from_secs(1);

/// What a turn has done, and what remains for the next ones.
#[derive(Debug, Default)]
pub(super) struct Turn {
    rows: usize,
    /// What opening and reading namespaces that are released took.
    opening: Duration,
    /// Pods with long lists, in the order in which they were found to be due.
    long: VecDeque<PodRef>,
}

impl Turn {
    pub(super) fn begin(&mut self) {
        self.rows = 0;
        self.opening = Duration::ZERO;
    }

    /// Whether a namespace that is released may be opened. Pods may have any number, and take long to read.
    pub(super) fn may_open(&self) -> bool {
        self.opening < MAX_OPENING
    }

    /// One was opened.
    pub(super) fn opened(&mut self, took: Duration) {
        self.opening += took;
    }

    /// Lists were written or removed.
    pub(super) fn add(&mut self, policy: &CompiledPolicy) {
        self.rows += rows(policy);
    }

    /// Rows that may still be written.
    pub(super) fn remaining(&self) -> usize {
        MAX_ROWS.saturating_sub(self.rows)
    }

    /// Leaves a pod to a later part of the turn, or to another one.
    pub(super) fn push(&mut self, pod: PodRef) {
        if !self.long.contains(&pod) {
            self.long.push_back(pod);
        }
    }

    /// A pod with long lists whose turn it is.
    pub(super) fn pop(&mut self) -> Option<PodRef> {
        if self.remaining() == 0 {
            return None;
        }
        self.long.pop_front()
    }
}

/// How many rows the lists of a policy have at most.
pub(crate) fn rows(policy: &CompiledPolicy) -> usize {
    let ListSizes {
        ports,
        ranges,
        owners,
    } = policy.list_sizes();
    ports + ranges + owners
}

impl<N: Node> Core<N> {
    /// Whether [`Core::proceed`] has something to do.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.turn.long.is_empty() || self.policies.has_due(self.node.now())
    }

    /// Continues with what remains of the last turn.
    pub async fn proceed(&mut self) {
        self.turn.begin();
        self.tidy_policies();
        let mut tried = Vec::new();
        self.converge_long(&mut None, &mut tried).await;
        self.adopt(&tried).await;
    }

    /// Converges pods with long lists, as many as a turn may. Adds those that were enrolled.
    pub(super) async fn converge_long(
        &mut self,
        processes: &mut Option<N::Processes>,
        enrolled: &mut Vec<PodRef>,
    ) {
        while let Some(name) = self.turn.pop() {
            self.try_again(&name, processes, enrolled).await;
        }
    }
}
