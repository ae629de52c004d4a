//! A client of the agent's control socket.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Bytes};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::net::UnixStream;

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
    /// If no agent answers, or not as expected.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.request(Request::get(path), path, Bytes::new()).await
    }

    /// Sends a request; its body and the answer are JSON.
    ///
    /// # Errors
    /// If no agent answers, or not as expected.
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
        let stream = UnixStream::connect(&self.socket).await.with_context(|| {
            format!(
                "no agent answers on {} (is `sidetrack agent` running, and with this --socket?)",
                self.socket.display()
            )
        })?;
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
}
