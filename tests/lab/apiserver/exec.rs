//! `pods/exec` as kubelet answers it through the API server: WebSocket messages of the protocols
//! v4.channel.k8s.io and v5.channel.k8s.io.

mod stream;

use std::{process::Command, sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    extract::{
        Path, Query, State, WebSocketUpgrade,
        ws::{Message, WebSocket},
    },
    http::StatusCode,
    response::Response,
};
use serde_json::{Value, json};

use super::{
    http::failure,
    store::{Resource, Store},
};

/// The protocols of Kubernetes since 1.30, newest first.
pub const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// A command that a client wants to run in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container; empty for the pod's default.
    pub container: String,
    /// Program and arguments.
    pub words: Vec<String>,
}

/// What becomes of it.
#[derive(Debug)]
pub enum Answer {
    /// The API server refuses.
    Refused(StatusCode, String),
    /// The API server accepts, and the node says nothing.
    Hang,
    /// The connection ends in the middle of the output.
    Cut(String),
    /// Output, and how the command ends.
    Output(Vec<Piece>, End),
    /// A program runs on this machine, and its output is the answer.
    Run(Command),
    /// The same while it runs, with the client's standard input. It is not ended when the client goes away: its
    /// standard input is, as kubelet has it.
    Stream(Command),
}

/// Output of a command.
#[derive(Clone, Debug)]
pub enum Piece {
    /// To stdout.
    Out(Vec<u8>),
    /// To stderr.
    Error(Vec<u8>),
    /// Nothing for a while.
    Pause(Duration),
}

/// How a command ends.
#[derive(Clone, Debug)]
pub enum End {
    /// With an exit code.
    Code(i32),
    /// The runtime could not start it.
    NotStarted(String),
}

/// Decides what becomes of requests.
pub type Handler = Arc<dyn Fn(&Request) -> Answer + Send + Sync>;

const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;

/// Answers one request.
pub(super) async fn exec(
    State(store): State<Arc<Store>>,
    Path((namespace, pod)): Path<(String, String)>,
    Query(parameters): Query<Vec<(String, String)>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    store.asked("create", "", "pods/exec");
    let all = |name: &str| {
        let fitting = parameters.iter().filter(move |(known, _)| known == name);
        fitting.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    if store.get(Resource::Pods, &namespace, &pod).is_none() {
        return failure(StatusCode::NOT_FOUND, "NotFound", "no such pod");
    }
    let request = Request {
        namespace,
        pod,
        container: all("container").concat(),
        words: all("command"),
    };
    let (protocols, handler) = store.exec();
    let Some(handler) = handler else {
        return failure(StatusCode::NOT_FOUND, "NotFound", "no kubelet");
    };
    match handler(&request) {
        Answer::Refused(code, message) => failure(code, "Forbidden", &message),
        answer => upgrade
            .protocols(protocols)
            .on_upgrade(|socket| converse(socket, answer)),
    }
}

async fn converse(mut socket: WebSocket, answer: Answer) {
    // The real one begins with an empty message on each channel.
    for channel in [STDOUT, STDERR, STATUS] {
        let _ = send(&mut socket, channel, b"").await;
    }
    let (pieces, end) = match answer {
        Answer::Refused(..) => return,
        Answer::Stream(command) => return stream::stream(&mut socket, command).await,
        Answer::Hang => {
            while let Some(Ok(_)) = socket.recv().await {}
            return;
        }
        Answer::Cut(text) => {
            let _ = send(&mut socket, STDOUT, text.as_bytes()).await;
            return;
        }
        Answer::Output(pieces, end) => (pieces, end),
        Answer::Run(command) => run(command).await,
    };
    for piece in pieces {
        let sent = match piece {
            Piece::Out(bytes) => send_all(&mut socket, STDOUT, &bytes).await,
            Piece::Error(bytes) => send_all(&mut socket, STDERR, &bytes).await,
            Piece::Pause(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
        };
        if sent.is_err() {
            return;
        }
    }
    let status = status(&end).to_string();
    let _ = send(&mut socket, STATUS, status.as_bytes()).await;
    let _ = socket.send(Message::Close(None)).await;
}

/// In pieces, as they come from a pipe.
async fn send_all(socket: &mut WebSocket, channel: u8, bytes: &[u8]) -> Result<(), axum::Error> {
    for piece in bytes.chunks(4096) {
        send(socket, channel, piece).await?;
    }
    Ok(())
}

async fn send(socket: &mut WebSocket, channel: u8, bytes: &[u8]) -> Result<(), axum::Error> {
    let message = [&[channel], bytes].concat();
    socket.send(Message::Binary(Bytes::from(message))).await
}

async fn run(mut command: Command) -> (Vec<Piece>, End) {
    let ended = tokio::task::spawn_blocking(move || command.output()).await;
    match ended {
        Ok(Ok(output)) => {
            let pieces = vec![Piece::Out(output.stdout), Piece::Error(output.stderr)];
            (pieces, End::Code(output.status.code().unwrap_or(137)))
        }
        Ok(Err(error)) => (Vec::new(), End::NotStarted(error.to_string())),
        Err(error) => (Vec::new(), End::NotStarted(error.to_string())),
    }
}

fn status(end: &End) -> Value {
    match end {
        End::Code(0) => json!({"metadata": {}, "status": "Success"}),
        End::Code(code) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        End::NotStarted(problem) => json!({
            "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
            "message": format!("Internal error occurred: {problem}"),
        }),
    }
}
