//! A client of the agent's control socket.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Bytes};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::net::UnixStream;

/// Longest wait for an answer that the agent has at hand.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// Nobody listens.
    #[error("no agent answers on {} ({cause}); is `sidetrack agent` running, and with this --socket?", socket.display())]
    Absent {
        /// Where.
        socket: PathBuf,
        /// What connect says.
        cause: io::Error,
    },
    /// The caller may not ask.
    #[error("{} is for root only: run this as root", socket.display())]
    Denied {
        /// Where.
        socket: PathBuf,
    },
    /// Somebody listens and does not answer.
    #[error("the agent on {} does not answer within {} s: it is stopped or hangs", socket.display(), PATIENCE.as_secs())]
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
        match tokio::time::timeout(PATIENCE, request).await {
            Ok(answer) => answer,
            Err(_) => Err(NoAnswer::Silent {
                socket: self.socket.clone(),
            }
            .into()),
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

    async fn request<T: DeserializeOwned>(
        &self,
        request: hyper::http::request::Builder,
        path: &str,
        body: Bytes,
    ) -> Result<T> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|cause| self.no_answer(cause))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = request.header("host", "sidetrack").body(Full::new(body))?;
        let response = sender
            .send_request(request)
            .await
            .context("the agent ended before it answered")?;
        let code = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        connection.abort();
        if !code.is_success() {
            let cure = if code.as_u16() == 503 {
                "it is ending"
            } else {
                "is it of another version?"
            };
            bail!("the agent answers {code} to {path}; {cure}");
        }
        serde_json::from_slice(&body).context("read the agent's answer")
    }

    fn no_answer(&self, cause: io::Error) -> NoAnswer {
        let socket = self.socket.clone();
        if cause.kind() == io::ErrorKind::PermissionDenied {
            NoAnswer::Denied { socket }
        } else {
            NoAnswer::Absent { socket, cause }
        }
    }
}
