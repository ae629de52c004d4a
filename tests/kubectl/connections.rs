//! Who talks to whom, by what the agents of all nodes list.

use anyhow::{Result, ensure};
use lab::apiserver::exec::{Answer, End, Piece, Request};
use serde_json::{Value, json};

use crate::{
    fixture::{Agent, Cluster},
    rights::{documented, used},
};

/// Pods `shop/web-0` and `shop/web-1` on two nodes, `bank/api` on a third, and a service.
fn three() -> Result<Cluster> {
    let cluster = Cluster::new(&["node-1", "node-2", "node-3"])?;
    for (namespace, pod, node, ip) in [
        ("shop", "web-0", "node-1", "10.1.0.1"),
        ("shop", "web-1", "node-2", "10.1.0.2"),
        ("bank", "api", "node-3", "10.1.0.3"),
    ] {
        cluster.pod(namespace, pod, Some(node))?;
        let mut object = cluster.api.get("Pod", namespace, pod)?;
        object["metadata"]["labels"]["pod"] = pod.into();
        object["status"] = json!({"phase": "Running", "podIPs": [{"ip": ip}]});
        cluster.api.apply(object)?;
        cluster.agent(node, Agent::Hangs)?;
    }
    cluster.api.apply(json!({
        "kind": "Service", "metadata": {"name": "api", "namespace": "bank"},
        "spec": {"clusterIPs": ["10.96.0.1"]},
    }))?;
    cluster.api.on_exec(list);
    Ok(cluster)
}

/// Each agent has a connection of each pod, which is true of its own only.
fn list(request: &Request) -> Answer {
    let row = |pod: &str, to: &str, via: &str| {
        json!({
            "pod": pod, "peer": null, "direction": "outbound", "end": "connecting", "owner": "application",
            "state": "ESTAB", "via": via, "original_destination": to, "sent_bytes": 2048, "received_bytes": 1024,
        })
    };
    let listing = json!({
        "connections": [
            row("shop/web-0", "10.96.0.1:80", "sidecar"),
            row("shop/web-1", "10.1.0.3:8080", "sidecar"),
            row("bank/api", "192.0.2.1:5432", "direct"),
        ],
        "omitted": 0, "unread": [],
    });
    let asks = request.words.contains(&"connections".to_owned());
    let text = if asks {
        listing.to_string()
    } else {
        String::new()
    };
    Answer::Output(vec![Piece::Out(text.into_bytes())], End::Code(0))
}

#[test]
fn a_namespace_or_the_cluster_is_shown_as_one() -> Result<()> {
    let cluster = three()?;
    let ended = cluster.run(&["connections", "-n", "shop"])?;
    let lines: Vec<Vec<&str>> = ended
        .out
        .lines()
        .map(|it| it.split_whitespace().collect())
        .collect();
    ensure!(
        lines
            == [
                vec![
                    "POD",
                    "DESTINATION",
                    "PORT",
                    "VIA",
                    "CONNECTIONS",
                    "SENT",
                    "RECEIVED"
                ],
                vec![
                    "shop/web-0",
                    "service",
                    "bank/api",
                    "80",
                    "sidecar",
                    "1",
                    "2.0",
                    "KiB",
                    "1.0",
                    "KiB"
                ],
                vec![
                    "shop/web-1",
                    "pod",
                    "bank/api",
                    "8080",
                    "sidecar",
                    "1",
                    "2.0",
                    "KiB",
                    "1.0",
                    "KiB"
                ],
            ],
        "{ended:?}"
    );
    ensure!(ended.code == 0, "{ended:?}");
    // The third node has no pod of the namespace.
    ensure!(
        cluster
            .asked()
            .iter()
            .all(|it| it.pod != "sidetrack-node-3")
    );

    let all: Value = serde_json::from_str(&cluster.run(&["connections", "-A", "-o", "json"])?.out)?;
    ensure!(all["talks"].as_array().map(Vec::len) == Some(3), "{all}");
    ensure!(
        all["talks"][0]["via"] == "direct" && all["talks"][0]["pod"] == "bank/api",
        "{all}"
    );
    let one: Value = serde_json::from_str(
        &cluster
            .run(&["connections", "-A", "-l", "pod=web-1", "-o", "json"])?
            .out,
    )?;
    ensure!(one["talks"].as_array().map(Vec::len) == Some(1), "{one}");
    let graph = cluster.run(&["connections", "-A", "--dot"])?.out;
    ensure!(graph.starts_with("digraph connections {"), "{graph}");
    ensure!(
        graph.contains("\"pod bank/api\" -> \"192.0.2.1:5432\" [label=\"1\", style=dashed];"),
        "{graph}"
    );
    let missing: Vec<_> = used(&cluster)
        .difference(&documented(1)?)
        .cloned()
        .collect();
    ensure!(missing.is_empty(), "not documented: {missing:?}");
    Ok(())
}

#[test]
fn a_node_that_does_not_answer_is_named() -> Result<()> {
    let cluster = three()?;
    cluster.api.on_exec(|request| match request.pod.as_str() {
        "sidetrack-node-2" => Answer::Output(Vec::new(), End::Code(1)),
        _ => list(request),
    });
    let ended = cluster.run(&["connections", "-n", "shop"])?;
    ensure!(
        ended.code == 1 && ended.errors.contains("node node-2"),
        "{ended:?}"
    );
    ensure!(ended.out.contains("shop/web-0"), "{ended:?}");
    for wrong in [
        &["connections", "-A", "shop/web-0"][..],
        &["connections", "--dot", "shop/web-0"],
        &["connections", "--dot", "-o", "json"],
        &["connections", "-A", "-n", "shop"],
    ] {
        ensure!(cluster.run(wrong)?.code == 2, "{wrong:?}");
    }
    let none = cluster.run(&["connections", "-n", "nowhere"])?;
    ensure!(
        none.code == 1 && none.errors.contains("there is no namespace nowhere"),
        "{none:?}"
    );
    Ok(())
}
