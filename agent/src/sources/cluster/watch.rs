//! Lists the objects of one kind and watches them from there.
//!
//! Invariant: only a request that fails is a problem. A watch that is silent, or that ends, is none: it is opened again
//! where it ended.

mod requests;

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, TryStreamExt as _};
use http_body_util::BodyExt as _;
use hyper::Response;
use kube::{Client, client::Body, core::WatchEvent, runtime::watcher::Event};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::{
    codec::{FramedRead, LinesCodec},
    io::StreamReader,
};
use tracing::debug;

pub use self::requests::{Failure, Target, Timeouts};
use self::requests::{MAX_OBJECT_BYTES, Requests};

/// Most objects in an answer, if not all fit into [`requests::MAX_PAGE_BYTES`].
const MAX_PAGE: u32 = 128;
/// A watch that ends sooner is followed by a pause.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// Updates that wait for their reader.
const QUEUE: usize = 16;

/// What a watch needs to know of an object.
pub trait Object: Clone + DeserializeOwned + Send + 'static {
    /// `metadata.resourceVersion`
    fn resource_version(&self) -> Option<&str>;
}

/// What has become known.
#[derive(Debug)]
pub enum Update<K> {
    /// An object, or the beginning or end of a list.
    Event(Event<K>),
    /// What was listed and what has been received since is the present state: a watch is open.
    Current,
    /// A request failed. It is made again.
    Failed(Failure),
}

/// Follows objects until dropped.
#[derive(Debug)]
pub struct Watch<K> {
    updates: mpsc::Receiver<Update<K>>,
    relist: Arc<Notify>,
    task: Option<JoinHandle<()>>,
}

impl<K: Object> Watch<K> {
    /// Begins with a list. `pauses` are made after failures.
    pub fn start(
        client: Client,
        target: Target,
        timeouts: Timeouts,
        pauses: impl Pauses + Send + 'static,
    ) -> Self {
        let (sender, updates) = mpsc::channel(QUEUE);
        let worker = Worker {
            requests: Requests {
                client,
                target,
                timeouts,
            },
            updates: sender,
            relist: Arc::new(Notify::new()),
        };
        let relist = Arc::clone(&worker.relist);
        let task = tokio::spawn(async move {
            // Ends when the receiver is dropped.
            let _ = worker.run(pauses).await;
        });
        Self {
            updates,
            relist,
            task: Some(task),
        }
    }

    /// Without any object.
    pub fn nothing() -> Self {
        let (_, updates) = mpsc::channel(1);
        Self {
            updates,
            relist: Arc::default(),
            task: None,
        }
    }

    /// Asks for a new list once the watch is open.
    pub fn list_again(&self) {
        self.relist.notify_one();
    }

    /// The next update. Cancel safe.
    pub async fn next(&mut self) -> Update<K> {
        match self.updates.recv().await {
            Some(update) => update,
            None => std::future::pending().await,
        }
    }
}

impl<K> Drop for Watch<K> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// How long to wait after failures.
pub trait Pauses {
    /// After one more failure, which may be a lasting one ([`Failure::is_lasting`]).
    fn next(&mut self, is_lasting: bool) -> Duration;
    /// After a success.
    fn reset(&mut self);
}

struct Worker<K> {
    requests: Requests,
    updates: mpsc::Sender<Update<K>>,
    relist: Arc<Notify>,
}

/// The receiver of the updates was dropped.
struct ReceiverGone;

/// How a watch ended without a failure.
enum End {
    /// It continues where it ended.
    Over,
    /// Everything is to be listed again.
    ListAgain,
}

impl<K: Object> Worker<K> {
    async fn run(self, mut pauses: impl Pauses) -> Result<(), ReceiverGone> {
        loop {
            let began = Instant::now();
            let version = match self.list().await? {
                Ok(version) => version,
                Err(failure) => {
                    let pause = pause(&mut pauses, &failure);
                    self.send(Update::Failed(failure)).await?;
                    sleep(pause).await;
                    continue;
                }
            };
            if let Err(failure) = self.watch(version, &mut pauses).await? {
                let pause = pause(&mut pauses, &failure);
                self.fail(failure).await?;
                sleep(pause).await;
            } else if began.elapsed() < SHORT_WATCH {
                sleep(pauses.next(false)).await;
            }
        }
    }

    async fn send(&self, update: Update<K>) -> Result<(), ReceiverGone> {
        self.updates.send(update).await.map_err(|_| ReceiverGone)
    }

    async fn event(&self, event: Event<K>) -> Result<(), ReceiverGone> {
        self.send(Update::Event(event)).await
    }

    /// That the server has forgotten a version is no failure.
    async fn fail(&self, failure: Failure) -> Result<(), ReceiverGone> {
        if failure.is_forgotten() {
            return Ok(());
        }
        self.send(Update::Failed(failure)).await
    }

    /// Reads all objects, in pages if one answer does not hold them, and returns the version of the list.
    async fn list(&self) -> Result<Result<String, Failure>, ReceiverGone> {
        self.event(Event::Init).await?;
        let mut most = None;
        let mut next = None;
        loop {
            let page = match self.requests.page(most, next.as_deref()).await {
                Ok(page) => page,
                // Fewer of these objects fit.
                Err(Failure::TooLarge) if most != Some(1) => {
                    most = Some(most.map_or(MAX_PAGE, |most| (most / 8).max(1)));
                    continue;
                }
                Err(failure) => return Ok(Err(failure)),
            };
            let version = page.version().to_owned();
            for object in page.items.into_iter().flatten() {
                self.event(Event::InitApply(object)).await?;
            }
            next = page.metadata.continue_.filter(|next| !next.is_empty());
            if next.is_none() {
                self.event(Event::InitDone).await?;
                return Ok(Ok(version));
            }
        }
    }

    /// Watches from a version on, again and again, until everything is to be listed anew, or until that is advised
    /// because of an error.
    async fn watch(
        &self,
        mut version: String,
        pauses: &mut impl Pauses,
    ) -> Result<Result<(), Failure>, ReceiverGone> {
        loop {
            let began = Instant::now();
            match self.requests.open(&version).await {
                Ok((response, lasts)) => {
                    self.send(Update::Current).await?;
                    let deadline = Instant::now() + lasts + self.requests.timeouts.grace;
                    match self.receive(response, deadline, &mut version).await? {
                        Ok(End::Over) => {}
                        Ok(End::ListAgain) => return Ok(Ok(())),
                        Err(failure) => return Ok(Err(failure)),
                    }
                }
                Err(failure) if failure.is_forgotten() => return Ok(Ok(())),
                Err(failure) => {
                    let pause = pause(pauses, &failure);
                    self.fail(failure).await?;
                    sleep(pause).await;
                    continue;
                }
            }
            if began.elapsed() < SHORT_WATCH {
                sleep(pauses.next(false)).await;
            } else {
                pauses.reset();
            }
        }
    }

    /// Passes on the events of an open watch until it ends. It ends after the server's own time, or because the
    /// connection does.
    async fn receive(
        &self,
        response: Response<Body>,
        deadline: Instant,
        version: &mut String,
    ) -> Result<Result<End, Failure>, ReceiverGone> {
        let body = response.into_body().into_data_stream();
        let reader = StreamReader::new(body.map_err(std::io::Error::other));
        let mut lines = FramedRead::new(reader, LinesCodec::new_with_max_length(MAX_OBJECT_BYTES));
        loop {
            let line = tokio::select! {
                line = lines.next() => line,
                () = sleep_until(deadline) => None,
                () = self.relist.notified() => return Ok(Ok(End::ListAgain)),
            };
            let line = match line {
                Some(Ok(line)) => line,
                Some(Err(error)) => {
                    debug!(path = self.requests.target.path, "a watch ended: {error}");
                    return Ok(Ok(End::Over));
                }
                None => return Ok(Ok(End::Over)),
            };
            match serde_json::from_str::<WatchEvent<K>>(&line) {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                    advance(version, object.resource_version());
                    self.event(Event::Apply(object)).await?;
                }
                Ok(WatchEvent::Deleted(object)) => {
                    advance(version, object.resource_version());
                    self.event(Event::Delete(object)).await?;
                }
                Ok(WatchEvent::Bookmark(bookmark)) => {
                    advance(version, Some(&bookmark.metadata.resource_version));
                }
                Ok(WatchEvent::Error(status)) => {
                    return Ok(Err(Failure::Refused(status, Duration::ZERO)));
                }
                // The connection was cut within a line.
                Err(error) if error.is_eof() => return Ok(Ok(End::Over)),
                Err(error) => return Ok(Err(error.into())),
            }
        }
    }
}

/// The pause after a failure. What the server asks for is spread: it asks many.
fn pause(pauses: &mut impl Pauses, failure: &Failure) -> Duration {
    let asked = failure.retry_after().mul_f32(1.0 + fastrand::f32());
    pauses.next(failure.is_lasting()).max(asked)
}

/// Versions that are missing leave the known one.
fn advance(version: &mut String, to: Option<&str>) {
    if let Some(to) = to.filter(|to| !to.is_empty()) {
        to.clone_into(version);
    }
}

#[cfg(test)]
mod tests;
