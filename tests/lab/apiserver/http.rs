//! The protocol.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::Result;
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, get, patch, post},
};
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};

use super::{
    TOKEN, Up, create, exec, readers,
    store::{Resource, Store},
};

type Key = rcgen::CertifiedKey<rcgen::KeyPair>;

/// Serves until given up.
pub async fn serve(
    store: Arc<Store>,
    key: Key,
    mut up: watch::Receiver<Up>,
    bound: std::sync::mpsc::Sender<SocketAddr>,
) -> Result<()> {
    let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()));
    let provider = tokio_rustls::rustls::crypto::ring::default_provider();
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], private)?;
    let tls = TlsAcceptor::from(Arc::new(config));
    let router = router(store);
    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    loop {
        up.wait_for(|up| up.serving).await?;
        let listener = listen(address).await?;
        address = listener.local_addr()?;
        let _ = bound.send(address);
        loop {
            let now = *up.borrow_and_update();
            if !now.serving {
                break;
            }
            tokio::select! {
                changed = up.changed() => changed?,
                Ok((stream, _)) = listener.accept() => {
                    let connection = connection(stream, tls.clone(), router.clone());
                    let mut cut = up.clone();
                    tokio::spawn(async move {
                        tokio::select! {
                            () = connection => {}
                            _ = cut.wait_for(|up| up.time != now.time) => {}
                        }
                    });
                }
            }
        }
    }
}

/// The port of before may still be known to connections that were cut.
async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket.listen(64)?)
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, router: Router) {
    let Ok(stream) = tls.accept(stream).await else {
        return;
    };
    let service = TowerToHyperService::new(router);
    let _ = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new())
        .http1_only()
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .await;
}

fn router(store: Arc<Store>) -> Router {
    let events = "/apis/events.k8s.io/v1/namespaces/{namespace}/events";
    let mut router = Router::new();
    for resource in Resource::ALL {
        for path in resource.paths() {
            router = router.route(&path, objects(resource));
        }
    }
    router
        .route(
            "/api/v1/namespaces/{namespace}/pods/{name}",
            object(Resource::Pods),
        )
        .route(
            "/api/v1/namespaces/{namespace}/pods/{name}/exec",
            get(exec::exec),
        )
        .route("/api/v1/namespaces/{namespace}/pods/{name}/log", get(log))
        .route(
            "/api/v1/namespaces/{namespace}/pods/{name}/proxy/{*path}",
            get(readers::proxy),
        )
        .route(
            "/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            post(readers::create_token),
        )
        .route(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            post(readers::review),
        )
        .route(
            "/api/v1/namespaces/{namespace}/pods/{name}/status",
            patch(patch_pod),
        )
        .route(
            "/api/v1/namespaces/{name}",
            object(Resource::Namespaces).delete(create::delete_namespace),
        )
        .route(
            "/api/v1/namespaces/{namespace}/services/{name}",
            object(Resource::Services),
        )
        .route(
            "/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}",
            object(Resource::DaemonSets),
        )
        .route(
            "/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
            object(Resource::Deployments),
        )
        .route(
            "/api/v1/nodes/{name}",
            object(Resource::Nodes).patch(patch_node),
        )
        .route(events, post(create::create_event))
        .route(&format!("{events}/{{name}}"), patch(create::patch_event))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&store),
            authenticate,
        ))
        .with_state(store)
}

/// Bytes of a log, whatever number was asked for.
const LOG_BYTES: usize = 5 << 20;

/// The log of a container, which has never been restarted.
async fn log(
    State(store): State<Arc<Store>>,
    Path((_, name)): Path<(String, String)>,
    Query(parameters): Query<HashMap<String, String>>,
) -> Response {
    store.asked("get", "", "pods/log");
    if parameters.get("previous").is_some_and(|it| it == "true") {
        let message = "previous terminated container not found";
        return failure(StatusCode::BAD_REQUEST, "BadRequest", message);
    }
    let begin = format!("the log of {name}\n");
    let rest = "x".repeat(LOG_BYTES - begin.len());
    (begin + &rest).into_response()
}

async fn authenticate(
    State(store): State<Arc<Store>>,
    headers: HeaderMap,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    store.add_request();
    tokio::time::sleep(store.delay()).await;
    let shown = headers.get(header::AUTHORIZATION);
    let revoked = store.is_revoked();
    if revoked || shown.is_none_or(|shown| shown != &format!("Bearer {TOKEN}")) {
        return failure(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized");
    }
    let names = ["impersonate-user", "impersonate-group"];
    let names = names.iter().flat_map(|name| headers.get_all(*name));
    let names = names.filter_map(|name| name.to_str().ok());
    store.impersonate(names.map(str::to_owned).collect());
    let count = move |frame: Frame<Bytes>| {
        store.add_bytes(frame.data_ref().map_or(0, Bytes::len));
        frame
    };
    let answer = next.run(request).await;
    answer.map(|body| Body::new(body.map_frame(count)))
}

/// Parameters of list and watch.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Parameters {
    #[serde(default)]
    watch: bool,
    resource_version: Option<String>,
    field_selector: Option<String>,
    label_selector: Option<String>,
    #[serde(default)]
    allow_watch_bookmarks: bool,
    limit: Option<usize>,
    #[serde(rename = "continue")]
    next: Option<usize>,
}

/// List and watch of a resource.
fn objects(resource: Resource) -> MethodRouter<Arc<Store>> {
    get(
        move |State(store): State<Arc<Store>>,
              path: Option<Path<HashMap<String, String>>>,
              headers: HeaderMap,
              Query(parameters): Query<Parameters>| async move {
            let namespace = path.and_then(|Path(mut path)| path.remove("namespace"));
            answer(store, resource, namespace, &headers, parameters)
        },
    )
    .post(
        move |State(store): State<Arc<Store>>,
              path: Option<Path<HashMap<String, String>>>,
              Json(object): Json<Value>| async move {
            let namespace = path.and_then(|Path(mut path)| path.remove("namespace"));
            create::create(&store, resource, namespace, object)
        },
    )
}

/// What part of an object a client wants, and of which objects.
#[derive(Clone)]
struct Shape {
    resource: Resource,
    metadata_only: bool,
    namespace: Option<String>,
    /// A field, and what it must be.
    selector: Option<(String, String)>,
    /// Labels, and what they must be.
    labels: Vec<(String, String)>,
}

impl Shape {
    fn fits(&self, object: &Value) -> bool {
        let meta = &object["metadata"];
        let is_there = self
            .namespace
            .as_ref()
            .is_none_or(|wanted| meta["namespace"] == **wanted);
        let is_labeled = (self.labels.iter()).all(|(name, value)| meta["labels"][name] == **value);
        is_there
            && is_labeled
            && self.selector.as_ref().is_none_or(|(field, wanted)| {
                object.pointer(field).and_then(Value::as_str) == Some(wanted)
            })
    }

    fn kind(&self) -> &'static str {
        match self.metadata_only {
            true => "PartialObjectMetadata",
            false => self.resource.kind(),
        }
    }

    fn api_version(&self) -> String {
        match self.metadata_only {
            true => "meta.k8s.io/v1".to_owned(),
            false => self.resource.api_version(),
        }
    }

    fn give(&self, mut object: Value, typed: bool) -> Value {
        if self.metadata_only {
            object = json!({"metadata": object["metadata"]});
        }
        // Items of lists carry no type.
        let kind = self.kind().to_owned();
        for (field, value) in [("kind", kind), ("apiVersion", self.api_version())] {
            if typed || self.metadata_only {
                object[field] = value.into();
            } else if let Some(fields) = object.as_object_mut() {
                fields.remove(field);
            }
        }
        object
    }
}

fn answer(
    store: Arc<Store>,
    resource: Resource,
    namespace: Option<String>,
    headers: &HeaderMap,
    parameters: Parameters,
) -> Response {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .unwrap_or_default();
    let shape = Shape {
        resource,
        metadata_only: accept.contains("as=PartialObjectMetadata"),
        namespace,
        labels: equalities(parameters.label_selector.as_deref()),
        selector: parameters
            .field_selector
            .as_deref()
            .and_then(|selector| selector.split_once('='))
            .map(|(field, wanted)| (format!("/{}", field.replace('.', "/")), wanted.to_owned())),
    };
    let verb = if parameters.watch { "watch" } else { "list" };
    store.asked(verb, resource.group(), resource.plural());
    if store.is_forbidden(resource) {
        let message = format!("{} is forbidden: cannot list", resource.plural());
        return failure(StatusCode::FORBIDDEN, "Forbidden", &message);
    }
    if parameters.watch {
        watch_objects(store, shape, &parameters)
    } else {
        list(&store, &shape, &parameters)
    }
}

/// The labels of a selector such as `app=web,tier=front`.
fn equalities(selector: Option<&str>) -> Vec<(String, String)> {
    let parts = selector
        .into_iter()
        .flat_map(|selector| selector.split(','));
    parts
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.trim_start_matches('=').to_owned()))
        .collect()
}

fn list(store: &Store, shape: &Shape, parameters: &Parameters) -> Response {
    let (objects, version) = store.list(shape.resource);
    let fitting: Vec<Value> = objects
        .into_iter()
        .filter(|object| shape.fits(object))
        .collect();
    let start = parameters.next.unwrap_or_default().min(fitting.len());
    let end = fitting
        .len()
        .min(start + parameters.limit.unwrap_or(usize::MAX).min(fitting.len()));
    let items: Vec<Value> = fitting[start..end]
        .iter()
        .map(|object| shape.give(object.clone(), false))
        .collect();
    let more = if end < fitting.len() {
        end.to_string()
    } else {
        String::new()
    };
    let list = json!({
        "kind": format!("{}List", shape.kind()),
        "apiVersion": shape.api_version(),
        "metadata": {"resourceVersion": version.to_string(), "continue": more},
        "items": items,
    });
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (content_type, store.substituted(list.to_string())).into_response()
}

fn watch_objects(store: Arc<Store>, shape: Shape, parameters: &Parameters) -> Response {
    let version = parameters
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default();
    let Some(position) = store.position(version) else {
        let status = status(410, "Expired", "too old resource version");
        let line = json!({"type": "ERROR", "object": status}).to_string() + "\n";
        return line.into_response();
    };
    let bookmarks = parameters.allow_watch_bookmarks;
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, Infallible>>(16);
    tokio::spawn(async move {
        let mut position = position;
        let mut growth = store.growth();
        loop {
            growth.borrow_and_update();
            for change in store.since(position) {
                position += 1;
                let object = match change.resource {
                    Some(resource) if resource != shape.resource => continue,
                    Some(_) if !shape.fits(&change.object) => continue,
                    None if !bookmarks => continue,
                    _ => shape.give(change.object, true),
                };
                let event = json!({"type": change.kind, "object": object});
                let text = store.substituted(event.to_string()) + "\n";
                // In two pieces, as they come over a network.
                let (first, second) = text.split_at(text.len() / 2);
                for piece in [first, second] {
                    let piece = Bytes::copy_from_slice(piece.as_bytes());
                    if sender.send(Ok(piece)).await.is_err() {
                        return;
                    }
                }
            }
            tokio::select! {
                () = sender.closed() => return,
                grown = growth.changed() => if grown.is_err() { return },
            }
        }
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        let piece = receiver.recv().await?;
        Some((piece, receiver))
    });
    Response::new(Body::from_stream(stream))
}

/// One object. Of a DaemonSet only the metadata is asked for.
fn object(resource: Resource) -> MethodRouter<Arc<Store>> {
    get(
        move |State(store): State<Arc<Store>>, Path(path): Path<HashMap<String, String>>| async move {
            store.asked("get", resource.group(), resource.plural());
            let part = |name: &str| path.get(name).map_or("", String::as_str);
            let Some(object) = store.get(resource, part("namespace"), part("name")) else {
                let message = format!("{} {:?} not found", resource.plural(), part("name"));
                return failure(StatusCode::NOT_FOUND, "NotFound", &message);
            };
            let shape = Shape {
                resource,
                metadata_only: resource == Resource::DaemonSets,
                namespace: None,
                selector: None,
                labels: Vec::new(),
            };
            Json(shape.give(object, true)).into_response()
        },
    )
}

/// A merge patch of annotations, by the status.
async fn patch_pod(
    State(store): State<Arc<Store>>,
    Path((namespace, name)): Path<(String, String)>,
    Json(patch): Json<Value>,
) -> Response {
    store.asked("patch", "", "pods/status");
    let Some(mut pod) = store.get(Resource::Pods, &namespace, &name) else {
        return failure(StatusCode::NOT_FOUND, "NotFound", "no such pod");
    };
    store.add_pod_patch(patch.clone());
    // As the real one: a precondition.
    let uid = &patch["metadata"]["uid"];
    if !uid.is_null() && *uid != pod["metadata"]["uid"] {
        return failure(StatusCode::CONFLICT, "Conflict", "another pod has the name");
    }
    let changes = patch["metadata"]["annotations"].as_object();
    for (name, value) in changes.into_iter().flatten() {
        let annotations = &mut pod["metadata"]["annotations"];
        match (value.is_null(), annotations.as_object_mut()) {
            (true, Some(annotations)) => drop(annotations.remove(name)),
            (true, None) => {}
            (false, _) => annotations[name] = value.clone(),
        }
    }
    match store.apply(Resource::Pods, pod.clone()) {
        Ok(()) => Json(pod).into_response(),
        Err(error) => failure(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal",
            &error.to_string(),
        ),
    }
}

/// A merge patch of the taints, as far as that goes.
async fn patch_node(
    State(store): State<Arc<Store>>,
    Path(name): Path<String>,
    Json(patch): Json<Value>,
) -> Response {
    store.asked("patch", "", "nodes");
    let Some(mut node) = store.get(Resource::Nodes, "", &name) else {
        return failure(StatusCode::NOT_FOUND, "NotFound", "no such node");
    };
    let version = &patch["metadata"]["resourceVersion"];
    if !version.is_null() && *version != node["metadata"]["resourceVersion"] {
        return failure(StatusCode::CONFLICT, "Conflict", "it has been modified");
    }
    node["spec"]["taints"] = patch["spec"]["taints"].clone();
    match store.apply(Resource::Nodes, node.clone()) {
        Ok(()) => Json(node).into_response(),
        Err(error) => failure(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal",
            &error.to_string(),
        ),
    }
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}

pub fn failure(code: StatusCode, reason: &str, message: &str) -> Response {
    (code, Json(status(code.as_u16(), reason, message))).into_response()
}
