//! Answers to readers, at the port for metrics: what commands of this binary print that change nothing.
//!
//! Invariants: without a token that the API server has accepted for this node's agent nothing runs; clients without one
//! cost the API server [`REVIEW_INTERVAL`] at most; [`COMMANDS`] run at a time, with [`MAX_OUTPUT_BYTES`] each.

use std::{
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
    routing::get,
};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use parking_lot::Mutex;
use serde::Deserialize;
use sidetrack_policy::reader::{self, Answer, Scope};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    sync::Semaphore,
    time::timeout,
};
use tracing::debug;

/// Commands at a time. Each is a process of about 8 MiB for some milliseconds.
const COMMANDS: usize = 2;
/// The time between two questions to the API server about tokens.
const REVIEW_INTERVAL: Duration = Duration::from_millis(200);
/// How long an answer of the API server may take.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a token counts that the API server has accepted.
const ACCEPTED_FOR: Duration = Duration::from_secs(60);
/// Such tokens that are kept. The API server makes tokens of less than 2 KiB, and a request's head has 8 KiB.
const MAX_ACCEPTED: usize = 16;
/// How long a command may take: the connection ends after five seconds.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(4);
/// The most output of one command. A node of 500 pods answers with less than one MiB.
const MAX_OUTPUT_BYTES: u64 = 4 << 20;

/// Who answers.
pub struct Reader {
    client: Client,
    audience: String,
    /// The agents' own.
    namespace: String,
    /// Where the agent is, as flags of each command.
    places: [PathBuf; 2],
    accepted: Mutex<Vec<Accepted>>,
    next_review: tokio::sync::Mutex<Instant>,
    commands: Semaphore,
}

#[derive(Debug)]
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
        client: Client,
        node: &str,
        namespace: &str,
        (socket, bpffs): (PathBuf, PathBuf),
    ) -> Self {
        Self {
            client,
            audience: reader::audience(node),
            namespace: namespace.to_owned(),
            places: [socket, bpffs],
            accepted: Mutex::default(),
            next_review: tokio::sync::Mutex::new(Instant::now()),
            commands: Semaphore::new(COMMANDS),
        }
    }

    /// Its path.
    pub fn routes(self) -> Router {
        Router::new()
            .route(reader::PATH, get(read))
            .with_state(Arc::new(self))
    }

    /// What the owner of a token may see.
    async fn scope(&self, token: &str) -> Result<Scope, Refusal> {
        if let Some(scope) = self.accepted(token) {
            return Ok(scope);
        }
        let busy = (StatusCode::SERVICE_UNAVAILABLE, "busy".to_owned());
        let Ok(mut next) = self.next_review.try_lock() else {
            return Err(busy);
        };
        if Instant::now() < *next {
            return Err(busy);
        }
        *next = Instant::now() + REVIEW_INTERVAL;
        let reviewed = timeout(REVIEW_TIMEOUT, self.review(token)).await;
        drop(next);
        let reviewed = reviewed.unwrap_or_else(|_| {
            let late = "the API server has not said whether the token is good";
            Err((StatusCode::SERVICE_UNAVAILABLE, late.to_owned()))
        });
        let scope = reviewed?;
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

    fn accepted(&self, token: &str) -> Option<Scope> {
        let mut accepted = self.accepted.lock();
        let now = Instant::now();
        accepted.retain(|it| now < it.until);
        let known = accepted.iter().find(|it| it.token == token)?;
        Some(known.scope.clone())
    }

    async fn review(&self, token: &str) -> Result<Scope, Refusal> {
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
        user.and_then(|user| Scope::of_user(&user, &self.namespace))
            .ok_or_else(|| {
                let unknown = format!(
                    "{} has no token of a service account {} for {}",
                    reader::TOKEN,
                    reader::SERVICE_ACCOUNT,
                    self.audience
                );
                (StatusCode::UNAUTHORIZED, unknown)
            })
    }

    /// Runs a command.
    async fn run(&self, words: &[String]) -> Result<Answer, Refusal> {
        let permit = self.commands.acquire().await;
        let _permit = permit.map_err(|closed| failed(&closed))?;
        let [socket, bpffs] = &self.places;
        let mut command = Command::new("/proc/self/exe");
        command
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

async fn read(
    State(reader): State<Arc<Reader>>,
    Query(question): Query<Question>,
    head: HeaderMap,
) -> Result<Json<Answer>, Refusal> {
    let token = head
        .get(reader::TOKEN)
        .and_then(|token| token.to_str().ok());
    let token = token.unwrap_or_default();
    let scope = reader.scope(token).await?;
    let words: Vec<String> = serde_json::from_str(&question.words)
        .map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    reader::check(&words, &scope).map_err(|why| (StatusCode::FORBIDDEN, why))?;
    let answered = timeout(COMMAND_TIMEOUT, reader.run(&words)).await;
    answered
        .unwrap_or_else(|_| {
            let late = format!("no answer within {COMMAND_TIMEOUT:?}");
            Err((StatusCode::GATEWAY_TIMEOUT, late))
        })
        .map(Json)
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
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn failed(error: &dyn std::error::Error) -> Refusal {
    debug!("answer a reader: {error}");
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}
