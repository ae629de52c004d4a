//! Searches in pods, beside the reconciler's loop: a few at a time, and one per pod.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use sidetrack_base::runtime;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
    time::timeout,
};

/// A search ends by its own deadline long before, unless a process makes its thread wait: the thread may be the last to hold a
/// file that the process has closed. Then it keeps no other pod from being searched. A pod has one such thread at most.
const ABANDON_AFTER: Duration = Duration::from_secs(5);

type Search = Box<dyn FnOnce() + Send>;

/// The searches of one kind.
#[derive(Clone)]
pub(crate) struct Searches {
    permits: Arc<Semaphore>,
    /// By the cookies of namespaces with a search that runs or waits: the one that waits.
    pending: Arc<Mutex<BTreeMap<u64, Option<Search>>>>,
}

impl fmt::Debug for Searches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Searches").finish_non_exhaustive()
    }
}

impl Searches {
    /// So many at a time.
    pub(crate) fn new(at_a_time: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(at_a_time)),
            pending: Arc::default(),
        }
    }

    /// Searches in the namespace with this cookie. Answers the search if it could begin at once. It begins after others if
    /// too many are running, or one is in this namespace; then it takes the place of one that waits, which is older.
    pub(crate) fn start(
        &self,
        cookie: u64,
        search: impl FnOnce() + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let mut pending = self.pending.lock();
        if let Some(next) = pending.get_mut(&cookie) {
            *next = Some(Box::new(search));
            return None;
        }
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            pending.insert(cookie, None);
            return Some(self.run(cookie, Box::new(search), permit));
        }
        pending.insert(cookie, Some(Box::new(search)));
        self.wait(cookie);
        None
    }

    /// Drops a search that has not begun.
    pub(crate) fn cancel(&self, cookie: u64) {
        if let Some(next) = self.pending.lock().get_mut(&cookie) {
            *next = None;
        }
    }

    fn run(&self, cookie: u64, search: Search, permit: OwnedSemaphorePermit) -> JoinHandle<()> {
        let searches = self.clone();
        let search = runtime::start_blocking(move || {
            search();
            let mut pending = searches.pending.lock();
            match pending.get(&cookie) {
                // Others come first.
                Some(Some(_)) => searches.wait(cookie),
                _ => drop(pending.remove(&cookie)),
            }
        });
        tokio::spawn(async move {
            let _ = timeout(ABANDON_AFTER, search).await;
            drop(permit);
        })
    }

    fn wait(&self, cookie: u64) {
        let searches = self.clone();
        tokio::spawn(async move {
            let permits = Arc::clone(&searches.permits);
            let Ok(permit) = permits.acquire_owned().await else {
                return;
            };
            let mut pending = searches.pending.lock();
            match pending.get_mut(&cookie).and_then(Option::take) {
                Some(search) => drop(searches.run(cookie, search, permit)),
                None => drop(pending.remove(&cookie)),
            }
        });
    }
}

#[cfg(test)]
mod tests;
