//! Rows that are in a namespace already when a pod is enrolled there, and what becomes of them.

use std::sync::Arc;

use sidetrack_common::ids::NetnsCookie;
use sidetrack_policy::{PodRef, compiled::CompiledPolicy};

use super::{Core, leave::Leftover};
use crate::node::{EarlierRows, Enrollment, Node};

/// Whose rows an enrollment replaces. Its own rows begin with a copy of them.
#[derive(Debug)]
pub(super) enum Replaced<N: Node> {
    /// There are none.
    Nothing,
    /// An earlier agent's.
    Earlier(EarlierRows<N::Rows>),
    /// Of a pod that departed from the namespace and is back.
    Departing(PodRef, Box<Enrollment<N>>),
    /// Of a removal that has failed. The pod's row may still name the policy.
    Leftover(Option<Arc<CompiledPolicy>>),
}

impl<N: Node> Core<N> {
    /// The rows that a namespace has.
    pub(super) fn rows_in(&self, cookie: NetnsCookie) -> Option<&N::Rows> {
        let departing = self.departing.iter().find(|(_, it)| it.cookie == cookie);
        let earlier = self.earlier.rows(cookie);
        earlier
            .or_else(|| departing.map(|(_, it)| &it.rows))
            .or_else(|| self.leftovers.get(&cookie).map(|it| &it.rows))
    }

    /// Takes what the namespace's rows are of.
    pub(super) fn take_replaced(&mut self, cookie: NetnsCookie) -> Replaced<N> {
        if let Some(rows) = self.earlier.take(cookie) {
            return Replaced::Earlier(rows);
        }
        let is_it = |(_, it): &(PodRef, Enrollment<N>)| it.cookie == cookie;
        if let Some(position) = self.departing.iter().position(is_it) {
            let (name, departed) = self.departing.swap_remove(position);
            return Replaced::Departing(name, Box::new(departed));
        }
        let leftover = self.leftovers.remove(&cookie);
        leftover.map_or(Replaced::Nothing, |it| Replaced::Leftover(it.policy))
    }

    /// The new rows are active: no row names the replaced policy any more.
    pub(super) fn forget_replaced(&mut self, replaced: Replaced<N>) {
        match replaced {
            Replaced::Nothing => {}
            Replaced::Departing(_, departed) => self.release_policy(&departed.compiled),
            Replaced::Leftover(Some(policy)) => self.release_policy(&policy),
            Replaced::Leftover(None) | Replaced::Earlier(_) => self.sweep_later(),
        }
    }

    /// The new rows could not be written. A pod that was intercepted before stays so by the row it has.
    pub(super) async fn restore_replaced(&mut self, replaced: Replaced<N>, failed: Enrollment<N>) {
        let cookie = failed.cookie;
        self.release_policy(&failed.compiled);
        let policy = match replaced {
            Replaced::Earlier(earlier) => {
                let rows = failed.rows;
                return self.earlier.restore(EarlierRows { rows, ..earlier });
            }
            Replaced::Departing(name, departed) => {
                let enrollment = Enrollment {
                    stale: true,
                    rows: failed.rows,
                    link: failed.link,
                    ..*departed
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
