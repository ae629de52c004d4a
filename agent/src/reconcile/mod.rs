//! Makes the kernel's maps agree with the pods that are wanted.
//!
//! Invariants: a pod's row appears last when it is enrolled and disappears first when it leaves, so
//! that whatever judges its connections is complete; nothing done for one pod depends on another.

mod adoption;
mod enrollment;
mod entry;
mod handshakes;
mod health;
mod inherited;
mod release;
mod sandbox;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Instant,
};

use anyhow::Result;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

pub use self::entry::Entry;
pub use self::health::Health;
pub use self::inherited::names as inherited_name;
use self::{
    enrollment::Enrollment,
    entry::{EAGER, Goal, Look, PATIENT_TRY},
    handshakes::Lingering,
    inherited::Inherited,
    sandbox::Told,
};
use crate::{
    api::PodState,
    kernel::{Datapath, policies::Policies},
    listing::Listing,
    netns::{
        Netns, NetnsError,
        processes::{Found, Processes},
    },
    sources::cluster::PodEvent,
};
use sidetrack_policy::{
    PodRef,
    manifest::{Document, NetnsRef},
    mesh::Mesh,
    record::istio_init,
    select::{self as pod, NotTaken, Wanted},
};

/// Reasons of Events, as `kubectl describe pod` shows them.
const ENROLLED: &str = "Enrolled";
const POLICY_CHANGED: &str = "PolicyChanged";
const POLICY_REJECTED: &str = "PolicyRejected";
const NOT_ENROLLED: &str = "NotEnrolled";
const RELEASED: &str = "Released";

/// The agent's only writer of maps and links.
#[derive(Debug)]
pub struct Reconciler {
    datapath: Datapath,
    policies: Policies,
    pods: BTreeMap<PodRef, Entry>,
    by_cookie: HashMap<u64, PodRef>,
    inherited: Inherited,
    /// Pods whose names others have taken while they still run.
    departing: Vec<(PodRef, Enrollment)>,
    mesh: Mesh,
    changed: mpsc::UnboundedSender<u64>,
    look_for_listeners: Instant,
    /// Namespaces the CNI plugin told of, by pod UID.
    sandboxes: BTreeMap<String, Told>,
    /// What people are to be told, until [`Reconciler::news`].
    happenings: Vec<PodEvent>,
    /// Whether anything that is published may be different.
    dirty: bool,
    /// [`Listing::running_counts`] of the last complete listing.
    running_counts: Option<bool>,
    /// Whether the last listing was complete.
    listed_all: bool,
    /// Problems that belong to no pod, as they were last listed.
    pub problems: Vec<String>,
    health: Health,
    lingering: Lingering,
}

impl Reconciler {
    /// Takes over what an earlier agent left. Cookies of namespaces that change are sent on
    /// `changed`; give them to [`Reconciler::namespaces_changed`].
    pub fn new(
        datapath: Datapath,
        mesh: Mesh,
        changed: mpsc::UnboundedSender<u64>,
    ) -> Result<Self> {
        let inherited = Inherited::take_over(&datapath)?;
        Ok(Self {
            policies: Policies::new(&datapath.maps)?,
            datapath,
            pods: BTreeMap::new(),
            by_cookie: HashMap::new(),
            inherited,
            departing: Vec::new(),
            mesh,
            changed,
            look_for_listeners: Instant::now(),
            sandboxes: BTreeMap::new(),
            happenings: Vec::new(),
            dirty: true,
            running_counts: None,
            listed_all: false,
            problems: Vec::new(),
            health: Health::default(),
            lingering: Lingering::default(),
        })
    }

    /// The pods, by name.
    pub fn pods(&self) -> impl Iterator<Item = (&PodRef, &Entry)> {
        self.pods.iter()
    }

    /// Every pod that is enrolled, also those whose names others have taken.
    fn enrollments(&self) -> impl Iterator<Item = (&PodRef, &Enrollment)> {
        let pods = self.pods.iter();
        let named = pods.filter_map(|(name, entry)| Some((name, entry.enrollment()?)));
        named.chain(self.departing.iter().map(|(name, it)| (name, it)))
    }

    /// What has happened to pods since this was last asked.
    pub fn news(&mut self) -> Vec<PodEvent> {
        std::mem::take(&mut self.happenings)
    }

    /// Whether anything that [`Reconciler::pods`] shows may be different since this was last asked.
    pub fn is_changed(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    fn tell(&mut self, pod: &PodRef, reason: &'static str, note: String) {
        self.happenings.push(PodEvent {
            pod: pod.clone(),
            uid: self.pods.get(pod).and_then(|entry| entry.uid.clone()),
            reason,
            note,
            warning: matches!(reason, POLICY_REJECTED | NOT_ENROLLED),
        });
    }

    /// Other settings; they take effect with the next [`Reconciler::apply`].
    pub fn set_mesh(&mut self, mesh: Mesh) {
        self.mesh = mesh;
    }

    /// There is no listing, for this reason; everything stays as it is.
    pub fn cannot_list(&mut self, problem: String) {
        self.problems = vec![problem];
        self.listed_all = false;
        self.dirty = true;
    }

    /// Makes everything agree with a listing.
    pub async fn apply(&mut self, listing: &Listing) {
        self.dirty = true;
        let (wanted, mut problems) = index(listing);
        problems.extend(
            listing
                .problems
                .iter()
                .map(|problem| format!("{}: {}", problem.origin, problem.message)),
        );
        for problem in problems
            .iter()
            .filter(|problem| !self.problems.contains(problem))
        {
            error!("{problem}");
        }
        self.problems = problems;

        let gone: Vec<PodRef> = self
            .pods
            .keys()
            .filter(|name| !wanted.contains_key(name))
            .cloned()
            .collect();
        for name in gone {
            if listing.running_counts {
                self.mark_unlisted(&name);
            } else {
                self.leave(&name, "its manifest is gone").await;
                self.pods.remove(&name);
            }
        }
        for (name, document) in wanted {
            self.judge(&name, document).await;
        }
        self.retry().await;
        self.listed_all = listing.complete;
        if listing.complete {
            self.running_counts = Some(listing.running_counts);
            self.drop_unlisted(&mut None);
            self.policies.sweep_later();
        }
    }

    /// Tries again what could not be done, notices namespaces that vanished or were replaced, and
    /// tidies up. To be called twice a second.
    pub async fn retry(&mut self) {
        self.release_ended().await;
        if let Err(error) = self.policies.tidy(&self.datapath.maps) {
            error!("{error:#}");
        }
        let unsettled: Vec<PodRef> = self
            .pods
            .iter()
            .filter(|(_, entry)| !entry.is_settled() && entry.next_try <= Instant::now())
            .map(|(name, _)| name.clone())
            .collect();
        let mut enrolled = Vec::new();
        let mut processes = None;
        for name in unsettled {
            let before = (self.cookie(&name), self.shown(&name));
            self.converge(&name, &mut processes).await;
            self.be_patient(&name);
            self.dirty |= before != (self.cookie(&name), self.shown(&name));
            if before.0 != self.cookie(&name) {
                enrolled.push(name);
            }
        }
        if self.look_for_listeners <= Instant::now() {
            self.look_for_listeners = Instant::now() + health::EVERY;
            enrolled.extend(self.without_listener());
        }
        self.adopt(&enrolled);
    }

    /// Pods that wait for their first process, by UID.
    pub fn awaited(&self) -> impl Iterator<Item = &str> {
        self.pods.values().filter_map(|entry| {
            // Those that fail for another reason have time.
            let waits = entry.enrollment.is_none() && entry.state == PodState::Waiting;
            match &entry.goal.as_ref().filter(|_| waits)?.place {
                NetnsRef::PodUid(uid) => Some(uid.as_str()),
                NetnsRef::Path(_) => None,
            }
        })
    }

    /// Enrolls a pod that waits for its first process, if that is among these.
    pub async fn look_in(&mut self, uid: &str, processes: Processes) {
        if processes.netns_of_pod(uid, None).is_none() {
            return;
        }
        let of_uid = |(_, entry): &(&PodRef, &Entry)| entry.uid.as_deref() == Some(uid);
        let Some(name) = self.pods.iter().find(of_uid).map(|(name, _)| name.clone()) else {
            return;
        };
        self.converge(&name, &mut Some(processes)).await;
        self.dirty = true;
        self.adopt(&[name]);
    }

    /// What people see of a pod's state.
    fn shown(&self, name: &PodRef) -> Option<(PodState, Option<String>, Option<u32>)> {
        let entry = self.pods.get(name)?;
        let policy = entry.enrollment.as_ref().map(Enrollment::policy_id);
        Some((entry.state, entry.reason.clone(), policy))
    }

    /// Whoever has waited for long is tried less often: every try looks at all processes.
    fn be_patient(&mut self, name: &PodRef) {
        let Some(entry) = self.pods.get_mut(name) else {
            return;
        };
        let now = Instant::now();
        if entry.is_settled() {
            entry.waiting = None;
        } else if entry.waiting.get_or_insert(now).elapsed() > EAGER {
            entry.next_try = now + PATIENT_TRY;
        }
    }

    fn cookie(&self, name: &PodRef) -> Option<u64> {
        Some(self.pods.get(name)?.enrollment.as_ref()?.cookie())
    }

    /// Follows routes and addresses of namespaces that changed.
    pub async fn namespaces_changed(&mut self, cookies: BTreeSet<u64>) {
        let enrolled = self.pods.iter_mut().filter_map(|(name, entry)| {
            let enrollment = entry.enrollment.as_mut()?;
            Some((name, enrollment))
        });
        let departing = self.departing.iter_mut().map(|(name, it)| (&*name, it));
        for (name, enrollment) in enrolled.chain(departing) {
            if !cookies.contains(&enrollment.cookie()) {
                continue;
            }
            if let Err(error) = enrollment.refresh(&self.datapath).await {
                warn!(pod = %name, "follow the pod's routes: {error:#}");
            }
            self.dirty = true;
        }
    }

    /// Reads a pod's manifest; what follows from it is done by [`Reconciler::converge`].
    async fn judge(&mut self, name: &PodRef, document: &Document) {
        let entry = self.pods.entry(name.clone()).or_insert_with(|| Entry {
            origin: String::new(),
            uid: None,
            state: PodState::Waiting,
            reason: None,
            enrollment: None,
            goal: None,
            look: Look::default(),
            unlisted: false,
            started: false,
            unsure: false,
            has_istio_init: false,
            waiting: None,
            next_try: Instant::now(),
        });
        entry.unlisted = false;
        entry.next_try = Instant::now();
        // The same name, another pod.
        let other = matches!(document.netns, Ok(NetnsRef::PodUid(_)))
            && entry.enrollment.is_some()
            && entry.uid != document.pod.metadata.uid;
        if other {
            self.let_depart(name, "another pod has its name now").await;
        }
        let Some(entry) = self.pods.get_mut(name) else {
            return;
        };
        entry.origin.clone_from(&document.origin);
        if entry.uid != document.pod.metadata.uid {
            entry.started = false;
        }
        entry.uid.clone_from(&document.pod.metadata.uid);
        entry.unsure = document.unsure;
        entry.has_istio_init = istio_init(&document.pod).is_some();
        match pod::wanted(
            &document.pod,
            document.namespace_label.as_deref(),
            &self.mesh,
        ) {
            Wanted::Enrolled(policy) => match document.netns.clone() {
                Ok(place) => {
                    entry.goal = Some(Goal {
                        place,
                        policy: *policy,
                        starting: pod::is_starting(&document.pod),
                    });
                    if entry.is_settled() {
                        entry.settle(PodState::Enrolled, None);
                    }
                }
                Err(reason) => self.reject(name, reason),
            },
            Wanted::Rejected(reason) => self.reject(name, reason.to_string()),
            Wanted::NotTaken(reason) => {
                entry.unsure &= reason == NotTaken::NotOptedIn;
                let reason = reason.to_string();
                self.inherited
                    .retain(|held, _| held != name, &self.datapath);
                if self.cookie(name).is_some() {
                    self.leave(name, &reason).await;
                    let note = format!("sidetrack leaves its connections alone now: {reason}");
                    self.tell(name, RELEASED, note);
                }
                if let Some(entry) = self.pods.get_mut(name) {
                    entry.goal = None;
                    entry.settle(PodState::NotTaken, Some(reason));
                }
            }
        }
    }

    /// The manifest cannot be followed: whatever is in force stays in force, also if an earlier agent
    /// put it there.
    fn reject(&mut self, name: &PodRef, reason: String) {
        let inherited = self.inherited.holds(name);
        let Some(entry) = self.pods.get_mut(name) else {
            return;
        };
        let judged = entry.enrollment.is_some() || inherited;
        let kept = if judged {
            "; its last good policy stays in force"
        } else {
            ""
        };
        entry.goal = entry.enrollment.as_ref().map(|enrollment| Goal {
            place: enrollment.place().clone(),
            policy: enrollment.policy().clone(),
            starting: false,
        });
        let state = if judged {
            PodState::Enrolled
        } else {
            PodState::Rejected
        };
        let news = entry.reason.as_ref() != Some(&reason);
        if news {
            error!(pod = %name, origin = entry.origin, "{reason}{kept}");
        }
        entry.settle(state, Some(reason.clone()));
        if news {
            self.tell(name, POLICY_REJECTED, format!("{reason}{kept}"));
        }
    }

    /// Brings one pod to its goal.
    async fn converge(&mut self, name: &PodRef, processes: &mut Option<Processes>) {
        let Some(entry) = self.pods.get(name) else {
            return;
        };
        let Some(goal) = entry.goal.clone() else {
            return;
        };
        let processes = processes.get_or_insert_with(look_at_processes);
        let known = entry
            .enrollment
            .as_ref()
            .map(Enrollment::inode)
            .or_else(|| self.inherited.inode(name));
        let told = self.told(&goal.place);
        let found = told.map_or_else(|| crate::netns::find(&goal.place, processes, known), Ok);
        let Some(entry) = self.pods.get_mut(name) else {
            return;
        };
        if let Some(enrollment) = &mut entry.enrollment
            && !enrollment.is_at(&goal.place)
        {
            match found.as_ref().map(Netns::open_found) {
                Ok(Ok(netns)) if netns.inode() == enrollment.inode() => {
                    enrollment.found_at(goal.place.clone(), netns.path());
                }
                // Between two containers a pod may have no process; its namespace waits for them.
                Err(_) if enrollment.place() == &goal.place => return,
                // A path that leads nowhere takes no pod out that still has processes.
                Ok(Err(error)) if processes.any_in(enrollment.inode()) => {
                    let reason = format!("{error}; it stays enrolled in its namespace");
                    if entry.reason.as_ref() != Some(&reason) {
                        error!(pod = %name, origin = entry.origin, "{reason}");
                    }
                    entry.settle(PodState::Enrolled, Some(reason));
                    return;
                }
                _ => {
                    self.let_depart(name, "its network namespace was replaced")
                        .await;
                }
            }
        }
        let result = self.try_converge(name, &goal, found, processes).await;
        let Some(entry) = self.pods.get_mut(name) else {
            return;
        };
        match result {
            Ok(()) => entry.settle(PodState::Enrolled, None),
            Err(error) => {
                let waiting = matches!(
                    error.downcast_ref::<NetnsError>(),
                    Some(NetnsError::Missing(_) | NetnsError::NoProcess)
                );
                let reason = format!("{error:#}");
                if entry.reason.as_ref() != Some(&reason) {
                    if waiting {
                        info!(pod = %name, "waiting: {reason}");
                    } else {
                        error!(pod = %name, origin = entry.origin, "cannot enroll: {reason}");
                    }
                }
                let news = entry.reason.as_ref() != Some(&reason) && !waiting;
                let judged = entry.enrollment.is_some() || self.inherited.holds(name);
                let state = match (judged, waiting) {
                    (true, _) => PodState::Enrolled,
                    (false, true) => PodState::Waiting,
                    (false, false) => PodState::Rejected,
                };
                entry.settle(state, Some(reason.clone()));
                if news {
                    self.tell(name, NOT_ENROLLED, reason);
                }
            }
        }
    }

    async fn try_converge(
        &mut self,
        name: &PodRef,
        goal: &Goal,
        found: Result<Found, NetnsError>,
        processes: &Processes,
    ) -> Result<()> {
        let Some(entry) = self.pods.get_mut(name) else {
            return Ok(());
        };
        if let Some(enrollment) = &mut entry.enrollment {
            let mut changed = None;
            if enrollment.policy() != &goal.policy {
                enrollment
                    .change_policy(&goal.policy, &self.datapath, &mut self.policies, processes)
                    .await?;
                info!(pod = %name, policy = enrollment.policy_id(), "policy changed");
                let note = "another policy is in force for its new connections".to_owned();
                changed = Some(note);
            }
            if enrollment.is_stale() {
                enrollment.recover(&self.changed, &self.datapath).await?;
            }
            if let Some(note) = changed {
                self.tell(name, POLICY_CHANGED, note);
            }
            return Ok(());
        }
        let uid = entry.uid.clone();
        let started_before = entry.started;
        let fresh = self.is_fresh(&goal.place);
        // Once in a pod's life.
        let starting = (goal.starting || fresh) && !started_before;
        let known_before = self.inherited.holds(name);
        let pods = &self.pods;
        let request = enrollment::Request {
            name,
            uid: uid.as_deref(),
            place: &goal.place,
            found: &found?,
            policy: &goal.policy,
            starting,
            changed: &self.changed,
            by_cookie: &self.by_cookie,
            listed: &|name| {
                pods.get(name)
                    .is_some_and(|entry| entry.state != PodState::NotTaken)
            },
        };
        let enrollment = Enrollment::new(
            request,
            &self.datapath,
            &mut self.policies,
            &mut self.inherited,
            processes,
        )
        .await?;
        info!(
            pod = %name,
            cookie = enrollment.cookie(),
            policy = enrollment.policy_id(),
            ipv6 = enrollment.captures_v6(),
            "enrolled"
        );
        self.by_cookie.insert(enrollment.cookie(), name.clone());
        let note = format!(
            "its connections are intercepted by the rules of dialect {}",
            goal.policy.dialect
        );
        let notes = enrollment.notes();
        // Had an earlier agent enrolled it in another namespace, that one is done with once nothing
        // runs there.
        if self.inherited.holds(name) {
            let processes = look_at_processes();
            let kept = |held: &PodRef, inode| held != name || processes.any_in(inode);
            self.inherited.retain(kept, &self.datapath);
        }
        if let Some(entry) = self.pods.get_mut(name) {
            entry.enrollment = Some(enrollment);
            entry.started = true;
        }
        // A successor that takes over has no news.
        if !known_before {
            let all: Vec<String> = [note].into_iter().chain(notes).collect();
            self.tell(name, ENROLLED, all.join("; "));
        }
        Ok(())
    }
}

fn look_at_processes() -> Processes {
    Processes::now().unwrap_or_else(|error| {
        error!("look for processes: {error:#}");
        Processes::unseen()
    })
}

/// One document per pod and per network namespace; the others are problems.
fn index(listing: &Listing) -> (BTreeMap<PodRef, &Document>, Vec<String>) {
    let mut wanted: BTreeMap<PodRef, &Document> = BTreeMap::new();
    let mut problems = Vec::new();
    for document in &listing.pods {
        let name = document.name();
        match wanted.get(&name) {
            Some(first) => problems.push(format!(
                "{}: pod {name} is already in {}; remove one of the two",
                document.origin, first.origin
            )),
            None => {
                wanted.insert(name, document);
            }
        }
    }
    (wanted, problems)
}
