//! Lists the objects of one kind and watches them from there.
//!
//! Invariants: an answer is read up to a size, however many objects are wanted; only a request that
//! fails is a problem. A watch that is silent, or that ends, is none: it is opened again where it ended.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, TryStreamExt as _};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{Request, Response, body::Bytes, header::ACCEPT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{
    Client,
    client::Body,
    core::params::{ListParams, WatchParams},
    core::{Request as Path, Status, WatchEvent},
    runtime::watcher::Event,
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::{
    codec::{FramedRead, LinesCodec},
    io::StreamReader,
};
use tracing::debug;

/// Most objects in an answer. Fewer are asked for if they do not fit into [`MAX_PAGE_BYTES`].
const MAX_PAGE: u32 = 128;
/// Most bytes that are read of an answer with several objects.
const MAX_PAGE_BYTES: usize = 4 << 20;
/// Most bytes of one object. etcd stores 1.5 MiB (`--max-request-bytes`), of which each byte may become six in JSON:
/// the API server writes `<` as `\u003c`.
const MAX_OBJECT_BYTES: usize = 16 << 20;
/// Longest text of an error that is read.
const MAX_STATUS: usize = 64 << 10;
/// A watch that ends sooner is followed by a pause.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// Updates that wait for their reader.
const QUEUE: usize = 16;

/// What a watch needs to know of an object.
pub trait Object: Clone + DeserializeOwned + Send + 'static {
    /// `metadata.resourceVersion`
    fn resource_version(&self) -> Option<&str>;
}

/// How long the server may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the body of a list.
    pub list: Duration,
    /// After so long the server ends a watch (`timeoutSeconds`). Longer than what a silent load balancer in
    /// between allows is harmless: it costs a reconnect.
    pub watch: Duration,
    /// How much later than that a watch is given up.
    pub grace: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            list: Duration::from_secs(30),
            watch: Duration::from_secs(290),
            grace: Duration::from_secs(10),
        }
    }
}

/// The objects to follow.
#[derive(Clone, Debug)]
pub struct Target {
    /// Path of the collection, for example `/api/v1/pods`.
    pub path: String,
    /// A field selector.
    pub fields: Option<String>,
    /// Whether only their metadata is wanted.
    pub metadata_only: bool,
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

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The server cannot be reached, or does not answer.
    #[error("{}", chain(.0))]
    Unreachable(#[from] kube::Error),
    /// The server answered with an error.
    #[error("{}", text(.0))]
    Refused(Box<Status>),
    /// The rest of an answer did not come in time.
    #[error("the answer was not complete after {} s", .0.as_secs())]
    Incomplete(Duration),
    /// A single object exceeds [`MAX_OBJECT_BYTES`].
    #[error("the answer about a single object has more than {} MiB", MAX_OBJECT_BYTES >> 20)]
    TooLarge,
    /// The answer is no list, or no event.
    #[error("the answer cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The connection broke within an answer.
    #[error("the connection broke within an answer: {0}")]
    Broken(String),
}

impl Failure {
    /// HTTP status; 0 where there is none.
    pub fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            _ => 0,
        }
    }

    /// The server no longer knows the resource version: everything is to be listed again.
    fn is_forgotten(&self) -> bool {
        const GONE: u16 = 410;
        self.code() == GONE
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            text = format!("{text}: {next_text}");
        }
        cause = next.source();
    }
    text
}

fn text(status: &Status) -> String {
    let Status { code, message, .. } = status;
    match message.is_empty() {
        true => format!("HTTP status {code}"),
        false => format!("{message} (HTTP status {code})"),
    }
}

/// Follows objects until dropped.
#[derive(Debug)]
pub struct Watch<K> {
    updates: mpsc::Receiver<Update<K>>,
    again: Arc<Notify>,
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
            client,
            target,
            timeouts,
            updates: sender,
            again: Arc::new(Notify::new()),
        };
        let again = Arc::clone(&worker.again);
        let task = tokio::spawn(async move {
            // Ends when nobody listens any more.
            let _ = worker.run(pauses).await;
        });
        Self {
            updates,
            again,
            task: Some(task),
        }
    }

    /// Without any object.
    pub fn nothing() -> Self {
        let (_, updates) = mpsc::channel(1);
        Self {
            updates,
            again: Arc::default(),
            task: None,
        }
    }

    /// Asks for a new list once the watch is open.
    pub fn list_again(&self) {
        self.again.notify_one();
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
    /// After one more failure.
    fn next(&mut self) -> Duration;
    /// After a success.
    fn reset(&mut self);
}

struct Worker<K> {
    client: Client,
    target: Target,
    timeouts: Timeouts,
    updates: mpsc::Sender<Update<K>>,
    again: Arc<Notify>,
}

/// Nobody listens any more.
struct Unheard;

/// How a watch ended without a failure.
enum End {
    /// It goes on where it ended.
    Over,
    /// Everything is to be listed again.
    ListAgain,
}

impl<K: Object> Worker<K> {
    async fn run(self, mut pauses: impl Pauses) -> Result<(), Unheard> {
        loop {
            let began = Instant::now();
            let version = match self.list().await? {
                Ok(version) => version,
                Err(failure) => {
                    self.send(Update::Failed(failure)).await?;
                    sleep(pauses.next()).await;
                    continue;
                }
            };
            if let Err(failure) = self.watch(version, &mut pauses).await? {
                self.fail(failure).await?;
                sleep(pauses.next()).await;
            } else if began.elapsed() < SHORT_WATCH {
                sleep(pauses.next()).await;
            }
        }
    }

    async fn send(&self, update: Update<K>) -> Result<(), Unheard> {
        self.updates.send(update).await.map_err(|_| Unheard)
    }

    async fn event(&self, event: Event<K>) -> Result<(), Unheard> {
        self.send(Update::Event(event)).await
    }

    /// That the server has forgotten a version is no failure.
    async fn fail(&self, failure: Failure) -> Result<(), Unheard> {
        if failure.is_forgotten() {
            return Ok(());
        }
        self.send(Update::Failed(failure)).await
    }

    /// Reads all objects, in pages, and returns the version of the list.
    async fn list(&self) -> Result<Result<String, Failure>, Unheard> {
        self.event(Event::Init).await?;
        let mut most = MAX_PAGE;
        let mut next = None;
        loop {
            let page = match timeout(self.timeouts.list, self.page(most, next.as_deref())).await {
                Ok(Ok(page)) => page,
                // Fewer of these objects fit.
                Ok(Err(Failure::TooLarge)) if most > 1 => {
                    most = (most / 8).max(1);
                    continue;
                }
                Ok(Err(failure)) => return Ok(Err(failure)),
                Err(_) => return Ok(Err(Failure::Incomplete(self.timeouts.list))),
            };
            for object in page.items {
                self.event(Event::InitApply(object)).await?;
            }
            next = page.metadata.continue_.filter(|next| !next.is_empty());
            if next.is_none() {
                self.event(Event::InitDone).await?;
                return Ok(Ok(page.metadata.resource_version.unwrap_or_default()));
            }
        }
    }

    async fn page(&self, most: u32, next: Option<&str>) -> Result<Page<K>, Failure> {
        let parameters = ListParams {
            field_selector: self.target.fields.clone(),
            limit: Some(most),
            continue_token: next.map(str::to_owned),
            ..ListParams::default()
        };
        let request = Path::new(self.target.path.as_str()).list(&parameters);
        let response = self.ask(request.map_err(kube::Error::BuildRequest)?, "List");
        let most_bytes = if most > 1 {
            MAX_PAGE_BYTES
        } else {
            MAX_OBJECT_BYTES
        };
        let body = read(response.await?, most_bytes).await?;
        Ok(serde_json::from_slice(&body)?)
    }

    /// Watches from a version on, again and again, until everything is to be listed anew, or until that is advised
    /// because of an error.
    async fn watch(
        &self,
        mut version: String,
        pauses: &mut impl Pauses,
    ) -> Result<Result<(), Failure>, Unheard> {
        loop {
            let began = Instant::now();
            match self.open(&version).await {
                Ok(response) => {
                    self.send(Update::Current).await?;
                    match self.receive(response, &mut version).await? {
                        Ok(End::Over) => {}
                        Ok(End::ListAgain) => return Ok(Ok(())),
                        Err(failure) => return Ok(Err(failure)),
                    }
                }
                Err(failure) if failure.is_forgotten() => return Ok(Ok(())),
                Err(failure) => {
                    self.fail(failure).await?;
                    sleep(pauses.next()).await;
                    continue;
                }
            }
            if began.elapsed() < SHORT_WATCH {
                sleep(pauses.next()).await;
            } else {
                pauses.reset();
            }
        }
    }

    async fn open(&self, version: &str) -> Result<Response<Body>, Failure> {
        let seconds = self.timeouts.watch.as_secs().try_into();
        let parameters = WatchParams {
            field_selector: self.target.fields.clone(),
            timeout: Some(seconds.unwrap_or(u32::MAX).max(1)),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = Path::new(self.target.path.as_str()).watch(&parameters, version);
        self.ask(request.map_err(kube::Error::BuildRequest)?, "")
            .await
    }

    /// Passes on the events of an open watch until it ends. It ends after the server's own time, or because the
    /// connection does.
    async fn receive(
        &self,
        response: Response<Body>,
        version: &mut String,
    ) -> Result<Result<End, Failure>, Unheard> {
        let deadline = Instant::now() + self.timeouts.watch + self.timeouts.grace;
        let body = response.into_body().into_data_stream();
        let reader = StreamReader::new(body.map_err(std::io::Error::other));
        let mut lines = FramedRead::new(reader, LinesCodec::new_with_max_length(MAX_OBJECT_BYTES));
        loop {
            let line = tokio::select! {
                line = lines.next() => line,
                () = sleep_until(deadline) => None,
                () = self.again.notified() => return Ok(Ok(End::ListAgain)),
            };
            let line = match line {
                Some(Ok(line)) => line,
                Some(Err(error)) => {
                    debug!(path = self.target.path, "a watch ended: {error}");
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
                    return Ok(Err(Failure::Refused(status)));
                }
                // The connection was cut within a line.
                Err(error) if error.is_eof() => return Ok(Ok(End::Over)),
                Err(error) => return Ok(Err(error.into())),
            }
        }
    }

    /// Sends a request; the answer's head has come and says success.
    async fn ask(
        &self,
        request: Request<Vec<u8>>,
        suffix: &str,
    ) -> Result<Response<Body>, Failure> {
        let mut request = request.map(Body::from);
        if self.target.metadata_only {
            let accept =
                format!("application/json;as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1");
            let accept = accept
                .parse()
                .map_err(|error| Failure::Broken(format!("{error}")))?;
            request.headers_mut().insert(ACCEPT, accept);
        }
        let response = self.client.send(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status().as_u16();
        // The head may be all that ever comes.
        let body = timeout(self.timeouts.list, read(response, MAX_STATUS)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let mut status: Status = serde_json::from_slice(&body).unwrap_or_default();
        status.code = code;
        Err(Failure::Refused(Box::new(status)))
    }
}

/// A part of a list.
#[derive(Deserialize)]
#[serde(bound = "K: DeserializeOwned")]
struct Page<K> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default = "Vec::new")]
    items: Vec<K>,
}

/// Versions that are missing leave the known one.
fn advance(version: &mut String, to: Option<&str>) {
    if let Some(to) = to.filter(|to| !to.is_empty()) {
        to.clone_into(version);
    }
}

/// A body, as far as it is small enough.
async fn read(response: Response<Body>, most: usize) -> Result<Bytes, Failure> {
    let body = Limited::new(response.into_body(), most).collect().await;
    let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => Failure::TooLarge,
        None => Failure::Broken(error.to_string()),
    })?;
    Ok(body.to_bytes())
}

#[cfg(test)]
mod tests;
