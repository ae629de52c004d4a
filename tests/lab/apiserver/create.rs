//! Objects that clients create, and namespaces that they delete.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::{
    http::failure,
    store::{Resource, Store},
};

/// Why an object is refused: HTTP's code, and words.
pub type Refusal = (StatusCode, String);

/// Completes or refuses an object.
pub type Admission = Arc<dyn Fn(&mut Value) -> Result<(), Refusal> + Send + Sync>;

/// Makes generated names differ.
static GENERATED: AtomicU32 = AtomicU32::new(0);

/// Creates an object.
pub(super) fn create(
    store: &Store,
    resource: Resource,
    namespace: Option<String>,
    mut object: Value,
) -> Response {
    store.asked("create", resource.group(), resource.plural());
    let Some(admission) = store.admission() else {
        let message = "this server creates nothing";
        return failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
    };
    let metadata = &mut object["metadata"];
    if let Some(namespace) = &namespace {
        metadata["namespace"] = namespace.as_str().into();
    }
    if metadata["name"].is_null() {
        let prefix = metadata["generateName"].as_str().unwrap_or_default();
        let number = GENERATED.fetch_add(1, Ordering::Relaxed);
        metadata["name"] = format!("{prefix}{number:05}").into();
    }
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    let full = namespace.unwrap_or_default();
    if store.get(resource, &full, &name).is_some() {
        let message = format!("{} {name:?} already exists", resource.plural());
        return failure(StatusCode::CONFLICT, "AlreadyExists", &message);
    }
    object["metadata"]["uid"] = format!("uid-{full}-{name}").into();
    object["kind"] = resource.kind().into();
    if let Err((code, message)) = admission(&mut object) {
        return failure(code, "Forbidden", &message);
    }
    match store.apply(resource, object.clone()) {
        Ok(()) => (StatusCode::CREATED, Json(object)).into_response(),
        Err(error) => {
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            failure(code, "Internal", &error.to_string())
        }
    }
}

/// Deletes a namespace at once, if it is the one that the client means.
pub(super) async fn delete_namespace(
    State(store): State<Arc<Store>>,
    Path(path): Path<HashMap<String, String>>,
    options: Option<Json<Value>>,
) -> Response {
    store.asked("delete", "", "namespaces");
    let name = path.get("name").map_or("", String::as_str);
    let Some(object) = store.get(Resource::Namespaces, "", name) else {
        return failure(StatusCode::NOT_FOUND, "NotFound", "no such namespace");
    };
    let options = options.map_or(Value::Null, |Json(options)| options);
    let wanted = &options["preconditions"]["uid"];
    if !wanted.is_null() && *wanted != object["metadata"]["uid"] {
        return failure(StatusCode::CONFLICT, "Conflict", "the UID differs");
    }
    match store.delete_namespace(name) {
        Ok(()) => {
            Json(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
                .into_response()
        }
        Err(error) => {
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            failure(code, "Internal", &error.to_string())
        }
    }
}

/// Takes an Event.
pub(super) async fn create_event(
    State(store): State<Arc<Store>>,
    Path(namespace): Path<String>,
    Json(event): Json<Value>,
) -> Response {
    store.asked("create", "events.k8s.io", "events");
    if store.refuses_event() {
        return failure(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            "busy",
        );
    }
    let regarding = &event["regarding"];
    let sound = serde_json::from_value::<k8s_openapi::api::events::v1::Event>(event.clone())
        .is_ok()
        && regarding["namespace"] == *namespace
        && event["metadata"]["namespace"] == *namespace
        && regarding["uid"].is_string()
        && event["note"]
            .as_str()
            .is_some_and(|note| note.len() <= 1024);
    if !sound {
        return failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", "not an Event");
    }
    store.add_event(event.clone());
    (StatusCode::CREATED, Json(event)).into_response()
}

/// Takes an Event again.
pub(super) async fn patch_event(
    State(store): State<Arc<Store>>,
    Json(event): Json<Value>,
) -> Response {
    store.asked("patch", "events.k8s.io", "events");
    store.add_event(event.clone());
    Json(event).into_response()
}
