//! The agent's answers on the network: liveness, readiness and metrics. It shows nothing about single
//! connections, and about single pods only if that is requested.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    http::{self, Limits},
    metrics::{self, Format},
    status::Status,
};

/// Every pod can reach the port. It must not use up the agent's descriptors and memory.
const LIMITS: Limits = Limits {
    server: "metrics",
    connections: 64,
    head: Duration::from_secs(5),
    connection: Some(Duration::from_secs(5)),
    keep_alive: false,
    shutdown: Duration::ZERO,
};

/// The reconciler completes a turn at least twice a second. After this long without one, `/healthz`
/// says that the agent is not healthy.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(10);

/// How many single pods the metrics show.
#[derive(Clone, Copy, Debug)]
struct MostPods(usize);

/// Opens the port.
///
/// # Errors
/// If it cannot be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    http::listen(address)
        .await
        .with_context(|| format!("listen on {address}; pass another to --metrics-addr"))
}

/// Serves until dropped. The metrics have series of at most `most_pods` single pods.
///
/// # Errors
/// If the port is lost.
pub async fn serve(listener: TcpListener, status: Arc<Status>, most_pods: usize) -> Result<()> {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(page))
        .layer(Extension(MostPods(most_pods)))
        .with_state(status);
    let prepare = |stream: TcpStream| {
        let router = router.clone();
        async move { Some((stream, router)) }
    };
    http::serve(listener, LIMITS, prepare, std::future::pending()).await
}

async fn healthz(State(status): State<Arc<Status>>) -> (StatusCode, String) {
    let silent = status.since_last_turn();
    if silent < UNHEALTHY_AFTER {
        return (StatusCode::OK, "ok\n".to_owned());
    }
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
    State(status): State<Arc<Status>>,
    Extension(MostPods(most_pods)): Extension<MostPods>,
    headers: HeaderMap,
) -> Result<Response, StatusCode> {
    let failed = |error: &dyn std::error::Error| {
        tracing::error!("collect the metrics: {error}");
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let figures = status.figures(most_pods).await;
    let figures = figures.map_err(|error| failed(&error))?;
    let format = Format::accepted(headers.get_all(header::ACCEPT));
    // A page of many pods takes a while to write; other clients are answered meanwhile.
    let text = tokio::task::spawn_blocking(move || metrics::text(figures, format)).await;
    let text = text.map_err(|error| failed(&error))?;
    let text = text.map_err(|error| failed(&error))?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}
