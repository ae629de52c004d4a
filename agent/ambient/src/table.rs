//! What ztunnel is to serve, and what each connected ztunnel was sent and has answered.

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::watch, time::timeout};

/// When a pod that ztunnel could not serve is named again. It tries again by itself at the same interval
/// (`RETRY_DURATION` in `src/inpod/workloadmanager.rs`), and does not report it.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A pod that ztunnel is to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The pod's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its service account, from which ztunnel makes its identity.
    pub service_account: String,
    /// Its network namespace, `None` while it is not at hand.
    pub netns: Option<Netns>,
}

/// By what ztunnel identifies a pod: its uid, or `namespace/name` of one that has none, as a manifest in a directory
/// may be.
#[must_use]
pub fn workload_uid(uid: Option<&str>, namespace: &str, name: &str) -> String {
    uid.map_or_else(|| format!("{namespace}/{name}"), str::to_owned)
}

/// An open network namespace.
#[derive(Clone)]
pub struct Netns {
    /// Its inode, by which two are the same.
    pub inode: u64,
    /// Its descriptor.
    pub open: Arc<dyn AsFd + Send + Sync>,
}

impl fmt::Debug for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Netns({})", self.inode)
    }
}

impl PartialEq for Netns {
    fn eq(&self, other: &Self) -> bool {
        self.inode == other.inode
    }
}

impl Eq for Netns {}

/// Whether a pod is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// A ztunnel that is connected has acknowledged it.
    Yes,
    /// ztunnel could not serve it, with the error it gave.
    Refused(String),
    /// No ztunnel has answered yet, or the node's pods are not known yet.
    Waiting,
    /// No ztunnel is connected.
    NoZtunnel,
    /// It is none that ztunnel is to serve.
    NotListed,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("ztunnel serves it"),
            Self::Refused(error) => write!(f, "ztunnel cannot serve it: {error}"),
            Self::Waiting => f.write_str("ztunnel has not acknowledged it yet"),
            Self::NoZtunnel => f.write_str("no ztunnel is connected on this node"),
            Self::NotListed => f.write_str("it is not an ambient pod"),
        }
    }
}

/// What a ztunnel has answered about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastAnswer {
    /// It serves it in the namespace of this inode.
    Serves(u64),
    /// It gave this error, for the namespace of this inode.
    Refused {
        inode: u64,
        error: String,
        retry_at: Instant,
    },
    /// It is not to forget it: it is added when its namespace turns up, or deleted.
    Keeps,
}

/// Names a session. Later ones have higher numbers.
pub(crate) type SessionId = u64;

#[derive(Debug, Default)]
struct Session {
    answers: BTreeMap<String, LastAnswer>,
    snapshot_sent: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// By uid; `None` until the node's pods are known, when no ztunnel can be informed that others are gone.
    wanted: Option<BTreeMap<String, Workload>>,
    sessions: BTreeMap<SessionId, Session>,
    next_session: SessionId,
}

/// The pods that ztunnel is to serve, and the sessions.
#[derive(Debug, Default)]
pub struct Table {
    state: watch::Sender<State>,
}

/// What a session does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Add {
        uid: String,
        workload: Workload,
        netns: Netns,
    },
    Keep(String),
    Delete(String),
    SnapshotSent,
    /// Nothing now; the time is when a pod is named again.
    Wait(Option<Instant>),
}

impl Workload {
    /// How people name it.
    pub(crate) fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Table {
    /// Sets all pods that ztunnel is to serve. Sessions start with the first call.
    pub fn set(&self, workloads: BTreeMap<String, Workload>) {
        self.state.send_if_modified(|state| {
            let differs = state.wanted.as_ref() != Some(&workloads);
            if differs {
                state.wanted = Some(workloads);
            }
            differs
        });
    }

    /// What is wrong for as long as ztunnel does not serve every pod, as a sentence.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let state = self.state.borrow();
        let wanted = state.wanted.as_ref()?;
        let here = wanted.iter().filter(|(_, pod)| pod.netns.is_some());
        if state.sessions.is_empty() {
            let pods = here.count();
            return (pods > 0).then(|| {
                format!("no ztunnel is connected, and connections of ambient pods ({pods} here) fail without it: look at the pod of ztunnel on this node")
            });
        }
        here.map(|(uid, pod)| (pod, state.served(uid)))
            .find(|(_, served)| matches!(served, Served::Refused(_)))
            .map(|(pod, served)| format!("pod {}: {served}", pod.pod()))
    }

    /// Whether a pod is served now.
    #[must_use]
    pub fn served(&self, uid: &str) -> Served {
        self.state.borrow().served(uid)
    }

    /// Waits until a pod is served or none to be, or for as long as `patience`. Returns the last state.
    pub async fn wait_served(&self, uid: &str, patience: Duration) -> Served {
        let mut states = self.state.subscribe();
        let is_final = |served| matches!(served, Served::Yes | Served::NotListed);
        let served = states.wait_for(|state| is_final(state.served(uid)));
        let _ = timeout(patience, served).await;
        self.served(uid)
    }

    pub(crate) fn open_session(&self) -> SessionId {
        let mut id = 0;
        self.state.send_modify(|state| {
            id = state.next_session;
            state.next_session += 1;
            state.sessions.insert(id, Session::default());
        });
        id
    }

    pub(crate) fn close_session(&self, id: SessionId) {
        self.state.send_modify(|state| {
            state.sessions.remove(&id);
        });
    }

    /// Changes, to be subscribed before [`Table::next_step`] is asked.
    pub(crate) fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Notes what a ztunnel has answered.
    pub(crate) fn answered(&self, id: SessionId, uid: &str, answer: LastAnswer) {
        self.state.send_modify(|state| {
            if let Some(session) = state.sessions.get_mut(&id) {
                session.answers.insert(uid.to_owned(), answer);
            }
        });
    }

    pub(crate) fn deleted(&self, id: SessionId, uid: &str) {
        self.state.send_modify(|state| {
            if let Some(session) = state.sessions.get_mut(&id) {
                session.answers.remove(uid);
            }
        });
    }

    pub(crate) fn snapshot_sent(&self, id: SessionId) {
        self.state.send_modify(|state| {
            if let Some(session) = state.sessions.get_mut(&id) {
                session.snapshot_sent = true;
            }
        });
    }

    /// What a session does next.
    pub(crate) fn next_step(&self, id: SessionId, now: Instant) -> Step {
        self.state.borrow().next_step(id, now)
    }
}

impl State {
    fn served(&self, uid: &str) -> Served {
        let Some(wanted) = &self.wanted else {
            return Served::Waiting;
        };
        let Some(workload) = wanted.get(uid) else {
            return Served::NotListed;
        };
        if self.sessions.is_empty() {
            return Served::NoZtunnel;
        }
        let inode = workload.netns.as_ref().map(|netns| netns.inode);
        let mut served = Served::Waiting;
        for answer in self.sessions.values().filter_map(|it| it.answers.get(uid)) {
            match answer {
                LastAnswer::Serves(there) if Some(*there) == inode => return Served::Yes,
                LastAnswer::Refused {
                    inode: there,
                    error,
                    ..
                } if Some(*there) == inode => served = Served::Refused(error.clone()),
                _ => {}
            }
        }
        served
    }

    fn next_step(&self, id: SessionId, now: Instant) -> Step {
        let (Some(wanted), Some(session)) = (&self.wanted, self.sessions.get(&id)) else {
            return Step::Wait(None);
        };
        let gone = session
            .answers
            .keys()
            .find(|uid| !wanted.contains_key(*uid));
        if let Some(uid) = gone {
            return Step::Delete(uid.clone());
        }
        let is_newest = self.sessions.keys().next_back() == Some(&id);
        let mut retry_at = None;
        if is_newest || !session.snapshot_sent {
            for (uid, workload) in wanted {
                match workload.step(uid, session, now) {
                    Step::Wait(None) => {}
                    Step::Wait(Some(at)) => {
                        retry_at = Some(retry_at.map_or(at, |earliest: Instant| earliest.min(at)));
                    }
                    step => return step,
                }
            }
        }
        if session.snapshot_sent {
            Step::Wait(retry_at)
        } else {
            Step::SnapshotSent
        }
    }
}

impl Workload {
    /// What a session does next for this pod.
    fn step(&self, uid: &str, session: &Session, now: Instant) -> Step {
        match (&self.netns, session.answers.get(uid)) {
            (None, None) if !session.snapshot_sent => Step::Keep(uid.to_owned()),
            (None, _) => Step::Wait(None),
            (Some(netns), Some(LastAnswer::Serves(inode))) if *inode == netns.inode => {
                Step::Wait(None)
            }
            (
                Some(netns),
                Some(LastAnswer::Refused {
                    inode, retry_at, ..
                }),
            ) if *inode == netns.inode && now < *retry_at => Step::Wait(Some(*retry_at)),
            (Some(netns), _) => Step::Add {
                uid: uid.to_owned(),
                workload: self.clone(),
                netns: netns.clone(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
