//! HTTPS: routes, limits and deadlines.
//!
//! Every pod of the cluster can reach the port. Invariants: memory and connections are bounded, and
//! shared by client: see [`http::places`]; a connection never stays without a deadline; what a client
//! sends is read beside the loop that accepts and answers; an answer shows only what the client sent
//! itself.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum::{
    Extension, Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, get, post},
};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::yield_now,
    time::timeout,
};
use tokio_rustls::{
    LazyConfigAcceptor,
    rustls::{ServerConfig, server::Acceptor},
    server::TlsStream,
};
use tracing::{debug, error, info, warn};

use super::{body, readers::Readers};
use sidetrack_base::http::{self, Limits, listen, places::Place, turns::Turns};
use sidetrack_policy::mesh::Mesh;
use sidetrack_policy::webhook::{Outcome, ReviewAnswer, Settings, answer};

/// The API server closes connections that were idle for 90 s. If this end closed them first, that
/// could hit a request on its way.
const LIMITS: Limits = Limits {
    server: "webhook",
    connections: 512,
    // A handshake, a request and its answer are faster, and a flood of handshakes is not.
    fresh: Duration::from_millis(500),
    head: Duration::from_secs(120),
    connection: None,
    keep_alive: true,
    shutdown: Duration::from_secs(10),
};
/// For the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How many handshakes the loop makes between looks at everything else.
const HANDSHAKES: usize = 4;
/// For a request's body and its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// State that is shared by all requests.
#[derive(Debug)]
pub struct Shared {
    mesh: watch::Receiver<Arc<Mesh>>,
    gate_image: Arc<str>,
    readers: Readers,
    ending: AtomicBool,
    /// Why the API server cannot call.
    invalid: Mutex<Option<String>>,
}

impl Shared {
    /// `mesh` may change at any time.
    #[must_use]
    pub fn new(mesh: watch::Receiver<Arc<Mesh>>, gate_image: String) -> Arc<Self> {
        Arc::new(Self {
            mesh,
            gate_image: gate_image.into(),
            readers: Readers::default(),
            ending: AtomicBool::new(false),
            invalid: Mutex::default(),
        })
    }

    /// As long as the certificate is invalid, `/readyz` fails: the API server's handshakes do, and nothing else shows that.
    pub fn set_invalid(&self, invalid: Option<String>) {
        let before = std::mem::replace(&mut *self.invalid.lock(), invalid.clone());
        if let Some(problem) = invalid.filter(|it| before.as_ref() != Some(it)) {
            error!("the API server accepts no connection: {problem}");
        }
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
pub async fn serve(
    listener: TcpListener,
    certificate: watch::Receiver<Arc<ServerConfig>>,
    shared: Arc<Shared>,
    stop: impl Future<Output = ()>,
) {
    let router = router(shared);
    let handshakes = Turns::new(HANDSHAKES);
    let prepare = move |stream: TcpStream, place: Place| {
        let (router, handshakes) = (router.clone(), handshakes.clone());
        let config = Arc::clone(&certificate.borrow());
        async move {
            let handshake = handshake(stream, config, handshakes, place);
            match timeout(HANDSHAKE_TIMEOUT, handshake).await {
                Ok(Ok(stream)) => Some((stream, router)),
                Ok(Err(error)) => {
                    debug!("TLS handshake: {error}");
                    None
                }
                Err(_) => None,
            }
        }
    };
    http::serve(listener, LIMITS, prepare, stop).await;
}

/// The server's part of a handshake takes as long as several requests. In between, the loop does what
/// else there is to do.
async fn handshake(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    handshakes: Turns,
    place: Place,
) -> io::Result<TlsStream<TcpStream>> {
    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    let turn = handshakes.turn(&place).await;
    let mut accept = hello.into_stream(config);
    let accepted = poll_fn(|context| Poll::Ready(accept.poll_unpin(context))).await;
    yield_now().await;
    drop(turn);
    match accepted {
        Poll::Ready(accepted) => accepted,
        Poll::Pending => accept.await,
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/mutate", review(None))
        .route("/mutate/enabled", review(Some("enabled")))
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
    let mut response = timeout(REQUEST_TIMEOUT, next.run(request))
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
    if let Some(problem) = &*shared.invalid.lock() {
        return failure(StatusCode::SERVICE_UNAVAILABLE, problem);
    }
    "ok\n".into_response()
}

/// Reviews pods of namespaces with a label: the API server calls for those without another path, and
/// for `disabled` none.
fn review(namespace_label: Option<&'static str>) -> MethodRouter<Arc<Shared>> {
    post(
        async move |shared: State<Arc<Shared>>, place: Extension<Place>, headers, body| {
            admit(&shared, &place, namespace_label, &headers, body).await
        },
    )
}

async fn admit(
    shared: &Shared,
    place: &Place,
    namespace_label: Option<&'static str>,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    if !is_json(headers) {
        let text = "the Content-Type must be application/json";
        return failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    }
    let body = match body::collect(body, body::length(headers), place).await {
        Ok(body) => body,
        Err((status, text)) => return failure(status, &text),
    };
    let mesh = Arc::clone(&shared.mesh.borrow());
    let image = Arc::clone(&shared.gate_image);
    let large = body.len() > body::SMALL_BYTES;
    let read = move || {
        let settings = Settings {
            mesh: &mesh,
            namespace_label,
            image: &image,
        };
        answer(&body, &settings)
    };
    match shared.readers.read(place, large, read).await {
        Ok(answer) => admitted(place, answer),
        Err(malformed) => failure(StatusCode::BAD_REQUEST, &malformed.to_string()),
    }
}

fn admitted(place: &Place, answer: ReviewAnswer) -> Response {
    log(&answer);
    // Until the next request: when the client has read it is unknown.
    if !place.holds(answer.review.len()) {
        return failure(StatusCode::SERVICE_UNAVAILABLE, body::NO_ROOM);
    }
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], answer.review).into_response()
}

fn is_json(headers: &HeaderMap) -> bool {
    let text = headers.get(header::CONTENT_TYPE);
    let text = text.and_then(|text| text.to_str().ok()).unwrap_or_default();
    let kind = text.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

fn failure(status: StatusCode, text: &str) -> Response {
    (status, format!("{text}\n")).into_response()
}

/// One line per pod that was changed or refused.
fn log(answer: &ReviewAnswer) {
    let ReviewAnswer { pod, dry_run, .. } = answer;
    match &answer.outcome {
        Outcome::Unchanged => debug!(%pod, dry_run, "nothing to do"),
        Outcome::Changed => info!(%pod, dry_run, "init container replaced"),
        Outcome::Refused(reason) => warn!(%pod, dry_run, "init container stays: {reason}"),
        Outcome::Misconfigured(problem) => debug!("{problem}"),
    }
}
