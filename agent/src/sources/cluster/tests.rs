use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Json, Router, body::Body, extract::Query, response::IntoResponse as _, routing::get};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    runtime::{
        utils::Backoff,
        watcher::{self, Event},
    },
};
use serde_json::json;

use super::{GONE, follow_with};
use crate::runtime::block_on;

/// Counts how often a failure was to be waited out.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>);

impl Iterator for Counted {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Some(Duration::ZERO)
    }
}

impl Backoff for Counted {
    fn reset(&mut self) {}
}

/// An API server that lists no pods, and ends every watch at once with this status.
fn ends_watches(code: u16) -> Client {
    let pods = get(
        move |Query(query): Query<HashMap<String, String>>| async move {
            if !query.contains_key("watch") {
                let list = json!({
                    "kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [],
                });
                return Json(list).into_response();
            }
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Expired",
                "message": "too old resource version: 7 (9)", "metadata": {},
            });
            let event = json!({"type": "ERROR", "object": status});
            Body::from(format!("{event}\n")).into_response()
        },
    );
    Client::new(Router::new().route("/api/v1/pods", pods), "default")
}

/// How many failures are waited out, and how many are passed on, until pods were listed for the third time.
fn until_listed_again(code: u16) -> (usize, usize) {
    block_on(async {
        let pauses = Counted::default();
        let api: Api<Pod> = Api::all(ends_watches(code));
        let mut events = follow_with(api, watcher::Config::default(), pauses.clone());
        let (mut lists, mut errors) = (0, 0);
        while lists < 3 && errors < 3 {
            match events.next().await.unwrap() {
                Ok(Event::InitDone) => lists += 1,
                Ok(_) => {}
                Err(_) => errors += 1,
            }
        }
        (pauses.0.load(Ordering::Relaxed), errors)
    })
    .unwrap()
}

#[test]
fn a_forgotten_version_is_listed_again_without_a_pause() {
    assert_eq!(until_listed_again(GONE), (0, 0));
}

#[test]
fn other_failures_of_a_watch_are_waited_out() {
    assert_eq!(until_listed_again(500), (3, 3));
}
