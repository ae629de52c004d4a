//! Searches in pods, beside the reconciler's loop: a few at a time, and one per pod.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::JoinHandle};

/// The searches of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Searches {
    permits: Arc<Semaphore>,
    /// Cookies of the namespaces that are being searched.
    running: Arc<Mutex<BTreeSet<u64>>>,
}

impl Searches {
    /// So many at a time.
    pub(crate) fn new(at_a_time: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(at_a_time)),
            running: Arc::default(),
        }
    }

    /// Starts one in the namespace with this cookie; `None` if it is being searched already, or too many are.
    pub(crate) fn start(
        &self,
        cookie: u64,
        search: impl FnOnce() + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        if !self.running.lock().insert(cookie) {
            return None;
        }
        let searches = self.clone();
        Some(tokio::task::spawn_blocking(move || {
            search();
            searches.running.lock().remove(&cookie);
            drop(permit);
        }))
    }
}
