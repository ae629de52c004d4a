//! The reconciler's thread, as the main thread sees it.

use std::{sync::Arc, thread, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use super::{
    inbox::Inbox,
    worker::{Parts, work},
};
use sidetrack_base::runtime;

/// A handle of the thread.
pub(super) struct ReconcilerThread {
    inbox: Arc<Inbox>,
    ready: watch::Receiver<bool>,
    ended: oneshot::Receiver<Result<()>>,
}

impl ReconcilerThread {
    /// Starts it. An update that waits in the inbox already is applied before anything is published.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(parts: Parts, inbox: Arc<Inbox>) -> Result<Self> {
        let (ready_sender, ready) = watch::channel(false);
        let (ended_sender, ended) = oneshot::channel();
        let thread_inbox = Arc::clone(&inbox);
        thread::Builder::new()
            .name("reconciler".to_owned())
            .spawn(move || {
                let work = async {
                    // Work may be abandoned at any await: a successor repairs what is incomplete.
                    tokio::select! {
                        failed = work(parts, Arc::clone(&thread_inbox), ready_sender) => failed,
                        () = thread_inbox.stopped() => Ok(()),
                    }
                };
                // The datapath and its lock are gone when this returns.
                let result = runtime::block_on(work).unwrap_or_else(|error| Err(error.into()));
                let _ = ended_sender.send(result);
            })
            .context("start the reconciler's thread")?;
        Ok(Self {
            inbox,
            ready,
            ended,
        })
    }

    /// Whether the first full listing has been applied.
    pub(super) fn ready(&self) -> watch::Receiver<bool> {
        self.ready.clone()
    }

    /// Waits for the thread's end; it ends by itself only after an error. Cancel safe.
    pub(super) async fn ended(&mut self) -> Result<()> {
        let ended = (&mut self.ended).await;
        ended.context("the reconciler's thread ended without a result")?
    }

    /// Stops the thread; whether it has stopped within `patience`.
    pub(super) async fn stop(mut self, patience: Duration) -> bool {
        self.inbox.send_stop();
        timeout(patience, self.ended()).await.is_ok()
    }
}
