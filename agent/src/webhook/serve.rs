//! HTTPS: routes, limits and deadlines.
//!
//! Every pod of the cluster can reach the port. Invariants: memory and connections are bounded; a
//! connection never stays without a deadline; an answer shows only what the client sent itself.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use http_body_util::BodyExt as _;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};
use tracing::{debug, info, warn};

use crate::http::{self, Limits, listen};
use sidetrack_policy::mesh::Mesh;
use sidetrack_policy::webhook::{Answer, Outcome, Settings, answer};

/// The API server closes connections that were idle for 90 s. If this end closed them first, that
/// could hit a request on its way.
const LIMITS: Limits = Limits {
    server: "webhook",
    connections: 512,
    head: Duration::from_secs(120),
    connection: None,
    keep_alive: true,
    shutdown: Duration::from_secs(10),
};
/// For the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// For a request's body and its answer.
const REQUEST: Duration = Duration::from_secs(10);
/// What the API server takes of a client.
const BODY_MAX: usize = 3 << 20;
/// So much of a longer body is read and discarded: its sender reads the answer only afterwards.
const BODY_READ: usize = 16 << 20;
/// A body up to this size is read at once. Nearly every pod's is.
const BODY_SMALL: usize = 128 << 10;
/// So many larger bodies are read at the same time.
const BODIES_LARGE: usize = 8;
/// State that all requests share.
#[derive(Debug)]
pub struct Shared {
    mesh: watch::Receiver<Arc<Mesh>>,
    gate_image: String,
    large_bodies: Semaphore,
    ending: AtomicBool,
}

impl Shared {
    /// `mesh` may change at any time.
    #[must_use]
    pub fn new(mesh: watch::Receiver<Arc<Mesh>>, gate_image: String) -> Arc<Self> {
        Arc::new(Self {
            mesh,
            gate_image,
            large_bodies: Semaphore::new(BODIES_LARGE),
            ending: AtomicBool::new(false),
        })
    }

    /// From now on `/readyz` fails, and every answer closes its connection, so that the client
    /// connects to another replica.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

/// Opens the port.
///
/// # Errors
/// If it cannot be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    listen(address)
        .await
        .with_context(|| format!("listen on {address}; pass another to --listen"))
}

/// Serves until `stop` completes, and then until requests in progress are answered. Each connection
/// gets the newest certificate.
///
/// # Errors
/// If the limit on connections is lost.
pub async fn serve(
    listener: TcpListener,
    certificate: watch::Receiver<Arc<ServerConfig>>,
    shared: Arc<Shared>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let router = router(shared);
    let prepare = |stream: TcpStream| {
        let tls = TlsAcceptor::from(Arc::clone(&certificate.borrow()));
        let router = router.clone();
        async move { Some((handshake(stream, tls).await?, router)) }
    };
    http::serve(listener, LIMITS, prepare, stop).await
}

async fn handshake(stream: TcpStream, tls: TlsAcceptor) -> Option<TlsStream<TcpStream>> {
    match timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            debug!("TLS handshake: {error}");
            None
        }
        Err(_) => None,
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/mutate", post(mutate))
        .route("/mutate/enabled", post(mutate_enabled))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .fallback(|| async {
            let text = "POST an AdmissionReview to /mutate or /mutate/enabled";
            failure(StatusCode::NOT_FOUND, text)
        })
        .method_not_allowed_fallback(|| async {
            let text = "POST to /mutate and /mutate/enabled, GET the others";
            failure(StatusCode::METHOD_NOT_ALLOWED, text)
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), bounded))
        .with_state(shared)
}

async fn bounded(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let mut response = timeout(REQUEST, next.run(request))
        .await
        .unwrap_or_else(|_| failure(StatusCode::REQUEST_TIMEOUT, "the request took too long"));
    if shared.is_ending() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    if shared.is_ending() {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "ending");
    }
    "ok\n".into_response()
}

/// The namespace's label is neither `enabled` nor `disabled`: the API server does not call for the
/// latter.
async fn mutate(shared: State<Arc<Shared>>, headers: HeaderMap, body: Body) -> Response {
    admit(&shared, None, &headers, body).await
}

/// The namespace's label says `enabled`.
async fn mutate_enabled(shared: State<Arc<Shared>>, headers: HeaderMap, body: Body) -> Response {
    admit(&shared, Some("enabled"), &headers, body).await
}

async fn admit(
    shared: &Shared,
    namespace_label: Option<&str>,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    if !is_json(headers) {
        let text = "the Content-Type must be application/json";
        return failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    }
    let is_small = length(headers).is_some_and(|length| length <= BODY_SMALL);
    let _place = if is_small {
        None
    } else {
        shared.large_bodies.acquire().await.ok()
    };
    let body = match collect(body).await {
        Ok(body) => body,
        Err((status, text)) => return failure(status, &text),
    };
    let mesh = Arc::clone(&shared.mesh.borrow());
    let settings = Settings {
        mesh: &mesh,
        namespace_label,
        image: &shared.gate_image,
    };
    match answer(&body, &settings) {
        Ok(answer) => {
            log(&answer);
            let json = HeaderValue::from_static("application/json");
            ([(header::CONTENT_TYPE, json)], answer.review).into_response()
        }
        Err(malformed) => failure(StatusCode::BAD_REQUEST, &malformed.to_string()),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let text = headers.get(header::CONTENT_TYPE);
    let text = text.and_then(|text| text.to_str().ok()).unwrap_or_default();
    let kind = text.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

fn length(headers: &HeaderMap) -> Option<usize> {
    let text = headers.get(header::CONTENT_LENGTH)?;
    text.to_str().ok()?.parse().ok()
}

/// The whole body.
async fn collect(mut body: Body) -> Result<Vec<u8>, (StatusCode, String)> {
    let mut bytes = Vec::new();
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let text = format!("the body cannot be read: {error}");
            (StatusCode::BAD_REQUEST, text)
        })?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        size += data.len();
        if size > BODY_READ {
            break;
        }
        if size <= BODY_MAX {
            bytes.extend_from_slice(data);
        } else {
            bytes = Vec::new();
        }
    }
    if size > BODY_MAX {
        let text = format!("the body has more than {} MiB", BODY_MAX >> 20);
        return Err((StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    Ok(bytes)
}

fn failure(status: StatusCode, text: &str) -> Response {
    (status, format!("{text}\n")).into_response()
}

/// One line per pod that was changed or refused.
fn log(answer: &Answer) {
    let Answer { pod, dry_run, .. } = answer;
    match &answer.outcome {
        Outcome::Unchanged => debug!(%pod, dry_run, "nothing to do"),
        Outcome::Changed => info!(%pod, dry_run, "istio-init removed"),
        Outcome::Refused(reason) => warn!(%pod, dry_run, "istio-init stays: {reason}"),
        Outcome::Misconfigured(problem) => debug!("{problem}"),
    }
}
