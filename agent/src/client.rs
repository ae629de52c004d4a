//! A client of the agent's control socket.

use std::{
    fs, io,
    ops::ControlFlow,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use sidetrack_policy::text::printable;
use tokio::{net::UnixStream, task::JoinHandle};

/// Longest wait for an answer that the agent has at hand.
const WAIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// No process listens.
    #[error("no agent answers on {} ({cause}): look whether `sidetrack agent` runs, and pass its --socket", socket.display())]
    Absent {
        /// Where.
        socket: PathBuf,
        /// What connect says.
        cause: io::Error,
    },
    /// It is something else.
    #[error("{} is not a socket: pass the agent's to --socket", socket.display())]
    NotSocket {
        /// Where.
        socket: PathBuf,
    },
    /// Somebody listens, and it is no agent.
    #[error("what listens on {} does not answer as an agent ({cause}): pass the agent's socket to --socket", socket.display())]
    Foreign {
        /// Where.
        socket: PathBuf,
        /// What is wrong with its answer.
        cause: hyper::Error,
    },
    /// The caller may not ask.
    #[error("{} is for root only: run this as root", socket.display())]
    Denied {
        /// Where.
        socket: PathBuf,
    },
    /// It answers that it cannot answer.
    #[error("the agent is starting or ending: try again in a moment")]
    NotNow,
    /// Somebody listens and does not answer.
    #[error("the agent on {} does not answer within {} s: it is stopped or hangs", socket.display(), WAIT_TIMEOUT.as_secs())]
    Silent {
        /// Where.
        socket: PathBuf,
    },
}

/// The socket of an agent.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// For a socket path; nothing is opened yet.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// Gets a resource.
    ///
    /// # Errors
    /// [`NoAnswer`], or an answer that is not as expected.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let request = self.request(Request::get(path), path, Bytes::new());
        match tokio::time::timeout(WAIT_TIMEOUT, request).await {
            Ok(answer) => answer,
            Err(_) => Err(self.silent().into()),
        }
    }

    /// Sends a request; its body and the answer are JSON. How long to wait is the caller's decision.
    ///
    /// # Errors
    /// [`NoAnswer`], or an answer that is not as expected.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        let request = Request::post(path).header("content-type", "application/json");
        self.request(request, path, serde_json::to_vec(body)?.into())
            .await
    }

    /// Gets a resource that consists of lines, as they come; ends with the agent, or when `each` says so. `opened` is
    /// called once the agent has agreed.
    ///
    /// # Errors
    /// [`NoAnswer`], an answer that is not as expected, or an error of `each`.
    pub async fn lines<T: DeserializeOwned>(
        &self,
        path: &str,
        opened: impl FnOnce() -> Result<()>,
        mut each: impl FnMut(T) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let request = self.send(Request::get(path), Bytes::new());
        let (response, connection) = tokio::time::timeout(WAIT_TIMEOUT, request)
            .await
            .map_err(|_| self.silent())??;
        let code = response.status();
        if code == StatusCode::NOT_FOUND {
            return Err(refused(code, path));
        }
        if !code.is_success() {
            let body = response.into_body().collect().await?.to_bytes();
            bail!(
                "the agent answers {code}: {}",
                printable(&String::from_utf8_lossy(&body))
            );
        }
        opened()?;
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.context("the agent ended")?.into_data() else {
                continue;
            };
            text.extend_from_slice(&data);
            // What follows the last end of a line is the beginning of one.
            let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else {
                continue;
            };
            for line in text[..end].split(|byte| *byte == b'\n') {
                let line = serde_json::from_slice(line).context("read the agent's answer")?;
                if each(line)?.is_break() {
                    connection.abort();
                    return Ok(());
                }
            }
            text.drain(..=end);
        }
        bail!("the agent has ended")
    }

    /// Gets a text; whether the agent answers with success.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn text(&self, path: &str) -> Result<(bool, String)> {
        let text = async {
            let (response, connection) = self.send(Request::get(path), Bytes::new()).await?;
            if response.status() == StatusCode::NOT_FOUND {
                return Err(refused(response.status(), path));
            }
            let fine = response.status().is_success();
            let body = response.into_body().collect().await?.to_bytes();
            connection.abort();
            Ok((fine, printable(String::from_utf8_lossy(&body).trim_end())))
        };
        let waited = tokio::time::timeout(WAIT_TIMEOUT, text).await;
        waited.unwrap_or_else(|_| Err(self.silent().into()))
    }

    fn silent(&self) -> NoAnswer {
        NoAnswer::Silent {
            socket: self.socket.clone(),
        }
    }

    async fn request<T: DeserializeOwned>(
        &self,
        request: hyper::http::request::Builder,
        path: &str,
        body: Bytes,
    ) -> Result<T> {
        let (response, connection) = self.send(request, body).await?;
        let code = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        connection.abort();
        if !code.is_success() {
            return Err(refused(code, path));
        }
        serde_json::from_slice(&body)
            .context("read the agent's answer; is the agent of another version?")
    }

    /// Sends a request; the task drives the connection as long as the answer is read.
    async fn send(
        &self,
        request: hyper::http::request::Builder,
        body: Bytes,
    ) -> Result<(Response<Incoming>, JoinHandle<hyper::Result<()>>)> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|cause| self.no_answer(cause))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = request.header("host", "sidetrack").body(Full::new(body))?;
        match sender.send_request(request).await {
            Ok(response) => Ok((response, connection)),
            Err(cause) if cause.is_parse() => {
                let socket = self.socket.clone();
                Err(NoAnswer::Foreign { socket, cause }.into())
            }
            Err(cause) => Err(cause).context("the agent ended before it answered"),
        }
    }

    fn no_answer(&self, cause: io::Error) -> NoAnswer {
        let socket = self.socket.clone();
        let is_socket = |meta: fs::Metadata| meta.file_type().is_socket();
        if cause.kind() == io::ErrorKind::PermissionDenied {
            NoAnswer::Denied { socket }
        } else if fs::metadata(&socket).is_ok_and(|meta| !is_socket(meta)) {
            NoAnswer::NotSocket { socket }
        } else if cause.kind() == io::ErrorKind::WouldBlock {
            // Its backlog is full.
            NoAnswer::Silent { socket }
        } else {
            NoAnswer::Absent { socket, cause }
        }
    }
}

/// An answer that is no success, and what it means.
fn refused(code: StatusCode, path: &str) -> anyhow::Error {
    if code == StatusCode::SERVICE_UNAVAILABLE {
        return NoAnswer::NotNow.into();
    }
    if code == StatusCode::INTERNAL_SERVER_ERROR {
        return anyhow!("the agent cannot read the kernel's maps: its log says why");
    }
    anyhow!("the agent answers {code} to {path}; is it of another version?")
}
