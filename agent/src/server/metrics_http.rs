//! The agent's answers on the network: metrics, liveness and readiness, and what readers ask (see [`super::reader`]). To
//! clients without a token it shows nothing about single connections, and about single pods only if that is requested.
//!
//! Every pod can reach the port. Invariants: a page is made once for all who ask at the same time; probes
//! do not depend on the port, since the probe port and the control socket answer them as well.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use axum::{
    Extension, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::{net::TcpListener, sync::Mutex};

use crate::observe::status::Status;
use crate::server::metrics::{self, Format};
use sidetrack_base::{
    http::{self, Limits, places::Place},
    runtime,
};

/// It must not use up the agent's descriptors and memory.
const LIMITS: Limits = Limits {
    server: "metrics",
    connections: 64,
    fresh: Duration::from_millis(50),
    head: Duration::from_secs(5),
    connection: Some(Duration::from_secs(5)),
    keep_alive: false,
    shutdown: Duration::ZERO,
};

/// How old a page may be. One with thousands of single pods has megabytes.
const PAGE_TTL: Duration = Duration::from_secs(1);

/// The reconciler completes a turn at least twice a second. After this long without one, `/healthz`
/// says that the agent is not healthy.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(10);

/// The path of liveness.
pub const LIVE: &str = "/healthz";
/// The path of readiness.
pub const READY: &str = "/readyz";

/// Opens the port.
///
/// # Errors
/// If it cannot be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    http::listen(address)
        .await
        .with_context(|| format!("listen on {address}; pass another to --metrics-addr"))
}

/// Serves until dropped. The metrics have series of at most `most_pods` single pods; `more` are routes of other modules.
pub async fn serve(listener: TcpListener, status: Arc<Status>, most_pods: usize, more: Router) {
    let pages = Arc::new(Pages {
        status: Arc::clone(&status),
        most_pods,
        cache: Mutex::default(),
    });
    let router = Router::new()
        .route("/metrics", get(page))
        .with_state(pages)
        .merge(health(status))
        .merge(more);
    http::serve_router(listener, LIMITS, router).await;
}

/// What is answered until the agent has started: it is live, and nothing else.
pub fn starting() -> Router {
    let starting = "the agent is starting: it loads the kernel programs\n";
    Router::new()
        .route(LIVE, get(move || async move { starting }))
        .fallback(move || async move { (StatusCode::SERVICE_UNAVAILABLE, starting) })
}

/// Liveness and readiness.
pub fn health(status: Arc<Status>) -> Router {
    Router::new()
        .route(LIVE, get(healthz))
        .route(READY, get(readyz))
        .with_state(status)
}

/// Whether the reconciler makes progress.
pub(super) fn is_live(status: &Status) -> bool {
    status.since_last_turn() < UNHEALTHY_AFTER
}

async fn healthz(State(status): State<Arc<Status>>) -> (StatusCode, String) {
    if is_live(&status) {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let silent = status.since_last_turn();
    let text = format!(
        "the reconciler has not completed a turn for {} s\n",
        silent.as_secs()
    );
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

async fn readyz(State(status): State<Arc<Status>>) -> (StatusCode, &'static str) {
    if status.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        let text = "the first full list of pods is not applied yet\n";
        (StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

async fn page(
    State(pages): State<Arc<Pages>>,
    Extension(place): Extension<Place>,
    headers: HeaderMap,
) -> Result<Response, StatusCode> {
    // The page is made for all who ask: no single connection is worked for.
    place.waits();
    let format = Format::accepted(headers.get_all(header::ACCEPT));
    // To its end although the client may have gone: else each one that is impatient would begin anew.
    let made = tokio::spawn(async move { pages.get(format).await }).await;
    let made = made.map_err(anyhow::Error::from).flatten();
    let text = made.map_err(|error| {
        tracing::error!("collect the metrics: {error:#}");
        StatusCode::INTERNAL_SERVER_ERROR
    })?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}

/// Makes pages, and keeps the last one of each format for all clients.
struct Pages {
    status: Arc<Status>,
    /// How many single pods they show.
    most_pods: usize,
    cache: Mutex<Vec<CachedPage>>,
}

struct CachedPage {
    format: Format,
    made: Instant,
    text: Bytes,
}

impl Pages {
    async fn get(&self, format: Format) -> Result<Bytes> {
        let mut cache = self.cache.lock().await;
        cache.retain(|page| page.made.elapsed() < PAGE_TTL);
        if let Some(page) = cache.iter().find(|page| page.format == format) {
            return Ok(page.text.clone());
        }
        let figures = self.status.figures(self.most_pods).await?;
        // A page of many pods takes a while to write; other clients are answered meanwhile.
        let text = runtime::blocking(move || metrics::text(figures, format)).await?;
        let text = Bytes::from(text);
        cache.push(CachedPage {
            format,
            made: Instant::now(),
            text: text.clone(),
        });
        Ok(text)
    }
}
