use std::collections::BTreeMap;

use serde_json::{Value, json};
use sidetrack_policy::facts::PodFacts;

use super::{Scope, rows};
use crate::{ask::Answers, pods::Known};

fn pod(name: &str, node: &str) -> PodFacts {
    let pod = json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"sidetrack.dev/interception": "enabled"}},
        "spec": {"nodeName": node, "containers": [{"name": "app"}, {"name": "istio-proxy"}]},
    });
    serde_json::from_value(pod).expect("a pod")
}

fn answer(pods: &[(&str, &str)]) -> Vec<Known> {
    let pods = pods
        .iter()
        .map(|(name, state)| json!({"namespace": "shop", "name": name, "state": state}));
    serde_json::from_value(Value::Array(pods.collect())).expect("an answer")
}

/// It says that another node's pod is enrolled, and that its own is not.
#[test]
fn a_nodes_word_counts_for_its_own_pods() {
    let pods = [pod("victim", "good"), pod("own", "hostile")];
    let answers: Answers<Vec<Known>> = BTreeMap::from([
        ("good".to_owned(), Ok(answer(&[("victim", "rejected")]))),
        (
            "hostile".to_owned(),
            Ok(answer(&[
                ("victim", "enrolled"),
                ("own", "waiting"),
                ("gone", "enrolled"),
            ])),
        ),
    ]);
    let rows = rows(
        &pods,
        &BTreeMap::new(),
        &BTreeMap::new(),
        &answers,
        &Scope::All,
    );
    let shown: Vec<_> = rows
        .iter()
        .map(|row| {
            (
                &*row.name,
                row.node.as_deref().unwrap_or_default(),
                &*row.state,
            )
        })
        .collect();
    let expected = [
        ("gone", "hostile", "enrolled"),
        ("own", "hostile", "waiting"),
        ("victim", "good", "rejected"),
    ];
    assert_eq!(shown, expected);
}
