//! What readers of agents need: tokens of service accounts, their review, and the proxy to pods.

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use axum::{
    Json,
    body::Body,
    extract::{Path, Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{
    http::failure,
    store::{Resource, Store},
};

/// Who is a reader, and what was asked.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// Namespaces whose service accounts the client gets tokens of.
    pub(super) namespaces: BTreeSet<String>,
    /// Tokens that were reviewed.
    pub(super) reviews: usize,
    /// How long each takes.
    pub(super) review_time: Duration,
}

/// An audience that this server accepts without saying so, as one that does not look at audiences.
pub const ANY: &str = "any";

/// A token as this server makes it.
#[must_use]
pub fn token(namespace: &str, name: &str, audience: &str) -> String {
    format!("{namespace}.{name}.{audience}").replace("sidetrack.dev", "sidetrack-dev")
}

pub(super) async fn create_token(
    State(store): State<Arc<Store>>,
    Path((namespace, name)): Path<(String, String)>,
    Json(request): Json<Value>,
) -> Response {
    store.asked("create", "", "serviceaccounts/token");
    if !store.readers().namespaces.contains(&namespace) {
        let message = format!("serviceaccounts {name:?} is forbidden");
        return failure(StatusCode::FORBIDDEN, "Forbidden", &message);
    }
    let audience = request["spec"]["audiences"][0].as_str();
    let token = token(&namespace, &name, audience.unwrap_or_default());
    let mut answer = request;
    answer["status"] = json!({"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"});
    (StatusCode::CREATED, Json(answer)).into_response()
}

pub(super) async fn review(
    State(store): State<Arc<Store>>,
    Json(mut review): Json<Value>,
) -> Response {
    store.asked("create", "authentication.k8s.io", "tokenreviews");
    store.readers().reviews += 1;
    let time = store.readers().review_time;
    tokio::time::sleep(time).await;
    let token = review["spec"]["token"].as_str().unwrap_or_default();
    let parts: Vec<&str> = token.split('.').collect();
    let wanted = review["spec"]["audiences"][0].as_str().unwrap_or_default();
    let user = |namespace: &str, name: &str| {
        let name = format!("system:serviceaccount:{namespace}:{name}");
        json!({"username": name})
    };
    let status = match parts[..] {
        [namespace, name, ANY] => {
            json!({"authenticated": true, "user": user(namespace, name)})
        }
        [namespace, name, audience]
            if wanted.replace("sidetrack.dev", "sidetrack-dev") == audience =>
        {
            json!({"authenticated": true, "audiences": [wanted], "user": user(namespace, name)})
        }
        _ => json!({"authenticated": false, "error": "invalid bearer token"}),
    };
    review["status"] = status;
    (StatusCode::CREATED, Json(review)).into_response()
}

/// Passes a request to a pod, which is on this machine.
pub(super) async fn proxy(
    State(store): State<Arc<Store>>,
    Path((namespace, pod, path)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    store.asked("get", "", "pods/proxy");
    let (name, port) = pod.rsplit_once(':').unwrap_or((&pod, "80"));
    if store.get(Resource::Pods, &namespace, name).is_none() {
        return failure(StatusCode::NOT_FOUND, "NotFound", "no such pod");
    }
    match pass(port, &path, request).await {
        Ok(response) => response,
        Err(error) => {
            let message = format!("error trying to reach service: {error:#}");
            failure(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                &message,
            )
        }
    }
}

async fn pass(port: &str, path: &str, mut request: Request) -> Result<Response> {
    let query = request.uri().query().unwrap_or_default();
    *request.uri_mut() = format!("/{path}?{query}").parse()?;
    // As the real one.
    request.headers_mut().remove("authorization");
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse()?)).await;
    let stream = stream.context("connect")?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?.map(Body::new))
}
