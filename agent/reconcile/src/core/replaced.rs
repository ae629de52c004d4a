//! Rows that are in a namespace already when a pod is enrolled there, and what becomes of them.

use std::{path::PathBuf, sync::Arc};

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::{PodRef, Policy, compiled::CompiledPolicy, ids::IdMaps, manifest::NetnsRef};

use super::{Core, leave::Leftover};
use crate::{node::Node, state::Enrollment};

/// Whose rows an enrollment replaces.
#[derive(Debug)]
pub(super) enum Replaced {
    /// There are none.
    Nothing,
    /// An earlier agent's.
    Earlier(Option<PodRef>, NetnsInode),
    /// Of a pod that departed from the namespace and is back.
    Departing(PodRef, Box<Departed>),
    /// Of a removal that has failed. The pod's row may still name the policy.
    Leftover(Option<Arc<CompiledPolicy>>),
}

/// The enrollment of a departing pod, without its rows and link.
#[derive(Debug)]
pub(super) struct Departed {
    netns: NetnsRef,
    path: PathBuf,
    inode: NetnsInode,
    policy: Arc<Policy>,
    compiled: Arc<CompiledPolicy>,
    policy_id: PolicyId,
    ids: IdMaps,
}

impl<N: Node> Core<N> {
    /// Takes the rows that a namespace has.
    pub(super) fn take_replaced(&mut self, cookie: NetnsCookie) -> (Replaced, Option<N::Rows>) {
        if let Some(left) = self.earlier.take(cookie) {
            return (Replaced::Earlier(left.pod, left.inode), Some(left.rows));
        }
        let is_it = |(_, it): &(PodRef, Enrollment<N>)| it.cookie == cookie;
        if let Some(position) = self.departing.iter().position(is_it) {
            let (name, it) = self.departing.swap_remove(position);
            let departed = Departed {
                netns: it.netns,
                path: it.path,
                inode: it.inode,
                policy: it.policy,
                compiled: it.compiled,
                policy_id: it.policy_id,
                ids: it.ids,
            };
            return (Replaced::Departing(name, Box::new(departed)), Some(it.rows));
        }
        match self.leftovers.remove(&cookie) {
            Some(left) => (Replaced::Leftover(left.policy), Some(left.rows)),
            None => (Replaced::Nothing, None),
        }
    }

    /// The new rows are active: no row names the replaced policy any more.
    pub(super) fn has_replaced(&mut self, replaced: &Replaced) {
        match replaced {
            Replaced::Nothing => {}
            Replaced::Departing(_, departed) => self.release_policy(&departed.compiled),
            Replaced::Leftover(Some(policy)) => self.release_policy(policy),
            Replaced::Leftover(None) | Replaced::Earlier(..) => self.sweep_later(),
        }
    }

    /// The new rows could not be written. A pod that was intercepted before stays so by the row it has.
    pub(super) async fn has_not_replaced(&mut self, replaced: Replaced, failed: Enrollment<N>) {
        let cookie = failed.cookie;
        self.release_policy(&failed.compiled);
        let policy = match replaced {
            Replaced::Earlier(pod, inode) => {
                return self.earlier.give_back(cookie, pod, inode, failed.rows);
            }
            Replaced::Departing(name, departed) => {
                let enrollment = Enrollment {
                    netns: departed.netns,
                    path: departed.path,
                    inode: departed.inode,
                    cookie,
                    policy: departed.policy,
                    compiled: departed.compiled,
                    policy_id: departed.policy_id,
                    ids: departed.ids,
                    stale: true,
                    rows: failed.rows,
                    link: failed.link,
                };
                return self.departing.push((name, enrollment));
            }
            Replaced::Leftover(policy) => policy,
            Replaced::Nothing => None,
        };
        let rows = Leftover::new(failed.rows, policy, self.node.now());
        self.remove_rows(cookie, rows, Some(failed.link)).await;
    }
}
