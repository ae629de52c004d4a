//! Answers to readers, at the port for metrics: what commands of this binary print that change nothing.
//!
//! Invariants: without a token that the API server has accepted for this node's agent nothing runs; bad tokens cost the API
//! server a question in each [`REVIEW_INTERVAL`], and those of one client delay others by [`MAX_WAITING`] of them; [`COMMANDS`] answers at most are made or not yet read by
//! their client, of [`MAX_OUTPUT_BYTES`] each; readers of namespaces do not keep those of the cluster from theirs.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::IpAddr,
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use futures_util::stream;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use parking_lot::Mutex;
use serde::Deserialize;
use sidetrack_base::http::places::Place;
use sidetrack_policy::reader::{self, Answer, Readers, Scope};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    sync::Semaphore,
    time::timeout,
};
use tracing::debug;

/// Answers at a time, those of readers of the cluster and those of readers of namespaces. Each is a process for some
/// milliseconds.
const COMMANDS: [usize; 2] = [2, 1];
/// The time between two questions to the API server about tokens, if the first was a bad one.
const REVIEW_INTERVAL: Duration = Duration::from_millis(200);
/// How long an answer of the API server may take.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(2);
/// Questions that wait, of clients of one address. Through the API server's proxy that is the API server's.
const MAX_WAITING: usize = 4;
/// How long a token counts that the API server has accepted.
const ACCEPTED_FOR: Duration = Duration::from_secs(60);
/// Such tokens that are kept. The API server makes tokens of less than 2 KiB, and a request's head has 8 KiB.
const MAX_ACCEPTED: usize = 16;
/// How long a command may take: the connection ends after five seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(4);
/// A piece of an answer.
const PIECE_BYTES: usize = 64 << 10;
/// The longest token that is reviewed.
const MAX_TOKEN_BYTES: usize = 4 << 10;
/// The most output of one command. A node of 500 pods answers with less than one MiB.
const MAX_OUTPUT_BYTES: u64 = 4 << 20;

/// Who answers.
pub struct Reader {
    client: Client,
    readers: Readers,
    audience: String,
    /// The agents' own.
    namespace: String,
    /// Where the agent is, as flags of each command.
    places: [PathBuf; 2],
    accepted: Mutex<Vec<Accepted>>,
    /// When the next token may be reviewed.
    next_review: tokio::sync::Mutex<Instant>,
    /// Tokens that wait for it, by address.
    waiting: Mutex<HashMap<Option<IpAddr>, usize>>,
    commands: [Arc<Semaphore>; 2],
}

struct Accepted {
    token: String,
    scope: Scope,
    until: Instant,
}

/// A request that is not answered, and why.
type Refusal = (StatusCode, String);

#[derive(Debug, Deserialize)]
struct Question {
    /// The command's words, as a list in JSON.
    words: String,
}

impl Reader {
    /// For the agent of a node, whose namespace, socket and bpffs these are.
    #[must_use]
    pub fn new(
        (client, readers): (Client, Readers),
        node: &str,
        namespace: &str,
        (socket, bpffs): (PathBuf, PathBuf),
    ) -> Self {
        Self {
            client,
            readers,
            audience: reader::audience(node),
            namespace: namespace.to_owned(),
            places: [socket, bpffs],
            accepted: Mutex::default(),
            next_review: tokio::sync::Mutex::new(Instant::now()),
            waiting: Mutex::default(),
            commands: COMMANDS.map(|count| Arc::new(Semaphore::new(count))),
        }
    }

    /// Its path.
    pub fn routes(self) -> Router {
        Router::new()
            .route(reader::PATH, get(read))
            .with_state(Arc::new(self))
    }

    /// What the owner of a token may see.
    async fn scope(&self, token: &str, client: Option<IpAddr>) -> Result<Scope, Refusal> {
        if let Some(scope) = self.accepted(token) {
            return Ok(scope);
        }
        let is_token = token.split('.').count() == 3 && token.len() <= MAX_TOKEN_BYTES;
        let found = match is_token {
            true => self.reviewed(token, client).await?,
            false => None,
        };
        let scope = found.ok_or_else(|| {
            let unknown = format!(
                "{} has no token of a service account {} for {}",
                reader::TOKEN,
                reader::SERVICE_ACCOUNT,
                self.audience
            );
            (StatusCode::UNAUTHORIZED, unknown)
        })?;
        let mut accepted = self.accepted.lock();
        if accepted.len() == MAX_ACCEPTED {
            accepted.remove(0);
        }
        accepted.push(Accepted {
            token: token.to_owned(),
            scope: scope.clone(),
            until: Instant::now() + ACCEPTED_FOR,
        });
        Ok(scope)
    }

    /// Asks the API server about a token, when it is its turn.
    async fn reviewed(
        &self,
        token: &str,
        client: Option<IpAddr>,
    ) -> Result<Option<Scope>, Refusal> {
        let _waits = Waits::new(&self.waiting, client).ok_or_else(busy)?;
        let mut next = self.next_review.lock().await;
        tokio::time::sleep_until((*next).into()).await;
        // Before the question: a client that goes away ends this here.
        *next = Instant::now() + REVIEW_INTERVAL;
        let reviewed = timeout(REVIEW_TIMEOUT, self.review(token)).await;
        if matches!(reviewed, Ok(Ok(Some(_)))) {
            *next = Instant::now();
        }
        reviewed.unwrap_or_else(|_| {
            let late = "the API server has not said whether the token is good";
            Err((StatusCode::SERVICE_UNAVAILABLE, late.to_owned()))
        })
    }

    fn accepted(&self, token: &str) -> Option<Scope> {
        let mut accepted = self.accepted.lock();
        let now = Instant::now();
        accepted.retain(|it| now < it.until);
        let known = accepted.iter().find(|it| it.token == token)?;
        Some(known.scope.clone())
    }

    /// Whose a token is, if it is a reader's.
    async fn review(&self, token: &str) -> Result<Option<Scope>, Refusal> {
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec {
                audiences: Some(vec![self.audience.clone()]),
                token: token.to_owned(),
            },
            status: None,
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let reviewed = api.create(&PostParams::default(), &review).await;
        let reviewed = reviewed.map_err(|error| {
            debug!("review a reader's token: {error}");
            let problem = "the API server does not say whether the token is good";
            (StatusCode::SERVICE_UNAVAILABLE, problem.to_owned())
        })?;
        let status = reviewed.status.unwrap_or_default();
        // An API server that does not look at audiences leaves them out.
        let is_for_this = status
            .audiences
            .is_some_and(|all| all.contains(&self.audience));
        let user = status.user.and_then(|user| user.username);
        let user = user.filter(|_| is_for_this && status.authenticated == Some(true));
        Ok(user.and_then(|user| Scope::of_user(&user, &self.namespace, self.readers)))
    }

    /// Runs a command.
    async fn run(&self, words: &[String], scope: &Scope) -> Result<Answer, Refusal> {
        let [socket, bpffs] = &self.places;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("sidetrack")
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if words[0] != "version" {
            command
                .arg("--socket")
                .arg(socket)
                .arg("--bpffs")
                .arg(bpffs);
        }
        if let Scope::Namespace(only) = scope {
            command.arg(format!("--only-namespace={only}"));
        }
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = tokio::join!(text(stdout), text(stderr));
        let (stdout, stderr) = (stdout?, stderr?);
        let ended = child.wait().await.map_err(|error| failed(&error))?;
        Ok(Answer {
            code: ended.code().unwrap_or(1),
            stdout,
            stderr,
        })
    }
}

/// A token that waits.
struct Waits<'a> {
    waiting: &'a Mutex<HashMap<Option<IpAddr>, usize>>,
    client: Option<IpAddr>,
}

impl<'a> Waits<'a> {
    /// None if the client has too many.
    fn new(
        waiting: &'a Mutex<HashMap<Option<IpAddr>, usize>>,
        client: Option<IpAddr>,
    ) -> Option<Self> {
        let mut all = waiting.lock();
        let own = all.entry(client).or_default();
        if *own == MAX_WAITING {
            return None;
        }
        *own += 1;
        Some(Self { waiting, client })
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut all = self.waiting.lock();
        if let Some(own) = all.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                all.remove(&self.client);
            }
        }
    }
}

async fn read(
    State(reader): State<Arc<Reader>>,
    Extension(place): Extension<Place>,
    Query(question): Query<Question>,
    head: HeaderMap,
) -> Result<Response, Refusal> {
    let token = head.get(reader::TOKEN);
    let token = token.and_then(|token| token.to_str().ok());
    // A client without a good token is worked for no more than one that says nothing.
    place.waits();
    let scope = reader.scope(token.unwrap_or_default(), place.address());
    let scope = scope.await?;
    place.works();
    let words: Vec<String> = serde_json::from_str(&question.words)
        .map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    reader::check(&words, &scope).map_err(|why| (StatusCode::FORBIDDEN, why))?;
    let [of_cluster, of_namespaces] = &reader.commands;
    let commands = match scope {
        Scope::Node => of_cluster,
        Scope::Namespace(_) => of_namespaces,
    };
    let permit = Arc::clone(commands).try_acquire_owned();
    let permit = permit.map_err(|_| busy())?;
    let answered = timeout(COMMAND_TIMEOUT, reader.run(&words, &scope)).await;
    let answer = answered.unwrap_or_else(|_| {
        let late = format!("no answer within {COMMAND_TIMEOUT:?}");
        Err((StatusCode::GATEWAY_TIMEOUT, late))
    })?;
    let body = serde_json::to_vec(&answer).map_err(|error| failed(&error))?;
    // The answer counts until its client has read it, or has gone: a piece is sent when there is room for it.
    let body = Bytes::from(body);
    let starts = (0..body.len()).step_by(PIECE_BYTES);
    let pieces = starts.map(move |start| {
        let _ = &permit;
        Ok::<_, Infallible>(body.slice(start..body.len().min(start + PIECE_BYTES)))
    });
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, Body::from_stream(stream::iter(pieces))).into_response())
}

/// The client may ask again at once.
fn busy() -> Refusal {
    let busy = "others are being answered";
    (StatusCode::TOO_MANY_REQUESTS, busy.to_owned())
}

async fn text(pipe: Option<impl AsyncRead + Unpin>) -> Result<String, Refusal> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let mut pipe = pipe.take(MAX_OUTPUT_BYTES + 1);
        let read = pipe.read_to_end(&mut bytes).await;
        read.map_err(|error| failed(&error))?;
    }
    if bytes.len() as u64 > MAX_OUTPUT_BYTES {
        let long = format!("the answer is longer than {} MiB", MAX_OUTPUT_BYTES >> 20);
        return Err((StatusCode::INSUFFICIENT_STORAGE, long));
    }
    let text = String::from_utf8(bytes);
    Ok(text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

fn failed(error: &dyn std::error::Error) -> Refusal {
    debug!("answer a reader: {error}");
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}
