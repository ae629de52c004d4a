//! Writes of the node, with the invariants that hold at each.

use std::collections::BTreeSet;

use sidetrack_common::ids::{NetnsCookie, PolicyId};
use sidetrack_policy::{Policy, compiled::CompiledPolicy};
use sidetrack_reconcile::{NodeError, Phase, Step};

use crate::{node::FakeProcesses, rows::FakeRows, world::World};

/// Kinds of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ReadNamespace,
    WriteBefore,
    WriteAfter,
    CaptureV6,
    AddReturnRoute,
    SetReturnRoute,
    AttachPrograms,
    AdoptListeners,
    AllowBeforeSidecar,
    WritePod,
    EndBeforeSidecar,
    RemovePod,
    DetachPrograms,
    RemoveBeforeSidecar,
    RemoveHandshakeCount,
    RemoveRoutes,
    RemoveIfaces,
    RemoveListeners,
    RemoveCounters,
    RestoreNamespace,
    WriteLists,
    WritePolicy,
    RemovePolicy,
    RemoveLists,
    SweepPolicies,
    RefreshProgram,
}

/// A write with what it needs, so that a sabotage can do it later.
#[derive(Clone, Debug)]
pub struct Op {
    pub kind: Kind,
    pub policy: Option<Policy>,
    pub id: Option<PolicyId>,
    pub compiled: Option<CompiledPolicy>,
    pub processes: FakeProcesses,
    pub keep: BTreeSet<PolicyId>,
}

impl Op {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            policy: None,
            id: None,
            compiled: None,
            processes: FakeProcesses::default(),
            keep: BTreeSet::new(),
        }
    }

    pub fn of_policy(kind: Kind, id: PolicyId, compiled: &CompiledPolicy) -> Self {
        Self {
            id: Some(id),
            compiled: Some(compiled.clone()),
            ..Self::new(kind)
        }
    }

    pub fn of_step(step: &Step<'_, FakeProcesses>) -> Self {
        let with = |kind, policy: &Policy| Self {
            policy: Some(policy.clone()),
            ..Self::new(kind)
        };
        match step {
            Step::ReadNamespace => Self::new(Kind::ReadNamespace),
            Step::WriteNamespace(policy, Phase::Before) => with(Kind::WriteBefore, policy),
            Step::WriteNamespace(policy, Phase::After) => with(Kind::WriteAfter, policy),
            Step::CaptureV6(policy) => with(Kind::CaptureV6, policy),
            Step::SetReturnRoute(policy, Phase::Before) => with(Kind::AddReturnRoute, policy),
            Step::SetReturnRoute(policy, Phase::After) => with(Kind::SetReturnRoute, policy),
            Step::AttachPrograms => Self::new(Kind::AttachPrograms),
            Step::AdoptListeners(policy, processes) => Self {
                processes: (*processes).clone(),
                ..with(Kind::AdoptListeners, policy)
            },
            Step::AllowBeforeSidecar(policy) => with(Kind::AllowBeforeSidecar, policy),
            Step::WritePod(policy, id) => Self {
                id: Some(*id),
                ..with(Kind::WritePod, policy)
            },
            Step::EndBeforeSidecar(policy) => with(Kind::EndBeforeSidecar, policy),
            Step::RemovePod => Self::new(Kind::RemovePod),
            Step::DetachPrograms => Self::new(Kind::DetachPrograms),
            Step::RemoveBeforeSidecar => Self::new(Kind::RemoveBeforeSidecar),
            Step::RemoveHandshakeCount => Self::new(Kind::RemoveHandshakeCount),
            Step::RemoveRoutes => Self::new(Kind::RemoveRoutes),
            Step::RemoveIfaces => Self::new(Kind::RemoveIfaces),
            Step::RemoveListeners => Self::new(Kind::RemoveListeners),
            Step::RemoveCounters => Self::new(Kind::RemoveCounters),
            Step::RestoreNamespace => Self::new(Kind::RestoreNamespace),
        }
    }
}

impl World {
    /// Does a write, after the checks that hold before it. A write of several rows that fails has
    /// written half of them.
    pub fn perform(
        &mut self,
        target: Option<(NetnsCookie, &mut FakeRows)>,
        op: Op,
    ) -> Result<(), NodeError> {
        let failed = self.begin_write(&format!("{:?}", op.kind));
        if self.faults.crashed {
            return failed;
        }
        let whole = failed.is_ok();
        let Some((cookie, rows)) = target else {
            self.perform_policy(&op, whole);
            return failed;
        };
        if op.kind >= Kind::RemovePod {
            self.perform_removal(cookie, rows, op.kind, whole);
        } else {
            self.check_target(cookie, rows, op.kind);
            self.perform_write(cookie, rows, &op, whole);
        }
        failed
    }

    fn perform_policy(&mut self, op: &Op, whole: bool) {
        match (op.kind, op.id, &op.compiled) {
            (Kind::WriteLists, Some(id), Some(policy)) => self.write_lists(id, policy, whole),
            (Kind::RemoveLists, Some(id), _) => self.remove_lists(id, whole),
            (Kind::WritePolicy, Some(id), Some(policy)) if whole => self.write_policy(id, policy),
            (Kind::RemovePolicy, Some(id), _) if whole => self.remove_policy(id),
            (Kind::SweepPolicies, ..) if whole => self.sweep(&op.keep),
            _ => {}
        }
    }
}

impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (*self as u8).partial_cmp(&(*other as u8))
    }
}
