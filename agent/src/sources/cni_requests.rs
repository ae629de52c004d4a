//! Requests of the CNI plugin: the route they come by, their queue, and the pods whose answer is
//! still pending.
//!
//! Invariants: every request gets exactly one answer, or the client's connection ends. What an answer says of a pod is
//! published before it is sent.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Extension, Json, Router,
    extract::{DefaultBodyLimit, FromRequest as _, Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::post,
};
use sidetrack_ambient::{Served, Table, workload_uid};
use sidetrack_reconcile::{
    Found,
    cni::{CniAnswer, PATH, Question, Sandbox},
};
use tokio::{
    net::UnixStream,
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::cni::config::MAX_SECONDS;
use crate::observe::timings::Timings;
use sidetrack_common::ids::NetnsInode;
use sidetrack_datapath::{
    netns::{NetnsError, inode_of},
    reconcile::Reconciler,
};

/// Requests that wait for the reconciler: more than a node starts pods at a time. Further clients
/// wait at the control socket.
const QUEUE: usize = 256;
/// Most requests name one pod and its namespace; GC lists all containers of a node.
const LARGEST: usize = 1024 * 1024;
/// How long a client may take to send a request.
const SEND_DEADLINE: Duration = Duration::from_secs(2);

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pid: i32,
}

impl Peer {
    /// The process that opened a connection.
    pub fn of(stream: &UnixStream) -> Self {
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        Self {
            pid: pid.unwrap_or_default(),
        }
    }
}

/// A request, and where its answer goes.
#[derive(Debug)]
pub struct CniRequest {
    question: Question,
    /// The client's process, 0 if it cannot be seen from here.
    pid: i32,
    answer: oneshot::Sender<CniAnswer>,
}

/// The reconciler's end of the queue.
#[derive(Debug)]
pub struct CniQueue {
    requests: mpsc::Receiver<CniRequest>,
    pending: Vec<PendingRequest>,
    /// Answers that are known and not sent yet.
    answers: Vec<(oneshot::Sender<CniAnswer>, CniAnswer)>,
}

/// The clients' end of the queue.
#[derive(Clone, Debug)]
struct Asker {
    sender: mpsc::Sender<CniRequest>,
    timings: Arc<Timings>,
    /// The pods of ztunnel, if the agent serves it.
    ambient: Option<Arc<Table>>,
}

/// An ADD whose pod's state is not known yet.
#[derive(Debug)]
struct PendingRequest {
    sandbox: Sandbox,
    found: Found,
    deadline: Instant,
    answer: oneshot::Sender<CniAnswer>,
}

impl CniQueue {
    /// A queue, and the route by which requests come to it.
    pub fn new(timings: Arc<Timings>, ambient: Option<Arc<Table>>) -> (Self, Router) {
        let (sender, requests) = mpsc::channel(QUEUE);
        let router = Router::new()
            .route(PATH, post(handle))
            .layer(DefaultBodyLimit::max(LARGEST))
            .with_state(Asker {
                sender,
                timings,
                ambient,
            });
        let queue = Self {
            requests,
            pending: Vec::new(),
            answers: Vec::new(),
        };
        (queue, router)
    }

    /// The next request. Cancel safe.
    pub async fn next(&mut self) -> Option<CniRequest> {
        self.requests.recv().await
    }

    /// Accepts a request, and a few more that are queued already. The batch is small because pending
    /// requests are answered between batches.
    pub async fn accept(&mut self, request: CniRequest, reconciler: &mut Reconciler, ready: bool) {
        const MORE_AT_A_TIME: usize = 8;
        self.accept_one(request, reconciler, ready).await;
        for _ in 0..MORE_AT_A_TIME {
            let Ok(request) = self.requests.try_recv() else {
                return;
            };
            self.accept_one(request, reconciler, ready).await;
        }
    }

    async fn accept_one(&mut self, request: CniRequest, reconciler: &mut Reconciler, ready: bool) {
        let CniRequest {
            question,
            pid,
            answer,
        } = request;
        let now = match question {
            Question::Add { sandbox, patience } => match find(&sandbox, pid) {
                Ok(found) => {
                    let patience = patience.min(Duration::from_secs(MAX_SECONDS));
                    self.pending.push(PendingRequest {
                        sandbox,
                        found,
                        deadline: Instant::now() + patience,
                        answer,
                    });
                    return;
                }
                Err(answer) => answer,
            },
            Question::Check { sandbox } => reconciler.core.check(&sandbox),
            Question::Delete { container, inode } => {
                let inode = inode.map(NetnsInode::new);
                reconciler.core.forget_sandbox(&container, inode).await;
                CniAnswer::Done
            }
            Question::Collect { containers } => {
                reconciler.core.keep_sandboxes(&containers).await;
                CniAnswer::Done
            }
            Question::Status if ready => CniAnswer::Done,
            Question::Status => {
                CniAnswer::Later("the agent does not know this node's pods yet".to_owned())
            }
        };
        self.answers.push((answer, now));
    }

    /// Finds the answer of each pending request whose pod's state is known by now, or whose deadline has passed.
    /// To be called after each turn, and followed by [`CniQueue::send_answers`].
    pub async fn answer_pending(&mut self, reconciler: &mut Reconciler) {
        for request in std::mem::take(&mut self.pending) {
            // The client has closed its connection; it will send the request again.
            if request.answer.is_closed() {
                continue;
            }
            match reconciler
                .core
                .attach(&request.sandbox, &request.found)
                .await
            {
                CniAnswer::Later(_) if Instant::now() < request.deadline => {
                    self.pending.push(request)
                }
                answer => self.answers.push((request.answer, answer)),
            }
        }
    }

    /// Sends the answers, once what they say is published.
    pub fn send_answers(&mut self) {
        for (client, answer) in self.answers.drain(..) {
            let _ = client.send(answer);
        }
    }
}

async fn handle(
    State(asker): State<Asker>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let question = match timeout(SEND_DEADLINE, Json::from_request(request, &())).await {
        Ok(Ok(Json(question))) => question,
        Ok(Err(rejected)) => return rejected.into_response(),
        Err(_) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    let start = Instant::now();
    let added = match &question {
        Question::Add { sandbox, patience } => Some((sandbox.clone(), *patience)),
        _ => None,
    };
    match ask(&asker.sender, peer, question).await {
        Some(mut answer) => {
            if let (Some((sandbox, patience)), Some(ambient)) = (&added, &asker.ambient)
                && answer == CniAnswer::Enrolled
            {
                let remaining = patience.saturating_sub(start.elapsed());
                answer = by_ztunnel(ambient, sandbox, remaining).await;
            }
            if added.is_some() {
                asker.timings.answered_add(&answer, start.elapsed());
            }
            Json(answer).into_response()
        }
        // Not an answer: the client is to send the request to the next agent.
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// The answer for a pod that is enrolled: one that ztunnel is to serve starts when ztunnel does.
async fn by_ztunnel(ambient: &Table, sandbox: &Sandbox, patience: Duration) -> CniAnswer {
    let patience = patience.min(Duration::from_secs(MAX_SECONDS));
    let start = Instant::now();
    let mut served = ambient.wait_served(&sandbox.uid, patience).await;
    if served == Served::NotListed {
        // The runtime has a uid of every pod, the agent of none whose manifest has none.
        let pod = sandbox.pod();
        let uid = workload_uid(None, &pod.namespace, &pod.name);
        let remaining = patience.saturating_sub(start.elapsed());
        served = ambient.wait_served(&uid, remaining).await;
    }
    match served {
        Served::Yes | Served::NotListed => CniAnswer::Enrolled,
        other => CniAnswer::Later(other.to_string()),
    }
}

/// `None` if the agent is ending.
async fn ask(
    queue: &mpsc::Sender<CniRequest>,
    peer: Peer,
    question: Question,
) -> Option<CniAnswer> {
    let (answer, answered) = oneshot::channel();
    let request = CniRequest {
        question,
        pid: peer.pid,
        answer,
    };
    queue.send(request).await.ok()?;
    answered.await.ok()
}

/// A path by which the agent can open the sandbox's namespace. Tried are: the runtime's path, if the
/// agent sees the node's files; the same path in the node's first process; the descriptor of the
/// client, which has it open as long as it waits.
///
/// # Errors
/// The answer to the client if there is none, or that is not known.
fn find(sandbox: &Sandbox, pid: i32) -> Result<Found, CniAnswer> {
    let from_root = sandbox.netns.strip_prefix("/").ok();
    let by_init = from_root.map(|path| Path::new("/proc/1/root").join(path));
    let descriptor = PathBuf::from(format!("/proc/{pid}/fd/{}", sandbox.descriptor));
    let mut unknown = None;
    for path in [Some(sandbox.netns.clone()), by_init, Some(descriptor)]
        .into_iter()
        .flatten()
    {
        match inode_of(&path) {
            Ok(inode) if inode == sandbox.inode => {
                return Ok(Found {
                    path,
                    inode: Some(NetnsInode::new(inode)),
                    doubt: None,
                });
            }
            Err(error @ NetnsError::Silent { .. }) => unknown = Some(error),
            _ => {}
        }
    }
    Err(match unknown {
        Some(error) => CniAnswer::Later(error.to_string()),
        None => CniAnswer::Refused(format!(
            "the agent cannot open its network namespace {}: does the agent run with hostPID and the capability SYS_PTRACE?",
            sandbox.netns.display()
        )),
    })
}
