//! Pods of earlier agents. They stay intercepted until this agent's first complete listing says what
//! is wanted of them.

use std::collections::BTreeMap;

use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_policy::PodRef;
use tracing::{info, warn};

use super::{Core, leave::Leftover};
use crate::{
    node::{EarlierRows, Node},
    state::State,
};

/// The rows of earlier agents, by namespace.
#[derive(Debug)]
pub(super) struct Earlier<N: Node> {
    pods: BTreeMap<NetnsCookie, EarlierRows<N::Rows>>,
}

impl<N: Node> Earlier<N> {
    pub(super) fn new(all: Vec<EarlierRows<N::Rows>>) -> Self {
        let pods = all.into_iter().map(|rows| (rows.cookie, rows));
        Self {
            pods: pods.collect(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &EarlierRows<N::Rows>> {
        self.pods.values()
    }

    pub(super) fn cookies(&self) -> impl Iterator<Item = NetnsCookie> {
        self.pods.keys().copied()
    }

    /// Inodes of the namespaces of pods; remains without a pod have none.
    pub(super) fn inodes(&self) -> impl Iterator<Item = NetnsInode> {
        self.pods.values().map(|it| it.inode)
    }

    pub(super) fn name(&self, cookie: NetnsCookie) -> Option<&PodRef> {
        self.pods.get(&cookie)?.pod.as_ref()
    }

    /// Inode of the namespace a pod was enrolled in.
    pub(super) fn inode(&self, name: &PodRef) -> Option<NetnsInode> {
        let mut all = self.pods.values();
        all.find(|it| it.pod.as_ref() == Some(name))
            .map(|it| it.inode)
    }

    pub(super) fn holds(&self, name: &PodRef) -> bool {
        self.inode(name).is_some()
    }

    pub(super) fn rows(&self, cookie: NetnsCookie) -> Option<&N::Rows> {
        Some(&self.pods.get(&cookie)?.rows)
    }

    pub(super) fn take(&mut self, cookie: NetnsCookie) -> Option<EarlierRows<N::Rows>> {
        self.pods.remove(&cookie)
    }

    /// A pod could not be enrolled again; these are its rows now.
    pub(super) fn restore(&mut self, rows: EarlierRows<N::Rows>) {
        self.pods.insert(rows.cookie, rows);
    }
}

impl<N: Node> Core<N> {
    /// Gives every pod of an earlier agent this build's program, and removes those whose namespace is
    /// gone.
    pub(super) async fn refresh_programs(&mut self) {
        let cookies: Vec<NetnsCookie> = self.earlier.cookies().collect();
        for cookie in cookies {
            match self.node.refresh_program(cookie) {
                Ok(true) => {}
                Ok(false) => self.forget_earlier(cookie).await,
                Err(_) if self.earlier.name(cookie).is_none() => {
                    self.forget_earlier(cookie).await;
                }
                // The program that is attached stays.
                Err(problem) => warn!(%cookie, "keep the pod's earlier program: {problem}"),
            }
        }
        let pods = self.earlier.cookies().count();
        if pods > 0 {
            info!(pods, "took over from an earlier agent");
        }
    }

    /// Removes what remains of a pod of an earlier agent: its namespace is gone, or it is not to be kept.
    pub async fn forget_earlier(&mut self, cookie: NetnsCookie) {
        let Some(earlier) = self.earlier.take(cookie) else {
            return;
        };
        let name = earlier.pod.as_ref().map(ToString::to_string);
        info!(pod = name, %cookie, "remove what remains of the pod of an earlier agent");
        let rows = Leftover::new(earlier.rows, None, self.node.now());
        self.remove_rows(cookie, rows, None).await;
        let record = earlier.pod.and_then(|name| self.pods.get_mut(&name));
        if let Some(record) = record
            && let State::OfEarlierAgent { reason, .. } = &mut record.state
        {
            let reason = reason.take();
            record.state = State::Rejected { reason };
            self.changed = true;
        }
    }

    /// Removes the rows of earlier agents, except what is to be kept.
    pub(super) async fn drop_earlier(&mut self, keep: impl Fn(&PodRef, NetnsInode) -> bool) {
        let is_kept =
            |it: &EarlierRows<N::Rows>| it.pod.as_ref().is_some_and(|pod| keep(pod, it.inode));
        let gone: Vec<NetnsCookie> = self
            .earlier
            .pods
            .values()
            .filter(|it| !is_kept(it))
            .map(|it| it.cookie)
            .collect();
        for cookie in gone {
            self.forget_earlier(cookie).await;
        }
    }
}
