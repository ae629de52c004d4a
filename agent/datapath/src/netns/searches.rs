//! Searches in pods, beside the reconciler's loop: a few at a time, and one per pod.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::JoinHandle};

/// The searches of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Searches {
    permits: Arc<Semaphore>,
    /// Cookies of the namespaces that are being searched, or wait for it.
    pending: Arc<Mutex<BTreeSet<u64>>>,
}

impl Searches {
    /// So many at a time.
    pub(crate) fn new(at_a_time: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(at_a_time)),
            pending: Arc::default(),
        }
    }

    /// Searches in the namespace with this cookie, unless a search there has not ended yet. Answers the search if it
    /// could begin at once; it begins after others if too many are running.
    pub(crate) fn start(
        &self,
        cookie: u64,
        search: impl FnOnce() + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        if !self.pending.lock().insert(cookie) {
            return None;
        }
        let pending = Arc::clone(&self.pending);
        let run = move |permit| {
            tokio::task::spawn_blocking(move || {
                search();
                pending.lock().remove(&cookie);
                drop(permit);
            })
        };
        let permits = Arc::clone(&self.permits);
        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
            return Some(run(permit));
        }
        tokio::spawn(async move {
            if let Ok(permit) = permits.acquire_owned().await {
                run(permit);
            }
        });
        None
    }
}

#[cfg(test)]
mod tests;
