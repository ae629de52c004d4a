//! The pods of a node: what is wanted of each, what has become of it, and the rows of earlier agents.

mod adoption;
mod apply;
mod converge;
mod enroll;
mod held;
mod leave;
mod policy_rows;
mod repair;
mod retry;
mod sandboxes;
mod turn;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::{PodRef, manifest::NetnsRef, mesh::Mesh};
use tracing::warn;

use self::{held::HeldNamespaces, repair::Repairs, sandboxes::Sandboxes, turn::Turn};
use crate::{
    events::{NOT_ENROLLED, POLICY_REJECTED, PodEvent, UNKNOWN_ANNOTATION},
    node::{EarlierRows, Enrollment, Link as _, Node, NodeError, PolicyRows as _, Processes as _},
    policies::Policies,
    state::{Desired, Record},
};

/// The reconciler's state, and the node it works on.
#[derive(Debug)]
pub struct Core<N: Node> {
    /// The node.
    pub node: N,
    policies: Policies,
    pods: BTreeMap<PodRef, Record<N>>,
    held: HeldNamespaces<N>,
    mesh: Mesh,
    next_adoption: Instant,
    turn: Turn,
    repairs: Repairs,
    sandboxes: Sandboxes,
    events: Vec<PodEvent>,
    /// How long pods that were enrolled had waited for it.
    enrollment_waits: Vec<Duration>,
    changed: bool,
    /// [`Listing::running_counts`](crate::Listing::running_counts) of the last complete listing.
    running_counts: Option<bool>,
    /// Whether the last listing was complete.
    listed_all: bool,
    /// When rows of policies that no pod names may be removed.
    sweep_at: Option<Instant>,
    /// Problems that belong to no pod, as they were last listed.
    pub problems: Vec<String>,
}

impl<N: Node> Core<N> {
    /// Adopts the rows of earlier agents in the kernel.
    ///
    /// # Errors
    /// If the kernel's maps cannot be read.
    pub async fn new(mut node: N, mesh: Mesh) -> Result<Self, NodeError> {
        let held = HeldNamespaces::new(node.earlier_rows()?);
        let rows = node.policies();
        let policies = Policies::after(rows.highest()?, rows.complete()?);
        let now = node.now();
        let mut core = Self {
            policies,
            held,
            node,
            pods: BTreeMap::new(),
            mesh,
            next_adoption: now,
            turn: Turn::default(),
            repairs: Repairs::default(),
            sandboxes: Sandboxes::default(),
            events: Vec::new(),
            enrollment_waits: Vec::new(),
            changed: true,
            running_counts: None,
            listed_all: false,
            sweep_at: None,
            problems: Vec::new(),
        };
        core.refresh_programs().await;
        Ok(core)
    }

    /// The pods, by name.
    pub fn pods(&self) -> impl Iterator<Item = (&PodRef, &Record<N>)> {
        self.pods.iter()
    }

    /// Every enrollment of this agent, also of pods whose names other pods now have.
    pub fn enrollments(&self) -> impl Iterator<Item = (&PodRef, &Enrollment<N>)> {
        enrollments(&self.pods, &self.held)
    }

    /// The enrollments, and the node they are on.
    pub fn enrollments_mut(
        &mut self,
    ) -> (&mut N, impl Iterator<Item = (&PodRef, &mut Enrollment<N>)>) {
        let pods = self.pods.iter_mut();
        let named = pods.filter_map(|(name, record)| Some((name, record.enrollment_mut()?)));
        (&mut self.node, named.chain(self.held.departing_mut()))
    }

    /// The namespaces with rows that some agent wrote on purpose: this one's enrollments, and those of
    /// earlier agents.
    #[must_use]
    pub fn known_cookies(&self) -> BTreeSet<NetnsCookie> {
        let own = self.enrollments().map(|(_, enrollment)| enrollment.cookie);
        let earlier = self.held.earlier().map(|it| it.cookie);
        own.chain(earlier).collect()
    }

    /// The node's processes, as far as they are in namespaces with rows.
    pub(crate) fn processes(&self) -> N::Processes {
        let own = self.enrollments().map(|(_, it)| it.inode);
        let earlier = self.held.earlier().map(|it| it.inode);
        self.node.processes(own.chain(earlier).collect())
    }

    /// The policies that pods use.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// Pods that earlier agents enrolled and this one could not: cookie, inode, name.
    pub fn pods_of_earlier_agents(&self) -> Vec<(NetnsCookie, NetnsInode, PodRef)> {
        let named = |it: &EarlierRows<N::Rows>| Some((it.cookie, it.inode, it.pod.clone()?));
        self.held.earlier().filter_map(named).collect()
    }

    /// Whether processes keep a pod enrolled that is not listed; `None` before the first complete
    /// listing.
    #[must_use]
    pub fn running_counts(&self) -> Option<bool> {
        self.running_counts
    }

    /// Takes the events since the last call.
    pub fn drain_events(&mut self) -> Vec<PodEvent> {
        std::mem::take(&mut self.events)
    }

    /// Takes how long each pod that was enrolled since the last call had waited, from when it was first
    /// known to be one to enroll.
    pub fn drain_enrollment_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.enrollment_waits)
    }

    /// Whether anything that is published may have changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Something that is published has changed.
    pub fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Sets other mesh-wide settings. They take effect with the next [`Core::apply`].
    pub fn set_mesh(&mut self, mesh: Mesh) {
        self.mesh = mesh;
        for record in self.pods.values_mut() {
            if let Some(read) = &mut record.read {
                read.is_stale = true;
            }
        }
    }

    /// The source cannot be read. Everything stays as it is.
    pub fn cannot_list(&mut self, problem: String) {
        self.problems = vec![problem];
        self.listed_all = false;
        self.changed = true;
    }

    /// Reads addresses and routes of namespaces again.
    pub async fn namespaces_changed(&mut self, cookies: &BTreeSet<NetnsCookie>) {
        let mut changed = false;
        let (node, enrollments) = self.enrollments_mut();
        for (name, enrollment) in enrollments {
            if !cookies.contains(&enrollment.cookie) {
                continue;
            }
            changed = true;
            if enrollment.refresh_at.is_some_and(|at| node.now() < at) {
                enrollment.stale = true;
            } else if let Err(problem) = converge::refresh(node, enrollment).await {
                warn!(pod = %name, "follow the pod's routes: {problem}");
            }
        }
        self.changed |= changed;
    }

    /// UIDs of the pods that wait for their first process.
    pub fn awaited(&self) -> impl Iterator<Item = &str> {
        self.pods.values().filter_map(|record| {
            // Pods that fail for another reason are retried slowly.
            let waits = record.state() == crate::PodState::Waiting;
            match &record.desired {
                Desired::Enroll(goal) if waits => match &goal.netns {
                    NetnsRef::PodUid(uid) => Some(uid.as_str()),
                    NetnsRef::Path(_) => None,
                },
                _ => None,
            }
        })
    }

    /// Enrolls a pod that waits for its first process, if that is among these. To be followed by
    /// [`Core::proceed`].
    pub async fn enroll_awaited(&mut self, uid: &str, processes: N::Processes) {
        let mut pods = self.pods.iter();
        let of_uid = |(_, record): &(&PodRef, &Record<N>)| record.uid.as_deref() == Some(uid);
        let Some((name, record)) = pods.find(of_uid) else {
            return;
        };
        if processes.netns_of_pod(record.sought(uid, None)).is_err() {
            return;
        }
        let name = name.clone();
        if self.has_long_lists(&name) {
            self.turn.push(name);
            return;
        }
        self.converge(&name, &mut Some(processes)).await;
        self.changed = true;
        self.adopt(&[name]).await;
    }

    fn is_stale(&self, enrollment: &Enrollment<N>) -> bool {
        enrollment.stale || !enrollment.link.is_alive()
    }

    fn record_event(&mut self, pod: &PodRef, reason: &'static str, note: String) {
        self.events.push(PodEvent {
            pod: pod.clone(),
            uid: self.pods.get(pod).and_then(|record| record.uid.clone()),
            reason,
            note,
            warning: matches!(reason, POLICY_REJECTED | NOT_ENROLLED | UNKNOWN_ANNOTATION),
        });
    }

    /// What people see of a pod.
    fn shown(&self, name: &PodRef) -> Shown {
        let record = self.pods.get(name);
        let enrollment = record.and_then(Record::enrollment);
        Shown {
            cookie: enrollment.map(|it| it.cookie),
            policy: enrollment.map(|it| it.policy_id),
            state: record.map(Record::state),
            reason: record.and_then(|it| it.reason().map(str::to_owned)),
            doubt: enrollment.and_then(|it| it.doubt.clone()),
            notes: enrollment.map(Enrollment::notes).unwrap_or_default(),
        }
    }
}

/// The same while the node is borrowed.
fn enrollments<'a, N: Node>(
    pods: &'a BTreeMap<PodRef, Record<N>>,
    held: &'a HeldNamespaces<N>,
) -> impl Iterator<Item = (&'a PodRef, &'a Enrollment<N>)> {
    let named = pods.iter();
    let named = named.filter_map(|(name, record)| Some((name, record.enrollment()?)));
    named.chain(held.departing())
}

#[derive(Debug, PartialEq, Eq)]
struct Shown {
    cookie: Option<NetnsCookie>,
    policy: Option<PolicyId>,
    state: Option<crate::PodState>,
    reason: Option<String>,
    doubt: Option<String>,
    notes: Vec<String>,
}
