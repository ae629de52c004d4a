//! The agent's control socket: HTTP over a unix socket that only root may open.

use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::AsRawFd as _,
        unix::ffi::OsStrExt as _,
        unix::fs::{FileTypeExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use axum::{
    Extension, Json, Router,
    extract::{Path as UrlPath, State},
    http::StatusCode,
    routing::get,
};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
};
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};

use sidetrack_live::history::Entry;

use crate::observe::status::Status;
use crate::server::metrics_http;
use crate::{
    api::{AgentStatus, Cost, PodStatus},
    sources::cni_requests::Peer,
};
use sidetrack_base::{
    http::{Limits, serve, serve_router},
    socket_file::{RemoveOnDrop, SocketFile},
};

/// Far more connections than pods start at once, and few enough to leave descriptors for the pods
/// themselves.
const LIMITS: Limits = Limits {
    server: "control socket",
    connections: 512,
    fresh: Duration::from_millis(50),
    head: Duration::from_secs(2),
    // A CNI request waits for as long as its pod may wait.
    connection: None,
    keep_alive: false,
    shutdown: Duration::ZERO,
};

/// Entries of all lists of a policy that is shown where all pods are listed.
const MAX_LISTED: usize = 64;

/// A bound socket. Its file is removed when it is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: Arc<UnixListener>,
    file: RemoveOnDrop,
}

impl Socket {
    /// Binds the socket, and replaces the file of an agent that has ended.
    ///
    /// # Errors
    /// If an agent answers there, or the socket cannot be bound.
    pub fn bind(path: &Path) -> Result<Self> {
        remove_socket(path)?;
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let listener =
            UnixListener::bind(path).with_context(|| format!("bind {}", path.display()))?;
        let file = SocketFile::of(path).with_context(|| format!("look at {}", path.display()))?;
        let file = RemoveOnDrop(file);
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .with_context(|| format!("set the mode of {}", path.display()))?;
        Ok(Self {
            listener: Arc::new(listener),
            file,
        })
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> &SocketFile {
        &self.file.0
    }

    /// Answers that the agent is starting, until the task is aborted.
    pub fn answer_start(&self) -> JoinHandle<()> {
        let listener = Arc::clone(&self.listener);
        tokio::spawn(serve_router(listener, LIMITS, metrics_http::starting()))
    }

    /// Serves until dropped; `more` are routes of other modules.
    pub async fn serve(self, status: Arc<Status>, more: Router) {
        let Self {
            listener,
            file: _file,
        } = self;
        let router = Router::new()
            .route("/v1/status", get(agent))
            .route("/v1/events", get(events))
            .route("/v1/cost", get(cost))
            .route("/v1/pods", get(pods))
            .route("/v1/pods/{namespace}/{name}", get(pod))
            .with_state(Arc::clone(&status))
            .merge(metrics_http::health(status))
            .merge(more);
        let prepare = move |stream: UnixStream, _| {
            let router = router.clone().layer(Extension(Peer::of(&stream)));
            async move { Some((stream, router)) }
        };
        serve(listener, LIMITS, prepare, std::future::pending()).await;
    }
}

/// Whether an agent could bind its socket here, or one has done so and answers. Binds one beside it, of a name of the
/// same length, and leaves nothing behind. For a runtime's thread.
///
/// # Errors
/// If the path cannot be used.
pub fn check(path: &Path) -> Result<()> {
    if is_socket(path)? && is_answered(path) {
        return Ok(());
    }
    let absolute = std::path::absolute(path).with_context(|| format!("find {}", path.display()))?;
    let directories = absolute.ancestors().skip(1);
    let missing: Vec<&Path> = directories.take_while(|path| !path.exists()).collect();
    let bound = Socket::bind(&beside(path)).map(drop);
    for directory in missing {
        let _ = fs::remove_dir(directory);
    }
    bound
        .map_err(|error| anyhow!("{error:#}; make that possible, or pass another path to --socket"))
}

/// A path of the same length in the same directory.
fn beside(path: &Path) -> PathBuf {
    let Some(name) = path.file_name() else {
        return path.to_owned();
    };
    let mut name = name.as_bytes().to_owned();
    name[0] = if name[0] == b'~' { b'+' } else { b'~' };
    path.with_file_name(OsStr::from_bytes(&name))
}

/// Whether a socket is at a path; false if nothing is.
///
/// # Errors
/// If something else is.
pub fn is_socket(path: &Path) -> Result<bool> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.with_context(|| format!("look at {}", path.display()))?,
    };
    if !meta.file_type().is_socket() {
        bail!(
            "{} is not a socket: pass another path to --socket",
            path.display()
        );
    }
    Ok(true)
}

/// Whether an agent answers on a socket, or may. One that has been stopped accepts no connection: connect would wait for it
/// once its queue is full.
#[must_use]
pub fn is_answered(path: &Path) -> bool {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let tried = UnixAddr::new(path).and_then(|address| {
        let tried = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(tried.as_raw_fd(), &address)
    });
    !matches!(
        tried,
        Err(Errno::ECONNREFUSED | Errno::ENOENT | Errno::ENAMETOOLONG)
    )
}

/// Removes the socket of an agent that has ended; whether there was one.
///
/// # Errors
/// If an agent answers on it, or it is no socket.
pub fn remove_socket(path: &Path) -> Result<bool> {
    if !is_socket(path)? {
        return Ok(false);
    }
    if is_answered(path) {
        bail!(
            "an agent answers on {}: stop it first, or pass another path to --socket",
            path.display()
        );
    }
    fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    Ok(true)
}

async fn agent(State(status): State<Arc<Status>>) -> Json<AgentStatus> {
    Json(status.agent().await)
}

async fn events(State(status): State<Arc<Status>>) -> Json<Vec<Entry>> {
    Json(status.history().entries())
}

async fn cost(State(status): State<Arc<Status>>) -> Result<Json<Cost>, StatusCode> {
    status
        .cost()
        .await
        .map(Json)
        .map_err(|error| failed(&error))
}

fn failed(error: &io::Error) -> StatusCode {
    tracing::error!("read the kernel's maps: {error}");
    StatusCode::INTERNAL_SERVER_ERROR
}

/// All pods, without the policies that would make the answer long.
async fn pods(State(status): State<Arc<Status>>) -> Result<Json<Vec<PodStatus>>, StatusCode> {
    let pods = status.pods(|_| true).await;
    let mut pods = pods.map_err(|error| failed(&error))?;
    for pod in &mut pods {
        pod.policy.take_if(|policy| policy.entries() > MAX_LISTED);
    }
    Ok(Json(pods))
}

/// One pod, in full.
async fn pod(
    State(status): State<Arc<Status>>,
    UrlPath((namespace, name)): UrlPath<(String, String)>,
) -> Result<Json<PodStatus>, StatusCode> {
    let is_wanted = move |pod: &PodStatus| pod.namespace == namespace && pod.name == name;
    let pods = status.pods(is_wanted).await;
    let found = pods.map_err(|error| failed(&error))?.pop();
    found.map(Json).ok_or(StatusCode::NOT_FOUND)
}
