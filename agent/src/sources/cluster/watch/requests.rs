//! Requests to the API server for a collection of objects.
//!
//! Invariant: an answer is read up to a size, however many objects are wanted.

use std::time::Duration;

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{
    Request, Response,
    body::Bytes,
    header::{ACCEPT, RETRY_AFTER},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{
    Client,
    client::Body,
    core::params::{ListParams, WatchParams},
    core::{Request as Path, Status},
};
use serde::{
    Deserialize,
    de::{DeserializeOwned, Error as _},
};
use sidetrack_base::api_server::chain;
use tokio::time::timeout;

/// Most bytes that are read of an answer with several objects.
pub(super) const MAX_PAGE_BYTES: usize = 4 << 20;
/// Most bytes of one object. etcd stores 1.5 MiB (`--max-request-bytes`), of which each byte may become six in JSON:
/// the API server writes `<` as `\u003c`.
pub(super) const MAX_OBJECT_BYTES: usize = 16 << 20;
/// Longest text of an error that is read.
const MAX_STATUS: usize = 64 << 10;

/// How long the server may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the body of a list.
    pub list: Duration,
    /// After this duration at most, and half of it at least, the server ends a watch (`timeoutSeconds`). Longer than what
    /// a silent load balancer in between allows is harmless: it costs a reconnect.
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

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The server cannot be reached, or does not answer.
    #[error("{}", unreachable(.0))]
    Unreachable(#[from] kube::Error),
    /// The server answered with an error, and asks to be left alone for so long (`Retry-After`), if it has too much to do.
    #[error("{}", text(.0))]
    Refused(Box<Status>, Duration),
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
            Self::Refused(status, _) => status.code,
            _ => 0,
        }
    }

    /// Asking again gives the same answer (4xx) until somebody changes something.
    pub fn is_lasting(&self) -> bool {
        (400..500).contains(&self.code())
    }

    /// How long the server asks to be left alone; a minute at most.
    pub(super) fn retry_after(&self) -> Duration {
        match self {
            Self::Refused(_, wait) => Duration::from_mins(1).min(*wait),
            _ => Duration::ZERO,
        }
    }

    /// The server no longer has the resource version: everything is to be listed again.
    pub(super) fn is_forgotten(&self) -> bool {
        const GONE: u16 = 410;
        self.code() == GONE
    }
}

/// Without the name that kube gives to errors of the HTTP client.
fn unreachable(error: &kube::Error) -> String {
    match error {
        kube::Error::Service(cause) => chain(cause.as_ref()),
        other => chain(other),
    }
}

fn text(status: &Status) -> String {
    let Status { code, message, .. } = status;
    match message.is_empty() {
        true => format!("HTTP status {code}"),
        false => format!("{message} (HTTP status {code})"),
    }
}

/// Makes the requests for a target.
pub(super) struct Requests {
    pub(super) client: Client,
    pub(super) target: Target,
    pub(super) timeouts: Timeouts,
}

impl Requests {
    /// The list, or with `most` a part of it. The API server answers a list without a limit from its memory (1.31 and
    /// later), and reads for one with a limit all nodes' pods from etcd.
    pub(super) async fn page<K: DeserializeOwned>(
        &self,
        most: Option<u32>,
        next: Option<&str>,
    ) -> Result<Page<K>, Failure> {
        let parameters = ListParams {
            field_selector: self.target.fields.clone(),
            limit: most,
            continue_token: next.map(str::to_owned),
            ..ListParams::default()
        };
        let request = Path::new(self.target.path.as_str()).list(&parameters);
        let response = self.ask(request.map_err(kube::Error::BuildRequest)?, "List");
        let most_bytes = match most {
            Some(1) => MAX_OBJECT_BYTES,
            _ => MAX_PAGE_BYTES,
        };
        let body = async { read(response.await?, most_bytes).await };
        let body = timeout(self.timeouts.list, body).await;
        let body = body.map_err(|_| Failure::Incomplete(self.timeouts.list))??;
        let page: Page<K> = serde_json::from_slice(&body)?;
        if page.version().is_empty() {
            return Err(serde_json::Error::custom("it has no resource version").into());
        }
        Ok(page)
    }

    /// Opens a watch that begins after a version; also when the server is to end it.
    pub(super) async fn open(&self, version: &str) -> Result<(Response<Body>, Duration), Failure> {
        let most = u32::try_from(self.timeouts.watch.as_secs()).unwrap_or(u32::MAX);
        // All nodes' agents open theirs when the server comes back: they are not to do so together ever after.
        let seconds = fastrand::u32(most / 2..=most).max(1);
        let parameters = WatchParams {
            field_selector: self.target.fields.clone(),
            timeout: Some(seconds),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = Path::new(self.target.path.as_str()).watch(&parameters, version);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let response = self.ask(request, "").await?;
        Ok((response, Duration::from_secs(seconds.into())))
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
        let wait = response.headers().get(RETRY_AFTER);
        let wait = wait.and_then(|it| it.to_str().ok()?.parse().ok());
        let wait = Duration::from_secs(wait.unwrap_or_default());
        // The head may be all that ever comes.
        let body = timeout(self.timeouts.list, read(response, MAX_STATUS)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let mut status: Status = serde_json::from_slice(&body).unwrap_or_default();
        status.code = code;
        Err(Failure::Refused(Box::new(status), wait))
    }
}

/// A part of a list. An answer without its parts is none, and no empty list.
#[derive(Deserialize)]
#[serde(bound = "K: DeserializeOwned")]
pub(super) struct Page<K> {
    pub(super) metadata: ListMeta,
    /// `null` if there are none.
    #[serde(deserialize_with = "Deserialize::deserialize")]
    pub(super) items: Option<Vec<K>>,
}

impl<K> Page<K> {
    /// The list's `metadata.resourceVersion`.
    pub(super) fn version(&self) -> &str {
        self.metadata
            .resource_version
            .as_deref()
            .unwrap_or_default()
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
