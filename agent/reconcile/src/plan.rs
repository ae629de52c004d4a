//! The plan for a pod: pure functions from facts to actions, and from an action to the steps that
//! write the kernel in their order.

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
    /// Leave everything as it is; the text is a remark for people.
    Stay(Option<String>),
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
            Location::NoProcess if enrolled.same_reference => return vec![Action::Stay(None)],
            // A path that leads nowhere releases no pod that still has processes.
            Location::Unusable(problem) if enrolled.has_processes => {
                let remark = format!("{problem}; it stays enrolled in its namespace");
                return vec![Action::Stay(Some(remark))];
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

/// Exclusions of interfaces are not part of a policy's rows. Those that another policy adds are
/// written before it is active, those that it drops are removed after. In between, a connection over
/// such an interface is untouched, as one of the two policies says; all others are decided by one of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The policy is about to be active.
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
    /// on interfaces follow as well.
    WriteNamespace(&'a Policy, Phase),
    /// Prepares the capture of IPv6, if the pod has IPv6: adds `::6` to lo. A pod that loses its
    /// IPv6 addresses keeps the capture, as istio-init's rules stay as well.
    CaptureV6(&'a Policy),
    /// Adds the route that the app's answers to the sidecar need in mode TPROXY, after [`Step::CaptureV6`]. Removes it
    /// in other modes.
    SetReturnRoute(&'a Policy),
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
    /// The action has failed, and nothing of it is active.
    Abort,
    /// The action is done; addresses and routes are read again later.
    Stale,
}

/// Steps with what follows when one fails.
pub type Steps<'a, P> = Vec<(Step<'a, P>, OnFailure)>;

/// The steps of an enrollment. The policy's rows are there already.
#[must_use]
pub fn enroll<'a, P>(
    policy: &'a Policy,
    id: PolicyId,
    starting: bool,
    processes: &'a P,
) -> Steps<'a, P> {
    use OnFailure::{Abort, Stale};
    let passes = starting && policy.before_sidecar;
    let mut steps = vec![
        (Step::ReadNamespace, Abort),
        (Step::CaptureV6(policy), Abort),
        (Step::SetReturnRoute(policy), Abort),
        (Step::WriteNamespace(policy, Phase::Before), Abort),
        (Step::AttachPrograms, Abort),
        (Step::AdoptListeners(policy, processes), Abort),
    ];
    if passes {
        steps.push((Step::AllowBeforeSidecar(policy), Abort));
    }
    steps.push((Step::WritePod(policy, id), Abort));
    if passes {
        // It may have begun to listen before the kernel programs could see that.
        steps.push((Step::EndBeforeSidecar(policy), Stale));
    }
    steps.push((Step::WriteNamespace(policy, Phase::After), Stale));
    steps
}

/// The steps of a change of policy. Everything that may take time comes before the pod's row.
#[must_use]
pub fn change_policy<'a, P>(policy: &'a Policy, id: PolicyId, processes: &'a P) -> Steps<'a, P> {
    use OnFailure::{Abort, Stale};
    vec![
        (Step::ReadNamespace, Abort),
        (Step::WriteNamespace(policy, Phase::Before), Abort),
        (Step::AdoptListeners(policy, processes), Abort),
        (Step::WritePod(policy, id), Abort),
        // The sidecar may listen on what has become the outbound port only now.
        (Step::EndBeforeSidecar(policy), Stale),
        (Step::WriteNamespace(policy, Phase::After), Stale),
        (Step::CaptureV6(policy), Stale),
        (Step::SetReturnRoute(policy), Stale),
    ]
}

/// The steps that follow changes of addresses and routes.
#[must_use]
pub fn refresh<P>(policy: &Policy) -> Steps<'_, P> {
    use OnFailure::Stale;
    vec![
        (Step::ReadNamespace, Stale),
        (Step::WriteNamespace(policy, Phase::After), Stale),
        (Step::CaptureV6(policy), Stale),
        (Step::SetReturnRoute(policy), Stale),
    ]
}

/// The steps that remove a pod. All are tried, whatever becomes of the others.
#[must_use]
pub fn leave<P>() -> Vec<Step<'static, P>> {
    vec![
        Step::RemovePod,
        Step::DetachPrograms,
        Step::RemoveBeforeSidecar,
        Step::RemoveHandshakeCount,
        Step::RemoveRoutes,
        Step::RemoveIfaces,
        Step::RemoveListeners,
        Step::RemoveCounters,
        Step::RestoreNamespace,
    ]
}

#[cfg(test)]
mod tests;
