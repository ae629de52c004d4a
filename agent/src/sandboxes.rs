//! Questions of the CNI plugin, and who waits for an answer to one.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use axum::{
    Extension, Json, Router,
    extract::{DefaultBodyLimit, FromRequest as _, Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::post,
};
use tokio::{
    net::UnixStream,
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    cni::{
        attach::{Answer, PATH, Question, Sandbox},
        config::MOST_SECONDS,
    },
    netns::{inode_at, processes::Found},
    reconcile::Reconciler,
};

/// Questions on their way to the agent's loop. More than a node starts at a time; whoever finds no
/// place waits at the socket.
const QUEUE: usize = 256;
/// A question names a pod and its namespace; one to collect, all containers of a node.
const LARGEST: usize = 1024 * 1024;
/// How long a question may be on its way.
const ARRIVES: Duration = Duration::from_secs(2);

/// A question and where its answer goes.
#[derive(Debug)]
pub struct Asked {
    question: Question,
    /// The process that asks, 0 if it cannot be seen from here.
    pid: i32,
    answer: oneshot::Sender<Answer>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pid: i32,
}

impl Peer {
    /// Whoever opened a connection.
    pub fn of(stream: &UnixStream) -> Self {
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        Self {
            pid: pid.unwrap_or_default(),
        }
    }
}

/// The agent's end of the questions.
#[derive(Debug)]
pub struct Desk {
    asked: mpsc::Receiver<Asked>,
    waiting: Vec<Waiting>,
}

/// An ADD whose pod cannot be answered for yet.
#[derive(Debug)]
struct Waiting {
    sandbox: Sandbox,
    found: Found,
    until: Instant,
    answer: oneshot::Sender<Answer>,
}

impl Desk {
    /// A desk, and the routes by which questions come to it.
    pub fn new() -> (Self, Router) {
        let (sender, asked) = mpsc::channel(QUEUE);
        let router = Router::new()
            .route(PATH, post(ask))
            .layer(DefaultBodyLimit::max(LARGEST))
            .with_state(sender);
        let desk = Self {
            asked,
            waiting: Vec::new(),
        };
        (desk, router)
    }

    /// The next question. Loses nothing when given up.
    pub async fn next(&mut self) -> Option<Asked> {
        self.asked.recv().await
    }

    /// Takes a question in, and some of those that have come along with it: those who wait want an
    /// answer between them.
    pub async fn take(&mut self, asked: Asked, reconciler: &mut Reconciler, ready: bool) {
        const MORE_AT_A_TIME: usize = 8;
        self.take_one(asked, reconciler, ready).await;
        for _ in 0..MORE_AT_A_TIME {
            let Ok(asked) = self.asked.try_recv() else {
                return;
            };
            self.take_one(asked, reconciler, ready).await;
        }
    }

    async fn take_one(&mut self, asked: Asked, reconciler: &mut Reconciler, ready: bool) {
        let Asked {
            question,
            pid,
            answer,
        } = asked;
        let now = match question {
            Question::Add { sandbox, patience } => match find(&sandbox, pid) {
                Some(found) => {
                    self.waiting.push(Waiting {
                        sandbox,
                        found,
                        until: Instant::now() + patience.min(Duration::from_secs(MOST_SECONDS)),
                        answer,
                    });
                    return;
                }
                None => Answer::Refused(format!(
                    "the agent cannot open its network namespace {}: does the agent run with hostPID and the capability SYS_PTRACE?",
                    sandbox.netns.display()
                )),
            },
            Question::Check { sandbox } => reconciler.check(&sandbox),
            Question::Delete { container, inode } => {
                reconciler.forget_sandbox(&container, inode).await;
                Answer::Done
            }
            Question::Collect { containers } => {
                reconciler.keep_sandboxes(&containers).await;
                Answer::Done
            }
            Question::Status if ready => Answer::Done,
            Question::Status => {
                Answer::Later("the agent does not know this node's pods yet".to_owned())
            }
        };
        let _ = answer.send(now);
    }

    /// Answers whom there is an answer for. To be called whenever anything may be different.
    pub async fn settle(&mut self, reconciler: &mut Reconciler) {
        for waiting in std::mem::take(&mut self.waiting) {
            // Who does not listen any more has given up, and asks again.
            if waiting.answer.is_closed() {
                continue;
            }
            match reconciler.attach(&waiting.sandbox, &waiting.found).await {
                Answer::Later(_) if Instant::now() < waiting.until => self.waiting.push(waiting),
                answer => {
                    let _ = waiting.answer.send(answer);
                }
            }
        }
    }
}

async fn ask(
    State(desk): State<mpsc::Sender<Asked>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let question = match timeout(ARRIVES, Json::from_request(request, &())).await {
        Ok(Ok(Json(question))) => question,
        Ok(Err(rejected)) => return rejected.into_response(),
        Err(_) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    match answer(&desk, peer, question).await {
        Some(answer) => Json(answer).into_response(),
        // Not an answer: whoever asks is to ask the next agent.
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// `None` if the agent is ending.
async fn answer(desk: &mpsc::Sender<Asked>, peer: Peer, question: Question) -> Option<Answer> {
    let (answer, answered) = oneshot::channel();
    let asked = Asked {
        question,
        pid: peer.pid,
        answer,
    };
    desk.send(asked).await.ok()?;
    answered.await.ok()
}

/// Where the namespace can be found from here: the runtime's path, if the agent sees the node's files;
/// the same by way of the node's first process; the descriptor of the process that asks, which is
/// there as long as it waits.
fn find(sandbox: &Sandbox, pid: i32) -> Option<Found> {
    let from_root = sandbox.netns.strip_prefix("/").ok();
    let by_init = from_root.map(|path| Path::new("/proc/1/root").join(path));
    let descriptor = PathBuf::from(format!("/proc/{pid}/fd/{}", sandbox.descriptor));
    [Some(sandbox.netns.clone()), by_init, Some(descriptor)]
        .into_iter()
        .flatten()
        .find(|path| inode_at(path) == Some(sandbox.inode))
        .map(|path| Found {
            path,
            inode: Some(sandbox.inode),
        })
}
