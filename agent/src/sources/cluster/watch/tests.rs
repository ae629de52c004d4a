use std::{
    collections::{BTreeSet, HashMap},
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::Query,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use futures_util::StreamExt as _;
use kube::{Client, runtime::watcher::Event};
use serde_json::{Value, json};
use sidetrack_policy::facts::PodFacts;

use super::requests::MAX_PAGE_BYTES;
use super::{Failure, MAX_OBJECT_BYTES, Pauses, Target, Timeouts, Update, Watch};
use sidetrack_base::runtime::block_on;

type Parameters = HashMap<String, String>;

/// Counts how often a failure was to be waited out.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>);

impl Pauses for Counted {
    fn next(&mut self, _: bool) -> Duration {
        self.0.fetch_add(1, Ordering::Relaxed);
        Duration::ZERO
    }

    fn reset(&mut self) {}
}

/// Follows the pods of a server whose answers a function makes.
fn follow(
    answer: impl Fn(&Parameters) -> Response + Clone + Send + Sync + 'static,
    timeouts: Timeouts,
) -> (Watch<PodFacts>, Counted) {
    let pods = get(move |Query(query): Query<Parameters>| async move { answer(&query) });
    let server = Router::new().route("/api/v1/pods", pods);
    let pauses = Counted::default();
    let target = Target {
        path: "/api/v1/pods".to_owned(),
        fields: None,
        metadata_only: true,
    };
    let client = Client::new(server, "default");
    (
        Watch::start(client, target, timeouts, pauses.clone()),
        pauses,
    )
}

fn list(items: &[Value], next: Option<usize>) -> Response {
    let next = next.map(|next| next.to_string());
    Json(json!({
        "kind": "PodList", "apiVersion": "v1",
        "metadata": {"resourceVersion": "7", "continue": next}, "items": items,
    }))
    .into_response()
}

fn pod(name: &str, version: usize) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version.to_string()}})
}

fn line(kind: &str, object: &Value) -> String {
    json!({"type": kind, "object": object}).to_string() + "\n"
}

/// A watch that says this and then nothing until it is cut.
fn silent(text: String) -> Response {
    let first = futures_util::stream::iter([Ok::<_, Infallible>(Bytes::from(text))]);
    Body::from_stream(first.chain(futures_util::stream::pending())).into_response()
}

/// A watch that is cut after this.
fn cut(text: String) -> Response {
    let parts = [Ok(Bytes::from(text)), Err(std::io::Error::other("cut"))];
    Body::from_stream(futures_util::stream::iter(parts)).into_response()
}

/// How many failures are waited out, and how many are passed on, until pods were listed for the third time.
fn until_listed_again(code: u16) -> (usize, usize) {
    let answer = move |query: &Parameters| {
        if !query.contains_key("watch") {
            return list(&[], None);
        }
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Expired",
            "message": "too old resource version: 7 (9)", "metadata": {},
        });
        Body::from(line("ERROR", &status)).into_response()
    };
    block_on(async {
        let (mut watch, pauses) = follow(answer, Timeouts::default());
        let (mut lists, mut failures) = (0, 0);
        while lists < 3 {
            match watch.next().await {
                Update::Event(Event::InitDone) => lists += 1,
                Update::Failed(_) => failures += 1,
                Update::Event(_) | Update::Current => {}
            }
        }
        (pauses.0.load(Ordering::Relaxed), failures)
    })
    .unwrap()
}

#[test]
fn a_forgotten_version_is_no_problem() {
    let (_, failures) = until_listed_again(410);
    assert_eq!(failures, 0);
}

#[test]
fn other_failures_of_a_watch_are_reported_and_waited_out() {
    let (pauses, failures) = until_listed_again(500);
    assert_eq!(failures, 2);
    assert!(pauses >= failures, "{pauses} pauses");
}

#[test]
fn watches_of_many_agents_do_not_end_together() {
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&asked);
    let answer = move |query: &Parameters| {
        if !query.contains_key("watch") {
            return list(&[], None);
        }
        let seconds: u32 = query["timeoutSeconds"].parse().unwrap();
        seen.lock().unwrap().insert(seconds);
        Response::new(Body::empty())
    };
    block_on(async {
        let (mut watch, _) = follow(answer, Timeouts::default());
        let mut current = 0;
        while current < 20 {
            current += u32::from(matches!(watch.next().await, Update::Current));
        }
    })
    .unwrap();
    let asked = asked.lock().unwrap();
    assert!(asked.len() > 1, "{asked:?}");
    assert!(asked.iter().all(|it| (145..=290).contains(it)), "{asked:?}");
}

/// What happens in the time of several watches, of which the server says nothing in any.
#[test]
fn silence_is_no_problem() {
    let answer = |query: &Parameters| match query.contains_key("watch") {
        true => silent(String::new()),
        false => list(&[pod("a", 1)], None),
    };
    let timeouts = Timeouts {
        watch: Duration::from_millis(1100),
        grace: Duration::ZERO,
        ..Timeouts::default()
    };
    let (current, others) = block_on(async {
        let (mut watch, _) = follow(answer, timeouts);
        let (mut current, mut lists) = (0, 0);
        while current < 4 {
            match watch.next().await {
                Update::Current => current += 1,
                Update::Event(Event::InitDone) => lists += 1,
                Update::Failed(failure) => panic!("{failure}"),
                Update::Event(_) => {}
            }
        }
        (current, lists)
    })
    .unwrap();
    assert_eq!((current, others), (4, 1), "opened again, listed once");
}

#[test]
fn a_watch_that_is_cut_goes_on_where_it_ended() {
    let versions = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&versions);
    let answer = move |query: &Parameters| {
        if !query.contains_key("watch") {
            return list(&[pod("a", 1)], None);
        }
        let mut versions = versions.lock().unwrap();
        versions.push(query["resourceVersion"].clone());
        let event = line("MODIFIED", &pod("a", 10 + versions.len()));
        // The last piece is half a line.
        cut(event.clone() + &event[..event.len() / 2])
    };
    block_on(async {
        let (mut watch, _) = follow(answer, Timeouts::default());
        let mut events = 0;
        while events < 3 {
            match watch.next().await {
                Update::Event(Event::Apply(_)) => events += 1,
                Update::Failed(failure) => panic!("{failure}"),
                Update::Event(_) | Update::Current => {}
            }
        }
    })
    .unwrap();
    assert_eq!(seen.lock().unwrap()[..3], ["7", "11", "12"]);
}

#[test]
fn a_request_that_fails_is_a_problem_until_a_watch_is_open() {
    let watches = Arc::new(AtomicUsize::new(0));
    let answer = move |query: &Parameters| {
        if !query.contains_key("watch") {
            return list(&[], None);
        }
        match watches.fetch_add(1, Ordering::Relaxed) {
            0 => StatusCode::FORBIDDEN.into_response(),
            _ => silent(String::new()),
        }
    };
    let seen = block_on(async {
        let (mut watch, _) = follow(answer, Timeouts::default());
        let mut seen = Vec::new();
        loop {
            match watch.next().await {
                Update::Event(_) => {}
                Update::Failed(failure) => seen.push(failure.code()),
                Update::Current => return seen,
            }
        }
    });
    assert_eq!(seen.unwrap(), [403]);
}

#[test]
fn an_answer_that_is_no_list_is_a_problem_and_no_empty_list() {
    for answer in [
        json!({}),
        json!({"kind": "Status", "metadata": {}, "status": "Success"}),
        json!({"kind": "PodList", "metadata": {"resourceVersion": "7"}}),
        json!({"kind": "PodList", "metadata": {}, "items": []}),
    ] {
        let text = answer.to_string();
        let failure = block_on(async {
            let (mut watch, _) = follow(
                move |_| Json(answer.clone()).into_response(),
                Timeouts::default(),
            );
            loop {
                match watch.next().await {
                    Update::Event(Event::Init) => {}
                    Update::Failed(failure) => return failure,
                    other => panic!("{other:?}"),
                }
            }
        });
        assert!(matches!(failure, Ok(Failure::Malformed(_))), "{text}");
    }
}

#[test]
fn an_error_without_an_end_is_a_problem() {
    let answer = |query: &Parameters| match query.contains_key("watch") {
        true => (StatusCode::SERVICE_UNAVAILABLE, silent(String::new())).into_response(),
        false => list(&[], None),
    };
    let timeouts = Timeouts {
        list: Duration::from_millis(200),
        ..Timeouts::default()
    };
    let code = block_on(async {
        let (mut watch, _) = follow(answer, timeouts);
        loop {
            match watch.next().await {
                Update::Event(_) => {}
                Update::Failed(failure) => return failure.code(),
                Update::Current => panic!("the watch is not open"),
            }
        }
    });
    assert_eq!(code.unwrap(), 503);
}

#[test]
fn a_server_that_asks_for_time_gets_it() {
    let asked = Arc::new(AtomicUsize::new(0));
    let answer = move |query: &Parameters| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => (
            StatusCode::TOO_MANY_REQUESTS,
            [(header::RETRY_AFTER, "1")],
            "Too many requests",
        )
            .into_response(),
        _ if query.contains_key("watch") => silent(String::new()),
        _ => list(&[], None),
    };
    let began = Instant::now();
    block_on(async {
        let (mut watch, _) = follow(answer, Timeouts::default());
        while !matches!(watch.next().await, Update::Current) {}
    })
    .unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
}

/// Lists this many pods of a size each, in as many pages as it takes. Returns how many came, and where the last page began.
fn list_big(pods: usize, bytes: usize) -> (usize, usize) {
    let largest = Arc::new(AtomicUsize::new(0));
    let accepted = Arc::clone(&largest);
    let answer = move |query: &Parameters| {
        if query.contains_key("watch") {
            return silent(String::new());
        }
        let limit = query.get("limit");
        let limit = limit.map_or(usize::MAX / 2, |limit| limit.parse().unwrap());
        let start: usize = query.get("continue").map_or(0, |at| at.parse().unwrap());
        // What was asked for after this was accepted.
        largest.fetch_max(start, Ordering::Relaxed);
        let end = pods.min(start + limit);
        let filler = "x".repeat(bytes);
        let items = (start..end).map(|number| {
            let mut pod = pod(&number.to_string(), number);
            pod["metadata"]["annotations"] = json!({"filler": filler});
            pod
        });
        list(&items.collect::<Vec<_>>(), (end < pods).then_some(end))
    };
    let listed = block_on(async {
        let (mut watch, _) = follow(answer, Timeouts::default());
        let mut listed = 0;
        loop {
            match watch.next().await {
                Update::Event(Event::InitApply(_)) => listed += 1,
                Update::Event(Event::InitDone) => return listed,
                Update::Event(_) | Update::Current => {}
                Update::Failed(failure) => panic!("{failure}"),
            }
        }
    });
    (listed.unwrap(), accepted.load(Ordering::Relaxed))
}

#[test]
fn big_objects_come_in_small_pages() {
    let (listed, last_page) = list_big(40, MAX_PAGE_BYTES / 5);
    assert_eq!(listed, 40);
    assert!(last_page >= 36, "the last page began at {last_page}");
}

/// JSON may need six times the bytes that etcd stores.
#[test]
fn an_object_that_fills_a_page_comes_alone() {
    let (listed, last_page) = list_big(3, MAX_OBJECT_BYTES * 9 / 16);
    assert_eq!((listed, last_page), (3, 2));
}
