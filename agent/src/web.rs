//! What the agent answers on the network: whether it lives, whether it is ready, and figures. Nothing
//! about single pods or connections.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum::{Router, extract::State, http::StatusCode, routing::get};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{net::TcpListener, sync::Semaphore};

use crate::{api::PodState, kernel::usage::Usage, server::Published};

/// Every pod may reach the port. It must not take the agent's descriptors and memory: so many
/// connections at a time, for so long.
const CONNECTIONS: usize = 64;
const LONGEST: Duration = Duration::from_secs(5);
/// After a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// The agent's loop turns twice a second; after this long it hangs.
const HANGS: Duration = Duration::from_secs(30);

/// Opens the port.
///
/// # Errors
/// If it cannot be had.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    listen(address)
        .await
        .with_context(|| format!("listen on {address}; pass another to --metrics-addr"))
}

/// Listens; on all addresses of a node without IPv6 (`ipv6.disable=1`) where `[::]` is asked for, which
/// is what manifests for all nodes say.
///
/// # Errors
/// If it cannot.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error)
            if error.raw_os_error() == Some(libc::EAFNOSUPPORT)
                && address.ip() == Ipv6Addr::UNSPECIFIED =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        other => other,
    }
}

/// Answers until dropped.
///
/// # Errors
/// If the port is lost.
pub async fn serve(listener: TcpListener, published: Arc<Published>) -> Result<()> {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(published);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await?;
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("accept a connection for metrics: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(LONGEST, connection).await;
            drop(place);
        });
    }
}

async fn healthz(State(published): State<Arc<Published>>) -> (StatusCode, String) {
    let silent = published.silent_for();
    if silent < HANGS {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let text = format!(
        "the agent's loop has not turned for {} s\n",
        silent.as_secs()
    );
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

async fn readyz(State(published): State<Arc<Published>>) -> (StatusCode, &'static str) {
    if published.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        let text = "the first full list of pods is not applied yet\n";
        (StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

/// The text format of Prometheus, version 0.0.4.
async fn metrics(State(published): State<Arc<Published>>) -> Result<String, StatusCode> {
    let figures = published.figures().await.map_err(|error| {
        tracing::error!("read the kernel's maps: {error}");
        StatusCode::INTERNAL_SERVER_ERROR
    })?;
    let mut text = String::new();
    metric(
        &mut text,
        ("sidetrack_build_info", "gauge", "Version of the agent."),
        [(format!("version=\"{}\"", crate::VERSION), 1)],
    );
    metric(
        &mut text,
        (
            "sidetrack_ready",
            "gauge",
            "Whether the first full list of pods is applied.",
        ),
        [(String::new(), u64::from(published.is_ready()))],
    );
    metric(
        &mut text,
        ("sidetrack_pods", "gauge", "Pods of this node by state."),
        figures
            .pods
            .iter()
            .map(|(state, count)| (format!("state=\"{state}\""), *count)),
    );
    metric(
        &mut text,
        (
            "sidetrack_problems",
            "gauge",
            "Problems that `sidetrack status` lists.",
        ),
        [(String::new(), figures.problems)],
    );
    metric(
        &mut text,
        (
            "sidetrack_connections_total",
            "counter",
            "Connections of enrolled pods by the rule that decided them.",
        ),
        figures
            .connections
            .iter()
            .map(|(rule, count)| (format!("rule=\"{rule}\""), *count)),
    );
    let by_map = |value: fn(&Usage) -> u64| {
        let maps = figures.maps.iter();
        maps.map(move |fill| (format!("map=\"{}\"", fill.map()), value(fill)))
    };
    metric(
        &mut text,
        ("sidetrack_map_rows", "gauge", "Rows in the kernel's maps."),
        by_map(|fill| fill.rows),
    );
    metric(
        &mut text,
        (
            "sidetrack_map_capacity",
            "gauge",
            "Rows the kernel's maps can have.",
        ),
        by_map(|fill| fill.capacity),
    );
    metric(
        &mut text,
        (
            "sidetrack_repairs_total",
            "counter",
            "Repairs of what others changed, by what it was.",
        ),
        figures
            .repairs
            .iter()
            .map(|(what, count)| (format!("what=\"{what}\""), *count)),
    );
    Ok(text)
}

/// What is counted.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// By state.
    pub pods: BTreeMap<&'static str, u64>,
    /// How many.
    pub problems: u64,
    /// By the name of the rule, since the agent started.
    pub connections: BTreeMap<&'static str, u64>,
    /// How full the kernel's maps are.
    pub maps: Vec<Usage>,
    /// By what was repaired, since the agent started.
    pub repairs: BTreeMap<&'static str, u64>,
}

/// The label of a state.
#[must_use]
pub fn state_label(state: PodState) -> &'static str {
    match state {
        PodState::Enrolled => "enrolled",
        PodState::Waiting => "waiting",
        PodState::Rejected => "rejected",
        PodState::NotTaken => "not-taken",
    }
}

fn metric(
    text: &mut String,
    (name, kind, help): (&str, &str, &str),
    values: impl IntoIterator<Item = (String, u64)>,
) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in values {
        let labels = if labels.is_empty() {
            labels
        } else {
            format!("{{{labels}}}")
        };
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}
