//! The API server's side: HTTPS with the authority's certificate and no other.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context as _, Result, ensure};
use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, Request, StatusCode, header},
};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, RootCertStore, crypto::ring},
};

use super::certificates::{Authority, NAME};
use crate::attack::dial;

/// Sends requests to a webhook.
#[derive(Clone)]
pub struct Client {
    tls: TlsConnector,
    /// The webhook's.
    pub address: SocketAddr,
    from: Option<IpAddr>,
}

/// An open connection.
pub struct Connection {
    sender: SendRequest<Body>,
    /// The certificate it was opened with.
    pub certificate: Vec<u8>,
}

/// What the webhook has answered.
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its head.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Client {
    /// One that trusts this authority.
    pub fn new(authority: &Authority, address: SocketAddr) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der.clone().into())?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
            address,
            from: None,
        })
    }

    /// The same client at another address, such as one of 127/8.
    pub fn at(&self, from: impl Into<IpAddr>) -> Self {
        Self {
            from: Some(from.into()),
            ..self.clone()
        }
    }

    /// A TCP connection, no more.
    pub async fn dial(&self) -> Result<TcpStream> {
        let stream = dial(self.address, self.from).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A TLS connection, no more.
    pub async fn dial_tls(&self) -> Result<TlsStream<TcpStream>> {
        let stream = self.dial().await?;
        Ok(self.tls.connect(NAME.try_into()?, stream).await?)
    }

    /// A connection for requests.
    pub async fn connect(&self) -> Result<Connection> {
        let stream = self.dial_tls().await?;
        let shown = stream.get_ref().1.peer_certificates();
        let certificate = shown.context("a certificate")?[0].to_vec();
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection {
            sender,
            certificate,
        })
    }

    /// A request on a connection of its own.
    pub async fn send(&self, request: Request<Body>) -> Result<Answer> {
        self.connect().await?.send(request).await
    }
}

impl Connection {
    /// Sends a request and reads the answer.
    pub async fn send(&mut self, request: Request<Body>) -> Result<Answer> {
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await?.to_bytes(),
        })
    }

    /// Has a pod admitted.
    pub async fn admit(&mut self, review: &Review) -> Result<()> {
        review.check(&self.send(review.request()?).await?)
    }
}

/// An AdmissionReview of a pod that loses its istio-init.
pub struct Review {
    uid: String,
    body: String,
}

impl Review {
    /// One of many.
    pub fn new(number: usize) -> Result<Self> {
        const SEED: &str = include_str!("../../fuzz/seeds/webhook/istio-1.5.json");
        let mut review: Value = serde_json::from_str(SEED)?;
        let uid = format!("uid-{number}");
        review["request"]["uid"] = uid.as_str().into();
        let body = review.to_string();
        Ok(Self { uid, body })
    }

    /// As the API server sends it.
    pub fn request(&self) -> Result<Request<Body>> {
        post("/mutate/enabled?timeout=5s", self.body.clone())
    }

    /// Whether it is what the API server needs.
    pub fn check(&self, answer: &Answer) -> Result<()> {
        ensure!(answer.status == StatusCode::OK, "{}", answer.status);
        ensure!(answer.headers[header::CONTENT_TYPE] == "application/json");
        let review: Value = serde_json::from_slice(&answer.body)?;
        let response = &review["response"];
        ensure!(response["uid"] == *self.uid, "{review}");
        let ByteString(patch) = serde_json::from_value(response["patch"].clone())?;
        let patch = String::from_utf8(patch)?;
        ensure!(patch.contains("sidetrack-validation"), "{patch}");
        Ok(())
    }
}

/// A request as the API server makes it.
pub fn post(path: &str, body: impl Into<Body>) -> Result<Request<Body>> {
    Ok(Request::post(path)
        .header(header::HOST, NAME)
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.into())?)
}
