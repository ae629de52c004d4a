//! The agent's answers on the network: liveness, readiness and metrics. It shows nothing about single
//! pods or connections.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    http::{self, Limits},
    metrics,
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

/// Opens the port.
///
/// # Errors
/// If it cannot be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    http::listen(address)
        .await
        .with_context(|| format!("listen on {address}; pass another to --metrics-addr"))
}

/// Serves until dropped.
///
/// # Errors
/// If the port is lost.
pub async fn serve(listener: TcpListener, status: Arc<Status>) -> Result<()> {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(page))
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

async fn page(State(status): State<Arc<Status>>) -> Result<Response, StatusCode> {
    let failed = |error: &dyn std::error::Error| {
        tracing::error!("collect the metrics: {error}");
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let figures = status.figures().await.map_err(|error| failed(&error))?;
    let text = metrics::text(figures).map_err(|error| failed(&error))?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}
