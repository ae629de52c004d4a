//! Pods of earlier agents. They stay intercepted until this agent's first complete listing says what
//! is wanted of them.

use std::collections::BTreeMap;

use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_policy::PodRef;
use tracing::{info, warn};

use super::{Core, leave::Leftover};
use crate::{
    node::{LeftRows, Node},
    state::State,
};

/// What earlier agents left, by namespace.
#[derive(Debug)]
pub(super) struct Earlier<N: Node> {
    pods: BTreeMap<NetnsCookie, LeftRows<N::Rows>>,
}

impl<N: Node> Earlier<N> {
    pub(super) fn new(left: Vec<LeftRows<N::Rows>>) -> Self {
        let pods = left.into_iter().map(|left| (left.cookie, left));
        Self {
            pods: pods.collect(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LeftRows<N::Rows>> {
        self.pods.values()
    }

    pub(super) fn cookies(&self) -> impl Iterator<Item = NetnsCookie> {
        self.pods.keys().copied()
    }

    /// Inodes of the namespaces of pods; remains without a pod have none.
    pub(super) fn inodes(&self) -> impl Iterator<Item = NetnsInode> {
        self.pods.values().map(|left| left.inode)
    }

    pub(super) fn name(&self, cookie: NetnsCookie) -> Option<&PodRef> {
        self.pods.get(&cookie)?.pod.as_ref()
    }

    /// Inode of the namespace a pod was enrolled in.
    pub(super) fn inode(&self, name: &PodRef) -> Option<NetnsInode> {
        let mut all = self.pods.values();
        all.find(|left| left.pod.as_ref() == Some(name))
            .map(|left| left.inode)
    }

    pub(super) fn holds(&self, name: &PodRef) -> bool {
        self.inode(name).is_some()
    }

    pub(super) fn rows(&self, cookie: NetnsCookie) -> Option<&N::Rows> {
        Some(&self.pods.get(&cookie)?.rows)
    }

    pub(super) fn take(&mut self, cookie: NetnsCookie) -> Option<LeftRows<N::Rows>> {
        self.pods.remove(&cookie)
    }

    /// A pod could not be enrolled again; these are its rows now.
    pub(super) fn restore(&mut self, left: LeftRows<N::Rows>) {
        self.pods.insert(left.cookie, left);
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

    /// Removes what an earlier agent left of a pod: its namespace is gone, or it is not to be kept.
    pub async fn forget_earlier(&mut self, cookie: NetnsCookie) {
        let Some(left) = self.earlier.take(cookie) else {
            return;
        };
        let name = left.pod.as_ref().map(ToString::to_string);
        info!(pod = name, %cookie, "remove what an earlier agent left of the pod");
        let rows = Leftover::new(left.rows, None, self.node.now());
        self.remove_rows(cookie, rows, None).await;
        let record = left.pod.and_then(|name| self.pods.get_mut(&name));
        if let Some(record) = record
            && let State::LeftByEarlier { reason, .. } = &mut record.state
        {
            let reason = reason.take();
            record.state = State::Rejected { reason };
            self.changed = true;
        }
    }

    /// Removes what earlier agents left, except what is to be kept.
    pub(super) async fn drop_earlier(&mut self, keep: impl Fn(&PodRef, NetnsInode) -> bool) {
        let is_kept =
            |left: &LeftRows<N::Rows>| left.pod.as_ref().is_some_and(|pod| keep(pod, left.inode));
        let gone: Vec<NetnsCookie> = self
            .earlier
            .pods
            .values()
            .filter(|left| !is_kept(left))
            .map(|left| left.cookie)
            .collect();
        for cookie in gone {
            self.forget_earlier(cookie).await;
        }
    }
}
