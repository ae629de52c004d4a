//! The HTTP client for the API server.
//!
//! Invariants: a connection whose other end has vanished ends by itself; no request waits for the head of an answer
//! forever, and those sent by [`whole`] for no part of it.
//! Silence on an open watch is normal and ends nothing.

use std::{future::Future, time::Duration};

use anyhow::{Context as _, Result, ensure};
use hyper_util::{
    client::legacy::{self, Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
};
use sidetrack_base::api_server::name_server;
use tokio::time::timeout;
use tower::{ServiceBuilder, timeout::TimeoutLayer};

/// Longest wait for a connection. While the API server is away its address may swallow packets, and an attempt that
/// began then would hang long after it is back.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for the head of an answer. The API server may queue a request for up to 15 s
/// (`--request-timeout` of 60 s, a quarter of it in a queue of API priority and fairness).
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for a whole answer that is no list and no watch: the head may be all that ever comes.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection that has been silent for this long is probed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// Time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Probes without an answer that end a connection.
const KEEPALIVE_PROBES: u32 = 3;
/// What was sent and is not acknowledged within this time ends a connection.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of the API server that `config` names. It waits up to `answer` for the head of each answer.
///
/// # Errors
/// If the configuration cannot be used.
pub(super) fn connect(config: &Config, answer: Duration) -> Result<Client> {
    ensure!(
        config.proxy_url.is_none(),
        "the API server is to be reached through a proxy, which the agent does not support: \
         unset HTTPS_PROXY, or add the API server to NO_PROXY"
    );
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT));
    let tls = config
        .rustls_https_connector_with_connector(tcp)
        .context("prepare TLS")?;
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(tls);
    let server = config.cluster_url.to_string();
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().context("prepare authentication")?)
        .layer(TimeoutLayer::new(answer))
        .map_err(move |error: legacy::Error| name_server(&server, error.into()))
        .service(http);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// Waits for a whole answer.
///
/// # Errors
/// If the request fails, or its answer does not end.
pub(super) async fn whole<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    whole_within(WHOLE_TIMEOUT, request).await
}

async fn whole_within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    let answer = timeout(limit, request).await;
    answer.unwrap_or_else(|_| {
        let text = format!("the API server's answer did not end within {limit:?}");
        Err(kube::Error::Service(text.into()))
    })
}

#[cfg(test)]
mod tests;
