//! Makes the kernel's maps agree with the pods that are wanted.
//!
//! Invariants: a pod's row appears last when it is enrolled and disappears first when it leaves, so
//! that whatever judges its connections is complete; nothing done for one pod depends on another.

mod enrolment;
mod inherited;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
};

use anyhow::Result;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

pub use self::inherited::names as inherited_name;
use self::{enrolment::Enrolment, inherited::Inherited};
use crate::{
    api::PodState,
    bpf::{Datapath, policies::Policies},
    manifests::{Document, Listing},
    netns::{NetnsError, listeners::Processes},
    pod::{self, Enroll, NETNS_ANNOTATION, PodRef, Wanted},
    policy::Policy,
};

/// A pod the agent knows of.
#[derive(Debug)]
pub struct Entry {
    /// Where its manifest is.
    pub origin: String,
    /// Its UID, if the manifest has one.
    pub uid: Option<String>,
    /// What becomes of it.
    pub state: PodState,
    /// Why, unless all is well.
    pub reason: Option<String>,
    /// Its place in the kernel, when enrolled.
    enrolment: Option<Enrolment>,
    goal: Option<Goal>,
}

impl Entry {
    /// Its place in the kernel, when enrolled.
    pub(crate) fn enrolment(&self) -> Option<&Enrolment> {
        self.enrolment.as_ref()
    }
}

/// What an enrolled pod is to look like.
#[derive(Clone, Debug, PartialEq)]
struct Goal {
    netns: PathBuf,
    policy: Policy,
}

/// The agent's only writer of maps and links.
#[derive(Debug)]
pub struct Reconciler {
    datapath: Datapath,
    policies: Policies,
    pods: BTreeMap<PodRef, Entry>,
    by_cookie: HashMap<u64, PodRef>,
    inherited: Inherited,
    enroll: Enroll,
    changed: mpsc::UnboundedSender<u64>,
    /// Problems that belong to no pod, as they were last listed.
    pub problems: Vec<String>,
}

impl Reconciler {
    /// Takes over what an earlier agent left. Cookies of namespaces that change are sent on
    /// `changed`; give them to [`Reconciler::namespaces_changed`].
    pub fn new(
        datapath: Datapath,
        enroll: Enroll,
        changed: mpsc::UnboundedSender<u64>,
    ) -> Result<Self> {
        let inherited = Inherited::take_over(&datapath)?;
        Ok(Self {
            policies: Policies::new(&datapath.maps)?,
            datapath,
            pods: BTreeMap::new(),
            by_cookie: HashMap::new(),
            inherited,
            enroll,
            changed,
            problems: Vec::new(),
        })
    }

    /// The pods, by name.
    pub fn pods(&self) -> impl Iterator<Item = (&PodRef, &Entry)> {
        self.pods.iter()
    }

    /// Makes everything agree with a listing.
    pub async fn apply(&mut self, listing: &Listing) {
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
            self.leave(&name, "its manifest is gone").await;
            self.pods.remove(&name);
        }
        for (name, document) in wanted {
            self.judge(&name, document).await;
        }
        self.retry().await;
        if listing.complete {
            self.drop_unlisted();
        }
    }

    /// Tries again what could not be done, and notices namespaces that vanished or were replaced.
    pub async fn retry(&mut self) {
        let unsettled: Vec<PodRef> = self
            .pods
            .iter()
            .filter(|(_, entry)| !entry.is_settled())
            .map(|(name, _)| name.clone())
            .collect();
        if unsettled.is_empty() {
            return;
        }
        let processes = match Processes::now() {
            Ok(processes) => processes,
            Err(error) => {
                error!("look for processes: {error:#}");
                Processes::default()
            }
        };
        for name in unsettled {
            self.converge(&name, &processes).await;
        }
    }

    /// Follows routes and addresses of namespaces that changed.
    pub async fn namespaces_changed(&mut self, cookies: BTreeSet<u64>) {
        for cookie in cookies {
            let Some(name) = self.by_cookie.get(&cookie) else {
                continue;
            };
            let Some(entry) = self.pods.get_mut(name) else {
                continue;
            };
            let Some(enrolment) = &mut entry.enrolment else {
                continue;
            };
            if let Err(error) = enrolment.refresh(&self.datapath).await {
                warn!(pod = %name, "follow the pod's routes: {error:#}");
            }
        }
    }

    /// Reads a pod's manifest; what follows from it is done by [`Reconciler::converge`].
    async fn judge(&mut self, name: &PodRef, document: &Document) {
        let entry = self.pods.entry(name.clone()).or_insert_with(|| Entry {
            origin: String::new(),
            uid: None,
            state: PodState::Waiting,
            reason: None,
            enrolment: None,
            goal: None,
        });
        entry.origin.clone_from(&document.origin);
        entry.uid.clone_from(&document.pod.metadata.uid);
        match pod::wanted(&document.pod, self.enroll) {
            Wanted::Enrolled(policy) => match netns_path(document) {
                Ok(netns) => {
                    entry.goal = Some(Goal {
                        netns,
                        policy: *policy,
                    });
                }
                Err(reason) => entry.reject(name, reason),
            },
            Wanted::Rejected(reason) => entry.reject(name, reason.to_string()),
            Wanted::NotTaken(reason) => {
                let reason = reason.to_string();
                self.leave(name, &reason).await;
                if let Some(entry) = self.pods.get_mut(name) {
                    entry.goal = None;
                    entry.settle(PodState::NotTaken, Some(reason));
                }
            }
        }
    }

    /// Brings one pod to its goal.
    async fn converge(&mut self, name: &PodRef, processes: &Processes) {
        let Some(entry) = self.pods.get(name) else {
            return;
        };
        let Some(goal) = entry.goal.clone() else {
            return;
        };
        let elsewhere = entry
            .enrolment
            .as_ref()
            .is_some_and(|enrolment| !enrolment.is_in(&goal.netns));
        if elsewhere {
            self.leave(name, "its network namespace was replaced").await;
        }
        let result = self.try_converge(name, &goal, processes).await;
        let Some(entry) = self.pods.get_mut(name) else {
            return;
        };
        match result {
            Ok(()) => entry.settle(PodState::Enrolled, None),
            Err(error) => {
                let waiting = matches!(
                    error.downcast_ref::<NetnsError>(),
                    Some(NetnsError::Missing(_))
                );
                let reason = format!("{error:#}");
                if entry.reason.as_ref() != Some(&reason) {
                    if waiting {
                        info!(pod = %name, "waiting: {reason}");
                    } else {
                        error!(pod = %name, origin = entry.origin, "cannot enrol: {reason}");
                    }
                }
                let state = match (&entry.enrolment, waiting) {
                    (Some(_), _) => PodState::Enrolled,
                    (None, true) => PodState::Waiting,
                    (None, false) => PodState::Rejected,
                };
                entry.settle(state, Some(reason));
            }
        }
    }

    async fn try_converge(
        &mut self,
        name: &PodRef,
        goal: &Goal,
        processes: &Processes,
    ) -> Result<()> {
        let Some(entry) = self.pods.get_mut(name) else {
            return Ok(());
        };
        if let Some(enrolment) = &mut entry.enrolment {
            if enrolment.policy() != &goal.policy {
                enrolment
                    .change_policy(&goal.policy, &self.datapath, &mut self.policies, processes)
                    .await?;
                info!(pod = %name, policy = enrolment.policy_id(), "policy changed");
            }
            return Ok(());
        }
        let request = enrolment::Request {
            name,
            uid: entry.uid.as_deref(),
            netns: &goal.netns,
            policy: &goal.policy,
            changed: &self.changed,
            by_cookie: &self.by_cookie,
        };
        let enrolment = Enrolment::new(
            request,
            &self.datapath,
            &mut self.policies,
            &mut self.inherited,
            processes,
        )
        .await?;
        info!(
            pod = %name,
            cookie = enrolment.cookie(),
            policy = enrolment.policy_id(),
            ipv6 = enrolment.captures_v6(),
            "enrolled"
        );
        self.by_cookie.insert(enrolment.cookie(), name.clone());
        entry.enrolment = Some(enrolment);
        Ok(())
    }

    /// Takes a pod out of interception. Its established connections go on.
    async fn leave(&mut self, name: &PodRef, reason: &str) {
        let Some(entry) = self.pods.get_mut(name) else {
            return;
        };
        let Some(enrolment) = entry.enrolment.take() else {
            return;
        };
        self.by_cookie.remove(&enrolment.cookie());
        let result = enrolment.leave(&self.datapath, &mut self.policies).await;
        match result {
            Ok(()) => info!(pod = %name, "left: {reason}"),
            Err(error) => error!(pod = %name, "left, but not cleanly: {error:#}"),
        }
    }

    /// Removes pods of an earlier agent that nobody lists any more.
    fn drop_unlisted(&mut self) {
        let known: BTreeSet<u64> = self.by_cookie.keys().copied().collect();
        self.inherited.drop_except(&known, &self.datapath);
        if let Err(error) = self.policies.sweep(&self.datapath.maps) {
            error!("remove policies of an earlier agent: {error:#}");
        }
    }
}

impl Entry {
    fn is_settled(&self) -> bool {
        match (&self.goal, &self.enrolment) {
            (Some(goal), Some(enrolment)) => {
                enrolment.policy() == &goal.policy && enrolment.is_in(&goal.netns)
            }
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    fn settle(&mut self, state: PodState, reason: Option<String>) {
        self.state = state;
        self.reason = reason;
    }

    /// The manifest cannot be followed: whatever was in force stays in force.
    fn reject(&mut self, name: &PodRef, reason: String) {
        if self.reason.as_ref() != Some(&reason) {
            let kept = if self.enrolment.is_some() {
                "; its last good policy stays in force"
            } else {
                ""
            };
            error!(pod = %name, origin = self.origin, "{reason}{kept}");
        }
        self.goal = self.enrolment.as_ref().map(|enrolment| Goal {
            netns: enrolment.netns_path().to_owned(),
            policy: enrolment.policy().clone(),
        });
        let state = if self.enrolment.is_some() {
            PodState::Enrolled
        } else {
            PodState::Rejected
        };
        self.settle(state, Some(reason));
    }
}

fn netns_path(document: &Document) -> Result<PathBuf, String> {
    let annotations = document.pod.metadata.annotations.as_ref();
    match annotations
        .and_then(|all| all.get(NETNS_ANNOTATION))
        .map(String::as_str)
    {
        Some(path) if path.starts_with('/') => Ok(PathBuf::from(path)),
        Some(path) => Err(format!(
            "annotation {NETNS_ANNOTATION} is {path:?}: write an absolute path such as /run/netns/NAME"
        )),
        None => Err(format!(
            "annotation {NETNS_ANNOTATION} is missing: write the path of the pod's network namespace, such as /run/netns/NAME"
        )),
    }
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
