//! Network namespaces whose rows no listed pod has: what an earlier agent wrote, pods that departed while their processes
//! run, removals that have failed. A namespace is here once. It leaves when a pod is enrolled there or its rows are removed.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Instant};

use sidetrack_common::ids::NetnsCookie;
use sidetrack_policy::{PodRef, compiled::CompiledPolicy};
use tracing::{info, warn};

use super::Core;
use crate::{
    node::{EarlierRows, Enrollment, Found, Node, Processes as _},
    plan::Step,
    state::{Record, State},
};

/// Why a namespace has rows that no listed pod has.
#[derive(Debug)]
pub(super) enum Held<N: Node> {
    /// An earlier agent wrote them. Its pods stay intercepted until this agent's first complete listing says what is
    /// wanted of them.
    Earlier(EarlierRows<N::Rows>),
    /// Another pod has this pod's name now, and its processes still run.
    Departing(PodRef, Box<Enrollment<N>>),
    /// They are to be removed.
    Removal(Removal<N>),
}

/// Rows to be removed.
#[derive(Debug)]
pub(super) struct Removal<N: Node> {
    pub(super) rows: N::Rows,
    /// The policy that the pod's row names; `None` for one of an earlier agent.
    pub(super) policy: Option<Arc<CompiledPolicy>>,
    /// Whether the pod's row is removed, and the policy released.
    pub(super) is_unnamed: bool,
    /// When to try again.
    pub(super) next_try: Instant,
}

impl<N: Node> Removal<N> {
    pub(super) fn new(rows: N::Rows, policy: Option<Arc<CompiledPolicy>>, now: Instant) -> Self {
        Self {
            rows,
            policy,
            is_unnamed: false,
            next_try: now,
        }
    }
}

/// The namespaces, by cookie.
#[derive(Debug)]
pub(super) struct HeldNamespaces<N: Node>(BTreeMap<NetnsCookie, Held<N>>);

impl<N: Node> HeldNamespaces<N> {
    /// Those of earlier agents.
    pub(super) fn new(earlier: Vec<EarlierRows<N::Rows>>) -> Self {
        let held = earlier
            .into_iter()
            .map(|rows| (rows.cookie, Held::Earlier(rows)));
        Self(held.collect())
    }

    pub(super) fn earlier(&self) -> impl Iterator<Item = &EarlierRows<N::Rows>> {
        self.0.values().filter_map(|held| match held {
            Held::Earlier(rows) => Some(rows),
            Held::Departing(..) | Held::Removal(_) => None,
        })
    }

    pub(super) fn departing(&self) -> impl Iterator<Item = (&PodRef, &Enrollment<N>)> {
        self.0.values().filter_map(|held| match held {
            Held::Departing(name, enrollment) => Some((name, &**enrollment)),
            Held::Earlier(_) | Held::Removal(_) => None,
        })
    }

    pub(super) fn departing_mut(&mut self) -> impl Iterator<Item = (&PodRef, &mut Enrollment<N>)> {
        self.0.values_mut().filter_map(|held| match held {
            Held::Departing(name, enrollment) => Some((&*name, &mut **enrollment)),
            Held::Earlier(_) | Held::Removal(_) => None,
        })
    }

    pub(super) fn removals(&self) -> impl Iterator<Item = (NetnsCookie, &Removal<N>)> {
        self.0.iter().filter_map(|(cookie, held)| match held {
            Held::Removal(removal) => Some((*cookie, removal)),
            Held::Earlier(_) | Held::Departing(..) => None,
        })
    }

    /// What an earlier agent wrote for a namespace.
    pub(super) fn earlier_at(&self, cookie: NetnsCookie) -> Option<&EarlierRows<N::Rows>> {
        match self.0.get(&cookie)? {
            Held::Earlier(rows) => Some(rows),
            Held::Departing(..) | Held::Removal(_) => None,
        }
    }

    /// The rows that a namespace has.
    pub(super) fn rows(&self, cookie: NetnsCookie) -> Option<&N::Rows> {
        Some(match self.0.get(&cookie)? {
            Held::Earlier(earlier) => &earlier.rows,
            Held::Departing(_, enrollment) => &enrollment.rows,
            Held::Removal(removal) => &removal.rows,
        })
    }

    pub(super) fn take(&mut self, cookie: NetnsCookie) -> Option<Held<N>> {
        self.0.remove(&cookie)
    }

    /// Answers whether it is new.
    pub(super) fn insert(&mut self, cookie: NetnsCookie, held: Held<N>) -> bool {
        self.0.insert(cookie, held).is_none()
    }
}

impl<N: Node> Core<N> {
    /// What an earlier agent wrote for a pod.
    #[must_use]
    pub fn earlier_of(&self, name: &PodRef) -> Option<&EarlierRows<N::Rows>> {
        let uid = self.pods.get(name).and_then(|it| it.uid.as_deref());
        self.held.earlier().find(|it| it.is_of(name, uid))
    }

    /// The pod that rows of an earlier agent are of, if it is listed.
    pub(super) fn record_of(&self, earlier: &EarlierRows<N::Rows>) -> Option<&Record<N>> {
        let name = earlier.pod.as_ref()?;
        let record = self.pods.get(name)?;
        earlier.is_of(name, record.uid.as_deref()).then_some(record)
    }

    /// Gives every pod of an earlier agent this build's program. Of a pod whose link is attached nowhere, either the
    /// namespace is gone or somebody has detached the link: it keeps its rows while processes run there, and the look for
    /// repairs attaches the program again.
    pub(super) async fn refresh_programs(&mut self) {
        let earlier = self.held.earlier();
        let earlier: Vec<_> = earlier
            .map(|it| (it.cookie, it.inode, it.pod.is_some()))
            .collect();
        let mut detached = Vec::new();
        for (cookie, inode, is_pod) in earlier {
            match self.node.refresh_program(cookie) {
                Ok(true) => {}
                Ok(false) if is_pod => detached.push((cookie, inode)),
                Ok(false) => self.forget_earlier(cookie, None).await,
                Err(_) if !is_pod => self.forget_earlier(cookie, None).await,
                // The program that is attached stays.
                Err(problem) => warn!(%cookie, "keep the pod's earlier program: {problem}"),
            }
        }
        if !detached.is_empty() {
            let processes = self.processes();
            detached.retain(|(_, inode)| !processes.any_in(*inode));
            for (cookie, _) in detached {
                self.forget_earlier(cookie, None).await;
            }
        }
        let pods = self.held.earlier().filter(|it| it.pod.is_some()).count();
        if pods > 0 {
            info!(pods, "took over from an earlier agent");
        }
    }

    /// Removes what remains of a pod of an earlier agent: its namespace is gone, or it is not to be kept, and some of these
    /// processes may run there.
    pub(super) async fn forget_earlier(
        &mut self,
        cookie: NetnsCookie,
        processes: Option<&N::Processes>,
    ) {
        let Some(Held::Earlier(mut earlier)) = self.held.take(cookie) else {
            return;
        };
        let began = self.node.now();
        let processes = processes.filter(|_| self.turn.may_open());
        let path = processes.and_then(|it| it.path_of(earlier.inode));
        let link = match path {
            Some(path) => self.open_earlier(&mut earlier, path).await,
            None => None,
        };
        let took = self.node.now().saturating_duration_since(began);
        self.turn.opened(took);
        let is_listed = self.record_of(&earlier).is_some();
        let name = earlier.pod.as_ref().map(ToString::to_string);
        info!(pod = name, %cookie, "remove what remains of the pod of an earlier agent");
        let removal = Removal::new(earlier.rows, None, self.node.now());
        self.remove_rows(cookie, removal, link).await;
        let record = earlier.pod.and_then(|name| self.pods.get_mut(&name));
        if let Some(record) = record.filter(|_| is_listed)
            && let State::OfEarlierAgent { reason, .. } = &mut record.state
        {
            let reason = reason.take();
            record.state = State::Rejected { reason };
            self.changed = true;
        }
    }

    /// A connection into the namespace of an earlier agent's pod. Without one its open connections lose the names of their
    /// destinations, and what was added to the namespace stays.
    async fn open_earlier(
        &mut self,
        earlier: &mut EarlierRows<N::Rows>,
        path: PathBuf,
    ) -> Option<N::Link> {
        let found = Found {
            path,
            inode: Some(earlier.inode),
            doubt: None,
        };
        let opened = self.node.open(&found).await.ok()?;
        if opened.cookie != earlier.cookie {
            return None;
        }
        let (mut link, rows) = (opened.link, &mut earlier.rows);
        let step = Step::ReadNamespace;
        let read = self.node.step(earlier.cookie, rows, Some(&mut link), &step);
        if let Err(problem) = read.await {
            warn!(cookie = %earlier.cookie, "some of what was added to a namespace may stay there: {problem}");
        }
        Some(link)
    }

    /// Removes the rows of earlier agents, except what is to be kept.
    pub(super) async fn drop_earlier(&mut self, keep: impl Fn(&EarlierRows<N::Rows>) -> bool) {
        let gone = self.held.earlier();
        let gone = gone.filter(|it| it.pod.is_none() || !keep(it));
        let gone: Vec<NetnsCookie> = gone.map(|it| it.cookie).collect();
        if gone.is_empty() {
            return;
        }
        let processes = self.processes();
        for cookie in gone {
            self.forget_earlier(cookie, Some(&processes)).await;
        }
    }

    /// A pod was enrolled where this was: no row names its policy any more.
    pub(super) fn forget_held(&mut self, held: Option<Held<N>>) {
        let policy = match held {
            None => return,
            Some(Held::Departing(_, departed)) => Some(departed.compiled),
            Some(Held::Removal(removal)) => removal.policy,
            Some(Held::Earlier(_)) => None,
        };
        match policy {
            Some(policy) => self.release_policy(&policy),
            None => self.sweep_later(),
        }
    }

    /// A pod could not be enrolled where this was. One that was intercepted before stays so by the row it has.
    pub(super) async fn restore_held(&mut self, held: Option<Held<N>>, failed: Enrollment<N>) {
        let cookie = failed.cookie;
        self.release_policy(&failed.compiled);
        let (rows, link) = (failed.rows, failed.link);
        let policy = match held {
            Some(Held::Earlier(earlier)) => {
                let earlier = EarlierRows { rows, ..earlier };
                self.held.insert(cookie, Held::Earlier(earlier));
                return;
            }
            Some(Held::Departing(name, departed)) => {
                let departing = Enrollment {
                    stale: true,
                    rows,
                    link,
                    ..*departed
                };
                let departing = Held::Departing(name, Box::new(departing));
                self.held.insert(cookie, departing);
                return;
            }
            Some(Held::Removal(removal)) => removal.policy,
            None => None,
        };
        let removal = Removal::new(rows, policy, self.node.now());
        self.remove_rows(cookie, removal, Some(link)).await;
    }
}
