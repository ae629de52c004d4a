use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use sidetrack_policy::facts::PodFacts;

use super::{Listing, Names, dot, talks};

fn names() -> Names {
    let pod = |name: &str, ip: &str, phase: &str, host: bool| -> PodFacts {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"containers": [], "hostNetwork": host},
            "status": {"phase": phase, "podIPs": [{"ip": ip}, {"ip": format!("fd00::{}", ip.len())}]},
        }))
        .expect("a pod")
    };
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "api", "namespace": "bank"},
        "spec": {"clusterIPs": ["10.96.0.1", "fd96::1", "None"]},
    }))
    .expect("a service");
    let pods = [
        pod("web", "10.1.0.7", "Running", false),
        pod("old", "10.1.0.8", "Succeeded", false),
        pod("proxy", "10.0.0.1", "Running", true),
    ];
    Names::of(&pods, &[service])
}

fn row(pod: &str, to: &str, fields: Value) -> Value {
    let mut row = json!({
        "pod": pod, "direction": "outbound", "end": "connecting", "owner": "application", "via": "sidecar",
        "original_destination": to, "sent_bytes": 10, "received_bytes": 20, "peer": null,
    });
    for (field, value) in fields.as_object().expect("an object") {
        row[field] = value.clone();
    }
    row
}

#[test]
fn addresses_have_names() {
    let names = names();
    for (address, expected) in [
        ("10.1.0.7", "pod shop/web"),
        ("::ffff:10.1.0.7", "pod shop/web"),
        ("fd96::1", "service bank/api"),
        ("10.96.0.1", "service bank/api"),
        // Of a pod that has ended, of a node.
        ("10.1.0.8", "10.1.0.8"),
        ("10.0.0.1", "10.0.0.1"),
    ] {
        assert_eq!(names.name(address.parse().expect(address)), expected);
    }
}

#[test]
fn connections_of_applications_add_up() {
    let listing = |rows: Vec<Value>| -> Result<Listing, String> {
        let listing = json!({"connections": rows, "omitted": 0, "unread": []});
        Ok(serde_json::from_value(listing).expect("an answer"))
    };
    let api = "10.96.0.1:80";
    let answers = BTreeMap::from([
        (
            "node-1".to_owned(),
            listing(vec![
                row("shop/a", api, json!({})),
                row("shop/a", api, json!({"sent_bytes": null})),
                row("shop/a", "192.0.2.1:443", json!({"via": "direct"})),
                // The sidecar's, the other end, of a pod of another node, of one that the API server does not have.
                row("shop/a", api, json!({"owner": "sidecar"})),
                row("shop/a", api, json!({"direction": "inbound"})),
                row("shop/a", api, json!({"end": "accepted"})),
                row(
                    "shop/a",
                    api,
                    json!({"direction": "unknown", "end": "unknown", "via": "unknown", "original_destination": null}),
                ),
                row("shop/b", api, json!({})),
                row("shop/\u{1b}[2J", api, json!({})),
            ]),
        ),
        (
            "node-2".to_owned(),
            listing(vec![row("shop/b", api, json!({}))]),
        ),
        ("node-3".to_owned(), Err("no answer".to_owned())),
    ]);
    let node_of = HashMap::from([
        ("shop/a".to_owned(), "node-1"),
        ("shop/b".to_owned(), "node-2"),
    ]);
    let silent = vec!["node node-3: no answer".to_owned()];
    let talks = talks(answers, silent.clone(), &node_of, &names());
    assert_eq!(talks.problems, silent);
    assert_eq!((talks.unknown, talks.incomplete.len()), (1, 0));
    assert_eq!(
        serde_json::to_value(&talks.talks).expect("JSON"),
        json!([
            {"pod": "shop/a", "destination": "192.0.2.1", "port": 443, "via": "direct", "connections": 1, "sent_bytes": 10, "received_bytes": 20},
            {"pod": "shop/a", "destination": "service bank/api", "port": 80, "via": "sidecar", "connections": 2, "sent_bytes": 10, "received_bytes": 40},
            {"pod": "shop/b", "destination": "service bank/api", "port": 80, "via": "sidecar", "connections": 1, "sent_bytes": 10, "received_bytes": 20},
        ])
    );
    assert_eq!(
        dot(&talks.talks),
        "digraph connections {\n  \
         \"pod shop/a\" -> \"192.0.2.1:443\" [label=\"1\", style=dashed];\n  \
         \"pod shop/a\" -> \"service bank/api:80\" [label=\"2\"];\n  \
         \"pod shop/b\" -> \"service bank/api:80\" [label=\"1\"];\n}"
    );
}
