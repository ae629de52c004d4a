//! HTTPS: connections, limits, the end.
//!
//! Every pod of the cluster may reach the port. Nobody may take more than a bounded share of memory,
//! or a place for ever; and nobody is told anything but what he sent himself.

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
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};
use tracing::{debug, info, warn};

use crate::web::listen;
use sidetrack_policy::mesh::Mesh;
use sidetrack_policy::webhook::{Answer, Outcome, Settings, answer};

/// So many connections at a time; more wait.
const CONNECTIONS: usize = 512;
/// For the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// For a request's head, the wait for it included. The API server closes connections that were idle
/// for 90 s. Did this end do it first, that could hit a request on its way.
const IDLE: Duration = Duration::from_secs(120);
/// For a request's body and its answer.
const REQUEST: Duration = Duration::from_secs(10);
/// What the API server takes of a client.
const BODY_MAX: usize = 3 << 20;
/// So much of a longer body is read and thrown away: only then does its sender read the answer.
const BODY_READ: usize = 16 << 20;
/// A body up to this long, as nearly every pod's is, is read at once ...
const BODY_SMALL: usize = 128 << 10;
/// ... and of longer ones so many at the same time.
const BODIES_LARGE: usize = 8;
/// How long the end waits for answers on their way.
const END: Duration = Duration::from_secs(10);
/// After a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// What requests are answered from.
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

    /// From now on `/readyz` says no, and who is answered is asked to come back elsewhere.
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
/// If it cannot be had.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    listen(address)
        .await
        .with_context(|| format!("listen on {address}; pass another to --listen"))
}

/// Answers until told to stop, and then until what is on its way is answered. Each connection gets
/// the certificate that is there when it comes.
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
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let connections = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await?;
            anyhow::Ok((place, listener.accept().await))
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted?,
            () = &mut stop => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("accept a connection: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let tls = TlsAcceptor::from(Arc::clone(&certificate.borrow()));
        let connection = connection(stream, tls, router.clone(), connections.watcher());
        tokio::spawn(async move {
            connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _ = timeout(END, connections.shutdown()).await;
    Ok(())
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, router: Router, watcher: Watcher) {
    // Answers are one segment each.
    let _ = stream.set_nodelay(true);
    let stream = match timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!("TLS handshake: {error}"),
        Err(_) => return,
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        debug!("connection: {error}");
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

/// The namespace's label does not say `enabled`, and not `disabled` either: the API server does not
/// call for those.
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

/// One line per pod that something became of.
fn log(answer: &Answer) {
    let Answer { pod, dry_run, .. } = answer;
    match &answer.outcome {
        Outcome::Unchanged => debug!(%pod, dry_run, "nothing to do"),
        Outcome::Changed => info!(%pod, dry_run, "istio-init removed"),
        Outcome::Refused(reason) => warn!(%pod, dry_run, "istio-init stays: {reason}"),
        Outcome::Misconfigured(problem) => debug!("{problem}"),
    }
}
