//! What hostile clients of the webhook do. Connections that the webhook drops are opened again.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::sleep,
};

use super::{
    certificates::NAME,
    client::{Client, post},
};
use crate::{attack::Attack, product::ISTIO_INIT_ANNOTATION};

/// TLS connections that say nothing more.
pub fn idle_tls(client: Client, connections: usize) -> Attack {
    let client = keep(client);
    Attack::start(connections, move |effects| async move {
        let mut stream = client.dial_tls().await?;
        effects.count();
        stream.read_u8().await?;
        Ok(())
    })
}

/// Heads that do not end, of so many bytes.
pub fn unfinished_heads(client: Client, connections: usize, bytes: usize) -> Attack {
    let client = keep(client);
    Attack::start(connections, move |effects| async move {
        let mut stream = client.dial_tls().await?;
        effects.count();
        let head = format!(
            "POST /mutate HTTP/1.1\r\nhost: {NAME}\r\nx: {}",
            "x".repeat(bytes)
        );
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        stream.read_u8().await?;
        Ok(())
    })
}

/// Bodies that do not end: all but the last of so many bytes.
pub fn unfinished_bodies(client: Client, connections: usize, bytes: usize) -> Attack {
    let client = keep(client);
    Attack::start(connections, move |effects| async move {
        let mut stream = client.dial_tls().await?;
        effects.count();
        let head = format!(
            "POST /mutate HTTP/1.1\r\nhost: {NAME}\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&vec![b' '; bytes - 1]).await?;
        stream.flush().await?;
        stream.read_u8().await?;
        Ok(())
    })
}

/// Requests whose answers are never read.
pub fn unread_answers(client: Client, connections: usize, body: Vec<u8>) -> Attack {
    let (client, body) = (keep(client), &*Vec::leak(body));
    Attack::start(connections, move |effects| async move {
        let mut stream = client.dial_tls().await?;
        effects.count();
        let head = format!(
            "POST /mutate HTTP/1.1\r\nhost: {NAME}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        for _ in 0..8 {
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body).await?;
        }
        sleep(Duration::from_secs(30)).await;
        Ok(())
    })
}

/// Requests, one after the other in each connection.
pub fn requests(client: Client, connections: usize, body: Vec<u8>) -> Attack {
    let (client, body) = (keep(client), &*Vec::leak(body));
    Attack::start(connections, move |effects| async move {
        let mut connection = client.connect().await?;
        loop {
            connection.send(post("/mutate", body)?).await?;
            effects.count();
        }
    })
}

/// An attack's thread may outlive what started it by a moment; a test has few.
fn keep(client: Client) -> &'static Client {
    Box::leak(Box::new(client))
}

/// Bodies that are expensive to read or to answer, by name.
pub fn expensive_bodies() -> Vec<(&'static str, Vec<u8>)> {
    let create = |pod: Value| review("CREATE", Value::Null, pod);
    let named = |count: usize| -> Vec<Value> {
        (0..count)
            .map(|number| json!({"name": format!("n{number}")}))
            .collect()
    };
    let mut many_old = named(17_000);
    let mut many_new = many_old.clone();
    many_old.push(json!({"name": "sidetrack-validation"}));
    many_new.push(json!({"name": "istio-init"}));
    let mut copied = vec![json!({"name": "a"}); 2500];
    copied.push(json!({"name": "sidetrack-validation"}));
    let copy = json!([{"name": "istio-init"}, {"name": "a", "image": "x".repeat(52_000)}]);
    let long_name = |number: usize| {
        let name = format!("traffic.sidecar.istio.io/{number}{}", "x".repeat(900_000));
        (name, Value::from(""))
    };
    let long_names = Value::Object((0..3).map(long_name).collect());
    let mut short_names = injected(json!({"name": "istio-init"}));
    short_names["metadata"]["annotations"] = (0..50_000)
        .map(|number| (format!("{number:x}"), Value::from("")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let mut long = injected(json!({"name": "istio-init"}));
    long["metadata"]["annotations"] = long_names;
    let env = vec![json!({"name": "ISTIO_A", "value": "1"}); 19_000];
    let ranges: Vec<String> = (0..10_000)
        .map(|number| format!("10.{}.{}.0/24", number / 256, number % 256))
        .collect();
    let ranges = ranges.join(",");
    let update = |old: Vec<Value>, new: Value| {
        let mut old = injected_list(old.into());
        old["metadata"]["annotations"] = json!({ISTIO_INIT_ANNOTATION: "{}"});
        review("UPDATE", old, injected_list(new))
    };
    vec![
        (
            "17,000 names in both pods of an update",
            update(many_old, many_new.into()),
        ),
        (
            "one container for 2,500 of the same name",
            update(copied, copy),
        ),
        ("three annotations with names of 900 KB", create(long)),
        ("50,000 annotations", create(short_names)),
        (
            "19,000 variables",
            create(injected(json!({"name": "istio-init", "env": env}))),
        ),
        (
            "700,000 words",
            create(injected(
                json!({"name": "istio-init", "args": vec![""; 700_000]}),
            )),
        ),
        (
            "10,000 ranges",
            create(injected(
                json!({"name": "istio-init", "args": ["-x", ranges]}),
            )),
        ),
        (
            "a list of lists",
            format!("{{\"a\":{}", "[".repeat(3_000_000)).into_bytes(),
        ),
        (
            "a million empty containers",
            String::from_utf8(create(injected(json!({"name": "istio-init"}))))
                .unwrap_or_default()
                .replacen(
                    "\"containers\":[",
                    &format!("\"containers\":[{}", "[],".repeat(900_000)),
                    1,
                )
                .into_bytes(),
        ),
    ]
}

/// A pod with a sidecar that opted in.
fn injected(init: Value) -> Value {
    injected_list(json!([init]))
}

fn injected_list(init: Value) -> Value {
    json!({
        "metadata": {"name": "web", "labels": {"sidetrack.dev/interception": "enabled"}},
        "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}], "initContainers": init},
    })
}

fn review(operation: &str, old: Value, object: Value) -> Vec<u8> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": operation,
            "namespace": "shop",
            "oldObject": old,
            "object": object,
        },
    });
    review.to_string().into_bytes()
}
