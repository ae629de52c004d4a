//! The plan for a pod: pure functions from facts to actions, and from a change to the steps that write
//! the kernel, in the one order that they have.

use sidetrack_common::ids::{NetnsInode, PolicyId};
use sidetrack_policy::Policy;

/// What is known of a pod that is to be enrolled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its enrollment by this agent.
    pub enrolled: Option<EnrolledFacts>,
    /// Where its namespace is now.
    pub location: Location,
}

/// What is known of an enrollment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrolledFacts {
    /// Inode of the namespace it is enrolled in.
    pub inode: NetnsInode,
    /// Whether the manifest still names the namespace in the same way.
    pub same_reference: bool,
    /// Whether the path it was found by still leads to that namespace, and that is the pod's for certain.
    pub path_leads_there: bool,
    /// Whether any process is in that namespace, or may be. It matters only if the location is unusable.
    pub has_processes: bool,
    /// Whether the active policy is the wanted one.
    pub same_policy: bool,
    /// Whether the kernel's copy of addresses and routes may be out of date.
    pub stale: bool,
}

/// Where a pod's namespace is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// It can be opened.
    At(NetnsInode),
    /// None of the pod's processes runs.
    NoProcess,
    /// The path leads to nothing that can be enrolled; why.
    Unusable(String),
}

/// What is to be done for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Remember the new path of the same namespace.
    FollowPath,
    /// Keep the namespace that it is enrolled in; the text is a remark for people.
    Stay(String),
    /// Give the enrollment up: its namespace was replaced. Processes that still run there stay
    /// intercepted.
    Depart,
    /// Enroll it.
    Enroll,
    /// Activate another policy for new connections.
    ChangePolicy,
    /// Read addresses and routes again.
    Refresh,
}

/// Decides what brings a pod from where it is to where it should be.
#[must_use]
pub fn plan(facts: &Facts) -> Vec<Action> {
    let Some(enrolled) = &facts.enrolled else {
        return vec![Action::Enroll];
    };
    let mut actions = Vec::new();
    if !(enrolled.same_reference && enrolled.path_leads_there) {
        match &facts.location {
            Location::At(inode) if *inode == enrolled.inode => actions.push(Action::FollowPath),
            // Between two containers a pod may have no process. Its namespace is kept meanwhile.
            Location::NoProcess if enrolled.same_reference => {}
            // A path that leads nowhere releases no pod that still has processes.
            Location::Unusable(problem) if enrolled.has_processes => {
                let remark = format!("{problem}; it stays enrolled in its namespace");
                actions.push(Action::Stay(remark));
            }
            _ => return vec![Action::Depart, Action::Enroll],
        }
    }
    if !enrolled.same_policy {
        actions.push(Action::ChangePolicy);
    }
    if enrolled.stale {
        actions.push(Action::Refresh);
    }
    actions
}

/// What other policies needed goes after the policy is active; what the policy needs is there before. In between, a
/// connection is decided by one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The policy is about to be active: nothing is removed that the one before needs.
    Before,
    /// It is active.
    After,
}

/// One step for one pod.
#[derive(Debug)]
pub enum Step<'a, P> {
    /// Reads addresses, routes and interfaces. Later steps use what was read.
    ReadNamespace,
    /// Writes routes and interface rows for a policy, and adds the route to IPv6 targets. In phase [`Phase::After`] the programs
    /// on interfaces and the flags of the pod's row follow as well.
    WriteNamespace(&'a Policy, Phase),
    /// Prepares the capture of IPv6, if the pod has IPv6: adds `::6` to lo. A pod that loses its
    /// IPv6 addresses keeps the capture, as istio-init's rules stay as well.
    CaptureV6(&'a Policy),
    /// Adds the route that the app's answers to the sidecar need in mode TPROXY, after [`Step::CaptureV6`]. Removes what
    /// other policies needed in phase [`Phase::After`].
    SetReturnRoute(&'a Policy, Phase),
    /// Attaches the sk_lookup program, and the connection callbacks to the pod's own cgroup.
    AttachPrograms,
    /// Puts the sidecar's open listeners into the map.
    AdoptListeners(&'a Policy, &'a P),
    /// Lets outbound connections pass until the sidecar listens, unless it does.
    AllowBeforeSidecar(&'a Policy),
    /// Writes the pod's row: from here on its connections are decided by this policy. Attaches and detaches what only some
    /// policies ask for: DNS capture, acceleration.
    WritePod(&'a Policy, PolicyId),
    /// Ends [`Step::AllowBeforeSidecar`] if the sidecar listens.
    EndBeforeSidecar(&'a Policy),
    /// Removes the pod's row: its connections are untouched from here on.
    RemovePod,
    /// Detaches all programs of the pod.
    DetachPrograms,
    /// Removes the leave that [`Step::AllowBeforeSidecar`] gave.
    RemoveBeforeSidecar,
    /// Removes the count of handshakes.
    RemoveHandshakeCount,
    /// Removes routes.
    RemoveRoutes,
    /// Removes interface rows.
    RemoveIfaces,
    /// Removes listeners from the map; the sockets stay open.
    RemoveListeners,
    /// Removes connection counters.
    RemoveCounters,
    /// Removes what [`Step::CaptureV6`] and [`Step::SetReturnRoute`] added. The namespace may be gone.
    RestoreNamespace,
}

/// What follows a failed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The change has failed, and nothing of it is active.
    Abort,
    /// The other steps are done; all of it is done again later.
    Stale,
    /// Nothing more is done; all of it is done again later.
    Stop,
}

/// What brings a pod's rows to a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// They are not there, or are another agent's.
    Enroll {
        /// Whether connections may pass until the sidecar listens.
        passes: bool,
    },
    /// They are another policy's.
    Policy,
    /// They are this policy's; addresses and routes may have changed.
    Refresh,
}

/// Steps with what follows when one fails.
pub type Steps<'a, P> = Vec<(Step<'a, P>, OnFailure)>;

/// The steps of a change, in the only order that there is: after each of them, a connection of the pod is decided by the
/// policy before as a whole, by this one as a whole, or refused. The policy's own rows are there already.
#[must_use]
pub fn write<'a, P>(
    change: Change,
    policy: &'a Policy,
    id: PolicyId,
    processes: &'a P,
) -> Steps<'a, P> {
    use Phase::{After, Before};
    let [abort, stale, stop] = [OnFailure::Abort, OnFailure::Stale, OnFailure::Stop].map(Some);
    let passes = change == Change::Enroll { passes: true };
    let (allow, end) = (abort.filter(|_| passes), stale.filter(|_| passes));
    // Each with what a failure means in an enrollment, in a change of policy and in a refresh.
    let steps = [
        // All that follows is computed from it.
        (Step::ReadNamespace, abort, abort, stop),
        // The route of its targets is written with the namespace; its flag with the pod's row. IPv6 that is not captured
        // was not captured before either: no reason to keep the policy before.
        (Step::CaptureV6(policy), abort, stale, stale),
        // For the families that are captured. Without it a connection to a transparent sidecar gets no answer.
        (Step::SetReturnRoute(policy, Before), abort, abort, stale),
        // Exclusions that are added count before the policy does, those that are dropped until it does.
        (Step::WriteNamespace(policy, Before), abort, abort, None),
        // Without them a packet from outside would pass the sidecar.
        (Step::AttachPrograms, abort, None, None),
        // A sidecar that is not in the map is one that is down.
        (Step::AdoptListeners(policy, processes), abort, abort, None),
        // Without it the row refuses what the policy lets pass.
        (Step::AllowBeforeSidecar(policy), allow, None, None),
        // From here on the policy is active.
        (Step::WritePod(policy, id), abort, abort, None),
        // The sidecar may have begun to listen before the programs could see it, or listens on what has become the
        // outbound port only now.
        (Step::EndBeforeSidecar(policy), end, stale, None),
        // The policy that needed them is active no more.
        (Step::WriteNamespace(policy, After), stale, stale, stale),
        (Step::SetReturnRoute(policy, After), stale, stale, stale),
    ];
    let of_change = steps
        .into_iter()
        .filter_map(|(step, enroll, other, refresh)| {
            let on_failure = match change {
                Change::Enroll { .. } => enroll,
                Change::Policy => other,
                Change::Refresh => refresh,
            };
            Some((step, on_failure?))
        });
    of_change.collect()
}

/// The steps that remove a pod. All are tried, whatever becomes of the others.
#[must_use]
pub fn remove<P>() -> [Step<'static, P>; 9] {
    [
        // Programs look at nothing else of a pod that has no row.
        Step::RemovePod,
        Step::DetachPrograms,
        Step::RemoveBeforeSidecar,
        Step::RemoveHandshakeCount,
        Step::RemoveRoutes,
        Step::RemoveIfaces,
        Step::RemoveListeners,
        Step::RemoveCounters,
        // Last: a packet that was redirected still uses it.
        Step::RestoreNamespace,
    ]
}

#[cfg(test)]
mod tests;
